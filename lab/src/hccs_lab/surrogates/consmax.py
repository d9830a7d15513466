"""ConSmax: exponentials with two learnt constants per head in place of the maximum and the sum.

    p_i = exp(z_i - beta) / gamma = C * exp(z_i),    C = exp(-beta)/gamma,   z = x * scale

At inference the int8 logit is split in two nibbles, x = 16*h + l, and read from two tables of 16 entries:

    p_i = H[h] * L[l],    H[h] = C * exp(16*h*scale),   L[l] = exp(l*scale)

Source: Liu et al., "ConSmax: hardware-friendly alternative softmax with learnable parameters", 2024
(arXiv 2402.10930). Widths: int8 in, float16 tables and output. Needs: two tables (64 bytes), one multiply; no
maximum, no sum, no division. Rows do not sum to one.
Our reading: C is merged into the first table, and the product is rounded once to float16; beta and gamma are
trained in the float form and enter the tables when training ends. `calibrate` fits C to the data (the
divergence is least where the mean mass of a row is one) and splits it: beta is the mean maximum of a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import ParameterError
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.fitting import per_head
from hccs_lab.surrogates.rows import INT8_MIN, look_up, wide
from hccs_lab.surrogates.surrogate import REQUIRED, Output, Surrogate

LEAST_GAMMA = 1e-6  # training must not take gamma to 0 or below


def constants(
    scale: NDArray[np.float64], beta: NDArray[np.float64], gamma: NDArray[np.float64]
) -> dict[str, Any]:
    if not (gamma > 0).all():
        raise ParameterError("gamma > 0", str(gamma), "gamma stands for the sum of a row.")
    high = np.exp(16 * np.arange(-8, 8) * scale[..., None] - beta[..., None]) / gamma[..., None]
    low = np.exp(np.arange(16) * scale[..., None])
    largest = float(np.finfo(np.float16).max)
    return {name: np.minimum(t, largest).astype(np.float16) for name, t in (("high", high), ("low", low))}


def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], high: Any, low: Any) -> Output:
    logits = wide(x)
    with np.errstate(over="ignore"):
        product = look_up(high, (logits >> 4) + 8) * look_up(low, logits & 15)
    return Output(np.minimum(product, np.finfo(np.float16).max))


def tensor(x: Any, valid: Any, high: Any, low: Any) -> Output:
    import torch

    logits = wide(x)
    left, right = look_up(high, (logits >> 4) + 8), look_up(low, logits & 15)
    product = (left.float() * right.float()).clamp(max=torch.finfo(torch.float16).max)
    return Output(product.half())


def smooth(z: Any, valid: Any, beta: Any, gamma: Any) -> Any:
    p = (z - beta.to(z.dtype)).exp() / gamma.to(z.dtype)
    return p.masked_fill(~valid, 0)


def fit(x: NDArray[np.int8], scale: NDArray[np.float64], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """beta and gamma of each head: d/dC of the divergence is mean sum exp(z) - 1/C."""
    z = x * scale[..., None, None]
    top = np.where(valid, x, INT8_MIN).max(-1) * scale[..., None]
    beta = per_head(top, valid, scale.ndim)
    mass = np.where(valid, np.exp(z - beta[..., None, None]), 0).sum(-1)
    return {"beta": beta, "gamma": per_head(mass, valid, scale.ndim)}


SURROGATE = Surrogate(
    name="consmax",
    costs=Costs(
        output="float16",
        bits_inside=16,
        table_bytes=2 * 16 * 2,
        needs=frozenset({"table"}),
        operations=PerRow(element=5),  # shift, and, two tables, multiply
        integer_only=False,
        source="Liu et al., ConSmax, 2024",
    ),
    rows=rows,
    tensor=tensor,
    constants=constants,
    smooth=smooth,
    parameters={"beta": REQUIRED, "gamma": REQUIRED},
    learnable={"beta": -np.inf, "gamma": LEAST_GAMMA},
    fit=fit,
)
