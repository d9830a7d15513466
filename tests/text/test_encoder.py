"""`Encoder`: texts to vectors, the same however they are batched, threaded, ordered or cut."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import hccs
from hccs.errors import (
    DataError,
    DtypeError,
    FileError,
    HccsError,
    MissingExtraError,
    ModelError,
    ParameterError,
    ShapeError,
)
from hccs.program import IntegerModel, files
from hccs.text import text_model
from hccs.text.text_model import batches
from tests.program.programs import LONGEST, random_embedder
from tests.text.models import embedder, random_texts, scorer, tokenizer, wide_embedder, with_texts

WIDE = wide_embedder()
ENCODER = hccs.Encoder(WIDE)
TEXTS = random_texts(7, 120)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    WIDE.save(tmp_path / "small.hccs")
    return tmp_path / "small.hccs"


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_vectors_are_the_references_of_the_tokens(seed: int) -> None:
    """The tokenizer and the model apart, one text at a time, by the reference."""
    model, read = embedder(seed), Tokenizer.from_str(tokenizer())
    vectors = hccs.Encoder(model).encode(TEXTS[:30], out="int16")
    for text, vector in zip(TEXTS, vectors, strict=False):
        ids = read.encode(text).ids
        assert len(ids) <= LONGEST and vector.dtype == np.int16
        assert np.array_equal(model([ids], reference=True).scores[0], vector)


def test_outputs_are_one_vector_in_three_types() -> None:
    units = ENCODER.encode(TEXTS, out="int16")
    floats, bytes_ = ENCODER.encode(TEXTS), ENCODER.encode(TEXTS, out="int8")
    assert floats.dtype == np.float32 and bytes_.dtype == np.int8
    assert floats.shape == bytes_.shape == units.shape == (len(TEXTS), ENCODER.dims)
    assert np.array_equal(floats, units.astype(np.float32) / np.float32(32767))
    expected = [[max(-127, min(127, round(int(u) / 256))) for u in row] for row in units]
    assert np.array_equal(bytes_, expected)
    assert np.abs(np.linalg.norm(floats, axis=1) - 1).max() < 1e-3
    assert len({row.tobytes() for row in units}) > 100  # of texts that differ


def test_one_text_is_one_vector_and_no_texts_are_none() -> None:
    assert np.array_equal(ENCODER.encode("the cat"), ENCODER.encode(["the cat"])[0])
    assert ENCODER.encode([]).shape == (0, ENCODER.dims)
    assert ENCODER.encode([], dims=3, out="int8").shape == (0, 3)
    assert ENCODER.encode("").shape == (ENCODER.dims,)
    assert np.array_equal(ENCODER.encode(np.array(["a", "b"])), ENCODER.encode(("a", "b")))
    assert np.array_equal(ENCODER.encode(text for text in ["a", "b"]), ENCODER.encode(["a", "b"]))


@pytest.mark.parametrize("batch_size", [1, 2, 7, 1000])
@pytest.mark.parametrize("threads", [1, 3, None])
def test_batches_and_threads_change_nothing(batch_size: int, threads: int | None) -> None:
    expected = ENCODER.encode(TEXTS)
    assert np.array_equal(ENCODER.encode(TEXTS, batch_size=batch_size, threads=threads), expected)


def test_neither_do_budgets_windows_and_order(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, order = ENCODER.encode(TEXTS), np.random.default_rng(0).permutation(len(TEXTS))
    assert np.array_equal(ENCODER.encode([TEXTS[i] for i in order]), expected[order])
    monkeypatch.setattr(text_model, "MOST_TOKENS", 50)
    monkeypatch.setattr(text_model, "MOST_TEXTS", 13)
    assert np.array_equal(ENCODER.encode(TEXTS, progress=True), expected)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(alphabet="abcdemnop .XYz\u00e9\u4e2d\n", max_size=30), min_size=1, max_size=9))
def test_a_text_has_one_vector_in_any_company(texts: list[str]) -> None:
    together = ENCODER.encode(texts, out="int16")
    for text, vector in zip(texts, together, strict=True):
        assert np.array_equal(ENCODER.encode(text, out="int16"), vector)


def test_big_random_batches() -> None:
    texts = random_texts(1, 5000, most=9)
    vectors = ENCODER.encode(texts, out="int16")
    for i in np.random.default_rng(0).integers(0, len(texts), 40).tolist():
        assert np.array_equal(ENCODER.encode(texts[i], out="int16"), vectors[i])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9000), max_size=60), st.none() | st.integers(1, 9))
def test_batches_hold_every_text_once_within_the_budget(lengths: list[int], most: int | None) -> None:
    found = list(batches(lengths, most, text_model.MOST_TOKENS))
    assert sorted(int(i) for batch in found for i in batch) == list(range(len(lengths)))
    for batch in found:
        longest = max(lengths[i] for i in batch)
        assert lengths[batch[-1]] == longest
        assert len(batch) == 1 or len(batch) * longest <= text_model.MOST_TOKENS
        assert most is None or len(batch) <= most


def test_fewer_dims_are_the_first_channels_with_length_one() -> None:
    from hccs.reference.pooling import unit

    program = WIDE.program
    wide = replace(program.operators[-1], dims=program.values[program.operators[-1].inputs[0]].width)
    for dims in (1, 5, ENCODER.dims):
        variant = IntegerModel(
            replace(program, operators=(*program.operators[:-1], replace(wide, dims=dims)))
        )
        ids = Tokenizer.from_str(tokenizer()).encode(TEXTS[3]).ids
        expected = variant([ids], reference=True).scores[0]
        assert np.array_equal(ENCODER.encode(TEXTS[3], dims=dims, out="int16"), expected)
    cut = unit(ENCODER.encode(TEXTS[3], out="int16")[:5].astype(np.int32))
    assert np.abs(cut - ENCODER.encode(TEXTS[3], dims=5, out="int16")).max() <= 2
    assert ENCODER._model_of(5) is ENCODER._model_of(5)


def test_prompts_are_prefixes() -> None:
    named = ENCODER.encode("a cat", prompt="query")
    assert np.array_equal(named, ENCODER.encode("query : a cat"))
    assert not np.array_equal(named, ENCODER.encode("a cat"))
    usual = hccs.Encoder(embedder(0, prompts={"p": "the ", "q": "cat "}, default_prompt="p"))
    assert np.array_equal(usual.encode("a"), usual.encode("the a", prompt=""))
    assert np.array_equal(usual.encode("a", prompt="q"), usual.encode("cat a", prompt=""))
    with pytest.raises(ParameterError, match=r"'query', 'passage'.*'quary'"):
        ENCODER.encode("a", prompt="quary")


def test_long_texts_are_cut_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_model, "MOST_TEXTS", 2)
    model = hccs.Encoder(embedder(0, max_length=8))
    with pytest.warns(UserWarning, match="2 of 3 texts have more than 8 tokens") as told:
        cut = model.encode(["a b c d e f", "a b c d e f g", "the " * 9000])
    assert len(told) == 1 and told[0].filename == __file__
    assert np.array_equal(cut[0], cut[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.encode("a " * 50)


def test_a_tokenizer_says_from_which_side_texts_are_cut() -> None:
    read = Tokenizer.from_str(tokenizer())
    read.enable_truncation(20, direction="left")
    read.enable_padding(length=30)
    model = hccs.Encoder(embedder(0, max_length=5, read=read.to_str()))
    with pytest.warns(UserWarning, match="more than 5"):
        assert np.array_equal(model.encode("a b c d e f"), model.encode("d e f"))


def test_similarity_is_the_cosine() -> None:
    floats, units = ENCODER.encode(TEXTS[:9]), ENCODER.encode(TEXTS[:9], out="int16")
    expected = floats @ floats.T / np.outer(*2 * [np.linalg.norm(floats, axis=1)])
    for vectors in (floats, units):
        found = ENCODER.similarity(vectors, vectors)
        assert found.dtype == np.float32 and np.abs(found - expected).max() < 1e-6
    assert ENCODER.similarity(floats[0], floats).shape == (1, 9)
    assert ENCODER.similarity(floats[0], floats[0]) == 1
    with pytest.raises(ShapeError, match="channels"):
        ENCODER.similarity(floats, floats[:, :3])
    with pytest.raises(ShapeError, match="count, dims"):
        ENCODER.similarity(floats, floats[None])
    with pytest.raises(DtypeError, match="numbers"):
        ENCODER.similarity(floats, ["a"])


def test_many_threads_share_an_encoder() -> None:
    fresh = hccs.Encoder(embedder(0, max_length=12))
    expected = {dims: ENCODER.encode(TEXTS, dims=dims) for dims in (3, 7, None)}
    ready = threading.Barrier(8)

    def work(number: int) -> bool:
        ready.wait()
        own = (3, 7, None)[number % 3]
        return all(np.array_equal(ENCODER.encode(TEXTS, dims=own), expected[own]) for _ in range(3))

    def cut(number: int) -> int:
        ready.wait()
        fresh.encode("a " * 40)
        return number

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
        with pytest.warns(UserWarning, match="more than 12") as told:
            assert list(pool.map(cut, range(8))) == list(range(8))
    assert len(told) == 1


def test_pickles_encode_alike() -> None:
    again = pickle.loads(pickle.dumps(ENCODER))
    assert np.array_equal(again.encode(TEXTS), ENCODER.encode(TEXTS))
    assert (again.fingerprint, again.dims, again.max_length) == (ENCODER.fingerprint, ENCODER.dims, LONGEST)


def test_files_and_folders(saved: Path) -> None:
    expected = ENCODER.encode(TEXTS)
    for path in (saved, str(saved), saved.parent):
        assert np.array_equal(hccs.Encoder.load(path).encode(TEXTS), expected)
    (saved.parent / "other.hccs").write_bytes(saved.read_bytes())
    with pytest.raises(FileError, match=r"2: other.hccs, small.hccs"):
        hccs.Encoder.load(saved.parent)
    saved.rename(saved.parent / files.IN_RUN)
    assert np.array_equal(hccs.Encoder.load(saved.parent).encode(TEXTS), expected)


def test_installed_models_have_names(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    class Entry:
        name = "a-model"

        def load(self) -> Path:
            return saved

    known = {"hccs.models": [Entry()]}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: known.get(group, []))
    assert hccs.Encoder.load("a-model").fingerprint == ENCODER.fingerprint
    with pytest.raises(FileError, match=r"name of an installed model; got another\. Installed: a-model"):
        hccs.Encoder.load("another")


def test_what_is_no_file_is_refused(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, match in (
        (tmp_path / "none.hccs", "readable file"),
        (tmp_path / "empty", r"no model.hccs in it"),
    ):
        with pytest.raises(FileError, match=match):
            hccs.Encoder.load(path)
    for nothing in (None, 5, ""):
        with pytest.raises(DtypeError, match="the path of a model"):
            hccs.Encoder.load(nothing)
    content = saved.read_bytes()
    for size in (0, 100, len(content) // 2, len(content) - 1):
        saved.write_bytes(content[:size])
        with pytest.raises(FileError):
            hccs.Encoder.load(saved)


@pytest.mark.parametrize(
    "given", [None, b"bytes", 7, {"a": 1}, {"a"}, [None], ["a", b"b"], [["a"]], [("a", "b")]]
)
def test_what_is_no_text_is_refused(given: object) -> None:
    with pytest.raises(DtypeError, match=r"text|str"):
        ENCODER.encode(given)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(DataError, match="UTF-8"):
        ENCODER.encode("a \ud800")


def test_an_encoder_is_described_by_its_vectors() -> None:
    assert f"vectors of {ENCODER.dims} channels" in repr(WIDE) and "labels" not in repr(WIDE)


def test_fewer_dims_share_the_packed_weights() -> None:
    rng = np.random.default_rng(0)
    for seed in range(12):
        model = IntegerModel(random_embedder(seed))  # some of them have vectors per token
        ids = rng.integers(0, 40, (3, 7))
        for dims in {1, model.width // 2 or 1, model.width}:
            short = model.shortened(dims)
            assert short._engine is model._engine and short.width == dims
            assert np.array_equal(short(ids).scores, short(ids, reference=True).scores)
        assert np.array_equal(model(ids).scores, model(ids, reference=True).scores)


@pytest.mark.parametrize("dims", [0, -1, 10_000, 2.0, "3", True])
def test_dims_lie_within_the_models(dims: object) -> None:
    with pytest.raises(ParameterError, match=f"dims from 1 to {ENCODER.dims}"):
        ENCODER.encode("a", dims=dims)


OPTIONS = [("out", "float16"), ("batch_size", 0), ("batch_size", "3"), ("batch_size", True), ("threads", 0)]


@pytest.mark.parametrize(("name", "value"), OPTIONS)
def test_other_options_are_refused(name: str, value: object) -> None:
    with pytest.raises(HccsError, match=name):
        ENCODER.encode(["a"], **{name: value})


def test_models_of_another_kind_name_their_class() -> None:
    for kind, name in (("classify", "Classifier"), ("rerank", "Reranker")):
        with pytest.raises(ModelError, match=rf"Use hccs\.{name}"):
            hccs.Encoder(with_texts(scorer(("a", "b")), kind))
    with pytest.raises(ModelError, match=r"Use hccs\.Encoder"):
        hccs.Classifier(WIDE)
    with pytest.raises(ModelError, match=r"facts\['text'\]"):
        hccs.Encoder(IntegerModel(random_embedder(0)))


def test_tokenizers_that_cannot_serve_are_refused() -> None:
    with pytest.raises(FileError, match="without one"):
        hccs.Encoder(embedder(0, read=""))
    with pytest.raises(FileError, match=r"tokenizer\.json that"):
        hccs.Encoder(embedder(0, read="{}"))
    bare = hccs.Encoder(embedder(0, read=tokenizer(special=False)))
    assert bare.encode("a").shape == (bare.dims,)
    with pytest.raises(DataError, match="at least one token"):
        bare.encode(["a", ""])


def test_without_tokenizers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"hccs\[text\]"):
        hccs.Encoder(WIDE)


WITHOUT_TORCH = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "safetensors", "typer", "rich"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
import hccs
assert "tokenizers" not in sys.modules
model = hccs.Encoder.load(sys.argv[1])
sys.stdout.buffer.write(model.encode(["the cat", "a"], out="int16", progress=True).tobytes())
"""


