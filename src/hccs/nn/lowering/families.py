"""Families of models whose modules are known: taken apart for a program, or layer by layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import nn

from hccs.errors import ModelError, ParameterError
from hccs.nn.batches import device_of, unwrapped
from hccs.nn.lowering.parts import (
    EVERY,
    FIRST,
    LAST,
    MEAN,
    Layer,
    NormedHead,
    Patches,
    PixelScaling,
    PostNorm,
    PreNorm,
    Rotary,
    VectorHead,
    Words,
    slices,
)


def _no_classifier(model: Any) -> ModelError:
    hint = (
        "Load it with AutoModelForSequenceClassification or AutoModelForTokenClassification; for embeddings "
        'pass vector=hccs.nn.VectorHead("mean") or another pooling.'
    )
    return ModelError("a classifier of sequences or tokens", type(model).__name__, hint)


AS_ROBERTA = ("roberta", "xlm-roberta", "camembert")
"""Families that are RoBERTa under other names."""


def _bert(model: Any, _: Any, vector: VectorHead | None) -> PostNorm:
    base = getattr(model, model.base_model_prefix, model)
    head = getattr(model, "classifier", None)
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
        raise _no_classifier(model)
    embeddings = base.embeddings
    # RoBERTa counts positions from after the padding index.
    first = base.config.pad_token_id + 1 if base.config.model_type in AS_ROBERTA else 0
    return PostNorm(
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
        getattr(base, "embeddings_project", None),
    )


def _albert(model: Any, _: Any, vector: VectorHead | None) -> PostNorm:
    """The parts of an ALBERT, whose layers share their modules."""
    base = getattr(model, "albert", model)
    head = getattr(model, "classifier", None)
    if vector is None and not isinstance(head, nn.Linear):
        raise _no_classifier(model)
    pooled = vector is None and getattr(base, "pooler", None) is not None
    stack, config = base.encoder, base.config
    groups, per_group = stack.albert_layer_groups, config.num_hidden_layers / config.num_hidden_groups
    chosen = [groups[int(i / per_group)] for i in range(config.num_hidden_layers)]
    return PostNorm(
        base.embeddings.word_embeddings,
        base.embeddings.position_embeddings,
        base.embeddings.token_type_embeddings,
        0,
        base.embeddings.LayerNorm,
        tuple(_albert_layer(layer) for group in chosen for layer in group.albert_layers),
        base.pooler if pooled else None,
        base.pooler_activation if pooled else None,
        head if vector is None else None,
        _labels(model, vector),
        vector,
        stack.embedding_hidden_mapping_in,
    )


def _albert_layer(layer: Any) -> Layer:
    attention = layer.attention
    paths = """attention.query attention.key attention.value attention.dense attention.LayerNorm
               ffn activation ffn_output full_layer_layer_norm"""
    return _layer(layer, paths, attention.num_attention_heads, attention.scaling, norm_first=False)


def _labels(model: Any, vector: VectorHead | None) -> tuple[str, ...]:
    config = model.config
    return () if vector is not None else tuple(config.id2label[i] for i in range(config.num_labels))


def _layer(layer: Any, paths: str, heads: int, scaling: float, **rest: Any) -> Layer:
    """A layer whose parts, in the order of `Layer`, stand at these paths."""
    q, k, v, *parts = attrgetter(*paths.split())(layer)
    return Layer((q, k, v), heads, scaling, *parts, **rest)


def _bert_layer(layer: Any, config: Any) -> Layer:
    paths = """attention.self.query attention.self.key attention.self.value
               attention.output.dense attention.output.LayerNorm
               intermediate.dense intermediate.intermediate_act_fn output.dense output.LayerNorm"""
    return _layer(layer, paths, config.num_attention_heads, layer.attention.self.scaling, norm_first=False)


def _distilbert(model: Any, _: Any, vector: VectorHead | None) -> PostNorm:
    if vector is None and not isinstance(getattr(model, "classifier", None), torch.nn.Linear):
        raise _no_classifier(model)
    base = getattr(model, "distilbert", model)
    return PostNorm(
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
    paths = """attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm
               ffn.lin1 ffn.activation ffn.lin2 output_layer_norm"""
    return _layer(layer, paths, config.n_heads, layer.attention.attention_head_size**-0.5, norm_first=False)


def _gpt2(model: Any, _: Any, vector: VectorHead | None) -> PreNorm:
    base = getattr(model, "transformer", model)
    if base.config.add_cross_attention:
        raise ModelError("a decoder by itself", "cross-attention to an encoder", "Keep its floats.")
    layers = tuple(_gpt2_layer(layer, base.config) for layer in base.h)
    return _decoder(model, vector, Words(base.wte, base.wpe), layers, base.ln_f)


def _decoder(
    model: Any, vector: VectorHead | None, source: Words, layers: tuple[Layer, ...], norm: nn.Module
) -> PreNorm:
    """A causal stack: a language model, or a classifier by the last token."""
    classifier, score = getattr(model, "lm_head", None), getattr(model, "score", None)
    if vector is not None:
        return PreNorm(source, layers, norm, None, (), True, EVERY, None, vector)
    if isinstance(classifier, nn.Linear):
        ids = tuple(map(str, range(classifier.out_features)))
        return PreNorm(source, layers, norm, classifier, ids, True, EVERY)
    if not isinstance(score, nn.Linear) or not hasattr(model.config, "id2label"):
        raise ModelError(
            "a language model, or a classifier of sequences by one linear layer",
            type(model).__name__,
            "Load it with AutoModelForCausalLM or AutoModelForSequenceClassification.",
        )
    return PreNorm(source, layers, norm, score, _labels(model, None), True, LAST)


def _gpt2_layer(layer: Any, config: Any) -> Layer:
    return Layer(
        slices(layer.attn.c_attn, 3),  # type: ignore[arg-type]
        layer.attn.num_heads,
        layer.attn.scaling,
        layer.attn.c_proj,
        layer.ln_1,
        layer.mlp.c_fc,
        layer.mlp.act,
        layer.mlp.c_proj,
        layer.ln_2,
    )


def _llama(model: Any, _: Any, vector: VectorHead | None) -> PreNorm:
    """The parts of a Llama or of a family that is one under another name."""
    base = getattr(model, model.base_model_prefix, model)
    layers = tuple(_llama_layer(layer, base.config, base.rotary_emb) for layer in base.layers)
    return _decoder(model, vector, Words(base.embed_tokens), layers, base.norm)


def _llama_layer(layer: Any, config: Any, rotary: Any) -> Layer:
    attention, wide = layer.self_attn, layer.mlp
    if not hasattr(wide, "gate_proj") or not hasattr(attention, "q_proj"):
        raise ModelError(
            "layers of q_proj, k_proj and v_proj, gate_proj, up_proj and down_proj",
            type(layer).__name__,
            "Keep its floats.",
        )
    paths = """self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj input_layernorm
               mlp.up_proj mlp.act_fn mlp.down_proj post_attention_layernorm"""
    return _layer(
        layer,
        paths,
        config.num_attention_heads,
        attention.scaling,
        gate=wide.gate_proj,
        kv_heads=config.num_key_value_heads,
        window=_window(attention, config),
        rotary=_rotary(rotary, attention.head_dim),
        head_norms=(attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None,
    )


def _window(attention: Any, config: Any) -> int | None:
    """Mistral's layers all have the configuration's window; others say it of each layer."""
    window = attention.sliding_window if hasattr(attention, "sliding_window") else None
    if window is None and config.model_type == "mistral":
        window = getattr(config, "sliding_window", None)
    return None if window is None else int(window)


def _rotary(module: Any, head_dim: int, layer_type: str | None = None) -> Rotary:
    """Positions whose angles are the same for every text, in all channels of a head."""
    kind = module.rope_type if layer_type is None else module.rope_type[layer_type]
    if kind in ("dynamic", "longrope"):
        raise ModelError(
            "rotary positions whose angles depend on nothing else",
            f"rope_type {kind!r}, by the length of the text",
            "Keep its floats.",
        )
    made = Rotary(module, layer_type)
    turned = 2 * made.tables(1)[0].shape[1]
    if turned != head_dim:
        raise ModelError(
            f"rotary positions in all {head_dim} channels of a head", f"in {turned}", "Keep its floats."
        )
    return made


def _modernbert(model: Any, _: Any, vector: VectorHead | None) -> PreNorm:
    base = getattr(model, "model", model)
    config, rotary = base.config, base.rotary_emb
    layers = tuple(_modernbert_layer(layer, config, rotary) for layer in base.layers)
    source = Words(base.embeddings.tok_embeddings, None, base.embeddings.norm)
    if vector is not None:
        return PreNorm(source, layers, base.final_norm, None, (), False, EVERY, None, vector)
    head, classifier = getattr(model, "head", None), getattr(model, "classifier", None)
    known = {
        "ModernBertForSequenceClassification": {"cls": FIRST, "mean": MEAN}[config.classifier_pooling],
        "ModernBertForTokenClassification": EVERY,
    }
    reads = known.get(type(model).__name__)
    if head is None or reads is None:
        raise _no_classifier(model)
    normed = NormedHead(head.dense, head.act, head.norm)
    labels = _labels(model, None)
    return PreNorm(source, layers, base.final_norm, classifier, labels, False, reads, normed)


def _modernbert_layer(layer: Any, config: Any, rotary: Any) -> Layer:
    attention, mlp, kind = layer.attn, layer.mlp, layer.attention_type
    gate, wide = slices(mlp.Wi, 2)
    return Layer(
        slices(attention.Wqkv, 3),  # type: ignore[arg-type]
        config.num_attention_heads,
        attention.head_dim**-0.5,
        attention.Wo,
        layer.attn_norm,
        wide,
        mlp.act,
        mlp.Wo,
        layer.mlp_norm,
        gate=gate,
        window=2 * config.sliding_window if kind == "sliding_attention" else None,
        rotary=_rotary(rotary, attention.head_dim, kind),
    )


def _vit(model: Any, pixels: Any, vector: VectorHead | None) -> PreNorm:
    """The parts of an image classifier; `pixels` is its image processor, or says what that would."""
    if vector is not None:
        raise ModelError("a model of texts for embeddings", type(model).__name__, "Keep its floats.")
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
        reads=FIRST,
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


def _vit_layer(layer: Any, config: Any) -> Layer:
    attention = layer.attention if hasattr(layer.attention, "scaling") else layer.attention.attention
    return Layer(
        tuple(_part(attention, new, old) for new, old in _QKV),
        config.num_attention_heads,
        attention.scaling,
        _part(layer, "attention.o_proj", "attention.output.dense"),
        layer.layernorm_before,
        _part(layer, "mlp.fc1", "intermediate.dense"),
        _part(layer, "mlp.activation_fn", "intermediate.intermediate_act_fn"),
        _part(layer, "mlp.fc2", "output.dense"),
        layer.layernorm_after,
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
    parts: Layer


@dataclass(frozen=True)
class Family:
    parts: Callable[[Any, Any, VectorHead | None], PostNorm | PreNorm]
    """Of a model, how its pixels are scaled, and how its vectors are pooled."""
    layers: Callable[[Any], Any] | None = None
    """The layers of a base model, where weights of one layer can be corrected by itself."""
    layer: Callable[[Any, Any], Layer] | None = None
    """The modules of one layer, and the model's configuration."""


