"""EXAQ: logits of two to four bits, clipped so that the exponential, not the logit, is kept.

With x <= 0 the logit less the row's maximum, M = `bits`, and sigma the spread of x over the head:

    C = -(a*sigma + b),   (a, b) = (1.66, 1.85), (1.75, 2.06), (1.83, 2.27) for M = 2, 3, 4
    x = round((max(x, C) - C) / step) * step + C,    step = -C / (2^M - 1)
    p = exp(x) / sum exp(x)

The exponential is a table of 2^M entries; another, for the sum, takes a byte of codes at a time.
Source: Shkolnik et al., "EXAQ: exponent aware quantization for LLMs acceleration", 2024 (arXiv 2410.03185),
the Gaussian rule for C; the code in Anonymous1252022/EXAQ.
Widths: codes of M bits, float32 tables, sum and quotient (float64 here). Needs: max, tables, sum, divide.
Our reading: the source takes sigma and the lowest x from the whole tensor, as the mean of 25 batches, and
clips at the lowest where C lies beyond it; `calibrate` takes both per head, from all its rows (`sigma`, and
`span` for the largest distance). No search follows: the rule is the method. Ties go to even, counted from C.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import ParameterError
from hccs_lab.surrogates.by_distance import by_distance
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.fitting import per_head
from hccs_lab.surrogates.rows import distance
from hccs_lab.surrogates.surrogate import REQUIRED

RULE = {2: (1.66, 1.85), 3: (1.75, 2.06), 4: (1.83, 2.27)}


def constants(
    scale: NDArray[np.float64],
    sigma: NDArray[np.float64],
    span: NDArray[np.float64],
    bits: NDArray[np.float64],
) -> dict[str, Any]:
    """The levels below the maximum, and what a distance of one int8 step is in their steps."""
    if not np.isin(bits, list(RULE)).all():
        raise ParameterError(
            "bits to be 2, 3 or 4", str(bits), "The source's rule for the clip has no others."
        )
    if not ((sigma >= 0) & (span > 0)).all():
        raise ParameterError(
            "sigma >= 0 and span > 0", f"sigma {sigma}, span {span}", "Let `calibrate` measure them."
        )
    a, b = np.moveaxis(np.array([RULE[int(m)] for m in bits.ravel()]).reshape(*bits.shape, 2), -1, 0)
    levels = 2.0**bits - 1
    step = np.minimum(a * sigma + b, span) / levels
    return {"ratio": scale / step, "levels": levels, "step": step}


def weights(d: NDArray[np.int64], ratio: Any, levels: Any, step: Any) -> NDArray[np.float64]:
    """The exponential of a logit d int8 steps below the maximum, at its level."""
    code = np.rint(np.maximum(levels - d * ratio, 0))
    return np.exp(step * (code - levels))


def fit(x: NDArray[np.int8], scale: NDArray[np.float64], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """The standard deviation of each head's logits less their row's maximum, and the largest distance."""
    d = distance(x, valid) * scale[..., None, None]
    # Rows differ in length: the mean over positions is that of row sums over that of row lengths.
    length = per_head(valid.sum(-1).astype(np.float64), valid, scale.ndim)
    first, second = (
        per_head(np.where(valid, power, 0).sum(-1), valid, scale.ndim) / length for power in (d, d * d)
    )
    others = (*range(x.ndim - 2 - scale.ndim), x.ndim - 2, x.ndim - 1)
    # A head without any spread has one level: whichever step it gets, all its weights are 1.
    span = np.maximum(d.max(others), scale)
    return {"sigma": np.sqrt(np.maximum(second - first**2, 0)), "span": span}


def costs_by(bits: float = 2, **statistics: Any) -> Costs:
    """The costs of codes of `bits` bits, packed into bytes."""
    width = int(bits)
    packed = 8 // width
    return Costs(
        output="float32",
        table_bytes=4 * (2**width + 2 ** (width * packed)),
        needs=frozenset({"divide", "table", "max", "sum"}),
        # max, subtract, multiply, round, clip; packing: shift, or; table, multiply; for every byte of codes a
        # table read and a sum
        operations=PerRow(element=9 + 2 / packed),
        divides=PerRow(row=1),
        integer_only=False,
        source="Shkolnik et al., EXAQ, 2024",
    )


SURROGATE = by_distance(
    name="exaq",
    costs=costs_by(),
    costs_by=costs_by,
    weights=weights,
    constants=constants,
    parameters={"sigma": REQUIRED, "span": REQUIRED, "bits": 2},
    fit=fit,
)
