"""Servers of their own process around small models, as `hccs serve` starts them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

for package in ("starlette", "uvicorn", "orjson", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'hccs[serve]' httpx")

import httpx

from hccs.program import IntegerModel


@dataclass(frozen=True)
class Served:
    """A server that runs: its process, its address, and the file of its model."""

    process: subprocess.Popen[str]
    url: str
    file: Path

    def post(self, path: str, json: object = None, **options: object) -> httpx.Response:
        return httpx.post(self.url + path, json=json, timeout=60, **options)


def started(file: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hccs.cli", "serve", str(file), "--port", "0", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def address(process: subprocess.Popen[str]) -> str:
    """Where it listens, once it does."""
    assert process.stdout is not None and process.stderr is not None
    for line in process.stdout:
        if " at http://" in line:
            return line.split(" at ")[1].split(",")[0]
    raise RuntimeError(process.stderr.read())


@contextmanager
def serving(model: IntegerModel, folder: Path, *options: str) -> Iterator[Served]:
    file = folder / "small.hccs"
    model.save(file)
    process = started(file, *options)
    try:
        yield Served(process, address(process), file)
    finally:
        process.kill()
        process.communicate()