def test_neither_torch_nor_transformers_is_needed(saved: Path) -> None:
    result = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, saved], capture_output=True)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout == ENCODER.encode(["the cat", "a"], out="int16").tobytes()


INTERRUPTED = """
import os, signal, sys, threading, hccs
model = hccs.Encoder.load(sys.argv[1])
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        model.encode(["the cat sat " * 9] * 20000, threads=2)
except KeyboardInterrupt:
    assert model.encode("a").shape == (model.dims,)
    print("stopped with", threading.active_count(), "threads")
"""


def test_ctrl_c_stops_the_work_and_leaves_nothing_running(saved: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, saved], capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "stopped with 1 threads\n", result.stderr


def test_a_vocabulary_of_berts_is_read_as_transformers_reads_it() -> None:
    transformers = pytest.importorskip("transformers")
    from hccs_lab.demo import MODEL
    from tests.program.test_program import small_program

    program = replace(
        small_program(words=30522),
        tokenizer=(MODEL / "tokenizer.json").read_text(encoding="utf-8"),
        facts={"text": {"kind": "classify", "max_length": 12}},
    )
    model, read = IntegerModel(program), transformers.AutoTokenizer.from_pretrained(MODEL)
    texts = [
        "A fine film!",
        "How dull; unwatchable, even.",
        "",
        ("one text", "caf\u00e9 \u4e2d\u56fd"),
        "word " * 30,
    ]
    with pytest.warns(UserWarning, match="1 of 5 texts"):
        found = hccs.Classifier(model).predict(texts, None)
    for text, prediction in zip(texts, found, strict=True):
        parts = (text,) if isinstance(text, str) else text
        encoded = read(*parts, truncation=True, max_length=12)
        logits = model([encoded["input_ids"]], None, [encoded["token_type_ids"]]).logits[0]
        shares = np.exp(logits) / np.exp(logits).sum()
        assert [prediction.scores[label] for label in model.labels] == pytest.approx(shares, rel=1e-4)
