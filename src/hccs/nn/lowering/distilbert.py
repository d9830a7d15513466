"""DistilBERT: BERT's layers under other names, no token types, and a ReLU in the head."""

from __future__ import annotations

from typing import Any

import torch

from hccs.errors import ModelError
from hccs.nn.lowering.encoder import SUPPORTED_HEADS, Encoder, Layer


def encoder(model: Any) -> Encoder:
    """The parts of a DistilBERT classifier of sequences or of tokens."""
    if not isinstance(getattr(model, "classifier", None), torch.nn.Linear):
        raise ModelError("a classifier of sequences or tokens", type(model).__name__, SUPPORTED_HEADS)
    base = model.distilbert
    return Encoder(
        base.embeddings.word_embeddings,
        base.embeddings.position_embeddings,
        None,
        0,
        base.embeddings.LayerNorm,
        tuple(parts_of(layer) for layer in base.transformer.layer),
        getattr(model, "pre_classifier", None),
        torch.nn.ReLU(),
        model.classifier,
        tuple(model.config.id2label[i] for i in range(model.config.num_labels)),
    )


def parts_of(layer: Any) -> Layer:
    """The modules of one layer."""
    attention = layer.attention
    return Layer(
        attention.q_lin,
        attention.k_lin,
        attention.v_lin,
        attention.attention_head_size**-0.5,
        attention.out_lin,
        layer.sa_layer_norm,
        layer.ffn.lin1,
        layer.ffn.activation,
        layer.ffn.lin2,
        layer.output_layer_norm,
    )
