"""From the model's inputs to rows, and from rows to a vector: embeddings, ramps, pooling, unit vectors.

Values are integers in float64.
"""

from __future__ import annotations

import numpy as np

from hccs.executors.onnx.graph import ZERO_POINT, Building, Graph, Tokens, shape
from hccs.executors.onnx.linear import bits_beyond, clamped, linear
from hccs.numbers.layers import INT16_LIMIT
from hccs.program.operators import Embed, EmbedPatches, Pool, Ramp, Unit
from hccs.reference.pooling import UNIT_BITS
from hccs.reference.table import ramp as reference_ramp

_LAST = shape(-1)
_BELOW = np.float64(-(2.0**17))
"""Less than every int16."""


def embed(building: Building, step: Embed) -> str:
    """(words[token] << shift) + positions[position] + types[type] as float64 rows [batch * n, h]."""
    graph, params = building.graph, step.params
    graph.place = "tokens"
    sizes = graph("Shape", "input_ids")
    mask = graph.cast(graph("Unsqueeze", "attention_mask", shape(1, 2)), np.uint8)
    building.tokens = Tokens(sizes, mask)
    graph.place = step.output
    for name in ("input_ids", "attention_mask"):
        building.add_input(name, np.int64, ["batch", "length"])
    # One type for all where none are given; its sizes have names of their own, since a default has one shape.
    types = "token_type_ids"
    building.defaults.append(graph.onnx.numpy_helper.from_array(np.zeros((1, 1), np.int64), types))
    if len(params.types) > 1:
        building.add_input(types, np.int64, ["typed_batch", "typed_length"])
    words = graph.cast(graph("Gather", params.words, "input_ids"), np.float64)
    first = shape(step.first_position)
    length = graph("Slice", sizes, shape(1), shape(2))
    rows = graph("Slice", params.positions, first, graph("Add", length, first), shape(0))
    kinds = graph("Gather", graph.cast(graph.constant(params.types), np.float64), types)
    # Types first: they may be one row for all, and then both additions of whole rows are one.
    places = graph("Add", kinds, graph.cast(rows, np.float64))
    total = graph("Add", graph("Mul", words, np.float64(2.0**params.shift)), places)
    flat = graph("Reshape", total, shape(-1, params.words.shape[1]))
    return flat if step.limit is None else clamped(graph, flat, step.limit)


def embed_patches(building: Building, step: EmbedPatches) -> str:
    """Rows of special tokens and of patches, positions added; pixels have zero point 128 as they are."""
    graph, params, images = building.graph, step.params, "pixel_values"
    channels, height, width = params.image
    p, w = params.patch, params.positions.shape[1]
    graph.place = "tokens"
    batch = graph("Shape", images, start=0, end=1)
    sizes = graph("Concat", batch, shape(params.tokens), axis=0)
    building.tokens = Tokens(sizes, graph.constant(np.ones((1, 1, 1, params.tokens), np.uint8)))
    graph.place = step.output
    building.add_input(images, np.uint8, ["batch", *params.image])
    cut = graph("Reshape", images, shape(-1, channels, height // p, p, width // p, p))
    pixels = graph("Transpose", cut, perm=[0, 2, 4, 1, 3, 5])
    patches = linear(graph, graph("Reshape", pixels, shape(-1, channels * p * p)), params.projection)
    rows = graph("Reshape", patches, shape(-1, (height // p) * (width // p), w))
    special = params.special[None].astype(np.float64)
    every = graph("Expand", special, graph("Concat", batch, shape(*params.special.shape), axis=0))
    total = graph("Add", graph("Concat", every, rows, axis=1), params.positions.astype(np.float64))
    return graph("Reshape", clamped(graph, total, INT16_LIMIT), shape(-1, w))


def causal(graph: Graph, tokens: Tokens) -> Tokens:
    """The same tokens, each of which attends to none after itself."""
    length = graph("Squeeze", graph("Slice", tokens.sizes, shape(1), shape(2)))
    order = graph("Range", np.int64(0), length, np.int64(1))
    seen = graph("LessOrEqual", order, graph("Unsqueeze", order, shape(1)))
    return Tokens(tokens.sizes, graph("Where", seen, tokens.mask, np.uint8(0)))


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
