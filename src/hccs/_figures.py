"""Figures that belong to no window and appear whole or not at all: every matplotlib of the package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hccs._extras import require


def new(width: float, height: float) -> Any:
    """An empty matplotlib figure of so many inches."""
    module = require("matplotlib.figure", "report", "for figures")
    return module.Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure, its format by the path's suffix; an old file is replaced only by a complete one."""
    target = Path(path)
    # matplotlib chooses the format by suffix, so the temporary name keeps it.
    temporary = target.with_name(f".{target.stem}.partial{target.suffix or '.png'}")
    try:
        figure.savefig(temporary, dpi=130)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target
