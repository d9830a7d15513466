"""`IntegerModel`: token ids in, int32 scores out. Needs NumPy alone."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError, HccsError, ShapeError
from hccs.ops.arguments import require_threads
from hccs.ops.sampling import on_host
from hccs.program import files, fingerprints
from hccs.program.cache import Cache, row_of_tokens
from hccs.program.generation import Generation, Request, drained, generate
from hccs.program.operators import Batch
from hccs.program.program import Program


@dataclass(frozen=True, eq=False)
class Scores:
    """What a model answers: int32 `scores` [batch, labels], and for people `logits` and `labels`.

    A model with scores per token answers [batch, n, labels], zeros after the end of a sequence.
    """

    scores: NDArray[np.int32]
    scale: float
    names: tuple[str, ...]

    @property
    def logits(self) -> NDArray[np.float32]:
        """The scores in the units of the float model's logits."""
        if not isinstance(self.scores, np.ndarray):  # a tensor on CUDA stays there
            return (self.scores.double() * self.scale).float()
        return (self.scores * self.scale).astype(np.float32)

    @property
    def labels(self) -> list[Any]:
        """The name of the largest score of each row; a list of them per sequence where tokens have scores."""
        best = np.asarray(self.scores.argmax(-1).tolist())
        names: list[Any] = np.asarray(self.names, object)[best].tolist()
        return names


