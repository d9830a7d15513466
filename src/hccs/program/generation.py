"""Texts token by token: prefill, choice and step, for prompts of any lengths in one batch."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError, DtypeError, ModelError, ParameterError
from hccs.numbers.arrays import require_integer
from hccs.numbers.sampling import MOST_SCORES, SEEDS, Sampling, require_seed
from hccs.ops.arguments import require_threads
from hccs.ops.sampling import sample
from hccs.program.cache import require_causal, row_of_tokens

if TYPE_CHECKING:
    from hccs.program.cache import Cache
    from hccs.program.model import IntegerModel

TOKENS_AT_ONCE = 1024
"""Tokens of prompts that go through a model together: its memory grows with them."""

TIMES_ON_GPU = 4
"""A GPU has so many times as many, or it would wait."""

STOP, LENGTH, FULL = ENDS = ("stop", "max_new_tokens", "longest")
"""A stop token came, as many tokens as asked for, or as many as the model has positions."""


@dataclass(frozen=True)
class Generation:
    """The new tokens of every prompt, without the stop token; the seeds that name them; why each ended."""

    tokens: list[list[int]]
    seeds: list[int]
    ends: list[str]


@dataclass(frozen=True)
class Request:
    """What `IntegerModel.generate` was asked for, checked."""

    prompts: list[NDArray[np.int64]]
    max_new_tokens: int
    sampling: Sampling
    seeds: list[int]
    stop: frozenset[int]

    @classmethod
    def of(
        cls,
        model: IntegerModel,
        prompts: Any,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | Sequence[int] | None = None,
        stop: int | Iterable[int] = (),
    ) -> Request:
        """The request; what the model cannot do is refused."""
        program = model.program
        require_causal(program)
        count = program.scores
        if count > min(program.embed.vocabulary, MOST_SCORES):
            raise ModelError(
                "as many scores as words, of at most 2^20 words",
                f"{count} scores of {program.embed.vocabulary} words",
                "Lower a language model.",
            )
        require_integer("max_new_tokens", max_new_tokens, 1, 2**31 - 1, "Ask for one at least.")
        read = _prompts(model, prompts)
        sampling = Sampling(temperature, top_k, top_p)
        stops = [stop] if isinstance(stop, int | np.integer) else list(stop)
        for token in stops:
            require_integer("a stop token", token, 0, count - 1, "Take it from the model's own tokenizer.")
        return cls(
            read, int(max_new_tokens), sampling, _seeds(seed, len(read), sampling), frozenset(map(int, stops))
        )


def _prompts(model: IntegerModel, prompts: Any) -> list[NDArray[np.int64]]:
    """Token ids of every prompt; one prompt by itself is a list of one."""
    if not isinstance(prompts, Iterable):
        raise DtypeError("prompts, lists of token ids", type(prompts).__name__, "Give a list of lists.")
    given = prompts if isinstance(prompts, np.ndarray) else list(prompts)
    if len(given) and np.ndim(given[0]) == 0:
        given = [given]
    if not len(given):
        raise DataError("at least one prompt", "none", "Give token ids.")
    return [row_of_tokens(model.program, prompt, number) for number, prompt in enumerate(given)]


def _seeds(seed: int | Sequence[int] | None, count: int, sampling: Sampling) -> list[int]:
    """A seed for each text: of a list, or `seed` + i; drawn where none is given and draws need it."""
    if seed is None:
        seed = secrets.randbits(32) if sampling.temperature else 0
    if isinstance(seed, Sequence | np.ndarray):
        if len(seed) != count:
            raise ParameterError(
                f"a seed for each of {count} prompts", f"{len(seed)}", "Give one, or as many."
            )
        return [require_seed(one) for one in seed]
    first = require_seed(seed)
    return [(first + number) % SEEDS for number in range(count)]


def generate(
    model: IntegerModel, request: Request, *, reference: bool, threads: int | None
) -> Generator[tuple[int, int], None, Generation]:
    """The number of a text and its next token, as soon as it is chosen; at the end all of them."""
    if threads is not None:
        require_threads(threads)
    longest = model.program.rows
    cache = model.cache(len(request.prompts))
    tokens: list[list[int]] = [[] for _ in request.prompts]
    ends = [""] * len(request.prompts)
    open_texts = list(range(len(request.prompts)))

    def choose(scores: Any, texts: list[int]) -> list[int]:
        seeds, positions = [request.seeds[text] for text in texts], cache.lengths[texts].tolist()
        scale = model.program.score_scale
        return sample(scores, request.sampling, scale, seeds, positions, reference=reference)

    chosen = _prefill(model, cache, request.prompts, choose, reference=reference, threads=threads)
    while True:
        positions = cache.lengths[open_texts].tolist()
        for text, position, token in zip(open_texts, positions, chosen, strict=True):
            if token in request.stop:
                ends[text] = STOP
                continue
            tokens[text].append(token)
            if len(tokens[text]) == request.max_new_tokens:
                ends[text] = LENGTH
            elif position == longest:
                ends[text] = FULL
            yield text, token
        open_texts = [text for text in open_texts if not ends[text]]
        if not open_texts:
            return Generation(tokens, request.seeds, ends)
        last = np.array([tokens[text][-1] for text in open_texts])
        scores = model.extended(cache, last, np.ones_like(last), np.array(open_texts), reference, threads)
        chosen = choose(scores, open_texts)


def _prefill(
    model: IntegerModel,
    cache: Cache,
    prompts: list[NDArray[np.int64]],
    choose: Callable[[Any, list[int]], list[int]],
    *,
    reference: bool,
    threads: int | None,
) -> list[int]:
    """The token after every prompt; no call on the CPU has more than `TOKENS_AT_ONCE` tokens."""
    most = TOKENS_AT_ONCE if model.device == "cpu" else TOKENS_AT_ONCE * TIMES_ON_GPU
    tokens = [0] * len(prompts)
    pieces: list[tuple[int, NDArray[np.int64]]] = []

    def run() -> None:
        if pieces:
            texts, rows = [text for text, _ in pieces], [piece for _, piece in pieces]
            counts = np.array([len(row) for row in rows])
            scores = model.extended(cache, np.concatenate(rows), counts, np.array(texts), reference, threads)
            whole = [i for i, text in enumerate(texts) if cache.lengths[text] == len(prompts[text])]
            ended = [texts[i] for i in whole]
            for text, token in zip(ended, choose(scores[whole], ended) if ended else [], strict=True):
                tokens[text] = token
        pieces.clear()

    for text, prompt in enumerate(prompts):
        for start in range(0, len(prompt), most):
            piece = prompt[start : start + most]
            if start or sum(len(other) for _, other in pieces) + len(piece) > most:
                run()
            pieces.append((text, piece))
    run()
    return tokens


def drained(
    steps: Generator[tuple[int, int], None, Generation], on_token: Callable[[int, int], object] | None
) -> Generation:
    """What is generated in the end; `on_token` hears of every token."""
    while True:
        try:
            text, token = next(steps)
        except StopIteration as ended:
            result: Generation = ended.value
            return result
        if on_token is not None:
            on_token(text, token)
