"""The softmax of ITA, the integer transformer accelerator: powers of two by shifts alone.

    shift_i = (m - x_i + 16) >> 5
    sum     = sum_i 256 >> shift_i
    inv     = floor(255*256 / sum);   p_i = inv >> shift_i,    worth 1/255

An int8 step of the logits stands for 1/32 of an octave, that is for a scale of ln(2)/32 = 0.0217.

`form="streaming"` is what the accelerator runs: 16 columns at a time, with a running maximum; when a block
raises it by D, the sum so far is shifted right by (D + 16) >> 5. Every such move rounds: the sum of n moves
may differ from that of one pass by a factor of up to 2^n and by up to n units; without a move both are equal.

Source: Islamoglu et al., "ITA: an energy-efficient attention and softmax accelerator for quantized
transformers", ISLPED 2023; the golden model in pulp-platform/ITA.
Widths: int8 in, 16-bit sum and inverse, uint8 out. Needs: max, sum, a division per row.
Our reading: logits of another scale are requantised to `step` with a 16-bit multiplier, rounding half up and
clipping to int8 as any requantisation does. `step` = ln(2)/32 computes softmax but clips logits beyond 2.75;
a coarser step clips less and flattens the distribution instead. `calibrate` weighs the two per head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import require_one_of
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.rows import INT8_MAX, INT8_MIN, distance, largest, multiplier_for, requantised, wide
from hccs_lab.surrogates.surrogate import Output, Surrogate

STEP = np.log(2) / 32
WIDTH = 16
FORMS = ("one_pass", "streaming")


def constants(scale: NDArray[np.float64], step: NDArray[np.float64], form: str) -> dict[str, Any]:
    require_one_of("form", form, FORMS, "See hccs_lab.surrogates.ita.")
    return {"multiplier": multiplier_for(scale / step), "form": form}


def rows(x: Any, valid: Any, multiplier: Any, form: str) -> Output:
    """p, worth 1/255, of arrays and tensors."""
    y = requantised(wide(x), multiplier)
    shift = (distance(y, valid) + 16) >> 5
    total = streamed_sum(y, valid) if form == "streaming" else ((256 >> shift) * valid).sum(-1, keepdims=True)
    return Output((255 * 256 // total.clip(min=1)) >> shift, 255)


def streamed_sum(y: Any, valid: Any) -> Any:
    """The sum as it stands after the last block of 16 columns, [..., 1]."""
    highest = y[..., :1] * 0 + INT8_MIN
    total = highest * 0
    for start in range(0, y.shape[-1], WIDTH):
        block, taking_part = y[..., start : start + WIDTH], valid[..., start : start + WIDTH]
        before = highest
        highest = before + (largest(block, taking_part) - before).clip(min=0)
        shift = ((highest - block) * taking_part + 16) >> 5
        part = ((256 >> shift) * taking_part).sum(-1, keepdims=True)
        total = (total >> ((highest - before + 16) >> 5)) + part
    return total


def smooth(z: Any, valid: Any, step: Any, form: str) -> Any:
    """Softmax of the logits as the requantisation leaves them: clipped, and in units of STEP."""
    from hccs.nn.slots import float_softmax

    steps = (z / step.to(z.dtype)).clamp(INT8_MIN, INT8_MAX)
    return float_softmax(steps * STEP, valid)


def candidates(scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Steps from ITA's own to the one that clips nothing, which is the logits' scale."""
    return STEP * (np.maximum(scale / STEP, 1) ** np.linspace(0, 1, 17).reshape(-1, *(1,) * scale.ndim))


SURROGATE = Surrogate(
    name="ita",
    costs=Costs(
        output="uint8, 1/255",
        bits_inside=24,
        needs=frozenset({"divide", "max", "sum"}),
        # requantise: multiply, add, shift, clip; max, subtract; add, shift; shift, sum; shift
        operations=PerRow(element=11),
        divides=PerRow(row=1),
        source="Islamoglu et al., ITA, ISLPED 2023",
    ),
    rows=rows,
    tensor=rows,
    constants=constants,
    smooth=smooth,
    parameters={"step": STEP, "form": "one_pass"},
    candidates=("step", candidates),
)
