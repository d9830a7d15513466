"""The first operator: look-ups and their sum, or the patches of an image. Also who may attend to whom."""

from __future__ import annotations

import numpy as np

from hccs.export.onnx_program.attention import Tokens
from hccs.export.onnx_program.graph import Graph, shape
from hccs.export.onnx_program.linear import clamped, linear
from hccs.numbers.multipliers import INT16_LIMIT
from hccs.program.operators import Embed, EmbedPatches


def embed(graph: Graph, step: Embed, ids: str, types: str, sizes: str) -> str:
    """(words[token] << shift) + positions[position] + types[type] as float64 rows [batch * n, h]."""
    params = step.params
    words = graph.cast(graph("Gather", params.words, ids), np.float64)
    first = shape(step.first_position)
    length = graph("Slice", sizes, shape(1), shape(2))
    rows = graph("Slice", params.positions, first, graph("Add", length, first), shape(0))
    kinds = graph("Gather", graph.cast(graph.constant(params.types), np.float64), types)
    # Types first: they may be one row for all, and then both additions of whole rows are one.
    places = graph("Add", kinds, graph.cast(rows, np.float64))
    total = graph("Add", graph("Mul", words, np.float64(2.0**params.shift)), places)
    flat = graph("Reshape", total, shape(-1, params.words.shape[1]))
    return flat if step.limit is None else clamped(graph, flat, step.limit)


def embed_patches(graph: Graph, step: EmbedPatches, images: str, batch: str) -> str:
    """Rows of special tokens and of patches, positions added; pixels have zero point 128 as they are."""
    params = step.params
    channels, height, width = params.image
    p, w = params.patch, params.positions.shape[1]
    cut = graph("Reshape", images, shape(-1, channels, height // p, p, width // p, p))
    pixels = graph("Transpose", cut, perm=[0, 2, 4, 1, 3, 5])
    patches = linear(graph, graph("Reshape", pixels, shape(-1, channels * p * p)), params.projection)
    rows = graph("Reshape", patches, shape(-1, (height // p) * (width // p), w))
    special = params.special[None].astype(np.float64)
    every = graph("Expand", special, graph("Concat", batch, shape(*params.special.shape), axis=0))
    total = graph("Add", graph("Concat", every, rows, axis=1), params.positions.astype(np.float64))
    return graph("Reshape", clamped(graph, total, INT16_LIMIT), shape(-1, w))


def causal(graph: Graph, tokens: Tokens) -> Tokens:
    """The same tokens, each attending to none behind itself."""
    length = graph("Squeeze", graph("Slice", tokens.sizes, shape(1), shape(2)))
    order = graph("Range", np.int64(0), length, np.int64(1))
    seen = graph("LessOrEqual", order, graph("Unsqueeze", order, shape(1)))
    return Tokens(tokens.sizes, graph("Where", seen, tokens.mask, np.uint8(0)))
