"""A model whose residual stream is mixed, so that no channel of it is loud.

A few tokens of a language model have massive activations in a few channels: 25,000 where others have 10. No
step of int16 serves both. RMSNorm does not notice an orthogonal matrix in front of it, so the stream may be
written in another basis: what writes to it is multiplied by the matrix, what reads it by its transpose, and
the gains of norms go into the layers that read them. The model computes the same, and its loudest value is
spread over all channels.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hccs.nn.lowering.parts import PreNorm, Slice, Words, is_rms


def can_be_mixed(parts: Any) -> bool:
    """Whether only RMSNorm reads the stream, and only dense layers and words write to it."""
    if not isinstance(parts, PreNorm) or not isinstance(parts.source, Words) or parts.vector is not None:
        return False
    dense = [layer for block in parts.layers for layer in (*block.qkv, block.attention_output, block.narrow)]
    plain = parts.source.positions is None and parts.source.norm is None and parts.head is None
    return (
        plain
        and not any(isinstance(layer, Slice) for layer in dense)
        and all(is_rms(norm) for _, norm in parts.streams)
    )


def mixing_matrix(width: int) -> NDArray[np.float64]:
    """Orthogonal, [width, width], with no entry above sqrt(2 / width): cosines, with signs of a fixed seed.

    >>> Q = mixing_matrix(6)
    >>> np.allclose(Q @ Q.T, np.eye(6)), bool(abs(Q).max() <= (2 / 6) ** 0.5)
    (True, True)
    """
    row, column = np.arange(width)[:, None], np.arange(width)
    cosines = np.sqrt(2 / width) * np.cos(np.pi * (2 * column + 1) * row / (2 * width))
    cosines[0] /= np.sqrt(2)
    signs: NDArray[np.float64] = np.random.default_rng(0).choice([-1.0, 1.0], width)
    return cosines * signs


def mixed(model: nn.Module, take_apart: Any) -> nn.Module:
    """A copy of a model, whose parts `can_be_mixed`, with its stream in another basis."""
    made = copy.deepcopy(model).float()  # half precision would round the new basis
    parts = take_apart(made)
    words = parts.source.words
    Q = torch.tensor(mixing_matrix(words.embedding_dim))
    own = [parts.classifier] if parts.classifier.weight is words.weight else []
    for tied in own:
        tied.weight = nn.Parameter(tied.weight.detach().clone())
    with torch.no_grad():
        words.weight.copy_(words.weight.double() @ Q.T)
        for block in parts.layers:
            gates = () if block.gate is None else (block.gate,)
            _move_gain(block.attention_norm, block.qkv, Q)
            _move_gain(block.wide_norm, (block.wide, *gates), Q)
            for writer in (block.attention_output, block.narrow):
                writer.weight.copy_(Q @ writer.weight.double())
                if writer.bias is not None:
                    writer.bias.copy_(Q @ writer.bias.double())
        _move_gain(parts.final_norm, (parts.classifier,), Q)
    return made


def _move_gain(norm: Any, readers: tuple[Any, ...], Q: torch.Tensor) -> None:
    """Layers that read a norm's output take its gains and the new basis."""
    for reader in readers:
        reader.weight.copy_(reader.weight.double() * norm.weight.double() @ Q.T)
    norm.weight.fill_(1.0)
