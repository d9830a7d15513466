import json
import os
import re
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
from hccs import _figures
from hccs._html.elements import joined
from hccs.calibration import HeadStatistics, fidelity
from hccs.cli.app import app
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.models import accuracy, load_classifier
from hccs.conversion.training import Recipe
from hccs.errors import FileError, HccsError, ModelError, ParameterError
from hccs.numbers.table import ParamTable
from hccs_lab import surrogates
from hccs_lab.compare import source, speed, steps, tables
from hccs_lab.compare.entries import FLOAT, declared_costs, default_labels, parse
from hccs_lab.compare.measures import MEASURES
from hccs_lab.compare.run import compare
from hccs_lab.compare.sample import LogitSample
from hccs_lab.compare.source import ComparisonSettings, from_run
from hccs_lab.demo import MODEL
from hccs_lab.figures import comparison_figures, observed_runs
from hccs_lab.report.comparison import _curves
from tests.report.wellformed import checked

pytestmark = pytest.mark.filterwarnings("ignore")

RECIPE = Recipe(epochs=1, learning_rate=1e-5, batch_size=32, evaluations_per_epoch=1, distil=0.5)
METHODS = parse(["softmax", "hccs", "hccs:mode=u8_clb", "ibert"])


@pytest.fixture(autouse=True, scope="module")
def few_turns():
    """Times are checked for being there, not for being right."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(speed, "SECONDS", 0.0)
        patched.setattr(speed, "LEAST", 2)
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
        retraining=RECIPE,
    )


@pytest.fixture
def settings(data):
    return small(data)


def silent(_):
    pass


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "out"
    return compare(small(data), METHODS, out, retrain=True, say=silent), out


def test_everything_is_measured(finished):
    found, out = finished
    assert list(found["methods"]) == [FLOAT, "softmax", "hccs", "hccs:mode=u8_clb", "ibert"]
    for label, record in found["methods"].items():
        assert 0.5 < record["accuracy"] <= 1 and 0.5 < record["retrained"]["accuracy"] <= 1
        assert len(record["retrained"]["history"]) == 1  # one budget for all
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
    assert accuracy(loaded.model, dev) == record["accuracy"]
    assert (
        accuracy(hccs.nn.attach(loaded.model, table, "u8_clb"), dev)
        == (found["methods"]["hccs:mode=u8_clb"]["accuracy"])
    )


def test_curves_of_softmax_are_exponentials(finished):
    found, _ = finished
    for name, curve in found["methods"]["softmax"]["curves"].items():
        scale = {"widest logits": np.max, "narrowest logits": np.min}[name](found["scale"])
        seen = [(d, value) for d, value in enumerate(curve) if value is not None]
        assert seen[0] == (0, 1.0) and len(seen) > 20
        for d, value in seen:
            assert value == pytest.approx(np.exp(-d * scale), abs=1e-5)


def test_tables_and_figures(finished, tmp_path):
    found, _ = finished
    tables.write_markdown(found, tmp_path / "comparison.md")
    text = (tmp_path / "comparison.md").read_text()
    kl = found["methods"]["ibert"]["fidelity"]["kl"]
    assert f"| ibert | {kl:.4f} |" in text
    score = found["methods"]["ibert"]["retrained"]["accuracy"]
    points = 100 * (score - found["methods"][FLOAT]["accuracy"])
    assert f"| {score:.4f} | {points:+.2f} |" in text
    assert "Costs of a row of 64" in text and "-0.0000" not in text
    pytest.importorskip("matplotlib")
    assert all(path.stat().st_size > 10_000 for path in comparison_figures(found, tmp_path))


def test_curves_are_drawn_where_rows_were(finished, tmp_path, monkeypatch):
    """A distance that no row had is a gap in every drawing, not a chord that is the same for all methods."""
    found, _ = finished
    sparse = [1.0, 0.8, *[None] * 40, 0.1, *[None] * 213]
    assert observed_runs(sparse, 0.1) == [[(0.0, 1.0), (0.1, 0.8)], [(pytest.approx(4.2), 0.1)]]
    assert observed_runs(sparse, 1.0) == [[(0.0, 1.0), (1.0, 0.8)]]  # the rest is off the axis
    curves = {"widest logits": sparse, "narrowest logits": [1.0, *[None] * 255]}
    only = {**found, "methods": {"ibert": {**found["methods"]["ibert"], "curves": curves}}}
    only["scale"] = [[0.1, 0.05], [0.05, 0.02]]
    points = [line.split() for line in re.findall(r'<polyline points="(.*?)"', joined(_curves(only)))]
    assert [len(line) for line in points] == [61, 2, 2, 2]
    assert len(set(points[2])) == len(set(points[3])) == 1  # lone points, dots by their round ends
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(_figures, "save", lambda figure, path: drawn.append(figure))
    comparison_figures(only, tmp_path)
    (panel,) = drawn[0].axes
    assert [len(line.get_xdata()) for line in panel.lines] == [200, 2, 1, 1]


def test_dev_chooses_nothing(settings, tmp_path):
    """With other dev labels the same checkpoint is kept: only what is reported changes."""
    found, entry = [], parse(["hccs"])[1]
    for flipped in (False, True):
        origin = source.ModelSource(settings)
        if flipped:
            origin.dev.labels = 1 - origin.dev.labels
        calibration, _ = origin.samples()
        own = steps.parameters(entry, calibration, origin)
        found.append(steps.retrained(entry, own, origin, calibration, tmp_path / "checkpoints"))
    assert found[0]["history"] == found[1]["history"]
    assert found[0]["accuracy"] == pytest.approx(1 - found[1]["accuracy"])


@pytest.mark.parametrize("step", ["fidelity", "retrained"])
def test_an_interrupted_comparison_goes_on(settings, tmp_path, step, monkeypatch):
    chosen = parse(["softmax", "ibert"])
    real = getattr(steps, step)

    def interrupted(entry, *arguments):
        if entry.label == "ibert":
            raise KeyboardInterrupt
        return real(entry, *arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(steps, step, interrupted)
        compare(settings, chosen, tmp_path / "out", retrain=step == "retrained", say=silent)
    kept = {
        path.name: json.loads(path.read_text())["stages"] for path in (tmp_path / "out" / "methods").iterdir()
    }
    assert "accuracy" in kept["softmax.json"] and "parameters" in kept["ibert.json"]
    said = []
    found = compare(settings, chosen, tmp_path / "out", retrain=step == "retrained", say=said.append)
    for label in (FLOAT, "softmax", "ibert"):
        assert kept[f"{label}.json"].items() <= found["methods"][label].items()
    assert not any(line.startswith(("float", "softmax")) for line in said)
    # Methods can be added to a finished comparison.
    more = compare(settings, parse(["softmax", "hccs"]), tmp_path / "out", say=silent)
    assert "fidelity" in more["methods"]["hccs"]


def test_processes_share_a_comparison_of_files(finished, tmp_path):
    _, out = finished
    chosen = ComparisonSettings(files=(str(out / "logits.safetensors"),), rows=40)
    found = compare(chosen, parse(["softmax", "hccs"]), tmp_path / "two", jobs=2, say=silent)
    alone = compare(chosen, parse(["softmax", "hccs"]), tmp_path / "one", say=silent)
    assert FLOAT not in found["methods"]
    for label in ("softmax", "hccs"):
        assert found["methods"][label]["fidelity"] == alone["methods"][label]["fidelity"]
        assert "accuracy" not in found["methods"][label]


def test_a_method_that_refuses_is_named_and_the_others_go_on(tmp_path):
    x = np.random.default_rng(0).integers(-90, 90, (1, 2, 40, 16), dtype=np.int8)
    np.savez(tmp_path / "coarse.npz", logits=x, scale=np.full((1, 2), 2.0))  # I-BERT has no constants for it
    chosen, said = ComparisonSettings(files=(str(tmp_path / "coarse.npz"),), rows=20), []
    for _ in range(2):  # the second time nothing is tried again
        found = compare(chosen, parse(["ibert", "hccs"]), tmp_path / "out", say=said.append)
    assert "scale <= 1.67" in found["methods"]["ibert"]["refused"]
    assert "time" in found["methods"]["hccs"]
    assert len([line for line in said if line.startswith("ibert refuses")]) == 1
    text = tables.fidelity_grid(found["methods"]).markdown()
    assert "| ibert | - |" in text
    np.savez(tmp_path / "coarse.npz", logits=x[..., ::-1], scale=np.full((1, 2), 2.0))
    with pytest.raises(FileError, match="the logits that"):  # more methods, but on other rows
        compare(chosen, parse(["softmax"]), tmp_path / "out", say=silent)


def test_a_full_disk_is_no_refusal_of_a_method(finished, tmp_path, monkeypatch):
    _, out = finished
    chosen = ComparisonSettings(files=(str(out / "logits.safetensors"),), rows=40)

    def full(*_):
        raise FileError("space", "none", "Free some.")

    with monkeypatch.context() as patched, pytest.raises(FileError, match="Free some"):
        patched.setattr(steps, "fidelity", full)
        compare(chosen, parse(["hccs"]), tmp_path / "out", say=silent)
    found = compare(chosen, parse(["hccs"]), tmp_path / "out", say=silent)
    assert "fidelity" in found["methods"]["hccs"] and "refused" not in found["methods"]["hccs"]
    record = tmp_path / "out" / "methods" / "hccs.json"
    record.write_text(record.read_text()[:100])
    with pytest.raises(FileError, match=r"hccs.json to be intact JSON.*Delete that file"):
        compare(chosen, parse(["hccs"]), tmp_path / "out", say=silent)


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_after_an_interrupt_the_same_command_goes_on(tmp_path, jobs):
    x = np.random.default_rng(0).integers(-90, 90, (2, 2, 600, 96), dtype=np.int8)
    np.savez(tmp_path / "logits.npz", logits=x, scale=np.full((2, 2), 0.05))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "hccs.cli", "compare", str(tmp_path / "logits.npz"), "--out", str(out)]
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
    pytest.importorskip("matplotlib")
    options = ["--rows", "64", "--sentences", "16", "--examples", "40"]
    command = ["compare", "--out", str(tmp_path / "out"), "--methods", "softmax hccs", *options]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "Fidelity to softmax" in result.output
    assert {"comparison.json", "comparison.md", "curves.png", "accuracy.png", "report.html"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    elements = checked((tmp_path / "out" / "report.html").read_text())
    assert "Accuracy against divergence" in elements.text and elements.names.count("svg") == 3


def test_the_folder_of_a_run_brings_its_task_and_recipe(data, tmp_path):
    from hccs.conversion.run import convert
    from hccs.conversion.settings import Settings

    chosen = Settings(
        str(MODEL), tasks.TASKS["movies"], str(data), sentences=16, refine=False, retraining=RECIPE
    )
    run = convert(chosen, tmp_path / "run", silent)
    source = from_run(tmp_path / "run")
    assert source.retraining == RECIPE and source.task == tasks.TASKS["movies"]
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
    with pytest.raises(ParameterError, match="a method among"):
        parse(["hardmax"])
    assert declared_costs(parse(["hccs:mode=u8_clb"])[1]).divides(64) == 0
    assert declared_costs(parse(["hccs"])[1]).divides(64) == 1
    assert declared_costs(parse(["index_softmax:c=6.6"])[1]).divides(64) == 64
    assert declared_costs(parse(["index_softmax:form=kernel,c=6.6"])[1]).divides(64) == 1
    assert declared_costs(parse(["softmax_s8:output=int16"])[1]).bits_out == 16
    assert declared_costs(parse(["exaq:bits=3"])[1]).table_bytes == 4 * (8 + 64)


def test_bad_input_leaves_nothing_behind(settings, data, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ParameterError, match="a model or files"):
        compare(ComparisonSettings(), METHODS, out, say=silent)
    with pytest.raises(ParameterError, match="at least one sentence"):
        compare(replace(settings, sentences=0), METHODS, out, say=silent)
    with pytest.raises(ModelError, match="a transformers model at"):
        compare(replace(settings, model=str(tmp_path / "nothing")), METHODS, out, say=silent)
    with pytest.raises(FileError):
        compare(ComparisonSettings(files=(str(tmp_path / "none.npz"),)), METHODS, out, say=silent)
    model = load_classifier(str(MODEL), ("negative", "positive"))
    model.model.bert.save_pretrained(tmp_path / "encoder")
    model.tokenizer.save_pretrained(tmp_path / "encoder")
    with pytest.raises(ModelError, match="a fine-tuned classifier"):
        compare(replace(settings, model=str(tmp_path / "encoder")), METHODS, out, say=silent)
    assert not out.exists()
    for arguments in (
        ["a", "b"],
        [str(MODEL)],
        [str(MODEL), "--task", "poetry"],
        ["logits.npz", "--task", "sst2"],
    ):
        result = CliRunner().invoke(app, ["compare", *arguments, "--out", str(out)])
        assert isinstance(result.exception, HccsError)
    assert not out.exists()
    compare(settings, parse(["softmax"]), out, say=silent)
    with pytest.raises(FileError, match="other values of rows"):
        compare(replace(settings, rows=48), METHODS, out, say=silent)
