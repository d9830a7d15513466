"""transformers' attention interface: one attention function and its mask function, registered as "hccs".

Both must be registered: under a name without a mask function transformers passes `attention_mask=None`, and
padding would attend. The attention function computes float logits and hands them to the module in the layer's
slot (`hccs_softmax`), be it HCCS, an observer that collects, or the plain softmax. A slot that offers
`attend(logits, value, valid)` returns the output of the heads [batch, heads, q, d] and its weights itself; a
`WholeAttention` gets q, k and v instead of logits.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from hccs._extras import how_to_install
from hccs.errors import MissingExtraError, ModelError

NAME = "hccs"
SLOT = "hccs_softmax"


class WholeAttention(nn.Module):
    """A slot whose forward takes (query, key, value, valid, scaling) and returns the output of attention."""


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output [batch, q, heads, d] and, where there are any, probabilities [batch, heads, q, k] of a layer."""
    slot = getattr(module, SLOT, None)
    if slot is None:
        raise ModelError(
            "parameters for every attention layer that runs",
            f"{type(module).__name__} (layer {getattr(module, 'layer_idx', 'unknown')}) without any",
            "Its logits were never collected: collect with batches that reach it, calibrate, attach again.",
        )
    whole = isinstance(slot, WholeAttention)
    for name in ("position_bias", "s_aux", "sinks", *(["softcap"] if whole else [])):
        if options.get(name) is not None:
            raise ModelError(
                "attention whose probabilities come from the logits alone",
                f"{name} in {type(module).__name__}",
                "HCCS does not serve this kind of attention yet: keep the model's own.",
            )
    valid = boolean_mask(attention_mask, key.shape[-2])
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if whole:
        return slot(query, key, value, valid, scaling).transpose(1, 2).contiguous(), None
    if hasattr(slot, "observe"):
        slot.observe(query, key, value, valid)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    logits = torch.matmul(query, key.transpose(-1, -2)) * scaling
    softcap = options.get("softcap")
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if hasattr(slot, "attend"):
        output, p = slot.attend(logits, value, valid)
        return output.transpose(1, 2).contiguous(), p
    p = slot(logits, valid)
    weights = nn.functional.dropout(p, dropout, module.training)
    output = torch.matmul(weights, value).transpose(1, 2).contiguous()
    return output, p


def boolean_mask(mask: torch.Tensor | None, columns: int) -> torch.Tensor | None:
    """True = attend. An additive mask that a caller prepared (0 and large negative) is read as one."""
    if mask is None:
        return None
    mask = mask[..., :columns]
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def mask(*args: Any, **options: Any) -> torch.Tensor | None:
    """Boolean mask [batch, 1, q, k]; None only where every position may attend to every other."""
    from transformers.masking_utils import sdpa_mask

    # sdpa may leave the causal mask out and say is_causal instead; our rows need to see it.
    options["allow_is_causal_skip"] = False
    built: torch.Tensor | None = sdpa_mask(*args, **options)
    return built


def register() -> None:
    """Make "hccs" known to transformers; safe to call again."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingExtraError(
            "transformers with the attention interface", str(error), how_to_install("hf")
        ) from error
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of `model` that go through the attention interface, by name, in order."""
    layers = {name: module for name, module in model.named_modules() if _uses_interface(type(module))}
    if not layers or not hasattr(model, "set_attn_implementation"):
        raise ModelError(
            "a transformers model whose attention goes through the attention interface",
            f"{type(model).__name__}, which has no such layer",
            "Use an architecture that supports attn_implementation='sdpa' in a recent transformers.",
        )
    return layers


def _uses_interface(kind: type) -> bool:
    forward = kind.__dict__.get("forward")
    if forward is None or not issubclass(kind, nn.Module):
        return False
    try:
        # Decorated forwards are looked through: the call is what counts.
        source = inspect.getsource(inspect.unwrap(forward))
    except (OSError, TypeError):
        return False
    return "ALL_ATTENTION_FUNCTIONS" in source
