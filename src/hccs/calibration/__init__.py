"""Calibration: per-head (B, S, D) and logit scale from representative data; exact, streaming, in seconds."""

import importlib.util as _util

from hccs.errors import MissingExtraError as _MissingExtraError

if _util.find_spec("hccs.calibration._native") is None:
    raise _MissingExtraError(
        "the compiled part of hccs for calibration",
        "an installation without it",
        "Install a wheel, or build it with pip install . in a checkout.",
    )

from hccs.calibration.rows import LogitRange
from hccs.calibration.searching import (
    Calibration,
    CalibrationWarning,
    HeadRecord,
    calibrate,
    fidelity,
    search,
)
from hccs.calibration.statistics import HeadStatistics
from hccs.ops.quantise import quantise

__all__ = [
    "Calibration",
    "CalibrationWarning",
    "HeadRecord",
    "HeadStatistics",
    "LogitRange",
    "calibrate",
    "fidelity",
    "quantise",
    "search",
]
