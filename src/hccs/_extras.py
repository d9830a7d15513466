"""Optional packages: imported when they are needed; a missing one is refused with how to install it."""

from __future__ import annotations

import importlib
import re
from typing import Any

from hccs.errors import MissingExtraError


def how_to_install(extra: str) -> str:
    """The commands that bring an extra: from an index, and in a checkout."""
    return f"pip install 'hccs[{extra}]', or in a checkout pip install '.[{extra}]'."


def require(package: str, extra: str, purpose: str = "") -> Any:
    """Import an optional package, or say which extra of hccs brings it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        what = f"{package.split('.')[0]} {purpose}".rstrip()
        raise MissingExtraError(what, f"no module {error.name}", how_to_install(extra)) from error


DISTRIBUTIONS = {"hccs_aie": ("hccs-aie", "./aie"), "hccs_lab": ("hccs-lab", "./lab")}
"""Packages of this project that are installed apart: their names on an index, and their folders."""


TRITON = (3, 6), (3, 9)
"""The first and the last Triton that the kernels were tried with: what `hccs[cuda]` asks for, and what
`make triton-versions` tries again. With others they run, but for those in Gluon, by its public interface."""


def triton_range() -> str:
    (first, last) = (".".join(map(str, version)) for version in TRITON)
    return f"Triton {first} to {last}"


def is_tried_triton(version: str) -> bool:
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and TRITON[0] <= (int(found[1]), int(found[2])) <= TRITON[1]


def require_distribution(module: str, purpose: str) -> Any:
    """Import a module of the laboratory or of the AI Engine's package, or say how to install it."""
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        name, folder = DISTRIBUTIONS[package]
        raise MissingExtraError(
            f"{name} for {purpose}",
            f"no module {package}",
            f"pip install {name}, or in a checkout pip install {folder}.",
        ) from error
