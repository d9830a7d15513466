"""Calibration: per-head (B, S, D) and logit scale from representative data; exact, streaming, in seconds."""

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
    "deployed_kl",
    "fidelity",
    "quantise",
    "search",
]
