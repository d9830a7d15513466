"""Integer attention: two integer products per head around HCCS, whose distances are uint8.

The weights B - S*delta have up to 15 bits, the distances delta 7: N = B * sum(v) - S * sum(delta * v), and Z
is the same of a column of ones beside v. A masked column has distance 0 and is left out of sum(v). Two lines
without a shift are the same with a second delta. Shifted scores are looked up by distance, and are uint8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.executors.onnx.graph import ZERO_POINT, Graph, Tokens, shape
from hccs.numbers.heads import NAMES
from hccs.numbers.modes import INT16_MAX, UINT8_MAX, WIDE_MAX
from hccs.numbers.score_tables import DISTANCES, ScoreTable
from hccs.program.operators import Attention

OFFSET_SHIFT = 45
"""Up to this shift x + 128.5 is exact in float64: |x| <= 2^(48 - shift), in steps of 2^-shift."""

EXACT_SUM_BITS = 21
"""Up to Z of as many bits |N * R| < 2^52: float64 holds it, and half a step beside it."""

_MASKED = -(2.0**60)
_BEYOND = 256
"""The distance of masked columns where scores are looked up."""


def attention(graph: Graph, x: str, step: Attention, tokens: Tokens, width: int, longest: int) -> str:
    """uint8 rows of q, k and v side by side to rows of the heads' outputs.

    No row has more than `longest` columns.
    """
    heads, shared = step.heads, step.shared_heads
    d = width // (heads + 2 * shared)
    by_head = graph("Concat", tokens.sizes, shape(heads, d), axis=0)
    q, k, v = graph.several("Split", 3, x, shape(heads * d, shared * d, shared * d), axis=1)
    if shared != heads:
        of_keys = graph("Concat", tokens.sizes, shape(shared, d), axis=0)
        own = np.arange(heads) // (heads // shared)
        k, v = (graph("Gather", graph("Reshape", part, of_keys), own, axis=2) for part in (k, v))
    q = graph("Transpose", graph("Reshape", q, by_head), perm=[0, 2, 1, 3])
    k = graph("Transpose", graph("Reshape", k, by_head), perm=[0, 2, 3, 1])
    valid = graph.cast(tokens.mask, np.bool_)
    distance = _distances(graph, q, k, step, valid)
    if isinstance(step.theta, ScoreTable) or np.any(step.theta.f):
        sums = _sums_of_scores(graph, distance, valid, _values(graph, v, by_head, ZERO_POINT), step)
    else:
        values = _values(graph, _as_int8(graph, v), by_head, np.int8(0))
        sums = _sums_of_distances(graph, distance, valid, values, step, tokens)
    Z = graph("Max", graph("Slice", sums, shape(d), shape(d + 1), shape(3)), np.int32(1))
    bits = min(longest * step.theta.max_score, WIDE_MAX if step.theta.wide else INT16_MAX).bit_length()
    N = graph("Slice", sums, shape(0), shape(d), shape(3))
    divided = _divided if bits <= EXACT_SUM_BITS else _divided_in_int64
    out = divided(graph, N, Z, step, np.arange(bits))
    return graph("Reshape", graph("Transpose", out, perm=[0, 2, 1, 3]), shape(-1, heads * d))


def _values(graph: Graph, v: str, by_head: str, zero: np.generic) -> str:
    """v [batch, heads, n, d + 1] with ones in the last column; `zero` is the zero point."""
    ones = shape(0, 0, 0, 0, 0, 0, 0, 1)
    padded = graph("Pad", graph("Reshape", v, by_head), ones, zero + zero.dtype.type(1))
    return graph("Transpose", padded, perm=[0, 2, 1, 3])


def _distances(graph: Graph, q: str, k: str, step: Attention, valid: str) -> str:
    """m - x as int32; x are the logits, m the largest of those that are not masked."""
    products = graph.cast(graph("MatMulInteger", q, k, ZERO_POINT, ZERO_POINT), np.float64)
    factor = step.requant.logits
    shift = np.asarray(factor.shift)
    if shift.max() <= OFFSET_SHIFT:
        offset = graph("Where", valid, np.float64(128.5), np.float64(_MASKED))
        x = graph("Add", graph("Mul", products, _real(factor.multiplier, shift)), offset)
    else:
        offset = graph("Where", valid, np.float64(128), np.float64(_MASKED))
        x = graph("Add", _floor(graph, products, _real(factor.multiplier, shift)), offset)
    x = _saturated(graph, x, np.int32)  # not uint8: ONNX Runtime before 1.24 cannot subtract those
    return graph("Sub", graph("ReduceMax", x, shape(-1)), x)


def _sums_of_distances(
    graph: Graph, distance: str, valid: str, v: str, step: Attention, tokens: Tokens
) -> str:
    """(N, Z) = B * sum(v) - S * sum(min(d, D) * v), and with a second line - S2 * sum(min(d, D2) * v)."""
    theta = step.theta
    assert not isinstance(theta, ScoreTable)
    sums = graph("Mul", graph("MatMulInteger", tokens.mask, v), per_head(theta.B))
    for slope, bound in ((theta.S, theta.D), (theta.S2, theta.D2)):
        if np.any(slope):
            clamp = graph("Where", valid, per_head(bound), np.int32(0))
            delta = graph.cast(graph("Min", distance, clamp), np.uint8)
            lost = graph("Mul", graph("MatMulInteger", delta, v), per_head(slope))
            sums = graph("Sub", sums, lost)
    if np.any(theta.S) or np.any(theta.S2):
        return sums
    # Every score is B: rows that share a mask have one sum, which stands for all of them.
    rows = graph("Slice", tokens.sizes, shape(1), shape(2))
    return graph("Expand", sums, graph("Concat", shape(1, 1), rows, shape(1), axis=0))


def _sums_of_scores(graph: Graph, distance: str, valid: str, v: str, step: Attention) -> str:
    """(N, Z) = sum(s * v) with the scores of all distances as constants; those beyond uint8 in two bytes.

    v is uint8 as well: CPUs without VNNI add two products of uint8 by int8 in 16 bits.
    """
    d = np.arange(_BEYOND)
    scores = np.zeros((step.heads, 1, _BEYOND + 1), np.int32)
    if isinstance(step.theta, ScoreTable):
        scores[:, 0, :_BEYOND] = step.theta.packed[:, np.minimum(d, DISTANCES - 1)]
    else:
        B, S, D, S2, D2, f = (per_head(getattr(step.theta, name)) for name in NAMES)
        scores[..., :_BEYOND] = (B - S * np.minimum(d, D) - S2 * np.minimum(d, D2)) >> f
    first = per_head(np.arange(step.heads) * (_BEYOND + 1))
    at = graph("Add", graph("Where", valid, distance, np.int32(_BEYOND)), first)
    sums = ""
    for byte in range(1 if step.theta.max_score <= UINT8_MAX else 2):
        entries = (scores.ravel() >> 8 * byte & 255).astype(np.uint8)
        part = graph("MatMulInteger", graph("Gather", entries, at), v, np.uint8(0), ZERO_POINT)
        sums = part if byte == 0 else graph("Add", sums, graph("Mul", part, np.int32(256)))
    return sums


def _row_multiplier(graph: Graph, Z: str, step: Attention, exponents: NDArray[Any]) -> tuple[str, str]:
    """Z's leading bit k and floor(M * 2^k / Z) of each row, int64, M being the output's multiplier."""
    assert step.requant.output is not None
    reached = graph("GreaterOrEqual", Z, np.int32(2) ** exponents[1:].astype(np.int32))
    k = graph("ReduceSum", graph.cast(reached, np.int32), shape(-1))
    raised = graph(
        "Mul",
        graph("Gather", np.int64(2) ** exponents, k),
        per_head(step.requant.output.multiplier, np.int64),
    )
    return k, graph("Div", raised, graph.cast(Z, np.int64))


def _divided(graph: Graph, N: str, Z: str, step: Attention, exponents: NDArray[Any]) -> str:
    """floor(N * multiplier / 2^shift + 1/2) with a multiplier and a shift for each row, as uint8."""
    assert step.requant.output is not None
    k, multiplier = _row_multiplier(graph, Z, step, exponents)
    shift = np.asarray(step.requant.output.shift)
    unit = per_head(2.0 ** -shift.astype(np.float64), np.float64)
    power = graph("Gather", 2.0**exponents, k)
    factor = graph("Mul", graph("Div", graph.cast(multiplier, np.float64), power), unit)
    N = graph.cast(N, np.float64)
    if shift.max() + exponents[-1] <= OFFSET_SHIFT:
        return _saturated(graph, graph("Add", graph("Mul", N, factor), np.float64(128.5)), np.uint8)
    return _saturated(graph, graph("Add", _floor(graph, N, factor), np.float64(128)), np.uint8)


def _divided_in_int64(graph: Graph, N: str, Z: str, step: Attention, exponents: NDArray[Any]) -> str:
    """The same of the widest sums: 2^62, a multiple of 2^shift, makes products positive that are shifted."""
    assert step.requant.output is not None
    k, multiplier = _row_multiplier(graph, Z, step, exponents)
    shift = graph("Min", graph("Add", k, per_head(step.requant.output.shift)), np.int32(62))
    lifted = np.array([2**62 + (2**s >> 1) for s in range(63)])  # and half a step, to round
    product = graph("Add", graph("Mul", graph.cast(N, np.int64), multiplier), graph("Gather", lifted, shift))
    shifted = graph(
        "BitShift", graph.cast(product, np.uint64), graph.cast(shift, np.uint64), direction="RIGHT"
    )
    zero = graph("Gather", np.array([2 ** (62 - s) - 128 for s in range(63)]), shift)
    out = graph("Clip", graph("Sub", graph.cast(shifted, np.int64), zero), np.int64(0), np.int64(255))
    return graph.cast(out, np.uint8)


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
