"""Integer-native attention: head-calibrated clipped-linear softmax (HCCS)."""

import importlib as _importlib
from typing import Any as _Any

from hccs.calibration.searching import calibrate
from hccs.errors import HccsError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.region import Region
from hccs.numbers.requant import FixedPoint, Requant
from hccs.numbers.table import ParamTable
from hccs.ops.attention import attention
from hccs.ops.softmax import softmax
from hccs.program.model import IntegerModel

__all__ = [
    "FixedPoint",
    "HccsError",
    "HeadParams",
    "IntegerModel",
    "Mode",
    "ParamTable",
    "Region",
    "Requant",
    "attention",
    "calibrate",
    "softmax",
]
__version__ = "0.1.0"

_ROOMS = (
    "backends",
    "calibration",
    "export",
    "nn",
    "ops",
    "conversion",
    "program",
    "reference",
)


def __getattr__(name: str) -> _Any:
    """Rooms that need more than NumPy are imported when they are first named: `hccs.nn.attach`."""
    if name in _ROOMS:
        return _importlib.import_module(f"hccs.{name}")
    if name == "convert":
        return _importlib.import_module("hccs.conversion.calling").convert
    raise AttributeError(f"module 'hccs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "convert", "__version__"])
