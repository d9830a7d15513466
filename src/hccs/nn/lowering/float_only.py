"""What in a model no operator of a program computes, by name: the reason of a refusal."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

KNOWN = {
    "RMSNorm": r"RMSNorm|T5LayerNorm",
    "rotary positions": r"Rotary",
    "relative positions": r"RelativePosition|Disentangled|relative_attention_bias",
    "gated activations": r"GatedAct|GLU|gate_proj|gate_up_proj",
    "convolutions": r"Conv[123]d$",
    "batch or group normalisation": r"(Batch|Group|Instance)Norm",
    "a projection behind the embeddings": r"embeddings_project|embedding_hidden_mapping_in",
    "experts": r"Expert|MoE|SparseMoe",
    "cross-attention": r"crossattention|cross_attn|encoder_attn",
    "layer scale": r"LayerScale|lambda_1",
    "recurrence": r"^(LSTM|GRU|RNN)$|Mamba",
}
"""Patterns of the names of classes, and of attributes, that tell of it."""


def float_only_parts(model: Any) -> list[str]:
    """Parts of a model, in words, for which there is no integer operator."""
    if not isinstance(model, nn.Module):
        return []
    names = {type(module).__name__ for module in model.modules()}
    names |= {name.rpartition(".")[2] for name, _ in model.named_modules()}
    names |= {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    return [part for part, pattern in KNOWN.items() if any(re.search(pattern, name) for name in names)]


def float_only(model: Any) -> str:
    """ " with RMSNorm, rotary positions", or nothing."""
    found = float_only_parts(model)
    return f" with {', '.join(found)}, which have no integer operator" if found else ""
