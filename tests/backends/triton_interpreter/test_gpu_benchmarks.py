"""Benchmarks for a GPU run from end to end without one, at their smallest: what they write is complete.

A minute of a GPU is too dear to find a wrong argument with. No time is judged here.
"""

import pytest

pytest.importorskip("transformers")

from tests.backends.triton_interpreter.memory import Memory
from tests.backends.without_gpu import pretended
from tests.test_benchmarks import BENCHMARKS, numbers, run
from tests.text.models import embedder

__all__ = ["run"]  # a fixture


@pytest.fixture
def gpu(monkeypatch):
    # An engine finds its cache by the distance from another tensor.
    monkeypatch.setattr(Memory, "require", lambda *_: None)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr("generate_cpu.WORDS", 300)
    with pretended(monkeypatch):
        yield


@pytest.mark.usefixtures("gpu")
def test_generate_gpu(run, monkeypatch):
    import generate_cpu

    narrow = generate_cpu.random_model(128, 2, 64, 1)
    monkeypatch.setattr(generate_cpu, "random_model", lambda *_: narrow)
    sizes = ["--batches", "2", "--prompt", "8", "--new", "4", "--turns", "1", "--layers", "1"]
    (row,) = run("generate_gpu", *sizes)["rows"]
    assert row["bits_equal"] and all(x > 0 for x in numbers(row))


@pytest.mark.usefixtures("gpu")
def test_decode_gpu(run):
    sizes = {"batch": 1, "prompt": 4, "new": 3, "turns": 1, "layers": 1, "longest": 8}
    found = run("decode_gpu", *(f"--{name}={size}" for name, size in sizes.items()))
    assert [row["padded"] for row in found["generation"]] == [False, True]
    assert all(x > 0 for row in found["generation"] for x in (*row["ms"].values(), *row["ratio"].values()))
    assert found["lengths"]["median_us"]["unseen"] > 0


@pytest.mark.usefixtures("gpu")
def test_encoder_gpu(run, monkeypatch, tmp_path):
    import encoder_variants
    import hccs_minilm_l6

    embedder().save(tmp_path / "small.hccs")
    monkeypatch.setattr(hccs_minilm_l6, "PATH", tmp_path / "small.hccs")
    small = {**encoder_variants.SHAPES["BERT-small"], "hidden_size": 64, "intermediate_size": 128}
    small |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    monkeypatch.setitem(encoder_variants.SHAPES, "MiniLM-L6", small)
    found = run("encoder_gpu", "--models=MiniLM-L6", "--sizes=2x16", "--sentences=4")
    (cell,) = found["cells"]
    assert cell["bits_equal"] and cell["ratio"] > 0 and set(cell["left_out"]) <= {"torchao int8"}
    assert found["sentences"]["bits_equal"] and found["sentences"]["ratio"] > 0
