"""The layers of a model of a family that we know, whatever stands in front of them and behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from hccs.errors import ModelError
from hccs.nn.batches import unwrapped
from hccs.nn.lowering import bert, distilbert, gpt2, vit
from hccs.nn.lowering.encoder import Layer
from hccs.nn.lowering.pre_norm import Block


@dataclass(frozen=True)
class KnownLayer:
    """A layer as the model calls it, and its parts."""

    module: nn.Module
    parts: Layer | Block


def _bert(base: Any) -> Iterable[KnownLayer]:
    return (KnownLayer(layer, bert.parts_of(layer)) for layer in base.encoder.layer)


def _distilbert(base: Any) -> Iterable[KnownLayer]:
    return (KnownLayer(layer, distilbert.parts_of(layer)) for layer in base.transformer.layer)


def _gpt2(base: Any) -> Iterable[KnownLayer]:
    return (KnownLayer(layer, gpt2.parts_of(layer)) for layer in base.h)


def _vit(base: Any) -> Iterable[KnownLayer]:
    heads = base.config.num_attention_heads
    layers = base.layers if hasattr(base, "layers") else base.encoder.layer
    return (KnownLayer(layer, vit.parts_of(layer, heads)) for layer in layers)


_FAMILIES: dict[str, Callable[[Any], Iterable[KnownLayer]]] = {
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
    "camembert": _bert,
    "electra": _bert,
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "vit": _vit,
    "deit": _vit,
}


def known_layers(model: Any) -> list[KnownLayer]:
    """Those of the model in order; a model whose layers are not known is refused.

    Its head and its embeddings may be any: nothing here depends on them.
    """
    model = unwrapped(model)
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    if kind not in _FAMILIES:
        raise ModelError(
            f"a model of the families {', '.join(_FAMILIES)}, whose layers are known",
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
    return list(_FAMILIES[kind](getattr(model, model.base_model_prefix, model)))


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
