"""alpha-entmax, by bisection: softmax at alpha = 1, sparsemax at alpha = 2; alpha per head, learnable.

    p_i = max((alpha-1)*z_i - tau, 0)^(1/(alpha-1)),   tau such that sum p = 1, found by halving an interval

Source: Peters, Niculae and Martins, "Sparse sequence-to-sequence models", ACL 2019; a learnt alpha per head:
Correia, Niculae and Martins, "Adaptively sparse transformers", EMNLP 2019.
Widths: float. Needs: max, sum, and a power per element and halving (50 of them); no sort.
The PyTorch form is that of the `entmax` package, with its exact gradient for the logits and for alpha.
Our reading: `calibrate` takes the alpha in 1.1 .. 2 of least divergence from softmax. That is nearly always
1.1, the least sparse: being close to softmax is not what entmax is for. Let training choose alpha.
"""

from __future__ import annotations

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

    from hccs_lab.surrogates.tensors import far_below

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
    summary="alpha-entmax by bisection",
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
