"""The first operator, with the model's inputs: look-ups and their sum, or the patches of an image."""

from __future__ import annotations

import numpy as np

from hccs.executors.onnx.graph import Building, Graph, Tokens, shape
from hccs.executors.onnx.linear import clamped, linear
from hccs.numbers.multipliers import INT16_LIMIT
from hccs.program.operators import Embed, EmbedPatches


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
