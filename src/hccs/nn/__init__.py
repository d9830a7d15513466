"""HCCS inside PyTorch models: the differentiable function, collecting logits, attaching to transformers."""

from hccs._extras import require as _require

_require("torch", "torch", "for hccs.nn")

from hccs.nn.attaching import attach, current_table, detach, fill, restore  # noqa: E402
from hccs.nn.attaching import register_loader as _register_loader  # noqa: E402
from hccs.nn.collecting import calibrate_operands, collect  # noqa: E402
from hccs.nn.functional import hccs_softmax  # noqa: E402
from hccs.nn.interface import attention_layers  # noqa: E402
from hccs.nn.lowering import (  # noqa: E402
    IntegerPlan,
    lower,
    quantised,
)
from hccs.nn.lowering.parts import PixelScaling, VectorHead  # noqa: E402
from hccs.nn.reconstructing import ReconstructedMatrix, reconstruct  # noqa: E402
from hccs.nn.recording import recorded_steps  # noqa: E402
from hccs.nn.slots import AttentionInputs, AttentionSlot, SoftmaxSlot  # noqa: E402
from hccs.nn.training import refine  # noqa: E402

__all__ = [
    "AttentionInputs",
    "AttentionSlot",
    "IntegerPlan",
    "PixelScaling",
    "ReconstructedMatrix",
    "SoftmaxSlot",
    "VectorHead",
    "attach",
    "attention_layers",
    "calibrate_operands",
    "collect",
    "current_table",
    "detach",
    "fill",
    "hccs_softmax",
    "lower",
    "quantised",
    "reconstruct",
    "recorded_steps",
    "refine",
    "restore",
]

_register_loader()
