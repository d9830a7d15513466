"""Integer programs on a GPU: the CPU's answers; without one, a refusal."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hccs.errors import HccsError, ModelError, ParameterError
from hccs.program import IntegerModel
from tests.program.programs import (
    language_model,
    random_batch,
    random_decoder,
    random_embedder,
    random_program,
)

MINILM = Path(__file__).parents[2] / "models/minilm-l6/src/hccs_minilm_l6/all-MiniLM-L6-v2.hccs"

PROGRAMS = {
    "program": random_program,
    "embedder": random_embedder,
    "decoder": random_decoder,
    "writer": language_model,
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_told_so():
    with pytest.raises(ModelError, match="Leave device out"):
        IntegerModel(random_program(0), device="cuda")


def test_an_unknown_device_is_refused():
    with pytest.raises(ParameterError, match="a device"):
        IntegerModel(random_program(0), device="quantum")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", PROGRAMS)
def test_answers_of_the_cpu(kind, seed):
    program = PROGRAMS[kind](seed)
    model, on_cpu = IntegerModel(program, device="cuda"), IntegerModel(program)
    for count in (1, 3, 3, 40, 3):  # a graph is captured, replayed, dropped when memory grows, captured again
        batch = random_batch(program, seed + count, count)
        expected = on_cpu(*batch).scores
        np.testing.assert_array_equal(model(*batch).scores, expected)
        found = model(*(torch.from_numpy(part).cuda() for part in batch)).scores
        assert found.is_cuda
        np.testing.assert_array_equal(found.cpu().numpy(), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("count", (33, 1024, 2000))
def test_the_shipped_encoder_on_many_rows(count):
    """Most rows of each layer are kept by programs of their own in the larger ones."""
    on_cpu = IntegerModel.load(MINILM)
    model = IntegerModel(on_cpu.program, device="cuda")
    rng = np.random.default_rng(count)
    ids = rng.integers(0, on_cpu.program.embed.vocabulary, (count, 32))
    mask = np.arange(32) < rng.integers(1, 33, (count, 1))
    for _ in range(2):  # launched, and captured
        np.testing.assert_array_equal(model(ids, mask).scores, on_cpu(ids, mask).scores)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_threads_on_streams_of_their_own_share_a_model():
    program = random_embedder(0)
    model, on_cpu = IntegerModel(program, device="cuda"), IntegerModel(program)
    batches = [random_batch(program, seed, 1 + seed) for seed in range(16)]

    def answer(batch):
        with torch.cuda.stream(torch.cuda.Stream()):
            return model(*(torch.from_numpy(part).cuda() for part in batch)).scores.cpu().numpy()

    with ThreadPoolExecutor(4) as pool:
        for batch, found in zip(batches, pool.map(answer, batches), strict=True):
            np.testing.assert_array_equal(found, on_cpu(*batch).scores)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_that_the_model_cannot_take_are_refused():
    model = IntegerModel(random_program(0), device="cuda")
    with pytest.raises(HccsError, match="input_ids from 0"):
        model(torch.full((2, 3), 10**6, device="cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_gpu_that_is_not_the_current_one(kind):
    program = PROGRAMS[kind](1)
    batch = random_batch(program, 1, 3)
    model, expected = IntegerModel(program, device="cuda:1"), IntegerModel(program)(*batch).scores
    np.testing.assert_array_equal(model(*batch).scores, expected)
    found = model(*(torch.from_numpy(part).to("cuda:1") for part in batch)).scores
    np.testing.assert_array_equal(found.cpu().numpy(), expected)
