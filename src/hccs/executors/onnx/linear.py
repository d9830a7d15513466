"""Linear layers, tables and narrowing on uint8 with zero point 128.

`QGemm` with a_scale = y_scale = 1 and b_scale = M / 2^16 computes clamp(rhe(a * M / 2^16)) in float32:
products below 2^24 are exact there, and larger ones mean |y| >= 256, which is clamped. It clamps to -128, the
law to -127: one `Clip`, or a table whose first two entries are equal, makes up for that. 16-bit outputs are
computed in float64, which holds every product that is not clamped exactly.

Where rows have exponents e, int64 [m], shifts by e are look-ups by row: the biases rhe(b / 2^e) of a layer
for every e are constants, and powers of two are exact factors. A product sum * M below 2^53 is exact in
float64, and a larger one is clamped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hccs.executors.onnx.graph import MICROSOFT, ZERO_POINT, Building, Graph, shape
from hccs.numbers.layers import INT8_LIMIT, MULTIPLIER_SHIFT, ROW_SHIFT, LinearParams
from hccs.program.operators import Linear, NarrowRows
from hccs.reference.linear import shift_half_even

_ONE = np.float32(1)
_LAST = shape(-1)


def linear(graph: Graph, x: str, layer: LinearParams, *, clamp: bool = True) -> str:
    """rq(W x + b) of uint8 rows [m, inputs]: uint8, or float64 for more bits, or the int32 sums.

    Without `clamp` an 8-bit output may be 0, which stands for -128, where the law says -127.
    """
    # Not shared: on a CPU without VNNI ONNX Runtime may rewrite them as uint8, each by its own name.
    weight = graph.constant(np.ascontiguousarray(layer.weight.T), shared=False)
    if layer.multiplier is not None and layer.limit == INT8_LIMIT:
        scale = (layer.multiplier / 2.0**MULTIPLIER_SHIFT).astype(np.float32)
        zero = graph.constant(np.zeros_like(layer.bias, np.int8), shared=False)
        made = graph(
            "QGemm", x, _ONE, ZERO_POINT, weight, scale, zero, layer.bias, _ONE, ZERO_POINT, domain=MICROSOFT
        )
        return without_128(graph, made) if clamp else made
    sums = graph("Add", graph("MatMulInteger", x, weight, ZERO_POINT), layer.bias)
    if layer.multiplier is None:
        return sums
    scaled = graph("Mul", graph.cast(sums, np.float64), layer.multiplier / 2.0**MULTIPLIER_SHIFT)
    return clamped(graph, graph("Round", scaled), layer.limit)


def narrow(graph: Graph, x: str, bits: int) -> str:
    """16-bit values to uint8: float32 holds them, and `QuantizeLinear` rounds half to even."""
    step = np.float32(2.0**bits)
    return without_128(graph, graph("QuantizeLinear", graph.cast(x, np.float32), step, ZERO_POINT))


def table(graph: Graph, x: str, entries: NDArray[np.int8], width: int, *, clamp: bool) -> str:
    """entries[x] of uint8 rows [m, width]; with `clamp`, x = -128 stands for -127.

    `GatherElements`, not `Gather`: ONNX Runtime copies single values nine times as fast with it.
    """
    shifted = (entries.astype(np.int16) + 128).astype(np.uint8)
    if clamp:
        shifted[0] = shifted[1]
    index = graph.cast(graph("Reshape", x, shape(1, -1)), np.int32)
    return graph("Reshape", graph("GatherElements", shifted[None], index, axis=1), shape(-1, width))


def clamped(graph: Graph, x: str, limit: int) -> str:
    """float64 values within +-limit."""
    return graph("Clip", x, np.float64(-limit), np.float64(limit))


def without_128(graph: Graph, x: str) -> str:
    """uint8 values with 0, which stands for -128, raised to 1."""
    return graph("Clip", x, np.uint8(1))


def narrow_rows(building: Building, step: NarrowRows) -> str:
    """16-bit or 24-bit rows to uint8 rows: float32 holds them, and `QuantizeLinear` rounds half to even."""
    graph, exponents = building.graph, _exponents(building, step.output)
    x = building.made[step.inputs[0]]
    if step.scale is not None:  # below 2^31: exact in float64
        scaled = graph("Mul", graph.cast(x, np.float64), step.scale / 2.0**15)
        x = graph("Floor", graph("Add", scaled, np.float64(0.5)))
    x = graph.cast(x, np.float32)
    largest = graph.cast(graph("ReduceMax", graph("Abs", x), _LAST), np.float64)
    e = bits_beyond(graph, largest, 7, len(exponents) - 1)
    building.exponents[step.output] = graph("Squeeze", e, _LAST)
    factor = graph("Gather", (0.5**exponents).astype(np.float32), e)
    return without_128(graph, graph("QuantizeLinear", graph("Mul", x, factor), np.float32(1), ZERO_POINT))


def _exponents(building: Building, name: str) -> NDArray[np.int64]:
    """All exponents that the rows of a value may have."""
    return np.arange(building.program.values[name].exponents + 1)


def bits_beyond(graph: Graph, largest: str, bits: int, most: int) -> str:
    """max(0, bits of an integer - `bits`) of float64 integers [m, 1], at most `most`, as int64 [m, 1]."""
    reached = graph("GreaterOrEqual", largest, 2.0 ** (bits + np.arange(most)))
    return graph("ReduceSum", graph.cast(reached, np.int64), _LAST)


def linear_rows(building: Building, step: Linear) -> str:
    """clamp(rhe((W x + rhe(b / 2^e)) * M / 2^(23 - e))): uint8, or float64 for more bits."""
    graph, layer, (name,) = building.graph, step.params, step.inputs
    exponents = _exponents(building, name)
    e = building.exponents[name]
    sums = graph(
        "Add", _products(graph, building.made[name], layer), graph("Gather", _biases(layer, exponents), e)
    )
    assert layer.multiplier is not None
    scaled = graph("Mul", graph.cast(sums, np.float64), layer.multiplier / 2.0**ROW_SHIFT)
    raised = graph("Mul", scaled, graph("Unsqueeze", graph("Gather", 2.0**exponents, e), shape(1)))
    nearest = clamped(graph, graph("Round", raised), layer.limit)
    if layer.limit != INT8_LIMIT:
        return nearest
    return graph.cast(graph("Add", nearest, np.float64(ZERO_POINT)), np.uint8)


def _products(graph: Graph, x: str, layer: LinearParams) -> str:
    # Not shared, as in `linear`: ONNX Runtime may rewrite weights, each by its own name.
    weight = graph.constant(np.ascontiguousarray(layer.weight.T), shared=False)
    return graph("MatMulInteger", x, weight, ZERO_POINT)


def _biases(layer: LinearParams, exponents: NDArray[np.int64]) -> NDArray[np.int32]:
    """rhe(b / 2^e) of every exponent: int32 [exponents, outputs]."""
    return shift_half_even(layer.bias.astype(np.int64), exponents[:, None]).astype(np.int32)
