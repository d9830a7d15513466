"""HCCS inside PyTorch models: the differentiable function, collecting logits, attaching to transformers."""

from hccs._extras import require as _require

_require("torch", "torch", "for hccs.nn")

from hccs.nn.attaching import attach, current_table, detach, restore  # noqa: E402
from hccs.nn.collecting import calibrate_operands, collect  # noqa: E402
from hccs.nn.functional import hccs_softmax  # noqa: E402
from hccs.nn.refining import refine  # noqa: E402
from hccs.nn.sequential import calibrate_in_sequence  # noqa: E402

__all__ = [
    "attach",
    "calibrate_in_sequence",
    "calibrate_operands",
    "collect",
    "current_table",
    "detach",
    "hccs_softmax",
    "refine",
    "restore",
]
