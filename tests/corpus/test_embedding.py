"""A corpus on disk: the encoder's bits, the same bytes however it was interrupted, refusals, exact search."""

from __future__ import annotations

import csv
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hccs
from hccs.corpus.embedding import embed, plan
from hccs.corpus.folder import Folder
from hccs.corpus.search import search
from hccs.errors import HccsError
from tests.text.models import PROMPTS, embedder, random_texts, wide_embedder

TEXTS = [text for text in random_texts(1, 400) if text.strip()]


def needs_parquet(format: str) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'hccs[corpus]'")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("model") / "small.hccs"
    wide_embedder().save(file)
    return str(file)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A CSV file of texts with ids."""
    with (tmp_path / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("key", "text"), *((f"k{i}", text) for i, text in enumerate(TEXTS))])
    return tmp_path / "texts.csv"


def made(table: Path, out: Path, model: str, **options) -> dict:
    return embed(*plan([str(table)], out, model=model, **{"format": "npy", "part_rows": 50, **options}))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def vectors(folder: Path) -> np.ndarray:
    opened = Folder.load(folder)
    return np.concatenate([opened.vectors(name) for name in opened.names()])


@pytest.mark.parametrize("format", ["npy", "parquet"])
@pytest.mark.parametrize(("dtype", "dims"), [("int8", None), ("int16", 5), ("float32", 9)])
def test_vectors_are_those_of_the_encoder(table, tmp_path, model, format, dtype, dims):
    needs_parquet(format)
    found = made(table, tmp_path / "out", model, format=format, dtype=dtype, dims=dims)
    encoder = hccs.Encoder.load(model)
    expected = encoder.encode(TEXTS, dims=dims, out=dtype, prompt="passage")
    np.testing.assert_array_equal(vectors(tmp_path / "out"), expected)
    assert vectors(tmp_path / "out").dtype == dtype and found["prompt"] == "passage"
    assert found["fingerprint"] == encoder.fingerprint and found["rows"] == len(TEXTS)
    assert found["parts"]["part-00000-00000"] == 50 and sum(found["parts"].values()) == len(TEXTS)
    opened = Folder.load(tmp_path / "out")
    assert opened.ids("part-00000-00001")[0].endswith(":52")
    assert opened.texts("part-00000-00001") == (TEXTS[50:100] if format == "parquet" else None)


def test_files_are_read_by_other_programs(table, tmp_path, model):
    pq = pytest.importorskip("pyarrow.parquet", reason="not installed: pip install 'hccs[corpus]'")
    made(table, tmp_path / "p", model, format="parquet", id="key")
    found = pq.read_table(tmp_path / "p" / "part-00000-00000.parquet")
    expected = hccs.Encoder.load(model).encode(TEXTS[:50], out="int8", prompt="passage")
    assert found.column_names == ["id", "text", "vector"] and str(found.schema.field("vector").type).endswith(
        "]"
    )
    assert found["id"].to_pylist() == [f"k{i}" for i in range(50)] and found["text"].to_pylist() == TEXTS[:50]
    np.testing.assert_array_equal(np.array(found["vector"].to_pylist()), expected)
    made(table, tmp_path / "n", model, id="key")
    np.testing.assert_array_equal(np.load(tmp_path / "n" / "part-00000-00000.npy"), expected)
    facts = json.loads((tmp_path / "n" / "part-00000-00000.json").read_text())
    assert facts["ids"] == [f"k{i}" for i in range(50)] and facts["rows"] == 50


def test_threads_and_restarts_change_no_byte(table, tmp_path, model):
    needs_parquet("parquet")
    whole = tmp_path / "whole"
    made(table, whole, model, format="parquet")
    job, encoder = plan([str(table)], tmp_path / "again", model=model, part_rows=50)
    embed(job, encoder, threads=3)
    for lost in ("part-00000-00000.parquet", "part-00000-00003.parquet", "summary.json"):
        (tmp_path / "again" / lost).unlink()
    kept = (tmp_path / "again" / "part-00000-00001.parquet").stat().st_mtime_ns
    (tmp_path / "again" / ".part-00000-00003.parquet.0123abcd.partial").write_bytes(b"half")
    embed(job, encoder)
    assert content(tmp_path / "again") == content(whole)
    assert (tmp_path / "again" / "part-00000-00001.parquet").stat().st_mtime_ns == kept


def command(table: Path, out: Path, model: str, *options: str) -> list[str]:
    given = [str(table), "--out", str(out), "--model", model, "--part-rows", "100"]
    return [sys.executable, "-m", "hccs.cli", "embed", *given, *options]


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("format", ["npy", "parquet"])
def test_killed_and_started_again_the_bytes_are_the_same(tmp_path, model, format, kills):
    needs_parquet(format)
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(TEXTS * (kills + 6)), encoding="utf-8")
    made(source, tmp_path / "whole", model, format=format, part_rows=100)
    out, rng = tmp_path / "out", random.Random(kills)
    parts = len(list((tmp_path / "whole").glob("part-*")))
    killed = 0
    for number in range(kills):
        process = subprocess.Popen(command(source, out, model, "--format", format), stdout=subprocess.DEVNULL)
        while len(list(out.glob("part-*"))) <= parts * number // (kills + 1) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed >= kills // 2  # a fast machine may finish before a signal comes
    subprocess.run(command(source, out, model, "--format", format), check=True, stdout=subprocess.DEVNULL)
    assert content(out) == content(tmp_path / "whole")


def test_ctrl_c_keeps_what_was_made(tmp_path, model):
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(TEXTS * 30), encoding="utf-8")
    process = subprocess.Popen(
        command(source, tmp_path / "out", model, "--format", "npy"), stderr=subprocess.PIPE, text=True
    )
    while len(list((tmp_path / "out").glob("part-*.json"))) < 2:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130 and said.strip() == "hccs: stopped; the same command resumes"
    assert not list((tmp_path / "out").glob(".*"))


def test_a_full_disk_ends_with_one_line_and_is_resumed(table, tmp_path, model):
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))

    given = command(table, tmp_path / "out", model, "--format", "npy")
    ended = subprocess.run(given, preexec_fn=small_files, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stderr.startswith("hccs: expected") and "writable" in ended.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["corpus.json"]
    assert subprocess.run(given, capture_output=True).returncode == 0


def test_stdin(tmp_path, model):
    given = [sys.executable, "-m", "hccs.cli", "embed", "-", "--out", str(tmp_path / "out"), "--model", model]
    given += ["--format", "npy", "--reads", "jsonl", "--json"]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:9])
    ended = subprocess.run(given, input=lines, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["rows"] == 9
    np.testing.assert_array_equal(
        vectors(tmp_path / "out"),
        hccs.Encoder.load(model).encode(TEXTS[:9], out="int8", prompt="passage"),
    )


def test_changed_inputs_and_settings_are_refused(table, tmp_path, model):
    out = tmp_path / "out"
    made(table, out, model)
    before = content(out)
    for options, what in (
        ({"dims": 4}, "dims 4 in place of"),
        ({"dtype": "int16"}, "dtype 'int16' in place of 'int8'"),
        ({"id": "key"}, "id 'key'"),
        ({"prompt": ""}, "prompt ''"),
    ):
        with pytest.raises(HccsError, match=what):
            made(table, out, model, **options)
    embedder(5).save(tmp_path / "other.hccs")
    with pytest.raises(HccsError, match="fingerprint"):
        made(table, out, str(tmp_path / "other.hccs"))
    (tmp_path / "more.txt").write_text("a\n")
    with pytest.raises(HccsError, match="inputs '1 named"):
        made(tmp_path / "more.txt", out, model)
    original = table.read_bytes()
    table.write_bytes(original.replace(TEXTS[60].encode(), b"changed", 1))
    with pytest.raises(HccsError, match=r"part-00000-00001 .*the input has changed"):
        made(table, out, model)
    table.write_bytes(b"key,text\n" + b"".join(original.splitlines(True)[1:51]))
    with pytest.raises(HccsError, match="the parts of these inputs"):
        made(table, out, model)
    table.write_bytes(original)
    assert content(out) == before
    made(table, out, model)
    assert content(out) == before


def test_other_folders_ids_and_arguments_are_refused(table, tmp_path, model, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("a")
    (tmp_path / "full" / ".mine.partial").write_text("a")
    with pytest.raises(HccsError, match="new or empty"):
        made(table, tmp_path / "full", model)
    assert len(list((tmp_path / "full").iterdir())) == 2
    with pytest.raises(HccsError, match="to be a folder"):
        made(table, table, model)
    for inside in (tmp_path, tmp_path / "full" / "out"):
        with pytest.raises(HccsError, match="--out outside of"):
            made(tmp_path, inside, model)
    for name, between, what in (("near", 5, "again in part-00000-00000"), ("far", 60, "and in part")):
        lines = ["key,text", "twice,a", *(f"{i},a" for i in range(between)), "twice,b"]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
        with pytest.raises(HccsError, match=what):
            made(tmp_path / f"{name}.csv", tmp_path / name, model, id="key")
    (tmp_path / "empty.txt").write_text("\n\n")
    for options, what in (
        ({"dims": 0}, "dims"),
        ({"dtype": "int4"}, "dtype"),
        ({"format": "csv"}, "format"),
        ({"prompt": "none"}, "prompts"),
        ({"part_rows": 0}, "part_rows"),
    ):
        with pytest.raises(HccsError, match=what):
            made(table, tmp_path / "new", model, **options)
    with pytest.raises(HccsError, match="at least one text"):
        made(tmp_path / "empty.txt", tmp_path / "new", model)
    job, encoder = plan([str(table)], tmp_path / "locked", model=model, format="npy")
    with (
        Folder.prepared(tmp_path / "locked", job.settings),
        pytest.raises(HccsError, match="another at work"),
    ):
        embed(job, encoder)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(HccsError, match=r"hccs\[corpus\]"):
        made(table, tmp_path / "new", model, format="parquet")
    made(table, tmp_path / "new", model)  # a failed start has left nothing that is in the way


@pytest.mark.parametrize("format", ["npy", "parquet"])
@pytest.mark.parametrize("dtype", ["int8", "int16", "float32"])
def test_search_is_exact(table, tmp_path, model, format, dtype):
    needs_parquet(format)
    out = tmp_path / "out"
    made(table, out, model, format=format, dtype=dtype, id="key")
    encoder, queries = hccs.Encoder.load(model), ["the cat", TEXTS[7]]
    kind = "int8" if dtype == "int8" else "int16"
    corpus = encoder.encode(TEXTS, out=kind, prompt="passage").astype(np.int64)
    dots = encoder.encode(queries, out=kind, prompt="query").astype(np.int64) @ corpus.T
    one = (32767 / 256 if kind == "int8" else 32767) ** 2
    for query, hits in enumerate(search(out, queries, 60)):
        order = np.argsort(-dots[query], kind="stable")[:60]
        assert [hit.id for hit in hits] == [f"k{i}" for i in order]
        np.testing.assert_allclose([hit.score for hit in hits], dots[query][order] / one)
        assert hits[0].text == (TEXTS[order[0]] if format == "parquet" else None)


def test_search_by_the_command_and_its_refusals(table, tmp_path, model):
    out = tmp_path / "out"
    made(table, out, model)
    given = [sys.executable, "-m", "hccs.cli", "search", str(out), "the cat", "a b", "-k", "3"]
    ended = subprocess.run([*given, "--json"], capture_output=True, text=True, check=True)
    found = json.loads(ended.stdout)
    assert [entry["query"] for entry in found] == ["the cat", "a b"] and len(found[0]["hits"]) == 3
    (out / "summary.json").unlink()
    ended = subprocess.run(given, capture_output=True, text=True, check=True)
    assert "not complete" in ended.stderr and found[0]["hits"][0]["id"] in ended.stdout
    embedder(5).save(tmp_path / "other.hccs")
    with pytest.raises(HccsError, match="fingerprint"):
        search(out, ["a"], model=str(tmp_path / "other.hccs"))
    with pytest.raises(HccsError, match=r"no corpus\.json"):
        search(tmp_path, ["a"])
    file = out / "part-00000-00001.npy"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(HccsError, match="a whole part"):
        search(out, ["a"])
    (out / "corpus.json").write_text("{}")
    with pytest.raises(HccsError, match="of version 1"):
        search(out, ["a"])


def test_damaged_parts_are_refused_or_harmless(table, tmp_path, model):
    """Every flipped byte of a Parquet part is noticed, or changes no answer."""
    needs_parquet("parquet")
    made(table, tmp_path / "out", model, format="parquet", id="key", part_rows=1000)
    right, refused = search(tmp_path / "out", ["the cat"], 5), 0
    file = tmp_path / "out" / "part-00000-00000.parquet"
    whole, rng = file.read_bytes(), random.Random(0)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        try:
            assert search(tmp_path / "out", ["the cat"], 5) == right
        except HccsError as error:
            assert "a whole part" in str(error)
            refused += 1
    assert refused > 30
    file.write_bytes(whole)
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pq.read_table(file, columns=["id"]), file)
    with pytest.raises(HccsError, match="a whole part"):
        search(tmp_path / "out", ["the cat"])


def test_memory_does_not_grow_with_the_corpus(tmp_path, model):
    """Six times the texts take no more memory: peaks of processes that embed both."""
    peaks = []
    for times in (10, 60):
        source = tmp_path / f"{times}.txt"
        source.write_text("\n".join(TEXTS * times), encoding="utf-8")
        code = (
            "import resource, sys; from pathlib import Path; from hccs.corpus.embedding import embed, plan;"
            f"embed(*plan([{str(source)!r}], Path({str(tmp_path / str(times))!r}), model={model!r},"
            "format='npy', part_rows=1000), threads=1);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        peaks.append(int(subprocess.check_output([sys.executable, "-c", code], env=environment)))
    assert peaks[1] < 1.15 * peaks[0]


assert "passage" in PROMPTS
