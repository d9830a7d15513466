"""Sparsemax: the Euclidean projection of the logits onto the simplex.

    p_i = max(z_i - tau, 0),   tau such that sum p = 1:
    with z sorted downwards and K = max{k : 1 + k*z_k > z_1 + ... + z_k},   tau = (z_1 + ... + z_K - 1) / K

Source: Martins and Astudillo, "From softmax to sparsemax", ICML 2016.
Widths: float. Needs: sort (or a selection), sum, a division per row; no exponential.
The PyTorch form is that of the `entmax` package, with its exact gradient. Its zeros make KL infinite; see
`hccs_lab.surrogates.fitting` for how a divergence counts them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.costs import PerRow, float32_costs
from hccs_lab.surrogates.rows import shifted
from hccs_lab.surrogates.surrogate import Output, Surrogate


def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], scale: Any) -> Output:
    z = shifted(x * scale, valid)
    downwards = -np.sort(-z, axis=-1)
    partial = downwards.cumsum(-1)
    counts = np.arange(1, z.shape[-1] + 1)
    K = (1 + counts * downwards > partial).sum(-1, keepdims=True)
    tau = (np.take_along_axis(partial, K - 1, -1) - 1) / K
    return Output(np.maximum(z - tau, 0))


def tensor(z: Any, valid: Any, scale: Any) -> Output:
    import entmax

    from hccs_lab.surrogates.tensors import far_below

    return Output(entmax.sparsemax(far_below(z, valid), dim=-1))


SURROGATE = Surrogate(
    name="sparsemax",
    summary="Euclidean projection onto the simplex",
    costs=float32_costs(
        needs=frozenset({"divide", "sort", "sum"}),
        operations=PerRow(element=6, row=1, sort=1),  # prefix sum, multiply, add, compare; subtract, clip
        divides=PerRow(row=1),
        source="Martins and Astudillo, ICML 2016",
    ),
    rows=rows,
    tensor=tensor,
    quantises=False,
)
