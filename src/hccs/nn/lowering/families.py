"""Families of models whose modules are known: taken apart for a program, or layer by layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hccs.errors import ModelError, ParameterError
from hccs.nn.batches import device_of, unwrapped
from hccs.nn.lowering.parts import Block, Encoder, Layer, Patches, PixelScaling, PreNorm, VectorHead, Words

SUPPORTED_HEADS = (
    "Load it with AutoModelForSequenceClassification or AutoModelForTokenClassification; for embeddings pass "
    'vector=hccs.nn.VectorHead("mean") or another pooling.'
)

AS_ROBERTA = ("roberta", "xlm-roberta", "camembert")
"""Families that are RoBERTa under other names."""


def _bert(model: Any, _: Any, vector: VectorHead | None) -> Encoder:
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
    if vector is not None:
        pooler = activation = classifier = None
    elif isinstance(head, torch.nn.Linear):
        dense = getattr(base, "pooler", None)  # classifiers of tokens have none
        pooler, activation = (dense.dense, dense.activation) if dense is not None else (None, None)
        classifier = head
    elif head is not None and hasattr(head, "dense") and hasattr(head, "out_proj"):
        pooler, classifier = head.dense, head.out_proj
        activation = getattr(head, "activation", None) or torch.nn.Tanh()
    else:
        raise ModelError("a classifier of sequences or tokens", type(model).__name__, SUPPORTED_HEADS)
    embeddings = base.embeddings
    # RoBERTa counts positions from after the padding index.
    first = base.config.pad_token_id + 1 if base.config.model_type in AS_ROBERTA else 0
    return Encoder(
        embeddings.word_embeddings,
        embeddings.position_embeddings,
        embeddings.token_type_embeddings,
        first,
        embeddings.LayerNorm,
        tuple(_bert_layer(layer, base.config) for layer in base.encoder.layer),
        pooler,
        activation,
        classifier,
        _labels(model, vector),
        vector,
    )


def _labels(model: Any, vector: VectorHead | None) -> tuple[str, ...]:
    config = model.config
    return () if vector is not None else tuple(config.id2label[i] for i in range(config.num_labels))


def _bert_layer(layer: Any, config: Any) -> Layer:
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


def _distilbert(model: Any, _: Any, vector: VectorHead | None) -> Encoder:
    if vector is None and not isinstance(getattr(model, "classifier", None), torch.nn.Linear):
        raise ModelError("a classifier of sequences or tokens", type(model).__name__, SUPPORTED_HEADS)
    base = getattr(model, "distilbert", model)
    return Encoder(
        base.embeddings.word_embeddings,
        base.embeddings.position_embeddings,
        None,
        0,
        base.embeddings.LayerNorm,
        tuple(_distilbert_layer(layer, base.config) for layer in base.transformer.layer),
        getattr(model, "pre_classifier", None) if vector is None else None,
        torch.nn.ReLU(),
        model.classifier if vector is None else None,
        _labels(model, vector),
        vector,
    )


def _distilbert_layer(layer: Any, config: Any) -> Layer:
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


def _gpt2(model: Any, _: Any, vector: VectorHead | None) -> PreNorm:
    """The parts of a GPT-2 language model; the labels of its scores are the token ids."""
    _require_no_vector(model, vector)
    if type(model).__name__ != "GPT2LMHeadModel":
        raise ModelError(
            "GPT-2 as a language model",
            type(model).__name__,
            "Load it as GPT2LMHeadModel: a program has scores of the first token or of every token, and the "
            "other heads read the last.",
        )
    base = model.transformer
    if base.config.add_cross_attention:
        raise ModelError("a decoder by itself", "cross-attention to an encoder", "Keep its floats.")
    return PreNorm(
        Words(base.wte, base.wpe),
        tuple(_gpt2_layer(layer, base.config) for layer in base.h),
        base.ln_f,
        model.lm_head,
        tuple(map(str, range(model.lm_head.out_features))),
        causal=True,
        first_only=False,
    )


def _gpt2_layer(layer: Any, config: Any) -> Block:
    return Block(
        layer.ln_1,
        (layer.attn.c_attn,),
        layer.attn.num_heads,
        layer.attn.scaling,
        layer.attn.c_proj,
        layer.ln_2,
        layer.mlp.c_fc,
        layer.mlp.act,
        layer.mlp.c_proj,
    )


def _vit(model: Any, pixels: Any, vector: VectorHead | None) -> PreNorm:
    """The parts of an image classifier; `pixels` is its image processor, or says what that would."""
    _require_no_vector(model, vector)
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
        tuple(_vit_layer(layer, base.config) for layer in _vit_layers(base)),
        base.layernorm,
        head,
        tuple(model.config.id2label[i] for i in range(model.config.num_labels)),
        causal=False,
        first_only=True,
    )


def _vit_layers(base: Any) -> Any:
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


def _vit_layer(layer: Any, config: Any) -> Block:
    attention = layer.attention if hasattr(layer.attention, "scaling") else layer.attention.attention
    return Block(
        layer.layernorm_before,
        tuple(_part(attention, new, old) for new, old in _QKV),
        config.num_attention_heads,
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


@dataclass(frozen=True)
class KnownLayer:
    """A layer as the model calls it, and its parts."""

    module: nn.Module
    parts: Layer | Block


@dataclass(frozen=True)
class Family:
    parts: Callable[[Any, Any, VectorHead | None], Encoder | PreNorm]
    """Of a model, how its pixels are scaled, and how its vectors are pooled."""
    layers: Callable[[Any], Any]
    """The layers of a base model."""
    layer: Callable[[Any, Any], Layer | Block]
    """The modules of one layer, and the model's configuration."""


