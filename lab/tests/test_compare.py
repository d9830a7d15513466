import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from typer.testing import CliRunner

import hccs.nn
from hccs.calibration import HeadStatistics, fidelity
from hccs.cli.app import app
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.models import load_classifier, score
from hccs.errors import FileError, HccsError, ModelError, ParameterError
from hccs.numbers.table import ParamTable
from hccs_lab import surrogates
from hccs_lab.compare import steps, tables
from hccs_lab.compare.entries import FLOAT, declared_costs, default_labels, parse
from hccs_lab.compare.measures import MEASURES
from hccs_lab.compare.run import compare
from hccs_lab.compare.source import ComparisonSettings, LogitSample, from_run
from hccs_lab.demo import MODEL

pytestmark = pytest.mark.filterwarnings("ignore")

METHODS = parse(["softmax", "hccs", "hccs:mode=u8_clb", "ibert"])


@pytest.fixture(autouse=True, scope="module")
def few_turns():
    """Times are checked for being there, not for being right."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(steps, "SECONDS", 0.0)
        patched.setattr(steps, "LEAST", 2)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    source = tasks.load(tasks.TASKS["movies"])
    for name, examples in (("train", source.train.subset(64)), ("dev", source.dev.subset(48))):
        rows = [f"{text[0]}\t{label}" for text, label in zip(examples.texts, examples.labels, strict=True)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


def small(data):
    """A comparison on the embedded model that takes seconds."""
    return ComparisonSettings(
        model=str(MODEL),
        task=tasks.TASKS["movies"],
        data=str(data),
        sentences=16,
        rows=96,
    )


@pytest.fixture
def settings(data):
    return small(data)


def silent(_):
    pass


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "out"
    return compare(small(data), METHODS, out, say=silent), out


def test_everything_is_measured(finished):
    found, out = finished
    assert list(found["methods"]) == [FLOAT, "softmax", "hccs", "hccs:mode=u8_clb", "ibert"]
    for label, record in found["methods"].items():
        assert 0.5 < record["accuracy"] <= 1
        if label != FLOAT:
            assert set(record["fidelity"]) == {*MEASURES, "heads"}
            assert np.shape(record["fidelity"]["heads"]["kl"]) == (2, 2)
            assert record["time"]["numpy"] > 0 and record["time"]["torch"] > 0
    softmax = found["methods"]["softmax"]
    assert abs(softmax["fidelity"]["kl"]) < 1e-9 and softmax["fidelity"]["top1"] == 1
    assert softmax["accuracy"] == found["methods"][FLOAT]["accuracy"]
    assert found["methods"] == json.loads((out / "comparison.json").read_text())["methods"]


def test_hccs_agrees_with_its_own_calibration_and_attachment(finished, data):
    found, out = finished
    record = found["methods"]["hccs"]
    sample = LogitSample.load(out / "logits.safetensors")
    B, S, D = (np.asarray(record["parameters"][name], np.int64) for name in "BSD")
    table = ParamTable(B, S, D, sample.scale, 64, "i16_div")
    stats = HeadStatistics(sample.shape, 64, sample.scale)
    stats.update(sample.logits, np.broadcast_to(sample.valid, sample.logits.shape))
    wanted = fidelity(stats, table)
    np.testing.assert_allclose(record["fidelity"]["heads"]["kl"], wanted[..., 0], atol=1e-7)
    np.testing.assert_allclose(record["fidelity"]["heads"]["kl_renormalised"], wanted[..., 1], atol=1e-7)
    loaded = load_classifier(str(MODEL), ("negative", "positive"))
    dev = tokenise(tasks.load(tasks.TASKS["movies"], data).dev, loaded.tokenizer, 64)
    hccs.nn.attach(loaded.model, table)
    assert score(loaded.model, dev) == record["accuracy"]
    assert (
        score(hccs.nn.attach(loaded.model, table, "u8_clb"), dev)
        == (found["methods"]["hccs:mode=u8_clb"]["accuracy"])
    )


def test_tables(finished, tmp_path):
    found, _ = finished
    tables.write_markdown(found, tmp_path / "comparison.md")
    text = (tmp_path / "comparison.md").read_text()
    kl = found["methods"]["ibert"]["fidelity"]["kl"]
    assert f"| ibert | {kl:.4f} |" in text
    score = found["methods"]["ibert"]["accuracy"]
    points = 100 * (score - found["methods"][FLOAT]["accuracy"])
    assert f"| {score:.4f} | {points:+.2f} |" in text
    assert "Costs of a row of 64" in text and "-0.0000" not in text


def test_an_interrupted_comparison_goes_on(settings, tmp_path, monkeypatch):
    chosen = parse(["softmax", "ibert"])
    real = steps.fidelity

    def interrupted(entry, *arguments):
        if entry.label == "ibert":
            raise KeyboardInterrupt
        return real(entry, *arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(steps, "fidelity", interrupted)
        compare(settings, chosen, tmp_path / "out", say=silent)
    kept = {
        path.name: json.loads(path.read_text())["stages"] for path in (tmp_path / "out" / "methods").iterdir()
    }
    assert "accuracy" in kept["softmax.json"] and "parameters" in kept["ibert.json"]
    said = []
    found = compare(settings, chosen, tmp_path / "out", say=said.append)
    for label in (FLOAT, "softmax", "ibert"):
        assert kept[f"{label}.json"].items() <= found["methods"][label].items()
    assert not any(line.startswith(("float", "softmax")) for line in said)
    # Methods can be added to a finished comparison.
    more = compare(settings, parse(["softmax", "hccs"]), tmp_path / "out", say=silent)
    assert "fidelity" in more["methods"]["hccs"]


def test_processes_share_a_comparison(finished, settings, tmp_path):
    found = compare(settings, parse(["softmax", "hccs"]), tmp_path / "two", jobs=2, say=silent)
    for label in ("softmax", "hccs"):
        assert found["methods"][label]["fidelity"] == finished[0]["methods"][label]["fidelity"]


def test_a_method_that_refuses_is_named_and_the_others_go_on(settings, data, tmp_path, monkeypatch):
    real, said = steps.fidelity, []

    def refusing(entry, *arguments):
        if entry.label == "ibert":
            raise ParameterError("scale <= 1.67", "another", "None.")
        return real(entry, *arguments)

    monkeypatch.setattr(steps, "fidelity", refusing)
    for _ in range(2):  # the second time nothing is tried again
        found = compare(settings, parse(["ibert", "hccs"]), tmp_path / "out", say=said.append)
    assert "scale <= 1.67" in found["methods"]["ibert"]["refused"]
    assert "time" in found["methods"]["hccs"]
    assert len([line for line in said if line.startswith("ibert refuses")]) == 1
    _, _, rows = tables.fidelity_grid(found["methods"])
    assert any(row[:2] == ("ibert", "-") for row in rows)
    other = tmp_path / "data"
    other.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (other / name).write_text((data / "train.tsv").read_text())
    kept = tmp_path / "out" / "settings.json"
    kept.write_text(kept.read_text().replace(str(data), str(other)))
    with pytest.raises(FileError, match="the examples that"):  # more methods, but on other rows
        compare(replace(settings, data=str(other)), parse(["softmax"]), tmp_path / "out", say=silent)


def test_a_full_disk_is_no_refusal_of_a_method(settings, tmp_path, monkeypatch):
    def full(*_):
        raise FileError("space", "none", "Free some.")

    with monkeypatch.context() as patched, pytest.raises(FileError, match="Free some"):
        patched.setattr(steps, "fidelity", full)
        compare(settings, parse(["hccs"]), tmp_path / "out", say=silent)
    found = compare(settings, parse(["hccs"]), tmp_path / "out", say=silent)
    assert "fidelity" in found["methods"]["hccs"] and "refused" not in found["methods"]["hccs"]
    record = tmp_path / "out" / "methods" / "hccs.json"
    record.write_text(record.read_text()[:100])
    with pytest.raises(FileError, match=r"hccs.json to be intact JSON.*Delete that file"):
        compare(settings, parse(["hccs"]), tmp_path / "out", say=silent)


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_after_an_interrupt_the_same_command_goes_on(tmp_path, data, jobs):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "hccs.cli", "compare", "--data", str(data), "--out", str(out)]
    command += ["--rows", "250", "--jobs", jobs, "--methods"]
    first = subprocess.Popen(
        [*command, "softmax ibert softermax hccs entmax sparsemax"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(out.glob("methods/*.json")):
        assert first.poll() is None
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does
    _, said = first.communicate()
    assert first.returncode == 130 and "the same command resumes" in said and "Traceback" not in said
    kept = {path: json.loads(path.read_text())["stages"] for path in out.glob("methods/*.json")}
    assert kept and not (out / "comparison.json").exists() and not (out / ".hccs.lock").exists()
    again = CliRunner().invoke(app, [*command[3:], "softmax"])
    assert again.exit_code == 0, again.output
    for path, stages in kept.items():
        assert stages.items() <= json.loads(path.read_text())["stages"].items()


def test_command_on_the_embedded_model(tmp_path):
    options = ["--rows", "64", "--sentences", "16", "--examples", "40"]
    command = ["compare", "--out", str(tmp_path / "out"), "--methods", "softmax hccs", *options]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "Fidelity to softmax" in result.output
    assert {"comparison.json", "comparison.md"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_the_folder_of_a_run_brings_its_task(data, tmp_path):
    from hccs.conversion.run import convert
    from hccs.conversion.settings import Settings

    chosen = Settings(str(MODEL), tasks.TASKS["movies"], str(data), sentences=16, refine=False)
    run = convert(chosen, tmp_path / "run", silent)
    source = from_run(tmp_path / "run")
    assert source.task == tasks.TASKS["movies"]
    options = replace(source, rows=64, sentences=16)
    found = compare(options, parse(["hccs"]), tmp_path / "out", say=silent)
    assert found["methods"][FLOAT]["accuracy"] == run.scores["float_model"]
    other = tmp_path / "other"
    other.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (other / name).write_text((data / "train.tsv").read_text())
    command = ["compare", str(tmp_path / "run"), "--task", "sst2", "--data", str(other), "--rows", "32"]
    result = CliRunner().invoke(app, [*command, "--methods", "softmax", "--out", str(tmp_path / "again")])
    assert result.exit_code == 0, result.output
    kept = json.loads((tmp_path / "again" / "settings.json").read_text())
    assert kept["data"] == str(other) and kept["task"]["name"] == "sst2"
    assert kept["model"] == str(tmp_path / "run" / "float")


def test_labels():
    entry = parse(["hccs:mode=u8_clb"])[1]
    assert entry.file_name == "hccs_mode=u8_clb"
    assert [e.label for e in parse(["float", "ibert", "ibert"])] == [FLOAT, "ibert"]
    assert {"hccs", "hccs:mode=u8_clb", *surrogates.names()} <= set(default_labels())
    for wrong in ("hccs:mood=u8", "hccs:u8_clb", "ibert:alpha=2"):
        with pytest.raises(ParameterError, match="NAME:parameter=value"):
            parse([wrong])
    with pytest.raises(ParameterError, match="method to be one of"):
        parse(["hardmax"])
    assert declared_costs(parse(["hccs:mode=u8_clb"])[1]).divides(64) == 0
    assert declared_costs(parse(["hccs"])[1]).divides(64) == 1
    assert declared_costs(parse(["index_softmax:c=6.6"])[1]).divides(64) == 64
    assert declared_costs(parse(["index_softmax:form=kernel,c=6.6"])[1]).divides(64) == 1
    assert declared_costs(parse(["softmax_s8:output=int16"])[1]).output == "int16, 2^-16"
    assert declared_costs(parse(["exaq:bits=3"])[1]).table_bytes == 4 * (8 + 64)


def test_bad_input_leaves_nothing_behind(settings, data, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ParameterError, match="sentences to be an integer from 1"):
        compare(replace(settings, sentences=0), METHODS, out, say=silent)
    with pytest.raises(ModelError, match="a transformers model at"):
        compare(replace(settings, model=str(tmp_path / "nothing")), METHODS, out, say=silent)
    model = load_classifier(str(MODEL), ("negative", "positive"))
    model.model.bert.save_pretrained(tmp_path / "encoder")
    model.tokenizer.save_pretrained(tmp_path / "encoder")
    with pytest.raises(ModelError, match="a fine-tuned classifier"):
        compare(replace(settings, model=str(tmp_path / "encoder")), METHODS, out, say=silent)
    assert not out.exists()
    for arguments in (
        [str(MODEL)],
        [str(MODEL), "--task", "poetry"],
    ):
        result = CliRunner().invoke(app, ["compare", *arguments, "--out", str(out)])
        assert isinstance(result.exception, HccsError)
    assert not out.exists()
    compare(settings, parse(["softmax"]), out, say=silent)
    with pytest.raises(FileError, match="other values of rows"):
        compare(replace(settings, rows=48), METHODS, out, say=silent)
