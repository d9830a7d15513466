"""LayerNorm and RMSNorm by float64 and int64 operators that lose no bit.

The law computes d = h*v - S, Q = sum d^2 + epsilon, r = floor(root / isqrt(Q * 4^t)) and rounds d * r / 2^e,
a product of up to 58 bits. Row by row (a few numbers each) everything is int64 or an exact float64. Value by
value, four things make float64 enough:

- sum d^2 = h * (h * sum v^2 - S^2), all terms at most 2^52;
- d * r = v * (h*r) - S*r. With h = odd * 2^a the first product is a multiple of 2^a, at most odd * 2^47 of
  them;
- so all that matters of S*r is which multiple of 2^a it is, or between which two it lies. It is replaced by
  the middle of the two, and the difference, in halves of 2^a, is exact in 53 bits for odd <= 16. No tie
  moves: in a row that is not constant e > a, so that ties are multiples of 2^a; in a constant row all is 0;
- xhat * G + B * 2^20 stays below 2^52.

Where `odd` is larger, r is cut in two and the rounding of their sum is corrected by its own exact remainder.
RMSNorm has no sum: d * r is v * r, of 48 bits, times 2^8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hccs.executors.onnx.graph import Graph, shape
from hccs.executors.onnx.linear import clamped
from hccs.numbers.layers import INT16_LIMIT, XHAT_BITS, NormParams
from hccs.numbers.rms_norm import RMS_BITS, RmsParams
from hccs.reference.layer_norm import root_of, root_shift

LARGEST_ODD = 16
_LAST = shape(-1)
_POWERS = np.arange(32)
"""floor(log2(Q) / 2), row by row: t = 31 - this."""


def layer_norm(graph: Graph, v: str, params: NormParams) -> str:
    """LayerNorm of float64 rows [m, h] of integers, |v| <= 2^16, as float64 integers of 16 bits."""
    total = graph("ReduceSum", v, _LAST)
    r, scale = _inverse_root(graph, _Q(graph, v, total, params), params.channels)
    if params.channels // _power_of_two(params.channels) <= LARGEST_ODD:
        xhat = _by_one_product(graph, v, total, r, scale, params.channels)
    else:
        xhat = _by_two_products(graph, v, total, r, scale, params.channels)
    gain = params.gain / 2.0 ** (XHAT_BITS + params.gain_bits)
    scaled = graph("Add", graph("Mul", xhat, gain), params.bias / 2.0**params.gain_bits)
    return clamped(graph, graph("Round", scaled), INT16_LIMIT)


def rms_norm(graph: Graph, v: str, params: RmsParams) -> str:
    """RMSNorm of the same rows."""
    squares = graph.cast(graph("ReduceSum", graph("Mul", v, v), _LAST), np.int64)
    Q = graph("Add", graph("Mul", squares, np.int64(4**RMS_BITS)), np.int64(params.epsilon))
    r, scale = _inverse_root(graph, Q, params.channels)
    factor = graph("Mul", graph("Mul", graph.cast(r, np.float64), scale), np.float64(2.0**RMS_BITS))
    xhat = graph("Round", graph("Mul", v, factor))
    gain = params.gain / 2.0 ** (XHAT_BITS + params.gain_bits)
    return clamped(graph, graph("Round", graph("Mul", xhat, gain)), INT16_LIMIT)


def norm_heads(graph: Graph, x: str, heads: Sequence[RmsParams], width: int) -> str:
    """RMSNorm of each head of float64 rows [m, width]; the channels behind the heads stay."""
    d = heads[0].channels

    def part(begin: int, end: int) -> str:
        return graph("Slice", x, shape(begin), shape(end), _LAST)

    parts = [rms_norm(graph, part(d * i, d * (i + 1)), head) for i, head in enumerate(heads)]
    if d * len(heads) < width:
        parts.append(part(d * len(heads), width))
    return graph("Concat", *parts, axis=-1)


def _Q(graph: Graph, v: str, total: str, params: NormParams) -> str:
    """h^3 times the variance, and epsilon: int64, below 2^63."""
    squares = graph("Mul", graph("ReduceSum", graph("Mul", v, v), _LAST), np.float64(params.channels))
    spread = graph.cast(graph("Sub", squares, graph("Mul", total, total)), np.int64)
    return graph("Add", graph("Mul", spread, np.int64(params.channels)), np.int64(params.epsilon))


def _inverse_root(graph: Graph, Q: str, h: int) -> tuple[str, str]:
    """(r, 2^-e) of `reference.layer_norm.inverse_root`: int64 and float64 [m, 1]."""
    reached = graph("GreaterOrEqual", Q, np.int64(4) ** _POWERS[1:])
    half_log = graph("ReduceSum", graph.cast(reached, np.int32), _LAST)
    t = 31 - _POWERS
    four = graph("Gather", np.int64(4) ** t, half_log)
    two = graph("Gather", 2.0**t, half_log)
    scale = graph("Gather", 2.0 ** -(root_shift(h) - t - XHAT_BITS), half_log)
    # The float64 root is the integer one or one more. By how much its square misses Q * 4^t is a small
    # number, which arithmetic modulo 2^64 gives exactly, though both squares may exceed int64. (Less, not
    # Clip: ONNX Runtime 1.31 takes 2^31 for less than 0 in the Clip, Min and Max of int64.)
    root = graph.cast(graph("Mul", graph("Sqrt", graph.cast(Q, np.float64)), two), np.int64)
    missing = graph("Sub", graph("Mul", Q, four), graph("Mul", root, root))
    s = graph("Sub", root, graph.cast(graph("Less", missing, np.int64(0)), np.int64))
    return graph("Div", np.int64(root_of(h)), s), scale


def _by_one_product(graph: Graph, v: str, total: str, r: str, scale: str, h: int) -> str:
    """xhat = rhe(v * (h*r) / 2^e - c), with c the sum's share, moved to the middle of its cell of 2^a."""
    cell = _power_of_two(h)
    share = graph("Mul", graph.cast(total, np.int64), r)
    if cell > 1:
        inside = graph("Mod", share, np.int64(cell))
        middle = graph("Mul", graph.cast(graph.cast(inside, np.bool_), np.int64), np.int64(cell // 2))
        share = graph("Add", graph("Sub", share, inside), middle)
    factor = graph("Mul", graph("Mul", graph.cast(r, np.float64), scale), np.float64(h))
    moved = graph("Sub", graph("Mul", v, factor), graph("Mul", graph.cast(share, np.float64), scale))
    return graph("Round", moved)


def _by_two_products(graph: Graph, v: str, total: str, r: str, scale: str, h: int) -> str:
    """xhat = rhe(d * r / 2^e) with r = high + low: the rounded sum, and the rounding of what it misses."""
    d = graph("Sub", graph("Mul", v, np.float64(h)), total)
    low = graph("Mod", r, np.int64(2**16))
    high = graph("Sub", r, low)
    most, rest = (graph("Mul", d, graph("Mul", graph.cast(part, np.float64), scale)) for part in (high, low))
    nearest = graph("Round", graph("Add", most, rest))
    return graph("Add", nearest, graph("Round", graph("Add", graph("Sub", most, nearest), rest)))


def _power_of_two(h: int) -> int:
    """The largest that divides h."""
    return h & -h
