"""A headless Chromium, spoken to through its debugging pipe: pages are looked at as people see them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def executable() -> str | None:
    """The browser on this machine, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one tab; to be used by `with`."""

    def __init__(self, profile: Path) -> None:
        self._profile, self._number, self._session = profile, 0, None
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()

        def as_three_and_four() -> None:
            # What the browser reads from and writes to, under the numbers it expects.
            low, high = os.dup(commands), os.dup(answers)
            os.dup2(low, 3)
            os.dup2(high, 4)

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={self._profile}", "about:blank"]
        command = executable()
        assert command is not None
        self._process = subprocess.Popen(
            [command, *options],
            preexec_fn=as_three_and_four,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._read = os.fdopen(self._from, "rb")
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._session = None
            self._call("Browser.close")
        except (OSError, EOFError):
            pass  # it was faster than its answer
        self._process.wait()
        os.close(self._to)
        self._read.close()

    def _message(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            if not byte:
                raise EOFError("the browser has ended")
            data += byte
        message: dict[str, Any] = json.loads(data)
        return message

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            self._events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]  # type: ignore[no-any-return]

    def open(self, page: Path, width: int, height: int = 900, scheme: str = "light") -> None:
        """Load a file at a width, in a colour scheme."""
        self._events.clear()
        scale = {"deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, **scale)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._message())

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of scripts, styles and policies since the page was opened."""
        self.ask("0")  # events that are under way arrive before the answer
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(e["params"])[:400] for e in self._events if e.get("method") in kinds]

    @property
    def requests(self) -> list[str]:
        """What the page has asked for, itself apart."""
        sent = [e["params"] for e in self._events if e.get("method") == "Network.requestWillBeSent"]
        return [s["request"]["url"] for s in sent if s["request"]["url"] != s["documentURL"]]

    def picture(self, path: Path, whole: bool = True) -> None:
        """A screenshot as PNG."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
