"""Integer attention: two integer products per head around HCCS, whose distances are uint8.

The weights B - S*delta have up to 15 bits, the distances delta 7: N = B * sum(v) - S * sum(delta * v), and Z
is the same of a column of ones beside v. A masked column has distance 0 and is left out of sum(v).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.export.onnx_program.graph import ZERO_POINT, Graph, shape
from hccs.numbers.modes import INT16_MAX
from hccs.program.operators import Attention

if TYPE_CHECKING:
    from numpy.typing import NDArray

OFFSET_SHIFT = 45
"""Up to this shift x + 128.5 is exact in float64: |x| <= 2^(48 - shift), in steps of 2^-shift."""

_MASKED = -(2.0**60)
_EXPONENTS = np.arange(INT16_MAX.bit_length())
"""Leading bits of Z, from 1 to 32767."""


@dataclass(frozen=True)
class Tokens:
    """Which there are: `sizes` (batch, n), and the columns that a row attends to.

    `mask` is uint8 [batch, 1, 1, n], or with rows of their own [batch, 1, n, n].
    """

    sizes: str
    mask: str


def attention(graph: Graph, x: str, step: Attention, tokens: Tokens, width: int) -> str:
    """uint8 rows of q, k and v side by side, [m, 3 * heads * d], to rows of the heads' outputs."""
    step.theta.require_one_line("in whole models in ONNX", "Calibrate with lines=1 for this target.")
    heads, d = step.heads, width // (3 * step.heads)
    by_head = graph("Concat", tokens.sizes, shape(heads, d), axis=0)
    q, k, v = graph.several("Split", 3, x, axis=1, num_outputs=3)
    q = graph("Transpose", graph("Reshape", q, by_head), perm=[0, 2, 1, 3])
    k = graph("Transpose", graph("Reshape", k, by_head), perm=[0, 2, 3, 1])
    ones = shape(0, 0, 0, 0, 0, 0, 0, 1)
    v = graph("Pad", graph("Reshape", _as_int8(graph, v), by_head), ones, np.int8(1))
    v = graph("Transpose", v, perm=[0, 2, 1, 3])
    B, S, D = (per_head(step.theta.packed[:, i]) for i in range(3))
    delta = _distances(graph, q, k, step, tokens, D)
    lost = graph("Mul", graph("MatMulInteger", delta, v), S)
    most = graph("Mul", graph("MatMulInteger", tokens.mask, v), B)
    sums = graph("Sub", most, lost)
    out = _divided(graph, sums, graph("Slice", sums, shape(d), shape(d + 1), shape(3)), step)
    out = graph("Slice", out, shape(0), shape(d), shape(3))
    return graph("Reshape", graph("Transpose", out, perm=[0, 2, 1, 3]), shape(-1, heads * d))


def _distances(graph: Graph, q: str, k: str, step: Attention, tokens: Tokens, D: NDArray[np.int32]) -> str:
    """min(m - x, D) as uint8, and 0 where masked; x are the logits, m the largest of those that are not."""
    products = graph.cast(graph("MatMulInteger", q, k, ZERO_POINT, ZERO_POINT), np.float64)
    factor = step.requant.logits
    shift = np.asarray(factor.shift)
    valid = graph.cast(tokens.mask, np.bool_)
    if shift.max() <= OFFSET_SHIFT:
        offset = graph("Where", valid, np.float64(128.5), np.float64(_MASKED))
        x = graph("Add", graph("Mul", products, _real(factor.multiplier, shift)), offset)
    else:
        offset = graph("Where", valid, np.float64(128), np.float64(_MASKED))
        x = graph("Add", _floor(graph, products, _real(factor.multiplier, shift)), offset)
    x = _saturated(graph, x, np.int32)  # not uint8: ONNX Runtime before 1.24 cannot subtract those
    bound = graph("Where", valid, D, np.int32(0))
    return graph.cast(graph("Min", graph("Sub", graph("ReduceMax", x, shape(-1)), x), bound), np.uint8)


def _divided(graph: Graph, sums: str, Z: str, step: Attention) -> str:
    """floor(N * multiplier / 2^shift + 1/2) with a multiplier and a shift for each row, as uint8."""
    output = step.requant.output
    assert output is not None
    Z = graph("Max", Z, np.int32(1))
    reached = graph("GreaterOrEqual", Z, np.int32(2) ** _EXPONENTS[1:].astype(np.int32))
    power = graph(
        "Gather", np.int64(2) ** _EXPONENTS, graph("ReduceSum", graph.cast(reached, np.int32), shape(-1))
    )
    raised = graph("Mul", power, per_head(output.multiplier, np.int64))
    multiplier = graph.cast(graph("Div", raised, graph.cast(Z, np.int64)), np.float64)
    shift = np.asarray(output.shift)
    unit = per_head(2.0 ** -shift.astype(np.float64), np.float64)
    factor = graph("Mul", graph("Div", multiplier, graph.cast(power, np.float64)), unit)
    N = graph.cast(sums, np.float64)
    if shift.max() + _EXPONENTS[-1] <= OFFSET_SHIFT:
        return _saturated(graph, graph("Add", graph("Mul", N, factor), np.float64(128.5)), np.uint8)
    return _saturated(graph, graph("Add", _floor(graph, N, factor), np.float64(128)), np.uint8)


def _floor(graph: Graph, x: str, factor: Any) -> str:
    """floor(x * factor + 1/2), where the factor is so small that 128 must be added afterwards."""
    return graph("Floor", graph("Add", graph("Mul", x, factor), np.float64(0.5)))


def _as_int8(graph: Graph, x: str) -> str:
    """v as the second operand of a product: uint8 by int8 is the faster pair.

    Not k: CPUs without VNNI add two products in 16 bits, which holds those of distances up to 127 alone.
    """
    return graph.cast(graph("DequantizeLinear", x, np.float32(1), ZERO_POINT), np.int8)


def _saturated(graph: Graph, x: str, dtype: Any) -> str:
    """The floor of float64 values within 0..255: a cast cuts fractions off."""
    return graph.cast(graph("Clip", x, np.float64(0), np.float64(255)), dtype)


def _real(multiplier: Any, shift: NDArray[Any]) -> NDArray[np.float64]:
    return per_head(np.asarray(multiplier) * 2.0 ** -shift.astype(np.float64), np.float64)


def per_head(values: Any, dtype: Any = np.int32) -> NDArray[Any]:
    """One value per head, to go with [batch, heads, rows, columns]."""
    return np.asarray(values, dtype).reshape(-1, 1, 1)
