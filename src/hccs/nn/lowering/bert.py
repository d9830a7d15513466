"""BERT, RoBERTa (XLM-R and CamemBERT with it) and ELECTRA: post-norm encoders of the same parts."""

from __future__ import annotations

from typing import Any

import torch

from hccs.errors import ModelError
from hccs.nn.lowering.encoder import SUPPORTED_HEADS, Encoder, Layer

AS_ROBERTA = ("roberta", "xlm-roberta", "camembert")
"""Families that are RoBERTa under other names."""


def encoder(model: Any) -> Encoder:
    """The parts of a classifier of sequences or of tokens of one of these families."""
    base = getattr(model, model.base_model_prefix, model)
    head = getattr(model, "classifier", None)
    if hasattr(base, "embeddings_project"):
        raise ModelError(
            "embeddings of the hidden width",
            "a projection behind the embeddings",
            "Use a model without one.",
        )
    if base.config.is_decoder or getattr(base.config, "position_embedding_type", "absolute") != "absolute":
        raise ModelError("an encoder with absolute positions", type(model).__name__, "Keep its floats.")
    if isinstance(head, torch.nn.Linear):
        dense = getattr(base, "pooler", None)  # classifiers of tokens have none
        pooler, activation = (dense.dense, dense.activation) if dense is not None else (None, None)
        classifier = head
    elif head is not None and hasattr(head, "dense") and hasattr(head, "out_proj"):
        pooler, classifier = head.dense, head.out_proj
        activation = getattr(head, "activation", None) or torch.nn.Tanh()
    else:
        raise ModelError("a classifier of sequences or tokens", type(model).__name__, SUPPORTED_HEADS)
    embeddings = base.embeddings
    # RoBERTa counts positions from behind the padding index.
    first = base.config.pad_token_id + 1 if base.config.model_type in AS_ROBERTA else 0
    return Encoder(
        embeddings.word_embeddings,
        embeddings.position_embeddings,
        embeddings.token_type_embeddings,
        first,
        embeddings.LayerNorm,
        tuple(parts_of(layer) for layer in base.encoder.layer),
        pooler,
        activation,
        classifier,
        tuple(model.config.id2label[i] for i in range(model.config.num_labels)),
    )


def parts_of(layer: Any) -> Layer:
    """The modules of one layer."""
    attention = layer.attention.self
    return Layer(
        attention.query,
        attention.key,
        attention.value,
        attention.scaling,
        layer.attention.output.dense,
        layer.attention.output.LayerNorm,
        layer.intermediate.dense,
        layer.intermediate.intermediate_act_fn,
        layer.output.dense,
        layer.output.LayerNorm,
    )