def _require_no_vector(model: Any, vector: VectorHead | None) -> None:
    if vector is not None:
        raise ModelError(
            "a post-norm encoder (BERT, RoBERTa, DistilBERT and their kin) for embeddings",
            type(model).__name__,
            "Keep its floats.",
        )


_BERT = Family(_bert, lambda base: base.encoder.layer, _bert_layer)
_VIT = Family(_vit, _vit_layers, _vit_layer)

FAMILIES = {
    **dict.fromkeys(("bert", *AS_ROBERTA, "electra"), _BERT),
    "distilbert": Family(_distilbert, lambda base: base.transformer.layer, _distilbert_layer),
    "gpt2": Family(_gpt2, lambda base: base.h, _gpt2_layer),
    "vit": _VIT,
    "deit": _VIT,
}


def take_apart(model: Any, pixels: Any = None, vector: VectorHead | None = None) -> Encoder | PreNorm:
    """The modules of a model of a family that can be lowered; any other is refused."""
    model = unwrapped(model)
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if isinstance(model, nn.Module):
        device_of(model)
        require_plain(model)
    if kind not in FAMILIES:
        raise ModelError(
            f"a model of the families {', '.join(FAMILIES)}",
            f"{kind}{_float_only(model)}",
            "Keep its floats.",
        )
    return FAMILIES[kind].parts(model, pixels, vector)


def known_layers(model: Any) -> list[KnownLayer]:
    """The layers of the model in order, whatever its head and embeddings are; unknown layers are refused."""
    model = unwrapped(model)
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    if kind not in FAMILIES:
        raise ModelError(
            f"a model of the families {', '.join(FAMILIES)}, whose layers are known",
            str(kind),
            "Its weights stay as they are: calibrate, refine or retrain it.",
        )
    if getattr(config, "add_cross_attention", False):
        raise ModelError(
            "layers of self-attention and a feed-forward part", "cross-attention", "Its weights stay."
        )
    if getattr(config, "chunk_size_feed_forward", 0):
        raise ModelError(
            "feed-forward parts that see all tokens at once",
            f"chunk_size_feed_forward = {config.chunk_size_feed_forward}",  # type: ignore[union-attr]
            "Set it to 0.",
        )
    require_plain(model)
    for name, module in model.named_modules():
        if hasattr(module, "parametrizations"):
            raise ModelError(
                "weights that can be written",
                f"{name}, whose weight is computed by a parametrization",
                "torch.nn.utils.parametrize.remove_parametrizations makes it a weight.",
            )
    family, base = FAMILIES[kind], getattr(model, model.base_model_prefix, model)
    return [KnownLayer(layer, family.layer(layer, base.config)) for layer in family.layers(base)]


def require_plain(model: nn.Module) -> None:
    """Refuse modules that compute something else than their class and their weights say."""
    for name, module in model.named_modules():
        adapted = isinstance(getattr(module, "base_layer", None), nn.Module) or hasattr(module, "lora_A")
        if adapted and not (getattr(module, "merged", False) or getattr(module, "disable_adapters", False)):
            raise ModelError(
                "weights that hold all a model has learnt",
                f"{name or type(module).__name__} with an adapter beside its weight",
                "Merge adapters first: model = model.merge_and_unload() in peft.",
            )
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        foreign = [hook for hook in hooks if not _is_known(hook)]
        if foreign:
            raise ModelError(
                "modules without forward hooks, which an integer program cannot call",
                f"{getattr(foreign[0], '__name__', type(foreign[0]).__name__)} on {name or 'the model'}",
                "Remove the hook, or fold what it does into the weights.",
            )


def _is_known(hook: Any) -> bool:
    """Whether a hook is ours, or one by which transformers records hidden states."""
    return str(getattr(hook, "__module__", "")).partition(".")[0] in ("hccs", "transformers")


FLOAT_ONLY = {
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
"""Parts that no operator computes, and patterns of the names of their classes and attributes."""


def _float_only(model: Any) -> str:
    """ " with RMSNorm, rotary positions, which have no integer operator", or nothing."""
    if not isinstance(model, nn.Module):
        return ""
    names = {type(module).__name__ for module in model.modules()}
    names |= {name.rpartition(".")[2] for name, _ in (*model.named_modules(), *model.named_parameters())}
    found = [part for part, pattern in FLOAT_ONLY.items() if any(re.search(pattern, name) for name in names)]
    return f" with {', '.join(found)}, which have no integer operator" if found else ""
