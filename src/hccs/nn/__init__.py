"""HCCS inside PyTorch models: the differentiable function, collecting logits, attaching to transformers."""

from hccs._extras import require as _require

_require("torch", "torch", "for hccs.nn")

from hccs.nn.attaching import attach, current_table, detach, fill, restore  # noqa: E402
from hccs.nn.collecting import calibrate_operands, collect  # noqa: E402
from hccs.nn.functional import hccs_softmax  # noqa: E402
from hccs.nn.interface import attention_layers  # noqa: E402
from hccs.nn.loading import register_loader as _register_loader  # noqa: E402
from hccs.nn.lowering import (  # noqa: E402
    IntegerPlan,
    lower,
    measure_ranges,
    quantised,
    where_accuracy_goes,
)
from hccs.nn.lowering.encoder import VectorHead  # noqa: E402
from hccs.nn.lowering.pre_norm import PixelScaling  # noqa: E402
from hccs.nn.reconstructing import ReconstructedMatrix, reconstruct  # noqa: E402
from hccs.nn.refining import refine  # noqa: E402
from hccs.nn.sequential import calibrate_in_sequence  # noqa: E402
from hccs.nn.slots import AttentionInputs, AttentionSlot, SoftmaxSlot  # noqa: E402

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
    "calibrate_in_sequence",
    "calibrate_operands",
    "collect",
    "current_table",
    "detach",
    "fill",
    "hccs_softmax",
    "lower",
    "measure_ranges",
    "quantised",
    "reconstruct",
    "refine",
    "restore",
    "where_accuracy_goes",
]

_register_loader()