_BERT = Family(_bert, lambda base: base.encoder.layer, _bert_layer)
_VIT = Family(_vit, _vit_layers, _vit_layer)

FAMILIES = {
    **dict.fromkeys(("bert", *AS_ROBERTA, "electra"), _BERT),
    "distilbert": Family(_distilbert, lambda base: base.transformer.layer, _distilbert_layer),
    "gpt2": Family(_gpt2, lambda base: base.h, _gpt2_layer),
    "vit": _VIT,
    "deit": _VIT,
    "albert": Family(_albert),
    "modernbert": Family(_modernbert),
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral"), Family(_llama)),
}


def take_apart(model: Any, pixels: Any = None, vector: VectorHead | None = None) -> PostNorm | PreNorm:
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
    family = FAMILIES.get(kind)
    if family is None or family.layers is None or family.layer is None:
        known = [name for name, family in FAMILIES.items() if family.layers is not None]
        raise ModelError(
            f"a model of the families {', '.join(known)}, whose layers are known",
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
    base = getattr(model, model.base_model_prefix, model)
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
    "relative positions": r"RelativePosition|Disentangled|relative_attention_bias",
    "convolutions": r"Conv[123]d$",
    "batch or group normalisation": r"(Batch|Group|Instance)Norm",
    "experts": r"Expert|MoE|SparseMoe",
    "cross-attention": r"crossattention|cross_attn|encoder_attn",
    "layer scale": r"LayerScale|lambda_1",
    "recurrence": r"^(LSTM|GRU|RNN)$|Mamba",
}
"""Parts that no operator computes, and patterns of the names of their classes and attributes."""


def _float_only(model: Any) -> str:
    """ " with convolutions, experts, which have no integer operator", or nothing."""
    if not isinstance(model, nn.Module):
        return ""
    names = {type(module).__name__ for module in model.modules()}
    names |= {name.rpartition(".")[2] for name, _ in (*model.named_modules(), *model.named_parameters())}
    found = [part for part, pattern in FLOAT_ONLY.items() if any(re.search(pattern, name) for name in names)]
    return f" with {', '.join(found)}, which have no integer operator" if found else ""
