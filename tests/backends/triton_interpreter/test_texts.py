"""Texts on the CUDA executor, in Triton's interpreter: what the CPU answers, and a corpus that both fill."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import hccs
from hccs.cli.app import app
from hccs.corpus.embedding import embed, plan
from hccs.serving.server import open_model
from hccs.text import text_model
from tests.text.models import embedder, random_texts

TEXTS = [text for text in random_texts(1, 12) if text.strip()]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.hccs"
    embedder().save(path)
    return str(path)


@pytest.mark.parametrize("most", (text_model.MOST_TOKENS_ON_GPU, 40))
def test_vectors_are_those_of_the_cpu(most, file, monkeypatch):
    monkeypatch.setattr(text_model, "MOST_TOKENS_ON_GPU", most)
    on_cpu, on_gpu = hccs.Encoder.load(file), hccs.Encoder.load(file, device="cuda")
    np.testing.assert_array_equal(on_gpu.encode(TEXTS, dims=3), on_cpu.encode(TEXTS, dims=3))


def test_a_server_finds_the_files_fingerprint_on_a_gpu(file):
    opened = open_model(file, "cuda")  # refuses another one
    assert opened.model.device == "cuda"
    assert opened.fingerprint == hccs.Encoder.load(file).fingerprint


def test_a_corpus_that_a_cpu_began_is_finished_on_a_gpu(file, tmp_path):
    source, whole, mixed = tmp_path / "texts.txt", tmp_path / "whole", tmp_path / "mixed"
    source.write_text("\n".join(TEXTS), encoding="utf-8")
    how = {"model": file, "format": "npy", "part_rows": 4}
    for out in (whole, mixed):
        embed(*plan([str(source)], out, **how))
    for lost in ("part-00000-00001.npy", "part-00000-00001.json", "summary.json"):
        (mixed / lost).unlink()
    given = [
        "embed",
        str(source),
        "--out",
        str(mixed),
        "--model",
        file,
        "--format",
        "npy",
        "--part-rows",
        "4",
    ]
    ended = CliRunner().invoke(app, [*given, "--device", "cuda"])
    assert ended.exit_code == 0, ended.output
    for path in whole.iterdir():
        assert (mixed / path.name).read_bytes() == path.read_bytes(), path.name
