"""Steps of `generate()` as CUDA graphs: the host starts one launch a token instead of hundreds.

A step over the int8 room of a cache is recorded on tensors that stay where they are. It reads the whole room,
and only the GPU knows how many keys are in it. Later steps copy their token into those tensors and replay the
graph, until the cache gets another room. Calls of any other kind run as they always did.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hccs.errors import ModelError
from hccs.nn.batches import unwrapped
from hccs.nn.integer import APPENDED, IntegerAttention
from hccs.nn.interface import RECORDED, SLOT, attention_layers
from hccs.ops.graphs import recorded, recording_stream

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicCache
    from transformers.utils.generic import ModelOutput

    from hccs.nn.cache import Room

IDS, MASK, CACHE = "input_ids", "attention_mask", "past_key_values"


@contextmanager
def recorded_steps(model: nn.Module) -> Iterator[None]:
    """Let `model.generate()` replay its steps from CUDA graphs, as long as the block lasts.

    For models on one GPU after `attach(model, table, backend="integer")`:

        with hccs.nn.recorded_steps(model):
            model.generate(**prompts, max_new_tokens=500)

    Weights, adapters and tables must stay as they are inside the block. Prompts, beams, assisted generation
    and caches with sliding windows run as they do without it. So does a model whose step cannot be recorded,
    with a warning.
    """
    inner = unwrapped(model)
    slots = [getattr(layer, SLOT, None) for layer in attention_layers(inner).values()]
    if not all(isinstance(slot, IntegerAttention) for slot in slots):
        raise ModelError(
            "a model whose attention is in integers",
            "one with other layers",
            'Call hccs.nn.attach(model, table, backend="integer") first.',
        )
    before = vars(inner).get("forward")
    if isinstance(before, _Recorder):  # a block around this one, or another thread's
        yield
        return
    inner.forward = _Recorder(inner)  # type: ignore[assignment]
    try:
        yield
    finally:
        del inner.forward
        if before is not None:
            inner.forward = before


@dataclass(frozen=True, eq=False)
class _Step:
    """A call that appends one token to every text of a cache."""

    tensors: dict[str, torch.Tensor]
    """All tensors of the call but the mask."""
    mask: torch.Tensor | None
    """[batch, tokens]; None where it hides nothing."""
    cache: DynamicCache
    tokens: int
    """In the cache after this step."""
    others: tuple[tuple[str, Any], ...]

    @property
    def form(self) -> tuple[Any, ...]:
        """What a recording cannot change."""
        layout = tuple((name, x.shape, x.dtype, x.device) for name, x in self.tensors.items())
        return layout, self.mask is None, self.others, torch.cuda.current_stream().cuda_stream


class _Recorder:
    """A model's forward that replays the steps it has recorded."""

    def __init__(self, model: nn.Module) -> None:
        self._forward = model.forward
        functools.update_wrapper(self, self._forward)  # generate() looks at its arguments
        self._model, self._layers = model, len(attention_layers(model))
        self._recordings: weakref.WeakKeyDictionary[DynamicCache, _Recording] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._refused = False

    def __call__(self, *args: Any, **given: Any) -> Any:
        step = None if args or self._refused else self._step(given)
        if step is not None:
            try:
                return self._replayed(step)
            except _NotRecordedError as error:  # the cache is still as it was
                self._refused = True
                warnings.warn(
                    f"hccs.nn.recorded_steps does not record this model's steps: {error}", stacklevel=2
                )
        return self._forward(*args, **given)

    def _replayed(self, step: _Step) -> ModelOutput:
        with self._lock, torch.cuda.device(step.tensors[IDS].device):
            recording = self._recordings.get(step.cache)
            if recording is None or not recording.takes(step):
                self._recordings.pop(step.cache, None)  # its memory is free before more is taken
                recording = _Recording(self._forward, self._model, step)
                self._recordings[step.cache] = recording
            return recording.replay(step)

    def _step(self, given: dict[str, Any]) -> _Step | None:
        """None for a call that is not a step in integers on one GPU."""
        from transformers.cache_utils import DynamicCache

        from hccs.nn.cache import Int8CacheLayer

        cache, mask = given.get(CACHE), given.get(MASK)
        if type(cache) is not DynamicCache or torch.is_grad_enabled() or self._model.training:
            return None
        rest = {name: value for name, value in given.items() if name not in (CACHE, MASK)}
        tensors = {name: x for name, x in rest.items() if isinstance(x, torch.Tensor)}
        others = tuple((name, x) for name, x in rest.items() if name not in tensors)
        ids = tensors.get(IDS)
        if ids is None or ids.ndim != 2 or ids.shape[1] != 1 or len(cache.layers) != self._layers:
            return None
        plain = all(x is None or isinstance(x, (int, str)) for _, x in others)
        if not plain or not all(x.is_cuda and x.device == ids.device for x in tensors.values()):
            return None
        tokens = cache.get_seq_length() + 1
        parts = [part for part in cache.layers if isinstance(part, Int8CacheLayer)]
        if len(parts) < self._layers or not all(part.awaits(tokens, ids.device) for part in parts):
            return None
        if mask is not None:
            if not isinstance(mask, torch.Tensor) or mask.shape != (len(ids), tokens):
                return None
            if bool(mask.all()):
                mask = None
        return _Step(tensors, mask, cache, tokens, others)


