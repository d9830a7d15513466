"""Calibration: per-head (B, S, D) and logit scale from representative data; exact, streaming, in seconds."""

import importlib.util as _util

from hccs.errors import MissingExtraError as _MissingExtraError

if _util.find_spec("hccs.calibration._native") is None:
    raise _MissingExtraError(
        "the compiled part of hccs for calibration",
        "an installation without it",
        "Install a wheel, or build it with pip install . in a checkout.",
    )

from hccs.calibration.grid import coarse_scan
from hccs.calibration.ranges import ValueRanges
from hccs.calibration.scale import LogitRange, ScaleCandidates, quantise
from hccs.calibration.searching import (
    Calibration,
    CalibrationWarning,
    HeadRecord,
    calibrate,
    deployed_kl,
    fidelity,
    search,
)
from hccs.calibration.statistics import HeadStatistics

__all__ = [
    "Calibration",
    "CalibrationWarning",
    "HeadRecord",
    "HeadStatistics",
    "LogitRange",
    "ScaleCandidates",
    "ValueRanges",
    "calibrate",
    "coarse_scan",
    "deployed_kl",
    "fidelity",
    "quantise",
    "search",
]
