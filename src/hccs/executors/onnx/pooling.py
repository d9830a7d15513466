"""From tokens to a vector: smooth ramps, pooling, unit vectors. All values are integers in float64."""

from __future__ import annotations

import numpy as np

from hccs.executors.onnx.graph import ZERO_POINT, Building, Graph, shape
from hccs.executors.onnx.linear import clamped
from hccs.executors.onnx.row_exponents import bits_beyond
from hccs.numbers.multipliers import INT16_LIMIT
from hccs.program.operators import Pool, Ramp, Unit
from hccs.reference.pooling import UNIT_BITS
from hccs.reference.ramp import ramp as reference_ramp

_LAST = shape(-1)
_BELOW = np.float64(-(2.0**17))
"""Less than every int16."""


def ramp(building: Building, step: Ramp) -> str:
    """f(x) of 16-bit rows, looked up among all 65,535 values; a negative x counts from the table's end."""
    graph, (name,) = building.graph, step.inputs
    x = np.concatenate([np.arange(INT16_LIMIT + 1), np.arange(-INT16_LIMIT, 0)]).astype(np.int16)
    index = graph.cast(graph("Reshape", building.made[name], shape(1, -1)), np.int32)
    found = graph("GatherElements", reference_ramp(x, step.params)[None], index, axis=1)
    return graph.cast(graph("Reshape", found, shape(-1, building.width(name))), np.float64)


def pool(building: Building, step: Pool) -> str:
    """One row [batch, width] per sequence of rows [batch * n, width]; padding takes no part."""
    graph, tokens, (name,) = building.graph, building.tokens, step.inputs
    rows = graph("Concat", tokens.sizes, shape(building.width(name)), axis=0)
    x = graph("Reshape", building.made[name], rows)
    mask = graph("Transpose", graph("Squeeze", tokens.mask, shape(1)), perm=[0, 2, 1])  # [batch, n, 1]
    if step.pooling == "max":
        real = graph("Where", graph.cast(mask, np.bool_), x, _BELOW)
        return graph("ReduceMax", real, shape(1), keepdims=0)
    taken = graph.cast(mask, np.float64)
    count = graph("ReduceSum", taken, shape(1))
    if step.pooling == "last":
        reached = graph("Equal", graph("CumSum", taken, np.int64(1)), count)
        taken = graph("Mul", taken, graph.cast(reached, np.float64))
    pooled = graph("ReduceSum", graph("Mul", x, taken), shape(1), keepdims=0)
    if step.pooling != "mean" or not step.divided:
        return pooled
    return _divided_half_up(graph, pooled, graph("Max", graph("Squeeze", count, shape(1)), np.float64(1)))


def unit(building: Building, step: Unit) -> str:
    """The first channels of rows as unit vectors in Q15."""
    graph, (name,) = building.graph, step.inputs
    e, value = building.made[name], building.program.values[name]
    if step.dims < value.width:
        e = graph("Slice", e, shape(0), shape(step.dims), shape(1))
    if value.bits == 8:
        e = graph("Sub", graph.cast(e, np.float64), np.float64(ZERO_POINT))
    if value.bits == 32:
        beyond = bits_beyond(graph, graph("ReduceMax", graph("Abs", e), _LAST), UNIT_BITS, 32 - UNIT_BITS)
        e = graph("Round", graph("Mul", e, graph("Gather", 0.5 ** np.arange(33 - UNIT_BITS), beyond)))
    norm = graph("Max", _norm(graph, e), np.float64(1))
    raised = graph("Mul", e, np.float64(INT16_LIMIT))
    return clamped(graph, _divided_half_up(graph, raised, norm), INT16_LIMIT)


def _norm(graph: Graph, e: str) -> str:
    """isqrt(sum e^2), below 2^32: the float64 root of the int64 sum is that, or one more."""
    wide = graph.cast(e, np.int64)
    squares = graph("ReduceSum", graph("Mul", wide, wide), _LAST)
    root = graph.cast(graph("Sqrt", graph.cast(squares, np.float64)), np.int64)
    above = graph("Less", squares, graph("Mul", root, root))
    return graph.cast(graph("Sub", root, graph.cast(above, np.int64)), np.float64)


def _divided_half_up(graph: Graph, x: str, n: str) -> str:
    """floor((2 x + n) / (2 n)), n < 2^32: a quotient below 2^16 is no integer, or 2^-33 or more from one."""
    doubled = graph("Add", graph("Mul", x, np.float64(2)), n)
    return graph("Floor", graph("Div", doubled, graph("Mul", n, np.float64(2))))
