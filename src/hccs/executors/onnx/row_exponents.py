"""Rows with exponents: uint8 rows [m, width] with zero point 128, and each row's e, int64 [m].

Shifts by e are look-ups by row: the nine biases rhe(b / 2^e) of a layer are constants, and powers of two are
exact factors. A product sum * M below 2^53 is exact in float64, and a larger one is clamped.
"""

from __future__ import annotations

import numpy as np

from hccs.executors.onnx.graph import ZERO_POINT, Building, Graph, shape
from hccs.executors.onnx.linear import clamped, without_128
from hccs.numbers.multipliers import INT8_LIMIT, ROW_SHIFT, LinearParams
from hccs.program.operators import Linear, NarrowRows
from hccs.reference.requantise import shift_half_even

EXPONENTS = np.arange(9)
_LAST = shape(-1)


def narrow_rows(building: Building, step: NarrowRows) -> str:
    """16-bit rows to uint8 rows: float32 holds them, and `QuantizeLinear` rounds half to even."""
    graph = building.graph
    x = graph.cast(building.made[step.inputs[0]], np.float32)
    largest = graph.cast(graph("ReduceMax", graph("Abs", x), _LAST), np.float64)
    e = bits_beyond(graph, largest, 7, len(EXPONENTS) - 1)
    building.exponents[step.output] = graph("Squeeze", e, _LAST)
    factor = graph("Gather", (0.5**EXPONENTS).astype(np.float32), e)
    scaled = graph("Mul", x, factor)
    return without_128(graph, graph("QuantizeLinear", scaled, np.float32(1), ZERO_POINT))


def bits_beyond(graph: Graph, largest: str, bits: int, most: int) -> str:
    """max(0, bits of an integer - `bits`) of float64 integers [m, 1], at most `most`, as int64 [m, 1]."""
    reached = graph("GreaterOrEqual", largest, 2.0 ** (bits + np.arange(most)))
    return graph("ReduceSum", graph.cast(reached, np.int64), _LAST)


def linear_rows(building: Building, step: Linear) -> str:
    """clamp(rhe((W x + rhe(b / 2^e)) * M / 2^(23 - e))): uint8, or float64 for 16 bits."""
    graph, layer, (name,) = building.graph, step.params, step.inputs
    e = building.exponents[name]
    sums = graph("Add", _products(graph, building.made[name], layer), graph("Gather", _biases(layer), e))
    assert layer.multiplier is not None
    scaled = graph("Mul", graph.cast(sums, np.float64), layer.multiplier / 2.0**ROW_SHIFT)
    raised = graph("Mul", scaled, graph("Unsqueeze", graph("Gather", 2.0**EXPONENTS, e), shape(1)))
    nearest = clamped(graph, graph("Round", raised), layer.limit)
    if layer.limit != INT8_LIMIT:
        return nearest
    return graph.cast(graph("Add", nearest, np.float64(ZERO_POINT)), np.uint8)


def _products(graph: Graph, x: str, layer: LinearParams) -> str:
    # Not shared, as in `linear`: ONNX Runtime may rewrite weights, each by its own name.
    weight = graph.constant(np.ascontiguousarray(layer.weight.T), shared=False)
    return graph("MatMulInteger", x, weight, ZERO_POINT)


def _biases(layer: LinearParams) -> np.ndarray:
    """rhe(b / 2^e) of every exponent: int32 [9, outputs]."""
    shifted: np.ndarray = shift_half_even(layer.bias.astype(np.int64), EXPONENTS[:, None]).astype(np.int32)
    return shifted
