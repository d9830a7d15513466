"""Figures that belong to no window and appear whole or not at all: every matplotlib of the package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hccs._extras import require
from hccs._files.atomic import replacing


def new(width: float, height: float) -> Any:
    """An empty matplotlib figure; sizes in inches."""
    module = require("matplotlib.figure", "hf", "for figures")
    return module.Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure, its format by the path's suffix; an old file is replaced only by a complete one."""
    target = Path(path)
    with replacing(target) as file:
        figure.savefig(file, format=target.suffix[1:] or "png", dpi=130)
    return target
