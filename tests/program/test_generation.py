"""Texts token by token: however they are cut, batched and run, they have the same tokens."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from hccs.errors import DataError, DtypeError, HccsError, ModelError, ParameterError, ShapeError
from hccs.executors.c.write import export_c_model
from hccs.numbers.sampling import Sampling
from hccs.ops.sampling import sample
from hccs.program import IntegerModel, Program
from hccs.program.cache import is_causal, require_causal
from tests.program.programs import (
    LONGEST,
    WORDS,
    Builder,
    language_model,
    random_decoder,
    random_program,
    scores,
)

DECODERS = [seed for seed in range(60) if is_causal(random_decoder(seed))]
CAUSAL = [
    (seed, lines) for seed in range(40) for lines in (1, 2, 3) if is_causal(random_program(seed, lines))
]
COMPILER = shutil.which("cc")


def a_gpu_is_there() -> bool:
    try:
        import torch
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.is_available()


GPU = a_gpu_is_there()


@functools.cache
def model_of(seed: int) -> IntegerModel:
    return IntegerModel(language_model(seed))


@functools.cache
def on_cuda(seed: int) -> IntegerModel:
    return IntegerModel(model_of(seed).program, device="cuda")


def texts_of(seed: int, count: int, most: int = LONGEST) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, WORDS, int(rng.integers(1, most + 1))) for _ in range(count)]


def cut_anyhow(model, texts, full, rng, **options):
    """Texts appended to one cache in random pieces, some at a time, compared with scores of whole texts."""
    cache, done = model.cache(len(texts)), [0] * len(texts)
    while left := [i for i, text in enumerate(texts) if done[i] < len(text)]:
        some = [i for i in left if rng.random() < 0.7] or left[:1]
        rng.shuffle(some)
        most = int(rng.choice([1, 4, LONGEST]))
        counts = [int(rng.integers(1, min(len(texts[i]) - done[i], most) + 1)) for i in some]
        pieces = [texts[i][done[i] : done[i] + count] for i, count in zip(some, counts, strict=True)]
        scores = model.extend(cache, pieces, texts=some, **options).scores
        for row, i, count in zip(scores, some, counts, strict=True):
            done[i] += count
            np.testing.assert_array_equal(row, full[i][done[i] - 1])
    assert cache.lengths.tolist() == done


def program_of(seed: int, lines: int | None) -> Program:
    return random_decoder(seed) if lines is None else random_program(seed, lines)


@functools.cache
def whole_texts(seed, lines):
    model, texts = IntegerModel(program_of(seed, lines)), texts_of(seed, 5)
    return texts, [model(text[None], reference=True).scores[0] for text in texts]


@pytest.mark.parametrize(("seed", "lines"), [*CAUSAL, *((seed, None) for seed in DECODERS)])
def test_pieces_have_the_scores_of_whole_texts(seed, lines, instruction_set):
    texts, full = whole_texts(seed, lines)
    model, rng = IntegerModel(program_of(seed, lines)), np.random.default_rng(seed)
    for options in ({"threads": 1}, {"threads": 3}):
        cut_anyhow(model, texts, full, rng, **options)


@pytest.mark.parametrize(("seed", "lines"), [*CAUSAL[::3], *((seed, None) for seed in DECODERS)])
def test_pieces_in_numpy(seed, lines):
    texts, full = whole_texts(seed, lines)
    model, rng = IntegerModel(program_of(seed, lines)), np.random.default_rng(seed)
    cut_anyhow(model, texts, full, rng, reference=True)
    model._engine = None
    cut_anyhow(model, texts, full, rng)


class InC:
    """A program as C: `hccs_model_extend` and `hccs_sample`, in one text after the other."""

    class Cache(ctypes.Structure):
        _fields_ = [("memory", ctypes.c_void_p), ("capacity", ctypes.c_uint32), ("length", ctypes.c_uint32)]

    DRAW = """
