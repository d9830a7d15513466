"""Integer-native attention: head-calibrated clipped-linear softmax (HCCS)."""

from hccs.calibration import calibrate
from hccs.errors import HccsError
from hccs.kernels import softmax
from hccs.spec import HeadParams, Mode, Region
from hccs.table import ParamTable

__all__ = ["HccsError", "HeadParams", "Mode", "ParamTable", "Region", "calibrate", "softmax"]
__version__ = "0.1.0"
