"""Integer-native attention: head-calibrated clipped-linear softmax (HCCS)."""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from hccs.errors import HccsError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.region import Region
from hccs.numbers.requant import FixedPoint, Requant
from hccs.numbers.table import ParamTable
from hccs.ops.attention import attention
from hccs.ops.softmax import softmax
from hccs.program.model import IntegerModel

if _TYPE_CHECKING:
    from hccs.calibration.searching import calibrate
    from hccs.text.answers import Classifier, Reranker, Tagger
    from hccs.text.encoder import Encoder

__all__ = [
    "Classifier",
    "Encoder",
    "FixedPoint",
    "HccsError",
    "HeadParams",
    "IntegerModel",
    "Mode",
    "ParamTable",
    "Region",
    "Requant",
    "Reranker",
    "Tagger",
    "attention",
    "calibrate",
    "softmax",
]
__version__ = "0.1.0"

_ROOMS = ("backends", "calibration", "conversion", "export", "nn", "ops", "program", "reference", "text")
_LAZY = {
    "Classifier": "hccs.text.answers",
    "Encoder": "hccs.text.encoder",
    "Reranker": "hccs.text.answers",
    "Tagger": "hccs.text.answers",
    "calibrate": "hccs.calibration.searching",
    "convert": "hccs.conversion.calling",
}


def __getattr__(name: str) -> _Any:
    """What needs more than NumPy, compiled modules included, is imported when it is first named."""
    if name in _ROOMS:
        return _importlib.import_module(f"hccs.{name}")
    if name in _LAZY:
        return getattr(_importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'hccs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, *_LAZY, "__version__"})
