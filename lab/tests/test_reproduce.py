import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from typer.testing import CliRunner

import hccs.nn
from hccs.cli.app import app
from hccs.conversion import training
from hccs.conversion.data import tasks
from hccs.conversion.training import Recipe
from hccs.errors import FileError, HccsError, ParameterError
from hccs.numbers.modes import Mode
from hccs_lab import surrogates as surrogates_registry
from hccs_lab.compare.entries import parse
from hccs_lab.demo import MODEL
from hccs_lab.figures import surrogates_figure
from hccs_lab.reproduce import (
    experiment,
    plan,
    run,
    stages,
    tables,
)
from hccs_lab.reproduce.experiment import ExperimentRun

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).parents[2]
SHORT = Recipe(epochs=1, learning_rate=1e-5, batch_size=32, evaluations_per_epoch=1)


def write_task(folder, columns, parts):
    folder.mkdir()
    for name, rows in parts.items():
        lines = ["\t".join(columns), *("\t".join(map(str, row)) for row in rows)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The embedded model as encoder, a few of its sentences as SST-2 and as MNLI's premises."""
    folder = tmp_path_factory.mktemp("data")
    source = tasks.load(tasks.TASKS["movies"])
    reviews = {
        part: [(text[0], label) for text, label in zip(examples.texts, examples.labels, strict=True)]
        for part, examples in (("train", source.train.subset(160)), ("dev", source.dev.subset(48)))
    }
    write_task(folder / "sst2", ("sentence", "label"), reviews)
    pairs = {
        name: [(text, "so it is", "neutral") for text, _ in reviews[part]]
        for name, part in (("train", "train"), ("dev_matched", "dev"))
    }
    write_task(folder / "mnli", ("premise", "hypothesis", "label"), pairs)
    words = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=words.get)) + "\n")
    (folder / "tiny").symlink_to(MODEL)
    return folder


@pytest.fixture
def small(monkeypatch):
    """Recipes of seconds."""
    recipe = plan.TaskRecipe(SHORT, 1e-5, retraining_epochs=1, whole_epochs=1, whole_batch=32)
    monkeypatch.setitem(plan.ENCODERS, "tiny", plan.TrainedEncoder("tiny", "BERT-tiny", {"sst2": recipe}))
    for module in (stages, run):
        monkeypatch.setattr(module, "RETRAINING", replace(SHORT, distil=0.5))
    monkeypatch.setattr(experiment, "CALIBRATION_SENTENCES", 16)
    monkeypatch.setattr(stages, "CHECKED", 8)
    monkeypatch.setattr(experiment, "SURROGATE_ROWS", 64)
    monkeypatch.setattr(experiment, "CORRECTION_SENTENCES", 32)
    monkeypatch.setattr(experiment, "UNLABELLED_SENTENCES", 32)
    monkeypatch.setattr(hccs.nn, "refine", partial(hccs.nn.refine, steps=4))


def read(out):
    return json.loads((out / "cells" / "tiny-sst2-0.json").read_text())["stages"]


