"""IndexSoftmax of IntAttention: a 32-entry table of exponentials, indexed by the clipped distance.

With t = round(c / scale) the clip in int8 steps, c = 6.6:

    LUT[i] = round(255 * exp(-c*i/31)),  LUT[31] = 0
    i      = round(31 * min(m - x, t) / t)
    p      = round(255 * LUT[i] / sum LUT[i]),    worth 1/255

Source: Zhong et al., "IntAttention: a fully integer attention pipeline for efficient edge inference", MLSys
2026 (arXiv 2511.21513); WanliZhong/IntAttention.
Widths: int8 in here (the source indexes int32 logits), uint8 table, uint8 out.
Needs: max, table (32 bytes), sum, a division per element (or one reciprocal per row) and one to index.
The authors' two codes agree on the table, its last entry 0, and on c = 6.6; they differ in what is rounded:

    `form`           t              i                           p
    rounded          to nearest     to nearest                  to nearest, half up
    simulation       cut            cut                         to nearest, half to even
    kernel           to nearest     (d*M + 2^25) >> 26          (LUT[i]*F + 128) >> 8

with M = round(31 * 2^26 / t) and F = round(255 * 256 / sum). `simulation` is their PyTorch model, which their
accuracies come from; `kernel` the vector body of their Arm kernel, whose F has eight bits: long rows have a
coarse one. Ours, the default, is what the kernel's comments say it computes, exactly.
Our reading: t is at least 1. The source fixes c = 6.6 for all heads; `calibrate` chooses c per head, and with
it the head's table. Not followed: the kernel cuts in its scalar tail, the columns past the last multiple of
16, where its vectors round; and its 16-bit sum wraps once it reaches 65536.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import require_one_of
from hccs_lab.surrogates.by_distance import by_distance
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.rows import divided_to_even, look_up

ENTRIES = 32
CLIP = 6.6
CANDIDATES = np.concatenate([np.linspace(1.0, 10.0, 37), [CLIP]])
FORMS = ("rounded", "simulation", "kernel")
INDEX_BITS = 26  # of the kernel's multiplier


def constants(scale: NDArray[np.float64], c: NDArray[np.float64], form: str) -> dict[str, Any]:
    require_one_of("form", form, FORMS, "See hccs_lab.surrogates.index_softmax.")
    exponents = c[..., None] * np.arange(ENTRIES) / (ENTRIES - 1)
    lut = np.rint(255 * np.exp(-exponents)).astype(np.int64)
    lut[..., -1] = 0
    if form == "simulation":
        # In float32, as there: it decides whether 6.6 / 0.1 is cut to 66 or to 65.
        steps = np.floor(c.astype(np.float32) / scale.astype(np.float32))
    else:
        steps = np.rint(c / scale)
    return {"t": np.maximum(steps, 1).astype(np.int64), "lut": lut, "form": form}


def weights(d: NDArray[np.int64], t: Any, lut: Any, form: str) -> NDArray[np.int64]:
    last, clipped = ENTRIES - 1, np.minimum(d, t)
    if form == "simulation":
        index = last * clipped // t
    elif form == "kernel":
        multiplier = ((2 * last << INDEX_BITS) + t) // (2 * t)
        index = (clipped * multiplier + (1 << (INDEX_BITS - 1))) >> INDEX_BITS
    else:
        index = (2 * last * clipped + t) // (2 * t)
    found: NDArray[np.int64] = look_up(lut, index)
    return found


def normalise(w: Any, total: Any, form: str) -> Any:
    if form == "simulation":
        return divided_to_even(255 * w, total)
    if form == "kernel":
        return (w * ((2 * 255 * 256 + total) // (2 * total)) + 128) >> 8
    return (2 * 255 * w + total) // (2 * total)


def costs_by(form: str = "rounded", **parameters: Any) -> Costs:
    """The costs of a division per element, or of the kernel's one per row."""
    once = form == "kernel"
    return Costs(
        output="uint8, 1/255",
        table_bytes=ENTRIES,
        needs=frozenset({"divide", "table", "max", "sum"}),
        # max, subtract, clip, multiply, add, shift (the division by t is a multiplier known ahead), table,
        # sum, multiply, add; the kernel shifts where the others divide
        operations=PerRow(element=11 if once else 10),
        divides=PerRow(row=1) if once else PerRow(element=1),
        source="Zhong et al., IntAttention, 2025",
    )


SURROGATE = by_distance(
    name="index_softmax",
    costs=costs_by(),
    costs_by=costs_by,
    weights=weights,
    normalise=normalise,
    one=255,
    constants=constants,
    parameters={"c": CLIP, "form": "rounded"},
    candidates=("c", CANDIDATES),
)
