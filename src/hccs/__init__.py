"""Integer-native attention: head-calibrated clipped-linear softmax (HCCS)."""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
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
    from hccs.text.answers import Classifier, Reranker, Tagger
    from hccs.text.encoder import Encoder
    from hccs.text.generator import Generator

__all__ = [
    "Classifier",
    "Encoder",
    "FixedPoint",
    "Generator",
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

_ROOMS = (
    "backends",
    "calibration",
    "conversion",
    "corpus",
    "errors",
    "export",
    "nn",
    "numbers",
    "ops",
    "program",
    "reference",
    "serving",
    "text",
)
_HOMES = {
    "Classifier": "hccs.text.answers",
    "Encoder": "hccs.text.encoder",
    "FixedPoint": "hccs.numbers.requant",
    "Generator": "hccs.text.generator",
    "HccsError": "hccs.errors",
    "HeadParams": "hccs.numbers.heads",
    "IntegerModel": "hccs.program.model",
    "Mode": "hccs.numbers.modes",
    "ParamTable": "hccs.numbers.table",
    "Region": "hccs.numbers.region",
    "Requant": "hccs.numbers.requant",
    "Reranker": "hccs.text.answers",
    "Tagger": "hccs.text.answers",
    "attention": "hccs.ops.attention",
    "calibrate": "hccs.calibration.searching",
    "convert": "hccs.conversion.calling",
    "softmax": "hccs.ops.softmax",
}


def __getattr__(name: str) -> _Any:
    """Names are imported when they are first used, so that a command starts, and can be stopped, at once."""
    if name in _ROOMS:
        return _importlib.import_module(f"hccs.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'hccs' has no attribute {name!r}")
    globals()[name] = value = getattr(_importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, *_HOMES, "__version__"})