def test_an_experiment_measures_every_stage_from_one_float_model(data, small, tmp_path):
    wanted = tuple(name for name in stages.STAGES if not name.startswith("surrogates"))
    own = plan.Plan(data, tmp_path / "out", tmp_path / "work", wanted)
    chosen, said = plan.experiments(["tiny"], ["sst2"], 1), []
    run.run(own, chosen, say=said.append)
    record = read(own.out)
    assert list(record) == list(wanted)
    told = [line.split(" tiny-sst2-0 ")[1] for line in said]
    assert [line.split(" …")[0] for line in told[::2]] == list(wanted)  # when each begins
    assert [line.split(":")[0] for line in told[1::2]] == list(wanted)  # and when it ends
    assert told[2] == f"one line … 2 of {len(wanted)}"
    right = record["float"]["accuracy"]
    assert record["float"]["error"] == pytest.approx((right * (1 - right) / 48) ** 0.5)
    for form in ("one line", "two lines"):
        found = record[form][form]
        assert set(found["modes"]) == {mode.value for mode in Mode} and len(found["kl"]) == 4
        measured = found["modes"]["i16_div"]
        assert measured["points"] == pytest.approx(100 * (measured["accuracy"] - right))
    assert sum(record["two lines"]["two lines"]["kl"]) < 0.5 * sum(record["one line"]["one line"]["kl"])
    assert record["whole two lines"]["equal"] == record["whole trained"]["equal"] == 1.0
    delivered = record["mended"]["two lines"]["delivered"]
    assert delivered["steps"][0] == "calibrated"
    assert delivered["points"] == record["mended"]["two lines"][delivered["steps"][-1]]["points"]
    assert record["retrained"]["fidelity"]["kl_before"] and len(record["retrained"]["history"]) == 1
    retrained = record["retrained two lines"]
    assert retrained["points"] == retrained["modes"]["i16_div"]["points"] and len(retrained["kl_after"]) == 4
    assert {"points", "held"} <= set(record["unlabelled"]["one line"])

    # Nothing is done twice, and every table can be made.
    before = (own.out / "cells" / "tiny-sst2-0.json").read_bytes()
    run.run(own, chosen, say=said.append)
    assert (own.out / "cells" / "tiny-sst2-0.json").read_bytes() == before
    page, merged = tmp_path / "page.md", tmp_path / "all.json"
    page.write_text("a\n<!-- table: accuracy -->\nold\n<!-- end of table -->\nb\n")
    command = ["reproduce", "tables", str(own.out), "--page", str(page), "--json", str(merged)]
    pytest.importorskip("matplotlib")
    command += ["--figures", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert page.read_text().startswith("a\n<!-- table: accuracy -->\n| model, task |")
    assert f"| BERT-tiny, SST-2 | 1 | {right:.4f} ± " in page.read_text()
    assert "0.825 / 0.619 / 0.822" in page.read_text() and "old" not in page.read_text()
    assert all(f"### {name}\n" in result.output for name in tables.TABLES)
    assert "fidelity" not in json.loads(merged.read_text())["cells"]["tiny-sst2-0"]["retrained"]
    assert (tmp_path / "tiny-sst2-0.png").stat().st_size > 10_000


def test_softmax_replacements_are_stages_of_their_own(data, small, tmp_path, monkeypatch):
    first = ("surrogates hccs", "surrogates hccs:mode=u8_lin", "surrogates hccs_two_lines")
    last = ("surrogates retrained hccs_two_lines", "surrogates retrained rela")
    chosen, said = plan.experiments(["tiny"], ["sst2"], 1), []
    own = plan.Plan(data, tmp_path / "out", tmp_path / "work", ("float", *first, last[1]))

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    # A run that is cut off keeps the methods that have ended.
    with monkeypatch.context() as patch:
        patch.setattr(stages, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            run.run(own, chosen, say=said.append)
    assert list(read(own.out)) == ["float", *first]
    refused = ("surrogates aie4ml_exp", "surrogates retrained ita")
    every = ["float", *first, refused[0], last[0], refused[1], last[1]]
    own = replace(own, stages=tuple(every))
    fit = ExperimentRun.fitted
    monkeypatch.setattr(
        ExperimentRun, "fitted", lambda work, method: fit(work, method) if method != "aie4ml_exp" else no()
    )
    train = stages.train

    def trained(model, data, held, recipe, where, **options):
        return no() if where.name.endswith("-ita.pt") else train(model, data, held, recipe, where, **options)

    monkeypatch.setattr(stages, "train", trained)  # by the first batch, which a method cannot serve
    run.run(own, chosen, say=said.append)
    record = read(own.out)
    assert list(record) == every
    one, linear, two = (record[name] for name in first)
    assert two["distances"]["kl_renormalised"] < 0.5 * one["distances"]["kl_renormalised"]
    assert linear["distances"]["kl"] != one["distances"]["kl"]  # the mode is the label's
    assert linear["distances"]["rank_correlation"] == pytest.approx(
        one["distances"]["rank_correlation"], abs=0.05
    )
    for name in last:
        assert {"points", "points_error", "held"} <= set(record[name]) and len(record[name]["history"]) == 1
    assert all(any(f"{name}: refused" in line for line in said) for name in refused)
    found = tables.groups({"tiny-sst2-0": record})
    made = tables.every_table({"tiny-sst2-0": record}, {})
    assert f"| hccs_two_lines | {two['distances']['kl_renormalised']:.4f} |" in made["surrogates, KL"]
    assert f"| hccs | {one['points']:+.2f} ± " in made["surrogates, without training"]
    assert "| aie4ml_exp | refused |" in made["surrogates, without training"]
    assert "ibert" not in made["surrogates, retrained"]  # which nobody retrained
    assert "| ita | refused |" in made["surrogates, retrained"]
    assert f"| rela | {record[last[1]]['points']:+.2f} ± " in made["surrogates, retrained"]
    pytest.importorskip("matplotlib")
    assert surrogates_figure(found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert not surrogates_figure([replace(found[0], records=())], tmp_path / "none.png")


def no():
    raise ParameterError("steps up to 0.347", "1.0", "Take another method.")


def test_names_of_many_stages():
    assert stages.named(["float", "surrogates"]) == (
        "float",
        *(f"surrogates {m}" for m in plan.LABELS),
    )
    every = stages.named([])
    assert "surrogates hccs:mode=u8_lin" in every and "surrogates retrained hccs" not in every
    known = {entry.label for entry in parse(plan.LABELS)}
    assert set(plan.RETRAINED_LABELS) == known - {"softmax"}
    assert set(surrogates_registry.names()) <= {label.partition(":")[0] for label in known}


def test_a_stage_that_fails_leaves_the_others(data, small, tmp_path, monkeypatch):
    def broken(work):
        raise RuntimeError("out of memory")

    monkeypatch.setitem(stages.STAGES, "one line", broken)
    monkeypatch.setitem(stages.STAGES, "two lines", lambda work: {"accuracy": 0.5, "error": 0.1})
    own = plan.Plan(data, tmp_path / "out", tmp_path / "work", ("float", "one line", "two lines"))
    chosen, said = plan.experiments(["tiny"], ["sst2"], 1), []
    with pytest.raises(HccsError, match=r"tiny-sst2-0 one line.*tries them again"):
        run.run(own, chosen, say=said.append)
    assert any("one line failed: RuntimeError: out of memory" in line for line in said)
    first = read(own.out)
    assert list(first) == ["float", "two lines"]
    # The float model is kept: a stage that is added starts from it.
    monkeypatch.setattr(ExperimentRun, "fine_tuned", broken)
    monkeypatch.setitem(stages.STAGES, "one line", lambda work: work.measured(work.model))
    run.run(own, chosen, say=said.append)
    assert read(own.out)["one line"]["accuracy"] == first["float"]["accuracy"]
    assert read(own.out)["one line"]["points"] == 0.0


def test_a_killed_float_stage_goes_on_and_the_time_of_other_seeds_is_an_estimate(
    data, small, tmp_path, monkeypatch
):
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    own = plan.Plan(data, tmp_path / "out", tmp_path / "work", ("float",))
    chosen, said = plan.experiments(["tiny"], ["sst2"], 2), []
    whole = replace(own, out=tmp_path / "once", work=tmp_path / "once")
    run.run(whole, chosen[:1], say=said.append)
    real, calls = training.Best.see, []

    def killed(best, model, score):
        calls.append(score)
        if len(calls) > 1:  # the first is that of the weights before training
            raise KeyboardInterrupt
        real(best, model, score)

    monkeypatch.setattr(training.Best, "see", killed)
    with pytest.raises(KeyboardInterrupt):
        run.run(own, chosen[:1], say=said.append)
    assert calls and list((own.work / "checkpoints").glob("tiny-sst2-0-float.pt"))
    monkeypatch.setattr(training.Best, "see", real)
    said.clear()
    run.run(own, chosen[:1], say=said.append)
    assert any(line.startswith("tiny-sst2-0: goes on from step ") for line in said)
    assert read(own.out) == read(whole.out)
    assert not list((own.work / "checkpoints").iterdir())
    cell = json.loads(own.cell(chosen[0]).read_text())
    own.cell(chosen[0]).write_text(json.dumps({**cell, "seconds": {"float": 3700.0}}))
    said.clear()
    run.run(own, chosen, say=said.append)
    assert any("tiny-sst2-1 float … 1 of 1, about 1 h 1 min for the rest" in line for line in said)


def test_changed_data_and_encoders_are_refused(data, small, tmp_path, monkeypatch):
    monkeypatch.setitem(stages.STAGES, "float", lambda work: {"accuracy": 0.5, "error": 0.1})
    copied = tmp_path / "data"
    shutil.copytree(data, copied)
    own = plan.Plan(copied, tmp_path / "out", tmp_path / "work", ("float",))
    chosen = plan.experiments(["tiny"], ["sst2"], 1)
    run.run(own, chosen, say=lambda _: None)
    run.run(replace(own, data=data), chosen, say=lambda _: None)  # the same data elsewhere
    for changed, name in (("sst2/dev.tsv", "sst2"), ("tiny/config.json", "tiny"), ("vocab.txt", "vocab.txt")):
        kept = (copied / changed).read_bytes()
        (copied / changed).write_bytes(kept + b"\n")
        for other in (own, replace(own, out=tmp_path / "new")):  # its models start from other data, too
            with pytest.raises(FileError, match=f"the {name} that .* was begun with; got others"):
                run.run(other, chosen, say=lambda _: None)
        (copied / changed).write_bytes(kept)
    run.run(own, chosen, say=lambda _: None)


def test_the_folder_of_one_task_stands_for_its_parent(data, small, tmp_path, monkeypatch):
    monkeypatch.setitem(stages.STAGES, "float", lambda work: {"accuracy": 0.5, "error": 0.1})
    monkeypatch.chdir(data / "sst2")
    for i, folder in enumerate((data, data / "sst2", Path("."))):
        command = ["reproduce", "run", "--data", str(folder), "--out", str(tmp_path / f"{i}"), "--seeds", "1"]
        command += ["--models", "tiny", "--tasks", "sst2", "--stages", "float"]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert (tmp_path / f"{i}" / "cells" / "tiny-sst2-0.json").exists()


def test_dev_chooses_nothing(data, small, tmp_path):
    """With other dev labels the same weights come out: only what is reported changes."""
    found = []
    for flipped in (False, True):
        own = plan.Plan(data, tmp_path / f"out{flipped}", tmp_path / "work", ("float",))
        work = ExperimentRun(own, plan.Experiment("tiny", "sst2", 0))
        if flipped:
            work.sets["dev"].labels = 1 - work.sets["dev"].labels
        found.append((work.fine_tuned(), {k: v.clone() for k, v in work.model.state_dict().items()}))
    (one, weights), (other, others) = found
    assert one["accuracy"] == pytest.approx(1 - other["accuracy"])
    assert one["history"] == other["history"]
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_names_are_checked_before_anything_is_done(data, small, tmp_path):
    out = tmp_path / "out"
    command = ["reproduce", "run", "--data", str(data), "--out", str(out), "--models", "tiny"]
    for options, message in (
        (["--stages", "float,flaot"], "stages among .*whole trained.*; got 'flaot'"),
        (["--tasks", "sst3"], "tasks among .*; got 'sst3'"),
        (["--tasks", "mnli"], "a task among those of tiny; got mnli"),
        (["--models", "huge"], "models among .*tiny; got 'huge'"),
        (["--data", str(tmp_path / "none"), "--tasks", "sst2"], "sst2, tiny, vocab.txt in .*none"),
    ):
        result = CliRunner().invoke(app, [*command, *options])
        assert isinstance(result.exception, HccsError)
        assert re.search(message, str(result.exception)), result.exception
    assert not out.exists()


def test_refusals(tmp_path):
    with pytest.raises(FileError, match="Run hccs reproduce run first"):
        tables.load(tmp_path)
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "tiny-sst2-0.json").write_text("{")
    with pytest.raises(FileError, match=r"tiny-sst2-0.json to be intact JSON.*Delete that file"):
        tables.load(tmp_path)
    (tmp_path / "page.md").write_text("no marks")
    with pytest.raises(FileError, match="marks such as"):
        tables.fill(tmp_path / "page.md", {})


def test_means_errors_and_spreads():
    records = [
        {
            "float": {"accuracy": accuracy, "error": 0.01},
            "retrained": {"accuracy": accuracy + 0.01, "error": 0.01, "points": points, "points_error": 0.5},
        }
        for accuracy, points in ((0.8, 1.0), (0.82, -1.0))
    ]
    (group,) = tables.groups({f"tiny-sst2-{seed}": record for seed, record in enumerate(records)})
    assert group.accuracy("float") == "0.8100 ± 0.0100 (0.0141)"
    assert group.points("retrained") == "+0.00 ± 0.50 (1.41)"
    assert group.points("whole trained") == tables.NOTHING
    shown = tables.TABLES["accuracy"]([group])
    assert "one line, retrained" in shown and "all integers, trained" not in shown


def test_the_pages_marks_are_tables():
    known = {*tables.TABLES, *tables.SURROGATE_TABLES, "long rows", "long rows, KL"}
    for name in ("lab/docs/reproduction.md", "docs/integer_model.md", "lab/docs/surrogates.md"):
        page = (ROOT / name).read_text()
        marked = re.findall(r"<!-- table: (.*?) -->", page)
        assert marked and set(marked) <= known
        assert page.count(tables.END) == len(marked)
        filled = tables.filled(page, dict.fromkeys(marked, "| new |"))
        assert filled.count("| new |\n<!-- end of table -->") == len(marked)
