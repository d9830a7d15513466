"""The int8 key-value cache of generation: k and v are quantised once, when they are appended.

transformers hands every attention layer its cache and calls `update` with new keys and values, rotary
positions already applied. A layer of integer attention keeps int8 there, by the static scales of its table,
and gets int8 back: a quarter of float32's bytes, and no step quantises what came before.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.cache_utils import DynamicCache, DynamicLayer

from hccs.errors import ModelError
from hccs.nn.integer import APPENDED, END, IntegerAttention
from hccs.nn.interface import SLOT

ROOM = 64
"""A full cache doubles its room, in blocks of this many tokens."""


@dataclass
class Room:
    """Tensors [batch, key heads, capacity, d] of k and v that are filled up to a number of tokens.

    Filled places are never rewritten: copies of a layer share a room, and views of it stay valid when the
    layer is cropped and continues differently.
    """

    keys: torch.Tensor
    values: torch.Tensor
    filled: int

    def takes(self, keys: torch.Tensor, values: torch.Tensor, tokens: int) -> bool:
        """Whether `keys` and `values` are all that is filled here, and `tokens` fit."""
        # Every layer asks at every step: without a loop.
        texts, _, capacity, _ = self.keys.shape
        here = self.keys.data_ptr() == keys.data_ptr() and self.values.data_ptr() == values.data_ptr()
        alike = keys.shape[0] == values.shape[0] == texts and keys.shape[2] == values.shape[2] == self.filled
        # Tensors of inference mode cannot be written outside of it.
        frozen = self.keys.is_inference() and not torch.is_inference_mode_enabled()
        return here and alike and tokens <= capacity and not frozen


class Int8CacheLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's k and v as int8 [batch, key heads, tokens, d]: views of tensors with room for more tokens.

    Cropping, reordering and selecting are those of transformers' own layer.
    """

    def __init__(self, slot: IntegerAttention, attention: nn.Module | None = None) -> None:
        super().__init__()
        self.slot, self.attention = slot, None if attention is None else weakref.ref(attention)
        self.room: Room | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = torch.int8, key_states.device
        self.keys, self.values = (
            torch.empty(*x.shape[:2], 0, x.shape[-1], dtype=torch.int8, device=x.device)
            for x in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the states, quantised; returns all keys and values, int8."""
        if self.attention is not None and not hasattr(self.attention(), SLOT):
            raise ModelError(
                "a cache of floats for the model's own attention",
                "the int8 cache of integer attention",
                "Begin with a new cache after hccs.nn.detach.",
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        kept: tuple[Any, Any] = self.keys, self.values
        waiting = getattr(self.keys, APPENDED, ())  # nothing has read this cache since
        if waiting:
            self.slot.write(waiting, *kept)
        before = kept[0].shape[-2]
        tokens = before + key_states.shape[-2]
        if self.room is None or not self.room.takes(*kept, tokens):
            self.room = Room(_with_room(kept[0], tokens), _with_room(kept[1], tokens), before)
        keys, values = self.fill(tokens)
        self.slot.append((key_states, value_states), keys, values)
        return keys, values

    def fill(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values become the first `tokens` of the room."""
        room: Any = self.room
        room.filled = tokens
        self.keys, self.values = room.keys.narrow(2, 0, tokens), room.values.narrow(2, 0, tokens)
        return self.keys, self.values

    def awaits(self, tokens: int, device: torch.device) -> bool:
        """Whether one more token, the last of `tokens`, fits the room, and attention will read it there."""
        slot, layer = self.slot, None if self.attention is None else self.attention()
        keys, values = self.keys, self.values
        waiting: Any = getattr(keys, APPENDED, None)
        if self.room is None or keys is None or values is None or waiting:
            return False
        here = keys.shape[2] == tokens - 1 and keys.device == device
        read = slot.reads_cache and getattr(layer, SLOT, None) is slot and tokens <= slot.theta.max_columns
        return here and read and self.room.takes(keys, values, tokens)

    def offload(self) -> None:
        """Move the tokens to the CPU; the room they had is given back."""
        self.room = None
        super().offload()

    def reset(self) -> None:
        self.room = None
        super().reset()


class RecordedCacheLayer(Int8CacheLayer):
    """A layer's part of a cache while a CUDA graph records a step: its whole room, with an end on the GPU."""

    def __init__(self, part: Int8CacheLayer, tokens: int, end: torch.Tensor, before: torch.Tensor) -> None:
        super().__init__(part.slot)
        room: Any = part.room
        self.attention, self._before = part.attention, before
        self._all = room.keys[:, :, :tokens], room.values[:, :, :tokens]
        self.keys, self.values = self._all
        self.dtype, self.device, self.is_initialized = torch.int8, end.device, True
        setattr(self.keys, END, end)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of the room; attention writes the new ones together with q."""
        setattr(self.keys, APPENDED, (key_states, value_states))
        return self._all

    def get_seq_length(self) -> Any:
        """A tensor, as transformers' static caches return it."""
        return self._before

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._all[0].shape[2], 0


def _with_room(kept: Any, tokens: int) -> torch.Tensor:
    """A tensor that begins with what is kept and has room for these tokens and more."""
    capacity = (max(tokens, 2 * kept.shape[-2]) + ROOM - 1) // ROOM * ROOM
    room: torch.Tensor = kept.new_empty(*kept.shape[:2], capacity, kept.shape[-1])
    room[:, :, : kept.shape[-2]] = kept
    return room


def keep_integers(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before an attention layer runs: its part of a cache that is still empty becomes one of int8.

    A forward pre-hook. Only what transformers makes for generation by itself is replaced, and only in layers
    of integer attention; caches of another kind hold floats, which are then quantised in every step. So do
    those of models in which layers hand their keys on to later ones, whose scales may be others.
    """
    cache = kwargs.get("past_key_values")  # what most layers call it
    if not isinstance(cache, DynamicCache):
        cache = next((x for x in (*kwargs.values(), *args) if isinstance(x, DynamicCache)), None)
        if cache is None:
            return
    if not torch.compiler.is_compiling():
        index = getattr(layer, "layer_idx", None)
        part = cache.layers[index] if index is not None and index < len(cache.layers) else None
        if isinstance(part, Int8CacheLayer) and part.slot is getattr(layer, SLOT, None):
            return  # soonest where it matters
    _keep_integers(layer, cache)


@torch.compiler.disable  # a cache is a list of objects, not of tensors
def _keep_integers(layer: nn.Module, cache: DynamicCache) -> None:
    slot, index = getattr(layer, SLOT, None), getattr(layer, "layer_idx", None)
    hands_on = getattr(getattr(layer, "config", None), "num_kv_shared_layers", None)
    if not isinstance(slot, IntegerAttention) or index is None or hands_on:
        return
    while len(cache.layers) <= index and cache.layer_class_to_replicate is not None:
        cache.layers.append(cache.layer_class_to_replicate())
    part: Any = cache.layers[index]
    if type(part) is DynamicLayer:
        if part.keys is None or part.get_seq_length() == 0:
            cache.layers[index] = Int8CacheLayer(slot, layer)
        elif part.keys.dtype == torch.int8:
            raise ModelError(
                "a cache as the model has made it",
                "int8 keys and values in a new one, which does not know their scales",
                "Copy caches with copy.deepcopy(cache).",
            )
    elif isinstance(part, Int8CacheLayer) and part.slot is not slot:
        if not np.array_equal(part.slot.qkv_scale[:, 1:], slot.qkv_scale[:, 1:]):
            raise ModelError(
                "a cache of this model and this table",
                "keys and values in int8 steps of other scales",
                "Begin with a new cache after another table was attached.",
            )
        part.slot, part.attention = slot, weakref.ref(layer)


def watch(layer: nn.Module) -> None:
    """Let an attention layer keep integers in its cache; safe to call again."""
    if keep_integers not in layer._forward_pre_hooks.values():
        layer.register_forward_pre_hook(keep_integers, with_kwargs=True)


def unwatch(layer: nn.Module) -> None:
    for number, hook in list(layer._forward_pre_hooks.items()):
        if hook is keep_integers:
            del layer._forward_pre_hooks[number]
            layer._forward_pre_hooks_with_kwargs.pop(number, None)
