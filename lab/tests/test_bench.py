"""`hccs bench` on a real, small run: what it writes is complete, and what is missing is named."""

from __future__ import annotations

import importlib.util
import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("matplotlib")
testing = pytest.importorskip("typer.testing")

from hccs.cli.app import app
from hccs.conversion.converted import Converted
from hccs.conversion.data import tasks
from hccs.conversion.report.cost import OURS
from hccs.conversion.run import convert
from hccs.conversion.settings import Settings
from hccs.errors import FileError, ParameterError
from hccs.program import IntegerModel
from hccs_lab.bench import contenders
from hccs_lab.bench import run as bench_module
from hccs_lab.bench.contenders import CONTENDERS, Material
from hccs_lab.bench.run import BenchSettings, agree, bench, median_ratio, take_turns, workloads
from hccs_lab.demo import MODEL

pytestmark = pytest.mark.filterwarnings("ignore")

BY_KIND = {who.kind: who for who in CONTENDERS}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The embedded model, calibrated but not retrained, on a few of the embedded sentences."""
    data = tmp_path_factory.mktemp("data")
    source = tasks.load(tasks.TASKS["movies"])
    for name, examples in (("train", source.train.subset(32)), ("dev", source.dev.subset(24))):
        rows = [f"{text[0]}\t{label}" for text, label in zip(examples.texts, examples.labels, strict=True)]
        (data / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = Settings(
        model=str(MODEL),
        task=tasks.TASKS["movies"],
        data=str(data),
        sentences=16,
        refine=False,
        retraining=None,
    )
    convert(settings, out, lambda _: None)
    return out


@pytest.fixture
def only_torch(monkeypatch):
    """A machine with neither ONNX Runtime nor OpenVINO."""
    real = importlib.util.find_spec
    absent = {"onnxruntime", "openvino", "nncf"}
    monkeypatch.setattr(
        contenders.importlib.util, "find_spec", lambda name: None if name in absent else real(name)
    )


def test_the_command_measures_draws_and_names_what_is_missing(run, only_torch, monkeypatch):
    chosen = tuple(who for who in CONTENDERS if who.kind != "torch-int8")  # a process more to wait for
    monkeypatch.setattr(bench_module, "CONTENDERS", chosen)
    threads = torch.get_num_threads()
    ended = testing.CliRunner().invoke(
        app, ["bench", str(run), "--batch", "6", "--turns", "1", "--seconds", "0"]
    )
    assert ended.exit_code == 0, ended.output
    assert "ONNX Runtime dynamic int8: left out, it needs: pip install onnxruntime" in ended.output
    assert "OpenVINO static int8: left out, it needs: pip install openvino nncf" in ended.output
    found = json.loads((run / "bench.json").read_text())
    assert list(found["contenders"]) == ["torch float32", OURS]
    assert found["missing"]["OpenVINO static int8"] == ["openvino", "nncf"] and found["failed"] == {}
    cases = {(row["name"], row["workload"], row["threads"]) for row in found["rows"]}
    assert len(cases) == len(found["rows"]) == 4 * len(found["settings"]["threads"])
    for row in found["rows"]:
        assert row["ms"] > 0 and row["sentences_per_second"] == pytest.approx(
            1e3 * row["sentences"] / row["ms"]
        )
        assert row["tokens"] <= row["padded"]
        assert row["times_ours"] == 1 or row["name"] != OURS
    ours, theirs = found["contenders"][OURS], found["contenders"]["torch float32"]
    assert ours["bytes"] == (run / "model.hccs").stat().st_size < theirs["bytes"]
    assert ours["memory"] < theirs["memory"] / 2  # it loads no torch
    assert 0 < ours["first_answer"] < theirs["first_answer"]
    assert theirs["agreement"] == 1 and ours["agreement"] > 0.5
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("kind", ["torch-int8", "openvino", "ours"])
def test_contenders_answer_as_the_float_model_mostly_does(run, kind, tmp_path):
    who = BY_KIND[kind]
    if who.missing:
        pytest.skip(f"not installed: {', '.join(who.missing)}")
    finished = Converted(run)
    data = finished.examples().to("cpu")
    path, size = who.make(Material(finished, data, tmp_path))
    assert 0 < size < 2**26
    _, many = workloads(data, 24, 8)
    answer, expected = who.open(path, 1), BY_KIND["torch-float"].open(run, 1)
    same = [
        np.asarray(answer(batch)).argmax(-1) == np.asarray(expected(batch)).argmax(-1)
        for batch in many.batches
    ]
    assert np.concatenate(same).mean() > 0.75


def test_a_contender_that_fails_is_left_out_and_named(run, only_torch, monkeypatch):
    def refuses(material):
        raise RuntimeError("no kernel\nfor this model")

    broken = contenders.Contender("broken", (), "ours", refuses)
    monkeypatch.setattr(bench_module, "CONTENDERS", (broken, BY_KIND["ours"]))
    said: list[str] = []
    found = bench(run, BenchSettings(batch=2, turns=1, seconds=0), say=said.append)
    assert found["failed"] == {"broken": "no kernel for this model"}
    assert "broken: left out, no kernel for this model" in said
    assert {row["name"] for row in found["rows"]} == {OURS}


def test_batches_keep_their_lengths_and_sorting_saves_padding(run):
    data = Converted(run).examples().to("cpu")
    one, many = workloads(data, 24, None)
    assert one.sentences == 1 and one.tokens == one.padded
    assert many.sentences == 24 and many.padded == 24 * max(data.lengths[:24])
    assert many.tokens == sum(data.lengths[:24])
    _, groups = workloads(data, 24, 5)
    assert [len(batch["input_ids"]) for batch in groups.batches] == [5, 5, 5, 5, 4]
    assert groups.tokens == many.tokens < groups.padded < many.padded
    whole = IntegerModel.load(run / "model.hccs")

    def scores(batch):
        found = whole(batch["input_ids"], batch["attention_mask"]).scores
        rows = zip(batch["input_ids"], batch["attention_mask"], found, strict=True)
        return {tuple(ids[mask > 0]): tuple(row) for ids, mask, row in rows}

    sorted_scores = {text: row for batch in groups.batches for text, row in scores(batch).items()}
    assert sorted_scores == scores(many.batches[0])  # padding changes no score


def test_turns_alternate_and_ratios_are_of_neighbours():
    order: list[str] = []
    times = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3, 0)
    assert "".join(order) == "aabb" + "aabb" * 3  # tried twice; then in each turn once untimed and once timed
    assert {name: len(found) for name, found in times.items()} == {"a": 3, "b": 3}
    assert median_ratio([1.0, 20.0, 3.0], [1.0, 10.0, 1.0]) == 2.0


def test_turns_that_disagree_give_no_headline(run, only_torch, monkeypatch):
    assert agree([2.0, 2.1, 2.2, 2.0], [1.0, 1.0, 1.0, 1.0]) and agree([9.0], [1.0])
    assert not agree([2.0, 64.0, 30.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    chosen = tuple(BY_KIND[kind] for kind in ("torch-float", "ours"))
    monkeypatch.setattr(bench_module, "CONTENDERS", chosen)
    monkeypatch.setattr(bench_module, "in_fresh_process", lambda *_: {"memory": 1, "first_answer": 1.0})
    monkeypatch.setattr(bench_module.os, "getloadavg", lambda: (99.0, 50.0, 1.0))
    command = ["bench", str(run), "--batch", "2", "--turns", "4", "--seconds", "0"]
    for theirs, steady in (([3.0, 3.1, 3.0, 3.2], True), ([3.0, 64.0, 3.0, 40.0], False)):
        times = {chosen[0].name: theirs, OURS: [1.0] * 4}
        monkeypatch.setattr(bench_module, "take_turns", lambda *_, times=times: times)
        ended = testing.CliRunner().invoke(app, command)
        assert ended.exit_code == 0, ended.output
        assert (
            "load of the last minute 99.00" in ended.output and "other programs are running" in ended.output
        )
        assert ("times as fast as float PyTorch" in ended.output) == steady
        assert ("no ratio to float PyTorch: turns disagree" in ended.output) != steady
        assert ("but its turns disagree" in ended.output) != steady
        rows = json.loads((run / "bench.json").read_text())["rows"]
        assert all(row["steady"] for row in rows) == steady


def test_what_cannot_be_timed_is_refused(run, tmp_path):
    with pytest.raises(FileError, match="hccs convert"):
        bench(tmp_path)
    for changes in ({"batch": 0}, {"turns": 0}, {"group": 0}, {"seconds": math.inf}, {"seconds": math.nan}):
        with pytest.raises(ParameterError):
            BenchSettings(**changes)
    for seconds in ("inf", "61"):
        ended = testing.CliRunner().invoke(app, ["bench", str(run), "--seconds", seconds])
        assert isinstance(ended.exception, ParameterError), ended.output
        assert "seconds between 0 and 60" in str(ended.exception)
