"""ReLA, rectified linear attention: ReLU scores, and the attention output normalised in their place.

    a   = ReLU(z),    o = a V (heads side by side)
    out = gain * o / RMS(o) * sigmoid(gate * o)

Source: Zhang, Titov and Sennrich, "Sparse attention with linear units", EMNLP 2021; modules/rela.py of the
authors' bzhangGo/zero. Widths: float. Needs: nothing of the row; the output needs a sum, a root, a division
and a sigmoid per token. It changes the output of attention, so its module is a slot that attends by itself
instead of giving p for p V; gain and gate are trained with the model, and without training the
model fails. `probabilities` are ReLU(z) divided by their sum, for comparisons alone: ReLA itself never
divides the row. A row without a positive logit is all zeros.
Our reading: gain starts at 1 and gate at 0 (the source draws the gate at random around 0). `width` is the
size of a head, for one gain and gate per channel as in the source; by default there is one of each per head.
Nothing can be calibrated from logits alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.costs import PerRow, float32_costs
from hccs_lab.surrogates.surrogate import Output, Surrogate


def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], scale: Any) -> Output:
    a = np.where(valid, np.maximum(x * scale, 0), 0)
    total = a.sum(-1, keepdims=True)
    return Output(a / np.where(total == 0, 1, total))


def tensor(z: Any, valid: Any, scale: Any) -> Output:
    """The rectified scores as attention uses them, not normalised."""
    return Output(z.relu())


def attends(scale: Any, parameters: dict[str, Any]) -> Any:
    """The module that stands in for probabilities times value."""
    from hccs_lab.surrogates.modules import RectifiedAttention

    return RectifiedAttention(np.size(scale), int(np.max(parameters["width"])))


SURROGATE = Surrogate(
    name="rela",
    costs=float32_costs(
        needs=frozenset({"exp", "divide", "sum"}),
        operations=PerRow(element=1),  # the scores; the output's normalisation does not depend on k
        divides=PerRow(row=1),
        exponentials=PerRow(row=1),
        source="Zhang, Titov and Sennrich, EMNLP 2021",
    ),
    rows=rows,
    tensor=tensor,
    quantises=False,
    parameters={"width": 1},
    attends=attends,
)