class IntegerModel:
    """An encoder in integers, from token ids to class scores.

    The native engine runs it, with the integers of `hccs.reference`; without native code NumPy does. On the
    device "cuda" Triton kernels do, and tensors that lie there are answered by tensors there.
    """

    def __init__(self, program: Program, device: str = "cpu") -> None:
        from hccs.executors import cpu, cuda  # executors know programs

        self.program, self.device = program, str(device)
        self._engine: Any = None
        if self.device != "cpu":
            self._engine = cuda.compiled(program, self.device)
            return
        try:
            self._engine = cpu.compiled(program)
        except HccsError as error:
            warnings.warn(f"NumPy runs this model, slowly: {error}", RuntimeWarning, stacklevel=2)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "cpu") -> IntegerModel:
        """The model in a file that `save` wrote; damaged and foreign files are refused."""
        return cls(files.load(path), device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, its fingerprint included; it replaces an old one only once it is complete."""
        facts = {**self.program.facts, fingerprints.FACT: self.fingerprint()}
        files.save(replace(self.program, facts=facts), path)

    def fingerprint(self) -> str:
        """The SHA-256 of the answers to fixed inputs: the same wherever the program runs correctly."""
        return fingerprints.fingerprint(self)

    def verify(self) -> str:
        """The fingerprint, by the engine and by the reference; HccsError unless it is the one in the file."""
        return fingerprints.verify(self)

    def shortened(self, dims: int) -> IntegerModel:
        """The model of the vectors' first `dims` channels, made to length 1; both share one engine."""
        before, last = self.program.operators[:-1], cast(Any, self.program.operators[-1])
        short = object.__new__(type(self))
        short.program = replace(self.program, operators=(*before, replace(last, dims=dims)))
        short._engine, short.device = self._engine, self.device
        return short

    @property
    def width(self) -> int:
        """Numbers of an answer: scores, or channels of a vector."""
        return self.program.scores

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the scores, in order."""
        return self.program.labels

    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        *,
        reference: bool = False,
        threads: int | None = None,
    ) -> Scores:
        """Scores of token ids [batch, n], or of one sequence [n]; of images, uint8 [batch, c, height, width].

        `attention_mask` has ones for tokens, then zeros for padding; masks with holes are refused. Without
        one, the mask of masked `input_ids` says the same. `reference` runs the readable form of every
        operator, for checking. `threads` are as many as pay, by default.
        """
        if threads is not None:
            require_threads(threads)
        given = (input_ids, attention_mask, token_type_ids)
        engine = None if reference else self._engine
        direct = engine is not None and engine.takes(*given)
        scores: NDArray[np.int32] | None = (
            engine.answer(*given, threads, self.width) if engine and direct else None
        )
        if scores is None:
            scores = self._converted(given, None if direct else engine, reference, threads)
        return Scores(scores, self.program.score_scale, self.labels)

    def _converted(
        self, given: tuple[Any, Any, Any], engine: Any, reference: bool, threads: int | None
    ) -> NDArray[np.int32]:
        """Scores of an input of any form; what the model cannot take is explained."""
        from hccs.executors.numpy import run  # executors know programs

        batch = self.program.embed.read(*given, self.program.longest)
        scores: NDArray[np.int32] | None = None
        if engine is not None and self.program.embed.image is not None:
            scores = engine.answer(batch.tokens, None, None, threads, self.width)
        elif engine is not None:
            mask = np.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
            scores = engine.answer(batch.tokens, mask, batch.types, threads, self.width)
        return run(self.program, batch, reference=reference) if scores is None else scores

    def cache(self, sequences: int = 1) -> Cache:
        """An empty cache of keys and values of so many texts, for `extend`; the model must be causal."""
        if self.device != "cpu":
            cache: Cache = self._engine.cache(sequences, self.device)
            return cache
        return Cache(self.program, sequences)

    def extend(
        self,
        cache: Cache,
        tokens: Sequence[Any],
        *,
        texts: Sequence[int] | None = None,
        reference: bool = False,
        threads: int | None = None,
    ) -> Scores:
        """Append tokens to texts, and return the scores [texts, labels] after the last one of each.

        `tokens` has the ids of every text, any number of them from 1 on, and `texts` their numbers in the
        cache, by default all. However a text is cut into calls, and whatever runs beside it, its scores are
        the same.
        """
        if threads is not None:
            require_threads(threads)
        numbers, rows = _new_rows(self.program, cache, tokens, texts)
        counts = np.array([len(row) for row in rows])
        scores = on_host(self.extended(cache, np.concatenate(rows), counts, numbers, reference, threads))
        return Scores(scores, self.program.score_scale, self.labels)

    def extended(
        self,
        cache: Cache,
        tokens: NDArray[np.int64],
        counts: NDArray[np.int64],
        texts: NDArray[np.int64],
        reference: bool,
        threads: int | None,
    ) -> Any:
        """The scores of `extend` for checked tokens, `counts` of each text one after the other.

        On CUDA they are a tensor there.
        """
        engine = None if reference else self._engine
        with cache.extending(self.program, texts, counts, self.device):
            scores = None
            if engine is not None:
                scores = engine.extend(tokens, counts, texts, cache, threads, self.width)
            if scores is None:
                from hccs.executors.numpy import run  # executors know programs

                ids = np.zeros((len(counts), int(counts.max())), np.int64)
                ids[np.arange(ids.shape[1]) < counts[:, None]] = tokens
                batch = Batch(ids, counts, np.zeros_like(ids), cache.lengths[texts], cache, texts)
                scores = run(self.program, batch, reference=reference)
        return scores

    def generate(
        self,
        prompts: Any,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | Sequence[int] | None = None,
        stop: int | Iterable[int] = (),
        on_token: Callable[[int, int], object] | None = None,
        reference: bool = False,
        threads: int | None = None,
    ) -> Generation:
        """Continue prompts, lists of token ids, by up to `max_new_tokens` tokens each.

        At temperature 0 each token is the one with the largest score, of equal ones the lowest id; at any
        other it is drawn, and a seed names the text: text i of a batch has the seed `seed` + i, or that of a
        list, and is the same whatever runs beside it, on every executor and number of threads. Without a seed
        one is drawn and returned. A text ends before a token of `stop`. `on_token` is called with the number
        of a text and each of its tokens.
        """
        request = Request.of(
            self,
            prompts,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=stop,
        )
        return drained(generate(self, request, reference=reference, threads=threads), on_token)

    def __reduce__(self) -> tuple[type[IntegerModel], tuple[Program, str]]:
        return type(self), (self.program, self.device)  # the engine is compiled where the model arrives

    def __repr__(self) -> str:
        from hccs.program.describe import describe  # needed by people alone

        return describe(self.program)

    def _repr_html_(self) -> str:
        return self.program._repr_html_()


def _new_rows(
    program: Program, cache: Cache, tokens: Sequence[Any], texts: Sequence[int] | None
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """The numbers of texts in a cache, and the checked ids to append to each."""
    numbers = np.arange(cache.sequences) if texts is None else np.asarray(texts, np.int64).reshape(-1)
    if len(tokens) != len(numbers) or not len(numbers):
        raise ShapeError(f"tokens of {len(numbers)} texts", str(len(tokens)), "Give a list of ids for each.")
    known = (numbers >= 0) & (numbers < cache.sequences)
    if not known.all() or len(np.unique(numbers)) != len(numbers):
        raise DataError(
            f"different texts from 0 to {cache.sequences - 1}", str(numbers.tolist())[:80], "Name each once."
        )
    return numbers, [
        row_of_tokens(program, ids, text) for text, ids in zip(numbers.tolist(), tokens, strict=True)
    ]