class _NotRecordedError(Exception):
    """Says why a step cannot be recorded."""


class _Recording:
    """The graph of a step over the rooms of one cache."""

    def __init__(self, forward: Any, model: nn.Module, step: _Step) -> None:
        from transformers.cache_utils import DynamicCache

        from hccs.nn.cache import RecordedCacheLayer

        self._forward, self._form = forward, step.form
        self._weights = [*model.parameters(), *model.buffers()]
        self._addresses = self._of_weights()
        parts: Any = step.cache.layers
        self._rooms: list[Room] = [part.room for part in parts]
        keys = min(
            *(room.keys.shape[2] for room in self._rooms), *(part.slot.theta.max_columns for part in parts)
        )
        device = step.tensors[IDS].device
        with torch.inference_mode(False):  # later steps may be outside of it
            self._tensors = {name: torch.empty_like(x) for name, x in step.tensors.items()}
            self._end = torch.empty(1, dtype=torch.int32, device=device)
            self._before = torch.empty((), dtype=torch.int64, device=device)
            self._mask: torch.Tensor | None = None
            if step.mask is not None:
                self._mask = torch.empty((len(step.mask), keys), dtype=torch.bool, device=device)
        setattr(self._before, RECORDED, True)
        self._parts = [RecordedCacheLayer(part, keys, self._end, self._before) for part in parts]
        self._cache = DynamicCache()
        self._cache.layers = [*self._parts]
        self._graph: Any = None
        self._found: Any = None

    def takes(self, step: _Step) -> bool:
        """Whether this step differs from the recorded one in its token alone."""
        parts: Any = step.cache.layers
        rooms = all(part.room is room for part, room in zip(parts, self._rooms, strict=True))
        return rooms and step.form == self._form and self._of_weights() == self._addresses

    def replay(self, step: _Step) -> ModelOutput:
        """The model's output. The first step is computed by ordinary calls, and recorded after that."""
        for name, x in self._tensors.items():
            x.copy_(step.tensors[name])
        self._end.fill_(step.tokens)
        self._before.fill_(step.tokens - 1)
        if self._mask is not None and step.mask is not None:
            self._mask.zero_()
            self._mask[:, : step.tokens].copy_(step.mask)
        if self._graph is None:
            found = self._record()
        else:
            self._graph.replay()
            found = self._found
        parts: Any = step.cache.layers
        for part in parts:
            part.fill(step.tokens)
        # The next step writes where this one's output is.
        values = {name: step.cache if x is self._cache else x.clone() for name, x in found.items()}
        answer: ModelOutput = type(found)(**values)
        return answer

    def _record(self) -> ModelOutput:
        """Run the step, which compiles its kernels, and record it for the next ones."""
        found = self._launch()
        try:
            self._graph, self._found = recorded(self._launch, recording_stream(self._end.device))
        except RuntimeError as error:
            raise _NotRecordedError(str(error)) from error
        return found

    def _launch(self) -> ModelOutput:
        others = dict(self._form[2])
        found = self._forward(**self._tensors, **others, **{MASK: self._mask, CACHE: self._cache})
        if any(getattr(part.keys, APPENDED) for part in self._parts):
            raise _NotRecordedError("a layer's attention does not read its keys from the cache")
        named = isinstance(found, Mapping)
        if not named or not all(x is self._cache or isinstance(x, torch.Tensor) for x in found.values()):
            raise _NotRecordedError("the output holds more than tensors and the cache")
        return found

    def _of_weights(self) -> list[int]:
        return [weight.data_ptr() for weight in self._weights]
