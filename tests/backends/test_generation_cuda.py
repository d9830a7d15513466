"""Texts on a GPU: the tokens of the CPU, in every batch, however they are cut."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hccs.numbers.sampling import Sampling
from hccs.ops.sampling import sample
from hccs.program import IntegerModel
from tests.program.programs import BY_DISTANCE, LONGEST, WORDS, language_model, long_program
from tests.program.test_generation import (
    CAUSAL,
    DECODERS,
    OPTIONS,
    cut_anyhow,
    first_of_single_tokens,
    program_of,
    texts_of,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize(("seed", "lines"), [*CAUSAL[::6], *((seed, None) for seed in DECODERS[1::2])])
def test_pieces_have_the_scores_of_whole_texts(seed, lines):
    """Programs like GPT-2, and like Llama: rotary positions, gated layers, shared keys, windows."""
    program = program_of(seed, lines)
    model, on_cpu = IntegerModel(program, device="cuda"), IntegerModel(program)
    texts, rng = texts_of(seed, 3), np.random.default_rng(seed)
    full = [on_cpu(text[None]).scores[0] for text in texts]
    for _ in range(2):  # the second time by graphs, over another cache
        cut_anyhow(model, texts, full, rng)


@pytest.mark.parametrize("seed", range(7))
def test_a_seed_names_a_text(seed):
    program = language_model(seed)
    model, on_cpu = IntegerModel(program, device="cuda"), IntegerModel(program)
    prompts, options = texts_of(seed, 8, most=LONGEST - 10), OPTIONS[seed % len(OPTIONS)]
    expected = on_cpu.generate(prompts, max_new_tokens=10, seed=seed, **options)
    assert model.generate(prompts, max_new_tokens=10, seed=seed, **options) == expected
    for prompt, own, tokens in zip(prompts, expected.seeds, expected.tokens, strict=True):
        assert model.generate([prompt], max_new_tokens=10, seed=own, **options).tokens == [tokens]
        assert first_of_single_tokens(model, prompt, Sampling(**options), own) == tokens[:1]


@pytest.mark.parametrize("window", (None, 31, 150))
@pytest.mark.parametrize("lines", (1, 2, BY_DISTANCE))
def test_many_keys(lines, window):
    """The scores of every step of a text that outgrows the first room of its cache, beside a short one."""
    program = long_program(lines, True, window)
    model, on_cpu = IntegerModel(program, device="cuda"), IntegerModel(program)
    longest, rng = 240 if lines == 1 else 300, np.random.default_rng(lines)
    text = rng.integers(0, WORDS, longest)
    full = on_cpu(text[None]).scores[0]
    cache, prompt = model.cache(2), longest - 200
    scores = model.extend(cache, [text[:prompt], text[:1]]).scores
    np.testing.assert_array_equal(scores, full[[prompt - 1, 0]])
    for at in range(prompt, longest):
        behind = at - prompt + 1
        scores = model.extend(cache, [text[at : at + 1], text[behind : behind + 1]]).scores
        np.testing.assert_array_equal(scores, full[[at, behind]])


def test_steps_make_no_plan_and_compile_nothing():
    """After the first step of a model no length, no cache and no text that ends makes another run."""
    model = IntegerModel(language_model(1), device="cuda")
    model.generate([[1, 2]] * 4, max_new_tokens=2)
    runs = dict(model._engine._runs)
    cache = model.cache(9)
    for at in range(LONGEST - 1):
        model.extend(cache, [[at % WORDS]] * 9)
        if at % 3 == 0 and at < LONGEST // 2:
            model.extend(cache, [[1]], texts=[at // 3 % 9])
    assert dict(model._engine._runs) == runs


def test_a_short_text_runs_beside_long_ones():
    """More sequences than a class holds at first: memory grows between the steps of a cache."""
    program = language_model(3)
    model, on_cpu = IntegerModel(program, device="cuda"), IntegerModel(program)
    cache, own = model.cache(), on_cpu.cache()
    np.testing.assert_array_equal(model.extend(cache, [[1, 2]]).scores, on_cpu.extend(own, [[1, 2]]).scores)
    many = texts_of(3, 100)
    expected = on_cpu.generate(many, max_new_tokens=3)
    assert model.generate(many, max_new_tokens=3).tokens == expected.tokens
    np.testing.assert_array_equal(model.extend(cache, [[3]]).scores, on_cpu.extend(own, [[3]]).scores)


def test_of_equal_scores_the_first_is_chosen():
    scores = torch.zeros((3, 50_000), dtype=torch.int32, device="cuda")
    scores[1, [40_000, 17, 300]] = 5
    scores[2] = -(2**31)
    assert sample(scores, Sampling(), 1.0, [0] * 3, [0] * 3) == [0, 17, 0]
