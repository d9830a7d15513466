"""softmax itself, in float64: the yardstick.

    p_i = exp(z_i - m) / sum_j exp(z_j - m),    z = x * scale,  m = max z

Source: Bridle, "Probabilistic interpretation of feedforward classification network outputs", 1990; in
attention Vaswani et al., "Attention is all you need", 2017.
Widths: float64 here, float32 in the PyTorch form. Needs: max, exp, sum, divide.
The PyTorch form takes the float logits as they are: it is the model's own softmax.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.costs import PerRow, float32_costs
from hccs_lab.surrogates.fitting import float_softmax
from hccs_lab.surrogates.surrogate import Output, Surrogate, softmax_gradient


def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], scale: NDArray[np.float64]) -> Output:
    return Output(float_softmax(x, scale[..., 0, 0], valid))


def tensor(z: Any, valid: Any, scale: Any) -> Output:
    return Output(softmax_gradient(z, valid))


SURROGATE = Surrogate(
    name="softmax",
    costs=float32_costs(
        needs=frozenset({"exp", "divide", "max", "sum"}),
        operations=PerRow(element=4),  # max, subtract, sum, multiply by the reciprocal
        divides=PerRow(row=1),
        exponentials=PerRow(element=1),
        source="Bridle 1990; Vaswani et al. 2017",
    ),
    rows=rows,
    tensor=tensor,
    quantises=False,
)
