"""HCCS, head-calibrated clipped-linear softmax: ours.

    s_i = B - S * min(m - x_i, D),    p_hat_i = s_i * rho,    rho ~ T / sum s

in the four modes of docs/spec.md: `i16_div`, `i16_clb`, `u8_div`, `u8_clb` (parameter `mode`). (B, S, D) are
integers per head from the exact calibration.
Widths: int8 in, int16 scores and sums, int16 or uint8 out. Needs: max, sum, and a division per row (none in
the CLB modes, whose reciprocal is a shift by the leading bit).
Differentiable straight through, as `hccs.nn.hccs_softmax`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.calibration import HeadStatistics, calibrate
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.ops.softmax import softmax
from hccs.surrogates.costs import Costs, PerRow
from hccs.surrogates.surrogate import REQUIRED, Output, Surrogate

if TYPE_CHECKING:
    from numpy.typing import NDArray


def constants(scale: NDArray[np.float64], B: Any, S: Any, D: Any, mode: str) -> dict[str, Any]:
    """theta as integers, refused here when no integer datapath could run it."""
    theta = HeadParams(*(np.rint(value).astype(np.int64) for value in (B, S, D)))
    return {"scale": scale, "theta": theta.packed, "mode": Mode(mode).value}


def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], scale: Any, theta: Any, mode: str) -> Output:
    """The native kernels' integers, which the tests hold against `hccs.reference.softmax`."""
    params = HeadParams(*np.moveaxis(theta[..., 0, :], -1, 0))
    return Output(softmax(x, params, mode, valid), Mode(mode).T)


def tensor(z: Any, valid: Any, scale: Any, theta: Any, mode: str) -> Output:
    """Probabilities of float logits, differentiable."""
    from hccs.nn.functional import hccs_softmax

    return Output(hccs_softmax(z, theta[..., 0, :], scale[..., 0, 0].float(), mode, valid))


def fit(x: NDArray[np.int8], scale: NDArray[np.float64], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """The exact optimum of KL(softmax || p_hat / 32767) for rows as long as these (docs/calibration.md)."""
    heads = scale.size
    lead = x.ndim - 2 - scale.ndim
    # [*others, *heads, q, k] -> [heads, rows, k]: the statistics count every row of a head alike.
    by_head = [np.moveaxis(array, range(lead), range(-2 - lead, -2)) for array in (x, valid)]
    logits, mask = (array.reshape(heads, -1, x.shape[-1])[None] for array in by_head)
    statistics = HeadStatistics((1, heads), n=x.shape[-1], scale=scale.reshape(1, heads))
    statistics.update(np.ascontiguousarray(logits), np.ascontiguousarray(mask))
    table = calibrate(statistics)
    return {name: getattr(table, name).reshape(scale.shape) for name in "BSD"}


def costs_by(mode: str = "i16_div", **theta: Any) -> Costs:
    """Those of a mode."""
    # CLB: the leading bit and a shift stand in for the division, and outputs saturate; u8: a shift by 15.
    by_shift = Mode(mode).is_clb or Mode(mode).is_linear
    narrow = Mode(mode).is_u8
    return Costs(
        input="int8",
        output="uint8" if narrow else "int16",
        bits_in=8,
        bits_out=8 if narrow else 16,
        bits_inside=32,
        table_bytes=0,
        needs=frozenset({"max", "sum"} if by_shift else {"divide", "max", "sum"}),
        # max, subtract, clip, multiply, subtract, sum, multiply
        operations=PerRow(element=7 + by_shift + narrow, row=2 * by_shift),
        divides=PerRow() if by_shift else PerRow(row=1),
        exponentials=PerRow(),
        integer_only=True,
        trainable=True,
        source="the HCCS paper; docs/spec.md",
    )


SURROGATE = Surrogate(
    name="hccs",
    summary="head-calibrated clipped-linear scores",
    costs=costs_by(),
    costs_by=costs_by,
    rows=rows,
    tensor=tensor,
    constants=constants,
    quantises=False,
    parameters={"B": REQUIRED, "S": REQUIRED, "D": REQUIRED, "mode": "i16_div"},
    fit=fit,
)
