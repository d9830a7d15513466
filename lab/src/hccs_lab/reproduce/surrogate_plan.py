"""Which softmax replacements a reproduction compares, in what order, and on how much."""

from __future__ import annotations

from hccs_lab.compare.entries import FLOAT, default_labels

ROWS = 512
"""Rows of every head on which methods are calibrated, and others on which they are measured."""

EPOCHS = 1.0
"""Of the retraining that all methods have in common."""

PREFIX, PREFIX_RETRAINED = "surrogates", "surrogates retrained"
"""Of the stages' names: a label follows."""

LABELS = tuple(
    own
    for label in default_labels()
    for own in ((label, f"{label}:mode=u8_lin") if label.startswith("hccs_two_lines") else (label,))
)
"""Every method, HCCS in every mode, and two lines in the one without a division."""

RETRAINED_LABELS = (
    "hccs_two_lines",
    "hccs",
    FLOAT,
    "index_softmax",
    "ibert",
    "hccs:mode=u8_lin",
    "softmax_s8",
    "shiftmax",
    "ita",
    "log_int_softmax",
    "e2softmax",
    "softermax",
    "exaq",
    "hccs_two_lines:mode=u8_lin",
    "consmax",
    "rela",
    "entmax15",
    "sparsemax",
    "entmax",
    "hccs_two_lines_uint8",
    "hls4ml",
    "aie4ml_exp",
    "hccs:mode=u8_clb",
    "hccs:mode=u8_div",
    "hccs:mode=i16_clb",
    "hccs_two_lines_uint8:mode=u8_lin",
    "sas",
    "vitis_bf16",
    "iron_bf16",
)
"""Those that tell most first: HCCS and what the budget alone is worth, then integers, then what only training
makes usable; what is as good as softmax without it last."""
