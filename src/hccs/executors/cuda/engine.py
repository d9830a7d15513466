"""`Engine`: a program's plan on CUDA, compiled once, then run on any batch; a graph per class of batches."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from hccs._extras import require
from hccs.errors import DataError, ModelError, ParameterError
from hccs.executors.cuda.code import CODE, TARGET, Building
from hccs.ops.dispatch import backend
from hccs.ops.graphs import recorded
from hccs.program.cache import is_causal
from hccs.program.plan import plan
from hccs.program.program import Program

MOST_GRAPHS = 64
"""Classes of batches whose graphs are kept, the latest used."""

MOST_BYTES = 2 << 30
"""Of the values of a batch, unless one sequence has more: larger batches run in pieces."""


def compiled(program: Program, device: str) -> Engine:
    """The engine that runs this program on a GPU; without one, without torch or Triton it is refused."""
    torch = require("torch", "cuda", "to run models on CUDA")
    kernels = backend("program", "cuda")
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ParameterError(
            "a device: cpu, cuda or cuda:<number>", repr(device), "See torch.device."
        ) from error
    if kernels.INTERPRETED:  # Triton's interpreter runs kernels on the host
        return Engine(program, kernels, torch.device("cpu"))
    if not torch.cuda.is_available() or (where.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"the GPU {device} that torch can use",
            f"torch {torch.__version__} with {torch.cuda.device_count()} GPUs",
            "Leave device out to run on the CPU: the answers are the same.",
        )
    index = torch.cuda.current_device() if where.index is None else where.index
    return Engine(program, kernels, torch.device("cuda", index))


class Engine:
    """What `IntegerModel` asks for answers; many threads of Python may share one, and take turns."""

    def __init__(self, program: Program, kernels: Any, device: Any) -> None:
        self._plan = plan(program, TARGET)
        self._program, self._device, self._kernels = program, device, kernels
        building = Building(kernels, self._plan, program, device)
        steps = [step for group in self._plan.groups for step in group]
        self._launches = [CODE[type(step.main)](building, step, step.main) for step in steps]
        self._answer = program.operators[-1].output
        self._every_token = program.per_token and is_causal(program)
        longest = [step.longest_row for step in program.operators if step.longest_row is not None]
        self._longest = min([program.rows, *longest])
        self._most_tokens = MOST_BYTES // sum(self._plan.pools.values())
        self._memory: dict[Any, Any] = {}
        self._rows = 0
        self._runs: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._stream: Any = None

    def takes(self, ids: Any, mask: Any, types: Any) -> bool:
        """Whether the input lies on this device already: then the answer does, too."""
        import torch

        given = [part for part in (ids, mask, types) if part is not None]
        return all(isinstance(part, torch.Tensor) and part.device == self._device for part in given)

    def answer(self, ids: Any, mask: Any, types: Any, threads: int | None, width: int) -> Any:
        """The scores of a checked batch, or of tensors on this device, which are checked here.

        `threads` are the CPU's.
        """
        image, given = self._program.embed.image, (ids, mask, types)
        tokens = ids.shape[-1] if image is None else self._program.rows
        step = max(self._most_tokens // max(tokens, 1), 1)
        alike = all(part is None or part.shape == ids.shape for part in given)
        if not alike or ids.ndim < (2 if image is None else 4) or len(ids) <= step:
            return self._piece(*given, width)
        found = []
        for begin in range(0, len(ids), step):
            own = [None if part is None else part[begin : begin + step] for part in given]
            found.append(self._piece(own[0], own[1], own[2], width))
        if isinstance(found[0], np.ndarray):
            return np.concatenate(found)
        import torch

        return torch.cat(found)

    def _piece(self, ids: Any, mask: Any, types: Any, width: int) -> Any:
        if self._program.embed.image is not None:
            return self._images(ids, width)
        if self.takes(ids, mask, types):
            return self._tensors(ids, mask, types, width)
        shown = np.ones(ids.shape, bool) if mask is None else np.asarray(mask) != 0
        lengths = shown.sum(1)
        kinds = np.zeros_like(ids) if types is None else types

        def fill(space: Any) -> None:
            space.fill(ids[shown], kinds[shown], lengths)

        found = self._run_batch(int(lengths.sum()), len(lengths), ids.shape[1], width, fill)
        return self._placed(found, shown).cpu().numpy()

    def cache(self, sequences: int, device: str) -> Any:
        """An empty cache in this device's memory."""
        from hccs.executors.cuda.cache import DeviceCache

        return DeviceCache(self._program, sequences, device, self._device, self._kernels.ALIGNMENT)

    def extend(
        self, tokens: Any, counts: Any, texts: Any, cache: Any, threads: int | None, width: int
    ) -> Any | None:
        """Scores [texts, `width`] on the device after the last of `counts` new tokens of each text.

        Their keys and values are appended to the cache, whose room and numbers the caller has checked.
        """
        if (cache.lengths[texts] + counts).max() > self._longest:
            return None  # the caller explains
        from hccs.executors.cuda.cache import CachedSpace, NewTokens

        new = NewTokens(tokens, counts, texts, cache)
        fill = functools.partial(CachedSpace.fill_new, new=new, cached=self._kernels.Cached)
        return self._run(new.room, len(counts), width, fill, True)

    def _images(self, given: Any, width: int) -> Any:
        import torch

        own = isinstance(given, torch.Tensor)
        images = given if own else torch.from_numpy(np.ascontiguousarray(given))
        embed = self._program.embed
        if own:
            images = images[None] if images.ndim == 3 else images
            if images.dtype != torch.uint8 or tuple(images.shape[1:]) != embed.image:
                embed.read(given.cpu().numpy(), None, None, self._program.longest)
        count, tokens = len(images), self._program.rows
        lengths = np.full(count, tokens)
        nothing = np.zeros(count * tokens, np.int32)

        def fill(space: Any) -> None:
            space.images[:count].copy_(images)
            space.fill(nothing, nothing, lengths)

        found = self._run_batch(count * tokens, count, tokens, width, fill)
        found = self._placed(found, np.ones((count, tokens), bool))
        return found if own else found.cpu().numpy()

    def _tensors(self, ids: Any, mask: Any, types: Any, width: int) -> Any:
        """The answer on the device to tensors there; the host learns their sizes and no more."""
        import torch

        embed, plain = self._program.embed, (ids, mask, types)
        kinds = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
        ids, mask, types = (part if part is None or part.ndim != 1 else part[None] for part in plain)
        fits = ids.ndim == 2 and ids.numel() and ids.shape[1] <= self._longest and ids.dtype in kinds
        fits = fits and all(part is None or part.shape == ids.shape for part in (mask, types))
        fits = fits and (types is None or types.dtype in kinds)
        fits = fits and (mask is None or mask.dtype in (torch.bool, *kinds))
        if fits:
            ids, mask, types = (part if part is None else part.contiguous() for part in (ids, mask, types))
            if mask is not None and mask.dtype == torch.bool:
                mask = mask.view(torch.uint8)
            lengths, wrong = self._kernels.measure(ids, mask, types, embed.vocabulary, embed.type_count)
            ends = lengths.cumsum(0, dtype=torch.int32)
            refused, most, tokens = torch.stack([wrong.amax(), lengths.amax(), ends[-1]]).tolist()
            fits = not refused
        if not fits:
            first, second, third = (None if part is None else part.cpu().numpy() for part in plain)
            embed.read(first, second, third, self._program.longest)  # explains what is wrong
            raise DataError(
                f"at most {self._longest} tokens",
                str(tuple(ids.shape)),
                "Truncate, or lower the model for more.",
            )

        def fill(space: Any) -> None:
            space.fill_on_device(self._kernels.pack, ids, types, ends, most)

        found = self._run_batch(tokens, len(ids), most, width, fill)
        if not self._program.per_token:
            return found
        shown = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        return self._placed(found, shown)

    def _placed(self, found: Any, shown: Any) -> Any:
        """Answers of tokens at their places, zeros behind sequences; of sequences as they are."""
        import torch

        if not self._program.per_token:
            return found
        mask = torch.as_tensor(shown, device=found.device)
        full = torch.zeros((*mask.shape, found.shape[1]), dtype=found.dtype, device=found.device)
        return full.masked_scatter_(mask[..., None], found)

    def _run_batch(self, tokens: int, sequences: int, longest: int, width: int, fill: Any) -> Any:
        """The answers [tokens or sequences, width] to the batch that `fill` writes into a space."""
        from hccs.executors.cuda.space import Room

        count = tokens if self._program.per_token else sequences
        return self._run(Room.of(tokens, sequences, longest), count, width, fill, False)

    def _run(self, room: Any, count: int, width: int, fill: Any, cached: bool) -> Any:
        """`count` answers [count, width] to what `fill` writes into a space."""
        import torch

        # What is kept from one call to the next is no tensor of a caller's inference mode.
        with self._lock, self._on_stream(), torch.inference_mode(False):
            run = self._known(room, width, cached)
            fill(run.space)
            run()
            found = run.space[self._answer][:count, :width].clone()
        if self._device.type == "cuda":  # its memory is the engine's stream's until the caller has read it
            found.record_stream(torch.cuda.current_stream(self._device))
        return found

    def _on_stream(self) -> AbstractContextManager[Any]:
        """A stream of the engine's own: what threads start on theirs waits for it, and it for them."""
        if self._device.type != "cuda":
            return nullcontext()
        import torch

        if self._stream is None:
            stream: Any = torch.cuda.Stream
            self._stream = stream(self._device)
        return OnStream(self._stream)

    def _known(self, room: Any, width: int, cached: bool) -> Any:
        """The run of a class of batches; memory grows to the largest class, and graphs on the old one go."""
        import torch

        from hccs.executors.cuda.cache import CachedSpace
        from hccs.executors.cuda.space import Space

        if room.rows > self._rows:
            self._runs.clear()
            self._memory = {
                pool: torch.zeros(size * room.rows, dtype=torch.int8, device=self._device)
                for pool, size in self._plan.pools.items()
            }
            self._rows = room.rows
        key = room, width, cached
        if key not in self._runs:
            images, shape = None, self._program.embed.image
            if shape is not None:
                images = torch.zeros((room.sequences, *shape), dtype=torch.uint8, device=self._device)
            if cached:
                space: Space = CachedSpace(room, self._plan, self._memory, width)
            else:
                space = Space(room, self._plan, self._memory, self._every_token, width, images)
            self._runs[key] = Run(space, self._launches)
            if len(self._runs) > MOST_GRAPHS:
                self._runs.popitem(last=False)
        self._runs.move_to_end(key)
        return self._runs[key]


class Run:
    """All launches of a program over a space; from the second call on one CUDA graph."""

    def __init__(self, space: Any, launches: list[Any]) -> None:
        self.space, self._launches = space, launches
        self._graph: Any = None

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        self._launch()
        if self.space.counts.device.type != "cuda":
            return
        import torch

        self._graph, _ = recorded(self._launch, torch.cuda.current_stream())

    def _launch(self) -> None:
        for launch in self._launches:
            launch(self.space)


class OnStream:
    """Work on a stream between that of the caller before and after."""

    def __init__(self, stream: Any) -> None:
        import torch

        self._stream, self._caller = stream, torch.cuda.current_stream(stream.device)
        self._inside: Any = torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self._stream.wait_stream(self._caller)
        self._inside.__enter__()

    def __exit__(self, *failed: Any) -> None:
        self._inside.__exit__(*failed)
        self._caller.wait_stream(self._stream)
