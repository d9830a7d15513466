"""Texts over a cache on the CUDA executor, in Triton's interpreter: however cut and batched, equal bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hccs.backends.triton import program as kernels
from hccs.errors import DataError
from hccs.program import IntegerModel
from tests.program.programs import BY_DISTANCE, WORDS, language_model, long_program
from tests.program.test_generation import CAUSAL, DECODERS, cut_anyhow, program_of, texts_of


def require_pieces(program, counts, seed: int = 0) -> None:
    """Each text at once, and a step of all of them: the scores of whole texts."""
    model, rng = IntegerModel(program, device="cuda"), np.random.default_rng(seed)
    texts = [rng.integers(0, WORDS, count + 1) for count in counts]
    cache = model.cache(len(texts))
    begun = model.extend(cache, [text[:-1] for text in texts]).scores
    ended = model.extend(cache, [text[-1:] for text in texts]).scores
    for text, first, second in zip(texts, begun, ended, strict=True):
        full = model(text[None], reference=True).scores[0]
        np.testing.assert_array_equal([first, second], full[-2:])


@pytest.mark.parametrize("window", (None, 31, 150))
@pytest.mark.parametrize("lines", (1, 2, BY_DISTANCE))
def test_many_keys(lines, window):
    """More keys than one block holds, in caches that outgrow their first room."""
    longest = 240 if lines == 1 else 300
    require_pieces(long_program(lines, True, window), (longest - 1, 1, 130))


@pytest.mark.parametrize("seed", (0, 1))
def test_generations_of_the_cpu(seed):
    program = language_model(seed)
    model, on_cpu = IntegerModel(program, device="cuda"), IntegerModel(program)
    prompts = texts_of(seed, 3, most=20)
    for options in ({}, {"temperature": 1.0, "top_k": 20, "seed": 5}):
        expected = on_cpu.generate(prompts, max_new_tokens=3, **options)
        assert model.generate(prompts, max_new_tokens=3, **options) == expected
        assert model.generate(prompts[1], max_new_tokens=3, reference=True).tokens
        alone = model.generate(prompts[:1], max_new_tokens=3, **options)
        assert alone.tokens == expected.tokens[:1]


def test_the_cache_of_another_device_is_refused():
    program = language_model(0)
    model, on_cpu = IntegerModel(program, device="cuda"), IntegerModel(program)
    for one, other in ((model, on_cpu), (on_cpu, model)):
        with pytest.raises(DataError, match="a cache of this model"):
            one.extend(other.cache(), [[1]])


def test_calls_in_inference_mode_and_outside_share_a_model():
    model = IntegerModel(language_model(0), device="cuda")
    cache, again = model.cache(), model.cache()
    with torch.inference_mode():
        first = model.extend(cache, [[1, 2]]).scores, model([[1, 2]]).scores
    assert (model.extend(again, [[1, 2]]).scores == first[0]).all() and (
        model([[1, 2]]).scores == first[1]
    ).all()
    assert (model.extend(cache, [[3]]).scores == model.extend(again, [[3]]).scores).all()


def test_heads_begin_at_whole_lines():
    """The kernels read them in vectors, which the interpreter would not miss."""
    model = IntegerModel(language_model(2), device="cuda")  # of up to 40 tokens
    cache = model.cache(3)
    model.extend(cache, [[1], [2], [3]])
    assert cache.capacity % kernels.ALIGNMENT == cache.memory.data_ptr() % kernels.ALIGNMENT == 0


def test_a_cache_serves_the_reference_too():
    model = IntegerModel(language_model(3), device="cuda")
    cache, (text,) = model.cache(), texts_of(3, 1)
    full = model(text[None], reference=True).scores[0]
    for at, token in enumerate(text[:5]):
        scores = model.extend(cache, [[token]], reference=bool(at % 2)).scores
        np.testing.assert_array_equal(scores[0], full[at])


@pytest.mark.parametrize(("seed", "lines"), [*CAUSAL[::7], *((seed, None) for seed in DECODERS[::2])])
def test_pieces_have_the_scores_of_whole_texts(seed, lines):
    model = IntegerModel(program_of(seed, lines), device="cuda")
    texts = texts_of(seed, 3)
    full = [model(text[None], reference=True).scores[0] for text in texts]
    cut_anyhow(model, texts, full, np.random.default_rng(seed))
