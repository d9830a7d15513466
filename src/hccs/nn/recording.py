"""Steps of `generate()` as CUDA graphs: the host starts one launch a token instead of hundreds.

A step over the int8 room of a cache is recorded on tensors that stay where they are. It reads the whole room,
and only the GPU knows how many keys are in it. Later steps copy their token into those tensors and replay the
graph, until the cache gets another room. Calls of any other kind run as they always did. The step that is
recorded is answered by an ordinary call, and a graph that answers anything else is not used.
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

from hccs.errors import HccsError, ModelError
from hccs.nn.batches import unwrapped
from hccs.nn.integer import APPENDED, IntegerAttention
from hccs.nn.interface import RECORDED, SLOT, attention_layers
from hccs.ops.graphs import recorded, recording_stream

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicCache
    from transformers.utils.generic import ModelOutput

    from hccs.nn.cache import Room

IDS, MASK, CACHE = "input_ids", "attention_mask", "past_key_values"

CLOSE = 0.02
"""A graph's scores may differ from an ordinary call's by this share of the largest: cuBLAS may add in another
order there."""


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

    given: dict[str, Any]
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
        if step is None:
            return self._forward(*args, **given)
        with self._lock, torch.cuda.device(step.tensors[IDS].device):
            recording = self._recordings.get(step.cache)
            if recording is not None and recording.takes(step):
                return recording.replay(step)
            self._recordings.pop(step.cache, None)  # its memory is free before more is taken
            return self._recorded(step)

    def _recorded(self, step: _Step) -> Any:
        """The answer of an ordinary call, which is recorded for the steps after it."""
        recording = _Recording(self._forward, self._model, step)
        answer = self._forward(**step.given)
        if recording.is_full(step):
            return answer
        try:
            recording.record(step, answer)
            self._recordings[step.cache] = recording
        except _NotRecordedError as error:
            self._refused = True
            self._recordings.clear()
            warnings.warn(f"hccs.nn.recorded_steps does not record this model's steps: {error}", stacklevel=4)
        return answer

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
        return _Step(given, tensors, mask, cache, tokens, others)


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
        rooms = (min(part.room.keys.shape[2], part.slot.theta.max_columns) for part in parts)
        self._keys, device = min(rooms), step.tensors[IDS].device
        with torch.inference_mode(False):  # later steps may be outside of it
            self._tensors = {name: torch.empty_like(x) for name, x in step.tensors.items()}
            self._end = torch.empty(1, dtype=torch.int32, device=device)
            self._before = torch.empty((), dtype=torch.int64, device=device)
            self._mask: torch.Tensor | None = None
            if step.mask is not None:
                self._mask = torch.empty((len(step.mask), self._keys), dtype=torch.bool, device=device)
        setattr(self._before, RECORDED, True)
        self._parts = [RecordedCacheLayer(part, self._keys, self._end, self._before) for part in parts]
        self._cache = DynamicCache()
        self._cache.layers = [*self._parts]
        self._graph: Any = None
        self._found: Any = None

    def is_full(self, step: _Step) -> bool:
        """Whether no step after this one fits."""
        return step.tokens >= self._keys

    def takes(self, step: _Step) -> bool:
        """Whether this step differs from the recorded one in its token alone."""
        parts: Any = step.cache.layers
        rooms = all(part.room is room for part, room in zip(parts, self._rooms, strict=True))
        return rooms and step.form == self._form and self._of_weights() == self._addresses

    def record(self, step: _Step, answer: Any) -> None:
        """Record a step that an ordinary call has answered, and compare what its graph answers.

        A model that uses the shape of its mask or the length of its cache may answer something else.
        """
        if not isinstance(answer, Mapping):
            raise _NotRecordedError("its output has no names")
        if not all(x is step.cache or isinstance(x, torch.Tensor) for x in answer.values()):
            raise _NotRecordedError("its output holds more than tensors and the cache")
        self._fill(step)
        last = [kept[:, :, step.tokens - 1] for room in self._rooms for kept in (room.keys, room.values)]
        before = [row.clone() for row in last]
        try:
            self._try(answer)
        except (HccsError, _NotRecordedError):  # the former are of an earlier call, most likely
            raise
        except Exception as error:
            raise _NotRecordedError(str(error)) from error
        finally:
            for row, kept in zip(last, before, strict=True):
                row.copy_(kept)

    def _try(self, answer: Any) -> None:
        found = self._launch()  # compiles its kernels
        waiting = any(getattr(part.keys, APPENDED) for part in self._parts)
        if waiting or not _are_close(found, answer, 0.0):
            raise _NotRecordedError("a step over all of the cache's memory has another answer")
        self._graph, self._found = recorded(self._launch, recording_stream(self._end.device))
        self._graph.replay()
        if not _are_close(self._found, answer, CLOSE):
            raise _NotRecordedError("its graph has another answer")

    def replay(self, step: _Step) -> ModelOutput:
        """The model's output."""
        self._fill(step)
        self._graph.replay()
        parts: Any = step.cache.layers
        for part in parts:
            part.fill(step.tokens)
        # The next step writes where this one's output is.
        found = self._found.items()
        values = {name: step.cache if x is self._cache else x.clone() for name, x in found}
        answer: ModelOutput = type(self._found)(**values)
        return answer

    def _fill(self, step: _Step) -> None:
        for name, x in self._tensors.items():
            x.copy_(step.tensors[name])
        self._end.fill_(step.tokens)
        self._before.fill_(step.tokens - 1)
        if self._mask is not None and step.mask is not None:
            self._mask.zero_()
            self._mask[:, : step.tokens].copy_(step.mask)

    def _launch(self) -> Any:
        others = dict(self._form[2])
        return self._forward(**self._tensors, **others, **{MASK: self._mask, CACHE: self._cache})

    def _of_weights(self) -> list[int]:
        return [weight.data_ptr() for weight in self._weights]


def _are_close(found: Any, answer: Any, share: float) -> bool:
    """Whether tensors differ by at most a share of their largest number."""
    pairs = [(found[name], x) for name, x in answer.items() if isinstance(x, torch.Tensor)]
    return all(torch.equal(a, b) or bool((a - b).abs().max() <= share * b.abs().max()) for a, b in pairs)
