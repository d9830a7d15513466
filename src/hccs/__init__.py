"""Integer-native attention: head-calibrated clipped-linear softmax (HCCS)."""

from hccs.calibration import calibrate
from hccs.errors import HccsError
from hccs.kernels import attention, softmax
from hccs.requant import FixedPoint, Requant
from hccs.spec import HeadParams, Mode, Region
from hccs.table import ParamTable

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
