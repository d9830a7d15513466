"""transformers' attention interface: one attention function and its mask function, registered as "hccs".

Both must be registered: under a name without a mask function transformers passes `attention_mask=None`, and
padding would attend. The attention function hands q, k, v and the mask to the `AttentionSlot` of its layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from hccs._extras import require
from hccs.errors import MissingExtraError, ModelError
from hccs.nn.batches import unwrapped
from hccs.nn.slots import AttentionInputs

NAME = "hccs"
SLOT = "hccs_softmax"
"""The attribute of an attention layer that holds its slot; part of the names in saved weights."""

MASKED = -1e3
"""An additive mask of this or less hides a position: float32 softmax gives such a logit exactly 0."""

UNSERVED = ("position_bias", "s_aux", "sinks", "indices", "block_indices")
"""What some models hand to attention beside the mask and our rows would leave out: shifts of logits, columns
that are no keys, keys that an indexer chose."""

BITS = "hccs_bits"
"""The attribute of a mask where `hccs.attention` keeps its bits on a GPU: all layers get the same mask."""

COMPILED = "_orig_mod."
"""What torch.compile adds to the names of modules inside a module that it compiles."""

RECORDED = "hccs_recorded"
"""The attribute that marks the position of a query as one that a CUDA graph reads on the GPU."""

CAUSAL = "hccs_is_causal"
"""The attribute of a mask of ours that hides the future and nothing else: its version, which changes when
anybody writes into it."""


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
            "For a model saved with HCCS: hccs.nn.restore(model). Else attach a table that has this layer.",
        )
    for name in UNSERVED:
        if options.get(name) is not None:
            raise ModelError(
                "attention to every key that the mask shows, whose probabilities come from the logits alone",
                f"{name} in {type(module).__name__}",
                "HCCS does not serve this kind of attention yet: keep the model's own.",
            )
    if key.dtype == torch.int8 and not slot.reads_int8:
        raise ModelError(
            "keys and values in floats for attention on floats",
            "the int8 cache of integer attention",
            "Begin with a new cache, or attach with backend='integer'.",
        )
    queries, keys = query.shape[-2], key.shape[-2]
    causal = queries == keys and _is_purely_causal(attention_mask)
    if attention_mask is None and queries > 1 and _is_causal(module, options):
        attention_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
    inputs = AttentionInputs(
        query=query,
        key=key,
        value=value,
        valid=boolean_mask(attention_mask, keys),
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=options.get("softcap"),
        dropout=dropout if module.training else 0.0,
        causal=causal,
    )
    output, p = slot.attend(inputs)
    return output.transpose(1, 2).contiguous(), p


def _is_purely_causal(mask: torch.Tensor | None) -> bool:
    known = getattr(mask, CAUSAL, None)
    return mask is not None and known is not None and known == mask._version


def _is_causal(module: nn.Module, options: dict[str, Any]) -> bool:
    """Whether a layer without a mask hides the future, as scaled_dot_product_attention is told to then."""
    told = options.get("is_causal")
    return bool(getattr(module, "is_causal", False) if told is None else told)


def boolean_mask(mask: torch.Tensor | None, columns: int) -> torch.Tensor | None:
    """The first columns of a mask as booleans, True = attend.

    An additive mask is taken where it only hides: 0 where a position is attended, -1000 or less (usually
    -10000, the smallest number or -infinity) where not. Values in between shift logits, as ALiBi does, and
    are refused.

    >>> boolean_mask(torch.tensor([[0.0, -1e4, -torch.inf, 0.0]]), columns=3).tolist()
    [[True, False, False]]
    """
    if mask is None:
        return None
    if mask.shape[-1] != columns:  # else it stays the tensor that all layers get
        mask = mask[..., :columns]
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ModelError(
            "an attention mask of booleans (True = attend) or an additive one of floats",
            f"dtype {mask.dtype}",
            "Pass mask.bool().",
        )
    attended = mask == 0
    understood = attended | (mask <= MASKED)
    if torch.compiler.is_compiling():
        torch._assert_async(understood.all(), "an additive mask of 0 and values of at most -1000")
    elif not bool(understood.all()):
        raise ModelError(
            "an additive mask of 0 (attend) and values of at most -1000 (do not)",
            f"{mask[~understood].flatten()[0].item():g} among its values",
            "HCCS takes no bias on logits (ALiBi, relative positions): keep this model's own attention.",
        )
    return attended


def mask(*args: Any, **options: Any) -> torch.Tensor | None:
    """Boolean mask [batch, 1, q, k]; None only where every position may attend to every other."""
    from transformers.masking_utils import sdpa_mask

    may_skip = options["allow_is_causal_skip"] = bool(options.get("allow_is_causal_skip"))
    if may_skip and _sees_what_is_cached(options):
        return None
    built: torch.Tensor | None = sdpa_mask(*args, **options)
    if built is not None and built.is_cuda and not torch.compiler.is_compiling() and not built.is_inference():
        setattr(built, BITS, {})
    if built is not None or not may_skip or _is_last(options):
        return built
    # sdpa leaves the causal mask out and says is_causal instead; our rows need to see it, but for the one
    # query that comes after all keys.
    built = sdpa_mask(*args, **{**options, "allow_is_causal_skip": False})
    if built is not None and not torch.compiler.is_compiling() and not built.is_inference():
        setattr(built, CAUSAL, built._version)
    return built


def _is_last(options: dict[str, Any]) -> bool:
    """Whether there is one query, and no key after it."""
    places: list[Any] = [options.get(name) for name in ("q_length", "kv_length", "q_offset", "kv_offset")]
    if not all(type(place) is int for place in places):  # a static cache has tensors here
        return False
    q_length, kv_length, q_offset, kv_offset = places
    return bool(q_length == 1 and kv_offset + kv_length == q_offset + 1)


def _sees_what_is_cached(options: dict[str, Any]) -> bool:
    """Whether a recorded query sees all keys of a cache, at whose end attention stops without a mask."""
    from transformers.masking_utils import causal_mask_function

    recorded = getattr(options.get("q_offset"), RECORDED, False)
    padded = options.get("attention_mask") is not None
    return recorded and not padded and options.get("mask_function") is causal_mask_function


def register() -> None:
    """Make "hccs" known to transformers; safe to call again."""
    _interface().register(NAME, attention)
    require("transformers", "hf").AttentionMaskInterface.register(NAME, mask)


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of `model` whose attention goes through transformers' attention interface, by name.

    They are known by their type: its `forward` refers to an `AttentionInterface`, the object in which
    transformers looks attention functions up.

    >>> from transformers import BertConfig, BertModel
    >>> shape = dict(vocab_size=50, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    >>> list(attention_layers(BertModel(BertConfig(num_hidden_layers=2, **shape))))
    ['encoder.layer.0.attention.self', 'encoder.layer.1.attention.self']
    """
    model = unwrapped(model)
    layers = {
        name.replace(COMPILED, ""): module
        for name, module in model.named_modules()
        if uses_interface(type(module))
    }
    if not layers or not hasattr(model, "set_attn_implementation"):
        raise ModelError(
            "a transformers model whose attention goes through the attention interface",
            f"{type(model).__name__}, which has no such layer",
            "Use an architecture that supports attn_implementation='sdpa' in a recent transformers.",
        )
    return layers


