"""Embeddings in integers: three look-ups and their sum, or the patches of an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.layers import INT16_LIMIT, EmbeddingParams, LinearParams, PatchParams
from hccs.reference.linear import add, linear


def embedding(
    tokens: NDArray[Any],
    positions: NDArray[Any],
    types: NDArray[Any],
    params: EmbeddingParams,
    limit: int | None = None,
) -> NDArray[Any]:
    """(words[token] << shift) + positions[position] + types[type]: int32, or clamped to +-limit as int16.

    Positions and types count where the model has them.
    """
    total: NDArray[np.int32] = params.words[tokens].astype(np.int32) << params.shift
    for table, ids in ((params.positions, positions), (params.types, types)):
        total = total if table is None else total + table[ids]
    return total if limit is None else np.clip(total, -limit, limit).astype(np.int16)


def embed_patches(
    images: NDArray[np.uint8],
    params: PatchParams,
    product: Callable[[NDArray[np.int8], LinearParams], NDArray[Any]] = linear,
) -> NDArray[np.int16]:
    """Rows of special tokens, then the linear layer of each patch; positions added, clamped to int16.

    Images are [batch, channels, height, width]; a patch's pixels go channel by channel, row by row, as a
    convolution's weights do, each as pixel - 128. Patches go row by row.
    """
    batch, channels, height, width = images.shape
    p = params.patch
    cut = images.reshape(batch, channels, height // p, p, width // p, p).transpose(0, 2, 4, 1, 3, 5)
    pixels = (cut.reshape(batch, -1, channels * p * p).astype(np.int16) - 128).astype(np.int8)
    patches = product(pixels, params.projection)
    special = np.broadcast_to(params.special, (batch, *params.special.shape))
    return add(np.concatenate([special, patches], axis=1), params.positions, INT16_LIMIT)
