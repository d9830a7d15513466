"""The page in a browser: headless Chromium, driven by chromedriver in the protocol that it speaks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.servers import httpx, serving  # skips where packages are missing
from tests.text.models import scorer, wide_embedder, with_texts

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or shutil.which("chromedriver") is None,
    reason="no Chromium with chromedriver; on Debian: apt install chromium chromium-driver",
)


class Browser:
    """A session of WebDriver."""

    def __init__(self, port: int, folder: str) -> None:
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder}",
        ]
        wanted = {"goog:chromeOptions": {"binary": CHROMIUM, "args": arguments}}
        wanted["goog:loggingPrefs"] = {"browser": "ALL"}
        self.url = f"http://127.0.0.1:{port}/session"
        answer = httpx.post(self.url, json={"capabilities": {"alwaysMatch": wanted}}, timeout=120)
        if answer.status_code != 200:
            pytest.skip(f"chromedriver does not start {CHROMIUM}: {answer.json()['value']['message'][:200]}")
        self.url += "/" + answer.json()["value"]["sessionId"]

    def post(self, path: str, body: Any) -> Any:
        answer = httpx.post(self.url + path, json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]

    def script(self, source: str) -> Any:
        return self.post("/execute/sync", {"script": source, "args": []})

    def until(self, condition: str) -> None:
        deadline = time.monotonic() + 60
        while not self.script(f"return {condition}"):
            assert time.monotonic() < deadline, f"never: {condition}; the page says {self.text('body')!r}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.script(f"return document.querySelector('{selector}').innerText"))

    def fill(self, selector: str, value: str) -> None:
        self.script(f"document.querySelector('{selector}').value = `{value}`")

    def faults(self) -> list[str]:
        entries = self.post("/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if "favicon" not in entry["message"]]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("chromium")
    environment = {**os.environ, "HOME": str(folder)}
    process = subprocess.Popen(
        ["chromedriver", f"--port={port}", "--silent"], stdout=subprocess.DEVNULL, env=environment
    )
    try:
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/status")
                break
            except httpx.ConnectError:
                assert process.poll() is None
                time.sleep(0.05)
        found = Browser(port, str(folder / "profile"))
        yield found
        httpx.delete(found.url, timeout=60)
    finally:
        process.terminate()
        process.wait()


def run(browser: Browser) -> None:
    browser.script("document.querySelector('#time').textContent = ''; document.querySelector('#go').click()")
    browser.until(
        "document.querySelector('#time').textContent !== '' || !document.querySelector('#error').hidden"
    )


def test_texts_in_and_similarities_out(browser, tmp_path):
    model = wide_embedder()
    with serving(model, tmp_path) as server:
        browser.post("/url", {"url": server.url})
        browser.until("document.querySelector('#name').textContent === 'small'")
        assert model.fingerprint() in browser.text("#about")
        browser.fill("#texts", "the cat sat\\n<b>a b c</b>\\nthe cat sat")
        browser.fill("#query", "the cat sat")
        run(browser)
        assert "ms in the model" in browser.text("#time")
        cells = browser.script("return [...document.querySelectorAll('#matrix td')].map(c => +c.innerText)")
        assert len(cells) == 9 and cells[0] == cells[2] == cells[4] == 1 and cells[1] == cells[3] < 1
        ranks = browser.script("return [...document.querySelectorAll('#ranks li')].map(c => c.innerText)")
        assert "the cat sat" in ranks[0] and "<b>a b c</b>" in ranks[2] and "1.000" in ranks[0]
        assert browser.script("return document.querySelectorAll('#ranks b').length") == 0
        browser.fill("#texts", "")
        browser.fill("#query", "x".join([""] * 250_000))
        run(browser)
        assert "characters" in browser.text("#error")
        assert [line for line in browser.faults() if "413" not in line] == []


def test_a_key_is_asked_for(browser, tmp_path):
    with serving(wide_embedder(), tmp_path, "--api-key", "secret") as server:
        browser.post("/url", {"url": server.url})
        browser.until("document.querySelector('#name').textContent === 'small'")
        run(browser)
        assert "Bearer" in browser.text("#error")
        assert browser.script("return !document.querySelector('#key-row').hidden")
        browser.fill("#key", "secret")
        run(browser)
        assert browser.script("return document.querySelectorAll('#matrix td').length") == 25
        assert len(browser.faults()) == 1  # the answer without the key


@pytest.mark.parametrize(("kind", "labels"), [("rerank", ("one",)), ("classify", ("bad", "good"))])
def test_rankings_and_labels(browser, tmp_path, kind, labels):
    with serving(with_texts(scorer(labels), kind), tmp_path) as server:
        browser.post("/url", {"url": server.url})
        browser.until("document.querySelector('#name').textContent === 'small'")
        run(browser)
        ranks = browser.script("return [...document.querySelectorAll('#ranks li')].map(c => c.innerText)")
        assert len(ranks) == 5 and (kind == "rerank" or "bad" in ranks[0] or "good" in ranks[0])
        assert browser.script("return document.querySelector('#matrix-part').hidden")
        assert browser.faults() == []