def uses_interface(kind: type) -> bool:
    """Whether the forward of this type of module, decorated or inherited, refers to an AttentionInterface.

    Read from compiled code and the objects its names stand for, so that no source text is needed.
    """
    for base in kind.__mro__:
        forward = vars(base).get("forward")
        if forward is None or base is nn.Module:
            continue
        found = list(_functions(forward))
        if any(_refers_to_interface(*function) for function in found):
            return True
        # A forward that does not go on to its base's replaces it, whatever the base does.
        if not any({"super", "forward"} <= {*code.co_names} for code, _ in found):
            return False
    return False


def switch(model: nn.Module, layers: dict[str, nn.Module], name: str) -> None:
    """Make `model`, whose attention layers are `layers`, use the attention function registered as `name`."""
    model.set_attn_implementation(name)  # type: ignore[operator]
    # transformers reads the model's source to decide whether it may switch, and only warns if it may not.
    owners = {part for layer in layers for part in _enclosing(layer)}
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        if path.replace(COMPILED, "") in owners and getattr(config, "_attn_implementation", name) != name:
            config._attn_implementation_internal = name  # type: ignore[union-attr]


def _enclosing(layer: str) -> Iterator[str]:
    """The names of a layer and all modules around it, down from the model itself."""
    parts = layer.split(".")
    return (".".join(parts[:count]) for count in range(len(parts) + 1))


def _interface() -> Any:
    transformers = require("transformers", "hf")
    if not hasattr(transformers, "AttentionInterface"):
        raise MissingExtraError(
            "transformers with the attention interface",
            f"transformers {transformers.__version__}",
            "Install transformers 5 or later.",
        )
    return transformers.AttentionInterface


def _functions(root: Any) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """The code of a function and of those it wraps or holds in its closure, with their globals."""
    waiting, seen = [root], set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        wrapped = (getattr(function, name, None) for name in ("__wrapped__", "__func__", "func"))
        waiting += [inner for inner in wrapped if inner is not None]
        if isinstance(function, FunctionType):
            yield function.__code__, function.__globals__
            waiting += [cell.cell_contents for cell in function.__closure__ or () if _is_function(cell)]


def _is_function(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, FunctionType)
    except ValueError:  # not filled yet
        return False


def _refers_to_interface(code: CodeType, names: dict[str, Any]) -> bool:
    kind = _interface()
    globals_used = [names[name] for name in code.co_names if name in names]
    modules = [value for value in globals_used if isinstance(value, ModuleType)]
    members = [vars(module).get(name) for module in modules for name in code.co_names]
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any(isinstance(value, kind) for value in (*globals_used, *members)) or any(
        _refers_to_interface(nested, names) for nested in inner
    )
