"""Integer-native attention: head-calibrated clipped-linear softmax (HCCS)."""

from hccs.calibration import calibrate
from hccs.errors import HccsError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.region import Region
from hccs.numbers.requant import FixedPoint, Requant
from hccs.numbers.table import ParamTable
from hccs.ops.attention import attention
from hccs.ops.softmax import softmax

__all__ = [
    "FixedPoint",
    "HccsError",
    "HeadParams",
    "Mode",
    "ParamTable",
    "Region",
    "Requant",
    "attention",
    "calibrate",
    "softmax",
]
__version__ = "0.1.0"