#include "hccs_generate.h"
uint32_t draw(const int32_t* scores, uint32_t temperature, uint32_t top_k, uint32_t share, uint64_t seed,
              uint64_t position) {
  const hccs_sampling how = temperature ? hccs_model_sampling(temperature, top_k, share) : (hccs_sampling){0};
  return hccs_sample(scores, HCCS_VOCABULARY, temperature ? &how : NULL, seed, position);
}
"""

    def __init__(self, model: IntegerModel, folder) -> None:
        self.program, self.bytes = model.program, model.cache().row_bytes
        export_c_model(model, folder / "c")
        (folder / "c" / "draw.c").write_text(self.DRAW)
        flags = [
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-Wconversion",
            "-pedantic",
            "-Werror",
            "-O1",
            "-shared",
            "-fPIC",
        ]
        sources = ["hccs_model.c", "hccs_generate.c", "hccs_weights.c", "draw.c"]
        command = [COMPILER, *flags, "-o", str(folder / "model.so"), *sources]
        subprocess.run(command, cwd=folder / "c", check=True)
        self.library = ctypes.CDLL(str(folder / "model.so"))

    def cache(self, capacity: int = LONGEST):
        room = np.zeros(self.bytes * capacity, np.int8)
        cache = self.Cache(room.ctypes.data, capacity, 0)
        cache.room = room  # lives as long
        return cache

    def extend(self, cache, tokens) -> tuple[int, np.ndarray]:
        ids, scores = np.asarray(tokens, np.int32), np.zeros(self.program.scores, np.int32)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (ids, scores)]
        status = self.library.hccs_model_extend(ctypes.byref(cache), pointers[0], len(ids), pointers[1])
        return status, scores

    def generate(self, prompt, count, sampling: Sampling, seed: int, by_one: bool = False) -> list[int]:
        cache, tokens = self.cache(), []
        for piece in prompt[:, None] if by_one else [prompt]:
            status, scores = self.extend(cache, piece)
            assert status == 0
        while True:
            draw = self.library.draw
            draw.argtypes = [ctypes.c_void_p, *[ctypes.c_uint32] * 3, *[ctypes.c_uint64] * 2]
            steps = sampling.temperature_steps if sampling.temperature else 0
            given = (steps, sampling.top_k or 0, sampling.share, seed, cache.length)
            tokens.append(draw(scores.ctypes.data, *given))
            if len(tokens) == count or cache.length == LONGEST:
                return tokens
            status, scores = self.extend(cache, tokens[-1:])
            assert status == 0


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize("seed", range(6))
def test_pieces_in_c(seed, tmp_path):
    model, rng = model_of(seed), np.random.default_rng(seed)
    in_c = InC(model, tmp_path)
    for text in texts_of(seed, 4):
        full, cache, at = model(text[None]).scores[0], in_c.cache(), 0
        while at < len(text):
            count = int(rng.integers(1, len(text) - at + 1))
            status, scores = in_c.extend(cache, text[at : at + count])
            at += count
            assert (status, cache.length) == (0, at)
            np.testing.assert_array_equal(scores, full[at - 1])
    cache = in_c.cache(5)
    assert in_c.extend(cache, [1] * 6)[0] == 1 and cache.length == 0
    assert in_c.extend(cache, [])[0] == 1
    assert in_c.extend(cache, [WORDS])[0] == 2
    assert in_c.extend(cache, [1] * 5)[0] == 0 and in_c.extend(cache, [1])[0] == 1


OPTIONS = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 9},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 30, "top_p": 0.9},
]


def first_of_single_tokens(model, prompt, sampling: Sampling, seed: int) -> list[int]:
    """The token after a prompt that is read token by token."""
    cache = model.cache()
    for token in prompt:
        scores = model.extend(cache, [[token]]).scores
    return sample(scores, sampling, model.program.score_scale, [seed], [len(prompt)])


def require_same_texts(number: int, in_c: InC | None) -> None:
    """One generation on every executor, alone and in a batch of 8, on 1 to 4 threads, cut anyhow.

    CUDA is among them where there is a GPU.
    """
    model, rng = model_of(number % 7), np.random.default_rng([number, 5])
    options = OPTIONS[number % len(OPTIONS)]
    prompts = [rng.integers(0, WORDS, int(rng.integers(1, 30))) for _ in range(8)]
    seeds = [int(seed) for seed in rng.integers(0, 2**64, 8, dtype=np.uint64)]
    place = int(rng.integers(8))
    prompt, seed = prompts[place], seeds[place]
    count = min(int(rng.integers(1, 14)), LONGEST + 1 - len(prompt))
    alone = model.generate([prompt], max_new_tokens=count, seed=seed, threads=1, **options)
    assert len(alone.tokens[0]) == count and alone.seeds == [seed]
    for threads in (1, 2, 3, 4):
        together = model.generate(prompts, max_new_tokens=count, seed=seeds, threads=threads, **options)
        assert together.tokens[place] == alone.tokens[0]
    by_reference = model.generate([prompt], max_new_tokens=count, seed=seed, reference=True, **options)
    assert by_reference.tokens == alone.tokens
    # The prompt by single tokens; then the text continued from its own middle.
    sampling = Sampling(**options)
    assert first_of_single_tokens(model, prompt, sampling, seed) == alone.tokens[0][:1]
    half = [*prompt, *alone.tokens[0][: count // 2]]
    rest = model.generate([half], max_new_tokens=count - count // 2, seed=seed, **options)
    assert alone.tokens[0][count // 2 :] == rest.tokens[0]
    if GPU:
        other = on_cuda(number % 7)
        assert other.generate([prompt], max_new_tokens=count, seed=seed, **options) == alone
        together = other.generate(prompts, max_new_tokens=count, seed=seeds, **options)
        assert together.tokens[place] == alone.tokens[0]
        assert first_of_single_tokens(other, prompt, sampling, seed) == alone.tokens[0][:1]
        rest = other.generate([half], max_new_tokens=count - count // 2, seed=seed, **options)
        assert alone.tokens[0][count // 2 :] == rest.tokens[0]
    if in_c is not None:
        for by_one in (False, True):
            assert in_c.generate(prompt, count, sampling, seed, by_one) == alone.tokens[0]


def every_generation(numbers, tmp_path) -> None:
    in_c = {}
    for number in numbers:
        kind = number % 7
        if kind not in in_c and COMPILER is not None:
            (tmp_path / str(kind)).mkdir()
            in_c[kind] = InC(model_of(kind), tmp_path / str(kind))
        require_same_texts(number, in_c.get(kind))


@pytest.mark.parametrize("part", range(2))
def test_a_seed_names_a_text(part, tmp_path):
    every_generation(range(14 * part, 14 * part + 14), tmp_path)


@pytest.mark.generations
def test_a_seed_names_a_thousand_texts(tmp_path):
    every_generation(range(1000), tmp_path)


def test_seeds_and_options_matter():
    model, prompt = model_of(1), [3, 1, 4]
    found = {
        tuple(model.generate([prompt], max_new_tokens=12, temperature=1.0, seed=seed).tokens[0])
        for seed in range(20)
    }
    assert len(found) > 15
    one_seed = model.generate([prompt] * 3, max_new_tokens=12, temperature=1.0, seed=2**64 - 1)
    assert one_seed.seeds == [2**64 - 1, 0, 1]
    for seed, tokens in zip(one_seed.seeds, one_seed.tokens, strict=True):
        assert model.generate([prompt], max_new_tokens=12, temperature=1.0, seed=seed).tokens == [tokens]
    drawn = model.generate(prompt, max_new_tokens=12, temperature=1.0)
    assert model.generate(prompt, max_new_tokens=12, temperature=1.0, seed=drawn.seeds[0]) == drawn


def test_texts_end_where_they_should():
    model = model_of(2)
    heard = []
    free = model.generate([[5, 6]], max_new_tokens=10, on_token=lambda *one: heard.append(one))
    assert free.ends == ["max_new_tokens"] and heard == [(0, token) for token in free.tokens[0]]
    stop = free.tokens[0][4]
    cut = model.generate([[5, 6], [5, 6]], max_new_tokens=10, stop=stop)
    expected = free.tokens[0][: free.tokens[0].index(stop)]
    assert cut.tokens == [expected] * 2 and cut.ends == ["stop"] * 2
    # As many tokens as there are positions: the last position's scores still name a token.
    full = model.generate([[1] * (LONGEST - 2), [1]], max_new_tokens=LONGEST + 9)
    assert [len(tokens) for tokens in full.tokens] == [3, LONGEST]
    assert full.ends == ["longest"] * 2
    assert len(model.generate([[1] * LONGEST], max_new_tokens=5).tokens[0]) == 1


def test_long_prompts_run_in_pieces(monkeypatch):
    model = model_of(3)
    prompts = texts_of(11, 6)
    whole = model.generate(prompts, max_new_tokens=4, temperature=1.0, seed=8)
    monkeypatch.setattr("hccs.program.generation.TOKENS_AT_ONCE", 16)
    assert model.generate(prompts, max_new_tokens=4, temperature=1.0, seed=8) == whole


@pytest.mark.parametrize(
    ("prompts", "error"),
    [
        ([], DataError),
        (None, DtypeError),
        (7, DtypeError),
        ("text", DtypeError),
        ([[]], ShapeError),
        ([[1], []], ShapeError),
        ([[WORDS]], DataError),
        ([[-1]], DataError),
        ([[0.5]], HccsError),
        ([[1] * (LONGEST + 1)], ShapeError),
    ],
)
def test_wrong_prompts_are_refused(prompts, error):
    with pytest.raises(error):
        model_of(0).generate(prompts)


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 0}, {"max_new_tokens": 1.5}, {"temperature": -0.1}, {"top_k": 0}, {"top_p": 2.0},
        {"seed": 2**64}, {"seed": -1}, {"seed": [1, 2]}, {"stop": WORDS}, {"stop": [-1]}, {"threads": 0},
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options):
    with pytest.raises((ParameterError, HccsError)):
        model_of(0).generate([[1, 2]], **options)


def test_programs_that_see_later_rows_are_refused():
    for seed in range(40):
        program = random_program(seed)
        if is_causal(program):
            continue
        with pytest.raises(ModelError):
            IntegerModel(program).cache()
    seeing = next(
        p
        for p in map(random_program, range(40))
        if p.per_token and p.embed.image is None and not is_causal(p)
    )
    with pytest.raises(ModelError, match="Attention"):
        require_causal(seeing)


def test_a_cache_belongs_to_its_program_and_to_one_call():
    model, other = model_of(0), IntegerModel(language_model(0))
    cache = other.cache(2)
    with pytest.raises(DataError, match="a cache of this model"):
        model.extend(cache, [[1], [2]])
    for texts, tokens in (([0, 0], [[1], [2]]), ([2], [[1]]), ([-1], [[1]])):
        with pytest.raises(DataError, match="different texts"):
            other.extend(cache, tokens, texts=texts)
    with pytest.raises(ShapeError, match="tokens of 2 texts"):
        other.extend(cache, [[1]])
    with pytest.raises(ShapeError):
        other.extend(cache, [[1], []])
    with pytest.raises(ShapeError, match="at least 1 sequence"):
        other.cache(0)
    other.extend(cache, [[1] * LONGEST, [1]])
    with pytest.raises(ShapeError, match=f"at most {LONGEST} tokens"):
        other.extend(cache, [[1], [1]])
    assert cache.lengths.tolist() == [LONGEST, 1]
    one = np.array([1])
    with cache.extending(other.program, one, one), pytest.raises(DataError, match="no other call uses"):
        other.extend(cache, [[1]], texts=[1])


def test_threads_share_a_model():
    model = model_of(4)
    prompts = texts_of(2, 12, most=20)
    expected = [model.generate([p], max_new_tokens=8, temperature=1.0, seed=3).tokens for p in prompts]
    start = threading.Barrier(4)

    def work(_):
        start.wait()
        return [
            model.generate([p], max_new_tokens=8, temperature=1.0, seed=3, threads=2).tokens for p in prompts
        ]

    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(work, range(4)))


def test_an_interrupted_step_leaves_the_cache_as_it_was(monkeypatch):
    model = IntegerModel(language_model(5))
    cache = model.cache()
    model.extend(cache, [[1, 2, 3]])
    expected = model.extend(model.cache(), [[1, 2, 3, 4]]).scores

    class Interrupted:
        def extend(self, *given):
            raise KeyboardInterrupt

    engine, model._engine = model._engine, Interrupted()
    with pytest.raises(KeyboardInterrupt):
        model.extend(cache, [[9, 9]])
    model._engine = engine
    assert cache.lengths.tolist() == [3]
    np.testing.assert_array_equal(model.extend(cache, [[4]]).scores, expected)


def test_on_token_may_end_a_generation():
    heard = []

    def hear(text, token):
        heard.append(token)
        if len(heard) == 3:
            raise KeyboardInterrupt

    model = model_of(6)
    with pytest.raises(KeyboardInterrupt):
        model.generate([[1]], max_new_tokens=10, on_token=hear)
    assert heard == model.generate([[1]], max_new_tokens=3).tokens[0]


def test_more_scores_than_words_are_refused():
    built = Builder(0)
    x = built.narrow(built.norm(built.embed(8, None)))
    program = scores(built, x, WORDS + 1)
    with pytest.raises(ModelError, match="as many scores as words"):
        IntegerModel(program).generate([[1]])
    assert IntegerModel(replace(program, longest=3)).cache().row_bytes == 0
