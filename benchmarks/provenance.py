"""Writes what a benchmark found, with where, when and by which code it was found."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "hccs": "hccs",
    "numpy": "numpy",
    "torch": "torch",
    "torchao": "torchao",
    "triton": "triton",
    "transformers": "transformers",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "nncf": "nncf",
    "ai_edge_litert": "ai-edge-litert",
    "ctranslate2": "ctranslate2",
    "fastembed": "fastembed",
    "tokenizers": "tokenizers",
    "xllamacpp": "xllamacpp",
}
"""Modules whose version matters where they are imported, and their distributions."""


def _without_folders(argument: str) -> str:
    """Of a path outside the repository, its name: the folders are of one machine."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def provenance() -> dict[str, Any]:
    """Commit, date, command, machine and versions, for a file in docs/results."""
    found: dict[str, Any] = {
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "recorded": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "command": " ".join([Path(sys.argv[0]).name, *map(_without_folders, sys.argv[1:])]),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version(), **_versions()},
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def write_json(path: Path, found: dict[str, Any]) -> None:
    """`found` and its provenance as a file; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"provenance": provenance(), **found}, indent=1) + "\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    found = {}
    for module, distribution in PACKAGES.items():
        if module in sys.modules:
            try:
                found[distribution] = version(distribution)
            except PackageNotFoundError:
                found[distribution] = str(getattr(sys.modules[module], "__version__", "unknown"))
    return found


def _cpu() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        described = ""
    return cpu_named(described) or platform.processor() or platform.machine()


def cpu_named(described: str) -> str:
    """A processor's name and numbers from the text of /proc/cpuinfo: machines of one name differ by twice."""
    lines = (line.partition(":") for line in described.partition("\n\n")[0].splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    numbers = ("cpu family", "model", "CPU implementer", "CPU part")
    known = ", ".join(f"{name} {fields[name]}" for name in numbers if name in fields)
    return " ".join(part for part in (fields.get("model name", ""), known and f"({known})") if part)


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
