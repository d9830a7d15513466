"""A page in headless Chromium, by ChromeDriver's own protocol: no package is needed."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip


def missing() -> list[str]:
    """The programs of Debian's packages chromium and chromium-driver that are not installed."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def log_message(self, *given: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of a folder that is served on this machine, and the list of paths that were asked for."""
    asked: list[str] = []
    handler = type("Handler", (_Quiet,), {"asked": asked})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(folder))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", asked
        server.shutdown()


class Browser:
    """A window of Chromium."""

    def __init__(self, address: str, session: str) -> None:
        self._base = f"{address}/session/{session}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return _asked(method, f"{self._base}/{path}", body)

    def open(self, url: str) -> None:
        self._ask("POST", "url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of an asynchronous function's body."""
        wrapped = (
            "const done = arguments[arguments.length - 1]; (async (...given) => {"
            + script
            + "})(...arguments)"
            ".then((value) => done({value}), (error) => done({error: String(error?.stack ?? error)}));"
        )
        found = self._ask("POST", "execute/async", {"script": wrapped, "args": list(arguments)})
        if "error" in found:
            raise RuntimeError(found["error"])
        return found.get("value")

    def wait_for(self, expression: str, seconds: float = 300) -> Any:
        """The value of an expression once it is true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := self.run(f"return {expression};"):
                return value
            time.sleep(0.05)
        raise TimeoutError(f"{expression} never was true")

    def log(self) -> list[str]:
        """Errors that the console and the network told."""
        found: list[dict[str, str]] = self._ask("POST", "se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] == "SEVERE"]

    def size(self, width: int, height: int) -> None:
        self._ask("POST", "window/rect", {"width": width, "height": height})

    def screenshot(self) -> bytes:
        return base64.b64decode(self._ask("GET", "screenshot"))


def _asked(method: str, url: str, body: Any = None) -> Any:
    data = None if method != "POST" else json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=900) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(error.read().decode()[:500]) from error


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A new Chromium without a window, with an empty profile."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as profile:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(200):
                try:
                    _asked("GET", f"{address}/status")
                    break
                except OSError:
                    time.sleep(0.05)
            options = {
                "args": [*FLAGS, *flags, f"--user-data-dir={profile}"],
                "binary": shutil.which("chromium"),
            }
            wanted = {
                "goog:chromeOptions": options,
                "timeouts": {"script": 900_000},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            session = _asked("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})[
                "sessionId"
            ]
            try:
                yield Browser(address, session)
            finally:
                _asked("DELETE", f"{address}/session/{session}")
        finally:
            driver.terminate()
            driver.wait()
