"""HCCS, head-calibrated clipped-linear softmax: ours, with one line and with two.

    s_i = B - S * min(m - x_i, D),    p_hat_i = s_i * rho,    rho ~ T / sum s

in the modes of docs/spec.md: `i16_div`, `i16_clb`, `u8_div`, `u8_clb`, `u8_lin` (parameter `mode`). (B, S, D)
are integers per head from the exact calibration.
Widths: int8 in, int16 scores and sums, int16 or uint8 out. Needs: max, sum, and a division per row (none in
the CLB modes, whose reciprocal is a shift by the leading bit, nor in `u8_lin`, where it is a line).
Differentiable straight through, as `hccs.nn.hccs_softmax`.

`hccs_two_lines`, nearly an exponential and calibrated without training, is the wide form:

    s_i = B - S * min(m - x_i, D) - S2 * min(m - x_i, D2),    shifted by f in `hccs_two_lines_uint8`

with (B, S, D, S2, D2, f) from the calibration of two lines and sums of 24 bits. Each element needs a clip, a
multiplication, a subtraction and a shift more, with uint8 scores two shifts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.calibration import HeadStatistics, calibrate
from hccs.numbers.heads import NAMES, ONE_LINE, HeadParams
from hccs.numbers.modes import Mode
from hccs.ops.softmax import softmax
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.surrogate import REQUIRED, Output, Surrogate


def constants(scale: NDArray[np.float64], mode: str, **theta: Any) -> dict[str, Any]:
    """theta, the three or the six, as integers, refused here when no integer datapath could run it."""
    integers = {name: np.rint(value).astype(np.int64) for name, value in theta.items()}
    params = HeadParams(**integers, wide=len(theta) > ONE_LINE)
    return {"scale": scale, "theta": params.packed, "mode": Mode(mode).value}


def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], scale: Any, theta: Any, mode: str) -> Output:
    """The native kernels' integers, which the tests hold against `hccs.reference.softmax`."""
    return Output(softmax(x, HeadParams.from_packed(theta[..., 0, :]), mode, valid), Mode(mode).T)


def tensor(z: Any, valid: Any, scale: Any, theta: Any, mode: str) -> Output:
    from hccs.nn.functional import hccs_softmax

    return Output(hccs_softmax(z, theta[..., 0, :], scale[..., 0, 0].float(), mode, valid))


def fit(
    x: NDArray[np.int8], scale: NDArray[np.float64], valid: NDArray[np.bool_], **options: Any
) -> dict[str, Any]:
    """The least KL(softmax || p_hat / 32767) for rows as long as these (docs/calibration.md).

    `options` are those of `hccs.calibrate`, for two lines.
    """
    heads = scale.size
    lead = x.ndim - 2 - scale.ndim
    # [*others, *heads, q, k] -> [heads, rows, k]: the statistics count every row of a head alike.
    by_head = [np.moveaxis(array, range(lead), range(-2 - lead, -2)) for array in (x, valid)]
    logits, mask = (array.reshape(heads, -1, x.shape[-1])[None] for array in by_head)
    statistics = HeadStatistics((1, heads), n=x.shape[-1], scale=scale.reshape(1, heads))
    statistics.update(np.ascontiguousarray(logits), np.ascontiguousarray(mask))
    table = calibrate(statistics, **options)
    names = NAMES[:ONE_LINE] if table.lines == 1 else NAMES
    return {name: getattr(table, name).reshape(scale.shape) for name in names}


def costs_by(
    mode: str = "i16_div", two_lines: bool = False, shifted_scores: bool = False, **theta: Any
) -> Costs:
    # CLB: the leading bit and a shift stand in for the division, and outputs saturate; u8: a shift by 15.
    # Two lines: clip, multiply, subtract; the reciprocal is scaled by the leading bit, in every mode.
    by_shift = Mode(mode).is_clb or Mode(mode).is_linear
    narrow = Mode(mode).is_u8
    return Costs(
        output="uint8" if narrow else "int16",
        needs=frozenset({"max", "sum"} if by_shift else {"divide", "max", "sum"}),
        # max, subtract, clip, multiply, subtract, sum, multiply
        operations=PerRow(
            element=7 + by_shift + (narrow or two_lines) + 3 * two_lines + shifted_scores,
            row=2 * (by_shift or two_lines),
        ),
        divides=PerRow() if by_shift else PerRow(row=1),
        source="the HCCS paper; docs/spec.md",
    )


SURROGATE = Surrogate(
    name="hccs",
    costs=costs_by(),
    costs_by=costs_by,
    rows=rows,
    tensor=tensor,
    constants=constants,
    quantises=False,
    parameters={"B": REQUIRED, "S": REQUIRED, "D": REQUIRED, "mode": "i16_div"},
    fit=fit,
)


def with_two_lines(name: str, scores: str) -> Surrogate:
    """Two lines with int16 scores, or with uint8 ones, which cost a shift more."""
    costs = partial(costs_by, two_lines=True, shifted_scores=scores == "uint8")
    return Surrogate(
        name=name,
        costs=costs(),
        costs_by=costs,
        rows=rows,
        tensor=tensor,
        constants=constants,
        quantises=False,
        parameters={**dict.fromkeys(NAMES, REQUIRED), "mode": "i16_div"},
        fit=partial(fit, lines=2, scores=scores),
    )


OTHERS = (
    with_two_lines("hccs_two_lines", "int16"),
    with_two_lines("hccs_two_lines_uint8", "uint8"),
)
