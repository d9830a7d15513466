"""ViT and DeiT: pre-norm encoders of image patches, with scores of the first token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from hccs.errors import ModelError, ParameterError
from hccs.nn.lowering.pre_norm import Block, Patches, PixelScaling, PreNorm


def stack(model: Any, pixels: Any) -> PreNorm:
    """The parts of an image classifier; `pixels` is its image processor, or says what that would."""
    head = getattr(model, "classifier", None)
    if not isinstance(head, nn.Linear):
        raise ModelError(
            "an image classifier with one linear head", type(model).__name__, "Load it with that head."
        )
    base = getattr(model, model.base_model_prefix)
    embeddings = base.embeddings
    projection = embeddings.patch_embeddings.projection
    height, width = embeddings.patch_embeddings.image_size
    if len({*projection.kernel_size, *projection.stride}) != 1:
        raise ModelError(
            "square patches that do not overlap", f"patches of {projection.kernel_size}", "Keep its floats."
        )
    image = (projection.in_channels, height, width)
    special = [embeddings.cls_token, getattr(embeddings, "distillation_token", None)]
    return PreNorm(
        Patches(
            embeddings,
            projection,
            tuple(row for row in special if row is not None),
            embeddings.position_embeddings,
            image,
            pixels_of(pixels, image[0]),
        ),
        tuple(parts_of(layer, base.config.num_attention_heads) for layer in layers_of(base)),
        base.layernorm,
        head,
        tuple(model.config.id2label[i] for i in range(model.config.num_labels)),
        causal=False,
        first_only=True,
    )


def layers_of(base: Any) -> Any:
    return base.layers if hasattr(base, "layers") else base.encoder.layer


def pixels_of(given: Any, channels: int) -> PixelScaling:
    """From an image processor, a mapping of its settings, or a `PixelScaling`."""
    if isinstance(given, PixelScaling):
        return given
    if given is None:
        raise ParameterError(
            "pixels, the model's image processor: the program normalises images itself",
            "none",
            "Pass pixels=AutoImageProcessor.from_pretrained(NAME), or hccs.nn.PixelScaling(mean, std).",
        )

    def setting(name: str, default: Any) -> Any:
        found = given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
        return default if found is None else found

    factor = setting("rescale_factor", 1 / 255) if setting("do_rescale", True) else 1.0
    if not setting("do_normalize", True):
        return PixelScaling((0.0,) * channels, (1.0,) * channels, factor)
    mean, std = setting("image_mean", None), setting("image_std", None)
    if mean is None or std is None:
        raise ParameterError(
            "pixels with image_mean and image_std",
            type(given).__name__,
            "Or hccs.nn.PixelScaling(mean, std).",
        )
    try:
        mean, std = (np.broadcast_to(np.asarray(part, float), channels).tolist() for part in (mean, std))
    except ValueError:
        raise ParameterError(
            f"a mean and a std for each of {channels} channels", f"{mean} and {std}", "Check the processor."
        ) from None
    return PixelScaling(tuple(mean), tuple(std), float(factor))


def parts_of(layer: Any, heads: int) -> Block:
    attention = layer.attention if hasattr(layer.attention, "scaling") else layer.attention.attention
    return Block(
        layer.layernorm_before,
        tuple(_part(attention, new, old) for new, old in _QKV),
        heads,
        attention.scaling,
        _part(layer, "attention.o_proj", "attention.output.dense"),
        layer.layernorm_after,
        _part(layer, "mlp.fc1", "intermediate.dense"),
        _part(layer, "mlp.activation_fn", "intermediate.intermediate_act_fn"),
        _part(layer, "mlp.fc2", "output.dense"),
    )


_QKV = (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"))


def _part(layer: nn.Module, *paths: str) -> Any:
    """The module that stands at one of the paths: transformers has moved them between its versions."""
    for path in paths:
        try:
            return layer.get_submodule(path)
        except AttributeError:
            continue
    raise ModelError(f"{type(layer).__name__} with {paths[0]}", "none", "Use a recent transformers.")
