"""Whole integer programs on the CUDA executor, in Triton's interpreter: the reference's integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hccs.errors import HccsError
from hccs.program import IntegerModel
from tests.program.programs import (
    BY_DISTANCE,
    WORDS,
    language_model,
    long_program,
    random_batch,
    random_decoder,
    random_embedder,
    random_program,
)


def require_equal(program, batch):
    model = IntegerModel(program, device="cuda")
    expected = model(*batch, reference=True).scores
    found = model(*batch).scores
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("lines", (1, 2, BY_DISTANCE))
@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed, lines):
    program = random_program(seed, lines)
    require_equal(program, random_batch(program, seed, 3))


@pytest.mark.parametrize("seed", range(15))
def test_random_embedders(seed):
    program = random_embedder(seed)
    require_equal(program, random_batch(program, seed, 3))


@pytest.mark.parametrize("seed", range(12))
def test_random_decoders(seed):
    program = random_decoder(seed)
    require_equal(program, random_batch(program, seed, 2))


@pytest.mark.parametrize("seed", (0, 1))
def test_scores_of_every_token_of_a_causal_program(seed):
    program = language_model(seed)
    require_equal(program, random_batch(program, seed, 2))


@pytest.mark.parametrize("seed", (1, 5))
def test_tensors_come_back_as_tensors(seed):
    program = random_program(seed)
    model = IntegerModel(program, device="cuda")
    ids, mask, types = random_batch(program, seed, 3)
    found = model(*map(torch.from_numpy, (ids, mask, types)))
    expected = model(ids, mask, types, reference=True)
    assert isinstance(found.scores, torch.Tensor)
    np.testing.assert_array_equal(found.scores.numpy(), expected.scores)
    np.testing.assert_array_equal(found.logits.numpy(), expected.logits)
    assert found.labels == expected.labels


@pytest.mark.parametrize(
    "program", [random_program(0), random_program(3), random_embedder(0), language_model(0)],
    ids=["classifier", "images", "vectors", "every token"],
)  # fmt: skip
def test_batches_beyond_the_memory_for_values_run_in_pieces(program, monkeypatch):
    batch = random_batch(program, 1, 5)
    model = IntegerModel(program, device="cuda")
    expected = model(*batch, reference=True).scores
    tokens = program.rows if program.embed.image is not None else batch[0].shape[1]
    monkeypatch.setattr(model._engine, "_most_tokens", 2 * tokens + 1)
    counts = []
    run = model._engine._run
    monkeypatch.setattr(
        model._engine, "_run", lambda room, *rest: counts.append(room.sequences) or run(room, *rest)
    )
    np.testing.assert_array_equal(model(*batch).scores, expected)
    found = model(*(None if part is None else torch.from_numpy(part) for part in batch)).scores
    np.testing.assert_array_equal(found.numpy(), expected)
    assert len(counts) == 6


def test_a_mask_of_another_batch_is_refused_before_it_is_cut(monkeypatch):
    model = IntegerModel(random_program(0), device="cuda")
    monkeypatch.setattr(model._engine, "_most_tokens", 1)
    ids = torch.zeros((2, 3), dtype=torch.int64)
    with pytest.raises(HccsError, match="mask"):
        model(ids, torch.ones((4, 3), dtype=torch.int64))


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("lines", (1, 2, BY_DISTANCE))
def test_attention_on_many_keys(lines, kind):
    """More keys than one block holds, which pass through a program twice; scores of 15 bits and of fewer."""
    causal, window = [(False, None), (True, None), (False, 31), (True, 150)][kind]
    program = long_program(lines, causal, window)
    rng = np.random.default_rng(kind)
    ids = rng.integers(0, WORDS, (2, 300))
    mask = np.arange(300) < np.array([[300], [129]])
    require_equal(program, (ids, mask))
