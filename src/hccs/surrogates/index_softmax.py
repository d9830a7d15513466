"""IndexSoftmax of IntAttention: a 32-entry table of exponentials, indexed by the clipped distance.

With t = round(c / scale) the clip in int8 steps, c = 6.6:

    LUT[i] = round(255 * exp(-c*i/31)),  LUT[31] = 0
    i      = round(31 * min(m - x, t) / t)
    p      = round(255 * LUT[i] / sum LUT[i]),    worth 1/255

Source: Zhong et al., "IntAttention: a fully integer attention pipeline for efficient edge inference", 2025
(arXiv 2511.21513). Widths: int8 in here (the source indexes int32 logits), uint8 table, uint8 out.
Needs: max, table (32 bytes), sum, a division per element (or one reciprocal per row) and one to index.
Our reading: the index and the output are rounded to the nearest; t is at least 1. The source fixes c = 6.6
for all heads; `calibrate` chooses c per head, and with it the head's table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.surrogates.by_distance import by_distance
from hccs.surrogates.costs import Costs, PerRow
from hccs.surrogates.fitting import best_candidate
from hccs.surrogates.rows import look_up
from hccs.surrogates.surrogate import softmax_gradient

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENTRIES = 32
CLIP = 6.6
CANDIDATES = np.concatenate([np.linspace(1.0, 10.0, 37), [CLIP]])


def constants(scale: NDArray[np.float64], c: NDArray[np.float64]) -> dict[str, Any]:
    """The clip in int8 steps and the table of each head."""
    exponents = c[..., None] * np.arange(ENTRIES) / (ENTRIES - 1)
    lut = np.rint(255 * np.exp(-exponents)).astype(np.int64)
    lut[..., -1] = 0
    return {"t": np.maximum(np.rint(c / scale), 1).astype(np.int64), "lut": lut}


def weights(d: NDArray[np.int64], t: Any, lut: Any) -> NDArray[np.int64]:
    """LUT[i] of a logit d steps below the maximum."""
    last = ENTRIES - 1
    index = (2 * last * np.minimum(d, t) + t) // (2 * t)
    found: NDArray[np.int64] = look_up(lut, index)
    return found


def normalise(w: Any, total: Any) -> Any:
    """p, worth 1/255, rounded half up."""
    return (2 * 255 * w + total) // (2 * total)


def fit(x: NDArray[np.int8], scale: NDArray[np.float64], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """The clip of each head with the least divergence from softmax."""
    return {"c": best_candidate(lambda c: SURROGATE(x, scale, valid, c=c), CANDIDATES, x, scale, valid)}


SURROGATE = by_distance(
    name="index_softmax",
    summary="32-entry table of exponentials (IntAttention)",
    costs=Costs(
        input="int8",
        output="uint8, 1/255",
        bits_in=8,
        bits_out=8,
        bits_inside=32,
        table_bytes=ENTRIES,
        needs=frozenset({"divide", "table", "max", "sum"}),
        # max, subtract, clip, multiply, add, shift (the division by t is a multiplier known ahead), table,
        # sum, multiply, add
        operations=PerRow(element=10),
        divides=PerRow(element=1),
        exponentials=PerRow(),
        integer_only=True,
        trainable=True,
        source="Zhong et al., IntAttention, 2025",
    ),
    weights=weights,
    normalise=normalise,
    one=255,
    constants=constants,
    smooth=softmax_gradient,
    parameters={"c": CLIP},
    fit=fit,
)
