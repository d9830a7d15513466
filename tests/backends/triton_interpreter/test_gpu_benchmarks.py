"""Benchmarks for a GPU run from end to end without one, at their smallest: what they write is complete.

A minute of a GPU is too dear to find a wrong argument with. No time is judged here.
"""

import pytest

pytest.importorskip("transformers")

from tests.backends.triton_interpreter.memory import Memory
from tests.backends.without_gpu import pretended
from tests.test_benchmarks import BENCHMARKS, numbers, run

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
