"""HCCS inside PyTorch models: the differentiable function, collecting logits, attaching to transformers."""

from hccs.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "PyTorch for hccs.nn", f"no module {error.name}", "pip install torch, then pip install 'hccs[torch]'."
    ) from error

from hccs.nn.attaching import attach, current_table, detach, restore
from hccs.nn.collecting import calibrate_operands, collect
from hccs.nn.functional import hccs_softmax
from hccs.nn.refining import refine
from hccs.nn.sequential import calibrate_in_sequence

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
