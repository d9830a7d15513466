"""From the model's inputs to rows, and from rows to a vector: embeddings, ramps, pooling, unit vectors.

Values are integers in float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hccs.executors.onnx.graph import ZERO_POINT, Building, Graph, Tokens, shape
from hccs.executors.onnx.linear import bits_beyond, clamped, linear
from hccs.numbers.layers import INT8_LIMIT, INT16_LIMIT
from hccs.numbers.rotary import ROTATE_SHIFT
from hccs.program.operators import UNLIMITED, Embed, EmbedPatches, Last, Multiply, Pool, Ramp, Rotate, Unit
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
    words = graph.cast(graph("Gather", params.words, "input_ids"), np.float64)
    added = []
    if params.types is not None:
        added.append(_types(building, params.types))
    if params.positions is not None:
        added.append(positioned(building, params.positions, step.first_position))
    total = graph("Mul", words, np.float64(2.0**params.shift))
    # Types first: they may be one row for all, and then both additions of whole rows are one.
    if added:
        total = graph("Add", total, added[0] if len(added) == 1 else graph("Add", *added))
    flat = graph("Reshape", total, shape(-1, params.words.shape[1]))
    return flat if step.limit is None else clamped(graph, flat, step.limit)


def _types(building: Building, table: NDArray[np.int16]) -> str:
    """The rows of token types: of one type for all where none are given.

    Its sizes have names of their own, since a default has one shape.
    """
    graph, types = building.graph, "token_type_ids"
    building.defaults.append(graph.onnx.numpy_helper.from_array(np.zeros((1, 1), np.int64), types))
    if len(table) > 1:
        building.add_input(types, np.int64, ["typed_batch", "typed_length"])
    return graph("Gather", graph.cast(graph.constant(table), np.float64), types)


def positioned(building: Building, table: NDArray[np.int16], first: int = 0) -> str:
    """The rows of a table of positions that a sequence has, from the position `first` on, as float64."""
    graph = building.graph
    length = graph("Slice", building.tokens.sizes, shape(1), shape(2))
    rows = graph("Slice", table, shape(first), graph("Add", length, shape(first)), shape(0))
    return graph.cast(rows, np.float64)


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


def within(graph: Graph, tokens: Tokens, before: int, after: int) -> Tokens:
    """The same tokens, each of which attends to none further before and after itself."""
    length = graph("Squeeze", graph("Slice", tokens.sizes, shape(1), shape(2)))
    order = graph("Range", np.int64(0), length, np.int64(1))
    distance = graph("Sub", order, graph("Unsqueeze", order, shape(1)))
    seen = graph("LessOrEqual", distance, np.int64(after))
    if before < UNLIMITED:
        seen = graph("And", seen, graph("GreaterOrEqual", distance, np.int64(-before)))
    return Tokens(tokens.sizes, graph("Where", seen, tokens.mask, np.uint8(0)))


def ramp(building: Building, step: Ramp) -> str:
    """f(x) of 16-bit rows, looked up among all 65,535 values; a negative x counts from the table's end."""
    graph, (name,) = building.graph, step.inputs
    x = np.concatenate([np.arange(INT16_LIMIT + 1), np.arange(-INT16_LIMIT, 0)]).astype(np.int16)
    index = graph.cast(graph("Reshape", building.made[name], shape(1, -1)), np.int32)
    found = graph("GatherElements", reference_ramp(x, step.params)[None], index, axis=1)
    return graph.cast(graph("Reshape", found, shape(-1, building.width(name))), np.float64)


def multiply(building: Building, step: Multiply) -> str:
    """clamp(rhe(a * b / 2^bits)): products of 30 bits."""
    graph = building.graph
    product = graph("Mul", *(building.made[name] for name in step.inputs))
    return clamped(graph, graph("Round", graph("Mul", product, np.float64(0.5**step.bits))), step.limit)


def rotate(building: Building, step: Rotate) -> str:
    """16-bit rows of q, k and v to uint8: products a * M below 2^53 are exact, larger ones are clamped."""
    graph, p, (name,) = building.graph, step.params, step.inputs
    d, turned = building.width(name) // p.all_heads, p.heads + p.kv_heads
    heads = graph("Concat", building.tokens.sizes, shape(p.all_heads, d), axis=0)
    x = graph("Reshape", building.made[name], heads)
    cosine, sine = (
        graph("Unsqueeze", positioned(building, part), shape(1)) for part in (p.cosine, p.sine)
    )  # [n, 1, pairs]

    def part(of: str, begin: int, end: int, axis: int = 3) -> str:
        return graph("Slice", of, shape(begin), shape(end), shape(axis))

    def straight(of: str) -> str:
        return graph("Mul", of, np.float64(INT16_LIMIT))

    qk = part(x, 0, turned, axis=2)
    first, second = part(qk, 0, p.pairs), part(qk, p.pairs, 2 * p.pairs)
    parts = [
        graph("Sub", graph("Mul", first, cosine), graph("Mul", second, sine)),
        graph("Add", graph("Mul", second, cosine), graph("Mul", first, sine)),
    ]
    if d > 2 * p.pairs:
        parts.append(straight(part(qk, 2 * p.pairs, d)))
    v = straight(part(x, turned, p.all_heads, axis=2))
    a = graph("Concat", graph("Concat", *parts, axis=3), v, axis=2)
    factor = (p.multiplier / 2.0**ROTATE_SHIFT)[:, None]
    y = clamped(graph, graph("Round", graph("Mul", a, factor)), INT8_LIMIT)
    y = graph.cast(graph("Add", y, np.float64(ZERO_POINT)), np.uint8)
    return graph("Reshape", y, shape(-1, building.width(name)))


def last(building: Building, step: Last) -> str:
    """The last row of every sequence, and its exponent."""
    graph, tokens, (name,) = building.graph, building.tokens, step.inputs
    lengths = graph("ReduceSum", graph.cast(tokens.mask, np.int64), _LAST, keepdims=0)  # [batch, 1, 1]
    one_each = graph("Concat", graph("Slice", tokens.sizes, shape(0), shape(1)), shape(1), axis=0)
    index = graph("Expand", graph("Sub", graph("Squeeze", lengths, shape(2)), np.int64(1)), one_each)
    if name in building.exponents:
        e = graph("Reshape", building.exponents[name], tokens.sizes)
        building.exponents[step.output] = graph("GatherND", e, index, batch_dims=1)
    rows = graph("Concat", tokens.sizes, shape(building.width(name)), axis=0)
    return graph("GatherND", graph("Reshape", building.made[name], rows), index, batch_dims=1)


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
