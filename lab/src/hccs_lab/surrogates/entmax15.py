"""1.5-entmax: between softmax and sparsemax, with an exact algorithm of its own.

    p_i = max(z_i/2 - tau, 0)^2,   tau such that sum p = 1:
    with z/2 sorted downwards, M and V the mean and the sum of squared deviations of the first k,
    tau_k = M - sqrt((1 - V)/k),   and k the largest with tau_k <= z_k/2

Source: Peters, Niculae and Martins, "Sparse sequence-to-sequence models", ACL 2019.
Widths: float. Needs: sort, sum, a division and a square root per candidate k; no exponential.
The PyTorch form is that of the `entmax` package, with its exact gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.costs import PerRow, float32_costs
from hccs_lab.surrogates.rows import shifted
from hccs_lab.surrogates.surrogate import Output, Surrogate


def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], scale: Any) -> Output:
    z = shifted(x * scale, valid) / 2
    downwards = -np.sort(-z, axis=-1)
    counts = np.arange(1, z.shape[-1] + 1)
    mean = downwards.cumsum(-1) / counts
    deviations = (downwards**2).cumsum(-1) - counts * mean**2
    tau = mean - np.sqrt(np.maximum((1 - deviations) / counts, 0))
    k = (tau <= downwards).sum(-1, keepdims=True)
    return Output(np.maximum(z - np.take_along_axis(tau, k - 1, -1), 0) ** 2)


def tensor(z: Any, valid: Any, scale: Any) -> Output:
    import entmax

    from hccs_lab.surrogates.tensors import far_below

    return Output(entmax.entmax15(far_below(z, valid), dim=-1))


SURROGATE = Surrogate(
    name="entmax15",
    summary="1.5-entmax",
    costs=float32_costs(
        needs=frozenset({"divide", "sort", "sum"}),
        # halve, square, two prefix sums, square, multiply, subtract, subtract, root, subtract, compare;
        # subtract, clip, square
        operations=PerRow(element=14, sort=1),
        divides=PerRow(element=2),
        source="Peters, Niculae and Martins, ACL 2019",
    ),
    rows=rows,
    tensor=tensor,
    quantises=False,
)
