"""Sparse maps onto the simplex: alpha-entmax, 1.5-entmax and sparsemax, whose zeros make KL infinite.

`hccs_lab.surrogates.fitting` says how a divergence counts zeros. The PyTorch forms are those of the `entmax`
package, with their exact gradients for the logits and for alpha. Widths: float.

`entmax`, by bisection: softmax at alpha = 1, sparsemax at alpha = 2; alpha per head, learnable.

    p_i = max((alpha-1)*z_i - tau, 0)^(1/(alpha-1)),   tau such that sum p = 1, found by halving an interval

Source: Peters, Niculae and Martins, "Sparse sequence-to-sequence models", ACL 2019; a learnt alpha per head:
Correia, Niculae and Martins, "Adaptively sparse transformers", EMNLP 2019.
Needs: max, sum, and a power per element and halving (50 of them); no sort.
Our reading: `calibrate` takes the alpha in 1.1 .. 2 of least divergence from softmax. That is nearly always
1.1, the least sparse: being close to softmax is not what entmax is for. Let training choose alpha.

`entmax15`, between softmax and sparsemax, has an exact algorithm of its own:

    p_i = max(z_i/2 - tau, 0)^2,   tau such that sum p = 1:
    with z/2 sorted downwards, M and V the mean and the sum of squared deviations of the first k,
    tau_k = M - sqrt((1 - V)/k),   and k the largest with tau_k <= z_k/2

Source: Peters et al., as above. Needs: sort, sum, a division and a square root per candidate k; no
exponential.

`sparsemax`, the Euclidean projection of the logits onto the simplex:

    p_i = max(z_i - tau, 0),   tau such that sum p = 1:
    with z sorted downwards and K = max{k : 1 + k*z_k > z_1 + ... + z_k},   tau = (z_1 + ... + z_K - 1) / K

Source: Martins and Astudillo, "From softmax to sparsemax", ICML 2016. Needs: sort (or a selection), sum, a
division per row; no exponential.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import ParameterError
from hccs_lab.surrogates.costs import PerRow, float32_costs
from hccs_lab.surrogates.fitting import best_candidate
from hccs_lab.surrogates.rows import shifted
from hccs_lab.surrogates.surrogate import Output, Result, Surrogate

HALVINGS = 50
NEWTON_ENDS = 1e-14
LEAST_ALPHA = 1.01  # of a learnt alpha: at 1 the map is softmax, and not defined below
CANDIDATES = np.linspace(1.1, 2.0, 10)


def constants(scale: NDArray[np.float64], alpha: NDArray[np.float64]) -> dict[str, Any]:
    if not (alpha > 1).all():
        raise ParameterError("alpha > 1", str(alpha), "At alpha = 1 entmax is softmax: take that.")
    return {"scale": scale, "alpha": alpha}


def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], scale: Any, alpha: Any) -> Output:
    z = shifted(x * scale, valid) * (alpha - 1)
    power = 1 / (alpha - 1)
    low = np.full_like(z[..., :1], -1.0)
    width = 1 - (1 / z.shape[-1]) ** (alpha - 1)
    for _ in range(HALVINGS):
        width = width / 2
        p = np.maximum(z - (low + width), 0) ** power
        low = np.where(p.sum(-1, keepdims=True) >= 1, low + width, low)
    p = np.maximum(z - low, 0) ** power
    total = p.sum(-1, keepdims=True)
    return Output(p / np.where(total == 0, 1, total))


def tensor(z: Any, valid: Any, scale: Any, alpha: Any) -> Output:
    return Output(smooth(z, valid, alpha))


def smooth(z: Any, valid: Any, alpha: Any) -> Any:
    import entmax

    from hccs_lab.surrogates.modules import far_below

    logits = far_below(z, valid)
    per_row = alpha.to(logits.dtype).expand(*logits.shape[:-1], 1)
    return entmax.entmax_bisect(logits, per_row, dim=-1, n_iter=HALVINGS)


def by_newton(
    x: NDArray[np.int8], scale: NDArray[np.float64], valid: NDArray[np.bool_], alpha: NDArray[np.float64]
) -> Result:
    """`rows` for alpha <= 2 in a sixth of the time: the sum falls with tau and is convex, so that Newton's
    steps from the left never leap over the solution."""
    below = alpha[..., None, None] - 1
    z, power = shifted(x * scale[..., None, None], valid) * below, 1 / below
    tau, present = np.full_like(z[..., :1], -1.0), valid.any(-1, keepdims=True)
    for _ in range(HALVINGS):
        above = np.maximum(z - tau, 0)
        slope = np.where(above > 0, above ** (power - 1), 0)
        excess, fall = (slope * above).sum(-1, keepdims=True) - 1, power * slope.sum(-1, keepdims=True)
        step = np.divide(excess, fall, out=np.zeros_like(tau), where=present)
        tau = tau + step
        if np.abs(step).max(initial=0) < NEWTON_ENDS:
            break
    return Result(np.where(valid, np.maximum(z - tau, 0) ** power, 0), None, None)


def fit(x: NDArray[np.int8], scale: NDArray[np.float64], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """The alpha of each head with the least divergence from softmax."""
    return {
        "alpha": best_candidate(lambda alpha: by_newton(x, scale, valid, alpha), CANDIDATES, x, scale, valid)
    }


SURROGATE = Surrogate(
    name="entmax",
    costs=float32_costs(
        needs=frozenset({"divide", "exp", "max", "sum"}),
        operations=PerRow(element=3 * HALVINGS + 4, row=2 * HALVINGS),  # subtract, clip, sum per halving
        divides=PerRow(row=2),
        exponentials=PerRow(element=HALVINGS),
        source="Peters et al., ACL 2019; Correia et al., EMNLP 2019",
    ),
    rows=rows,
    tensor=tensor,
    constants=constants,
    smooth=smooth,
    quantises=False,
    parameters={"alpha": 1.5},
    learnable={"alpha": LEAST_ALPHA},
    fit=fit,
)


def rows_of_entmax15(x: NDArray[np.int8], valid: NDArray[np.bool_], scale: Any) -> Output:
    z = shifted(x * scale, valid) / 2
    downwards = -np.sort(-z, axis=-1)
    counts = np.arange(1, z.shape[-1] + 1)
    mean = downwards.cumsum(-1) / counts
    deviations = (downwards**2).cumsum(-1) - counts * mean**2
    tau = mean - np.sqrt(np.maximum((1 - deviations) / counts, 0))
    k = (tau <= downwards).sum(-1, keepdims=True)
    return Output(np.maximum(z - np.take_along_axis(tau, k - 1, -1), 0) ** 2)


def rows_of_sparsemax(x: NDArray[np.int8], valid: NDArray[np.bool_], scale: Any) -> Output:
    z = shifted(x * scale, valid)
    downwards = -np.sort(-z, axis=-1)
    prefix = downwards.cumsum(-1)
    counts = np.arange(1, z.shape[-1] + 1)
    K = (1 + counts * downwards > prefix).sum(-1, keepdims=True)
    tau = (np.take_along_axis(prefix, K - 1, -1) - 1) / K
    return Output(np.maximum(z - tau, 0))


def of_package(function: str, z: Any, valid: Any, scale: Any) -> Output:
    """A map of the `entmax` package on float logits."""
    import entmax

    from hccs_lab.surrogates.modules import far_below

    return Output(getattr(entmax, function)(far_below(z, valid), dim=-1))


OTHERS = (
    Surrogate(
        name="entmax15",
        costs=float32_costs(
            needs=frozenset({"divide", "sort", "sum"}),
            # halve, square, two prefix sums, square, multiply, subtract, subtract, root, subtract, compare;
            # subtract, clip, square
            operations=PerRow(element=14, sort=1),
            divides=PerRow(element=2),
            source="Peters, Niculae and Martins, ACL 2019",
        ),
        rows=rows_of_entmax15,
        tensor=partial(of_package, "entmax15"),
        quantises=False,
    ),
    Surrogate(
        name="sparsemax",
        costs=float32_costs(
            needs=frozenset({"divide", "sort", "sum"}),
            operations=PerRow(element=6, row=1, sort=1),  # prefix sum, multiply, add, compare; subtract, clip
            divides=PerRow(row=1),
            source="Martins and Astudillo, ICML 2016",
        ),
        rows=rows_of_sparsemax,
        tensor=partial(of_package, "sparsemax"),
        quantises=False,
    ),
)
