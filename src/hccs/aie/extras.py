"""Optional packages: asked for only when needed, with a word on how to get them."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from hccs.errors import HccsError


class ExtraMissingError(HccsError, ImportError):
    """An optional package that this command needs is not installed."""


def require(package: str, install: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        missing = f"it is not installed ({error.name} was not found)"
        raise ExtraMissingError(f"the {package} package", missing, f"Install it: {install}") from error


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure that belongs to no window."""
    module = require("matplotlib.figure", "pip install 'hccs[report]'")
    return module.Figure(figsize=(width, height), layout="constrained")


def save_png(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure; an old file is replaced only by a complete one."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.partial")
    figure.savefig(temporary, format="png", dpi=150)
    os.replace(temporary, target)
    return target
