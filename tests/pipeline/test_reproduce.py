import json
import re
import shutil
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from typer.testing import CliRunner

import hccs.nn
from hccs.cli.app import app
from hccs.errors import FileError, HccsError, ParameterError
from hccs.pipeline import models
from hccs.pipeline.convert.demo import MODEL
from hccs.pipeline.data import tasks
from hccs.pipeline.report import fidelity
from hccs.pipeline.reproduce import accuracy, integers, tables
from hccs.pipeline.reproduce.experiment import ExperimentRun
from hccs.pipeline.training import Recipe

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A reproduction in small: the embedded model as encoder, a few of its sentences as SST-2."""
    source = tasks.load(tasks.TASKS["movies"])
    (tmp_path / "data" / "sst2").mkdir(parents=True)
    for name, examples in (("train", source.train.subset(64)), ("dev", source.dev.subset(48))):
        rows = [f"{text[0]}\t{label}" for text, label in zip(examples.texts, examples.labels, strict=True)]
        (tmp_path / "data" / "sst2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    words = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    (tmp_path / "data" / "vocab.txt").write_text("\n".join(sorted(words, key=words.get)) + "\n")
    (tmp_path / "data" / "tiny").symlink_to(MODEL)
    short = Recipe(epochs=1, learning_rate=1e-5, batch_size=32, evaluations_per_epoch=1)
    monkeypatch.setitem(
        accuracy.ENCODERS, "tiny", accuracy.Encoder("tiny", {"sst2": accuracy.TaskRecipe(short, 1e-5)})
    )
    monkeypatch.setattr(accuracy, "RETRAINING", replace(short, distil=0.5))
    monkeypatch.setattr(accuracy, "CALIBRATION_SENTENCES", 32)
    monkeypatch.setattr(hccs.nn, "refine", partial(hccs.nn.refine, steps=4))
    return accuracy.Plan(tmp_path / "data", tmp_path / "out", ("head", "float-same-budget"), keep_models=True)


def test_an_experiment_is_run_once_and_tabulated(plan):
    chosen = accuracy.experiments(["tiny"], ["sst2"], 1)
    accuracy.run(plan, chosen)
    path = plan.out / "cells" / "tiny-sst2-0.json"
    first = path.read_text()
    accuracy.run(plan, chosen)
    assert path.read_text() == first
    record = json.loads(first)["stages"]
    assert set(record["retrained/head"]["modes"]) == {"i16_div", "i16_clb", "u8_div", "u8_clb"}
    tables.write(plan.out)
    text = (plan.out / "accuracy.md").read_text()
    assert f"| sst2 | tiny | 1 | {record['float']['accuracy']:.4f} |" in text
    assert "0.825 / 0.619 / 0.822" in text

    fidelity.measure_cells(plan, chosen)
    found = json.loads((plan.out / "fidelity" / "tiny-sst2-0.json").read_text())
    assert len(found["kl_before"]) == len(found["kl_after"]) == 4
    assert found["kl_by_mode"]["u8_clb"]["kl_renormalised"] >= 0
    pytest.importorskip("matplotlib")
    assert fidelity.draw_cells(plan.out)[0].stat().st_size > 10_000


def test_whole_encoders_are_measured_beside_float_and_hccs(plan, monkeypatch):
    monkeypatch.setattr(integers, "RETRAINING", accuracy.RETRAINING)
    said, chosen = [], accuracy.experiments(["tiny"], ["sst2"], 1)
    integers.run(plan, chosen, say=said.append)
    integers.run(plan, chosen, say=said.append)  # all of it is recorded
    assert [line.split(":")[0] for line in said] == [f"tiny-sst2-0 {stage}" for stage in integers.STAGES]
    integers.write(plan.out, "hccs reproduce integers")
    found = json.loads((plan.out / "whole_encoder.json").read_text())
    row = found["summary"]["tiny-sst2"]
    assert row["equal answers"] == 1.0 and row["seeds"] == 1
    stages = found["cells"]["tiny-sst2-0"]
    assert row["trained against float, points"][0] == pytest.approx(
        100 * (stages["integers/trained"]["whole"] - stages["float"]["accuracy"])
    )
    assert stages["integers/trained"]["compared"] == 48
    first = f"| tiny, sst2 | {stages['float']['accuracy']:.4f} |"
    assert first in (plan.out / "whole_encoder.md").read_text()


def test_interrupted_experiments_keep_their_finished_stages(plan, monkeypatch):
    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(ExperimentRun, "retrained", interrupted)
        accuracy.run(plan, accuracy.experiments(["tiny"], ["sst2"], 1))
    before = json.loads((plan.out / "cells" / "tiny-sst2-0.json").read_text())["stages"]
    assert {"float", "without"} <= set(before)
    accuracy.run(plan, accuracy.experiments(["tiny"], ["sst2"], 1))
    after = json.loads((plan.out / "cells" / "tiny-sst2-0.json").read_text())["stages"]
    assert after["float"] == before["float"] and "retrained/head" in after


def read(plan):
    return json.loads((plan.out / "cells" / "tiny-sst2-0.json").read_text())["stages"]


@pytest.mark.parametrize("kept", [True, False])
def test_variants_are_added_to_what_is_there(plan, kept, monkeypatch):
    # The float model is fine-tuned and loaded as ever; the long stages after it are stubs.
    monkeypatch.setattr(ExperimentRun, "without_retraining", lambda self: {})
    monkeypatch.setattr(
        ExperimentRun, "retrained", lambda self, name, _: {"accuracy": models.accuracy(self.model, self.dev)}
    )
    chosen = accuracy.experiments(["tiny"], ["sst2"], 1)
    accuracy.run(replace(plan, variants=("float-same-budget",), keep_models=False), chosen)
    first = read(plan)
    if (
        not kept
    ):  # as by an earlier version: no model, no settings, stages by other names beside their seconds
        shutil.rmtree(plan.out / "models")
        (plan.out / "settings.json").unlink()
        old = {key.replace("float-same-budget", "float, same budget"): value for key, value in first.items()}
        (plan.out / "cells" / "tiny-sst2-0.json").write_text(json.dumps({**old, "seconds": {}}))
        assert accuracy.load_results(plan.out)["cells"]["tiny-sst2-0"] == first
    accuracy.run(replace(plan, variants=("float-same-budget", "paper"), keep_models=False), chosen)
    # The same model as before: kept, or fine-tuned again to the same weights.
    assert read(plan) == {**first, "retrained/paper": first["retrained/float-same-budget"]}


def test_names_are_checked_before_anything_is_done(plan, tmp_path):
    command = ["reproduce", "accuracy", "--data", str(plan.data), "--out", str(plan.out), "--models", "tiny"]
    for options, message in (
        (["--variants", "head,hed"], "variants among .*float-same-budget; got 'hed'"),
        (["--tasks", "sst3"], "tasks among .*; got 'sst3'"),
        (["--tasks", "mnli"], "a task among those of tiny; got mnli"),
        (["--models", "huge"], "models among .*tiny; got 'huge'"),
        (["--data", str(tmp_path / "none"), "--tasks", "sst2"], "sst2, tiny, vocab.txt in .*none"),
    ):
        result = CliRunner().invoke(app, [*command, *options])
        assert isinstance(result.exception, HccsError)
        assert re.search(message, str(result.exception)), result.exception
    assert not plan.out.exists()


def test_a_damaged_record_says_what_to_do(plan):
    (plan.out / "cells").mkdir(parents=True)
    (plan.out / "cells" / "tiny-sst2-0.json").write_text("{")
    with pytest.raises(FileError, match=r"tiny-sst2-0.json to be intact JSON.*Delete that file"):
        accuracy.run(plan, accuracy.experiments(["tiny"], ["sst2"], 1))
    with pytest.raises(FileError, match=r"tiny-sst2-0.json to be intact JSON"):
        tables.write(plan.out)


def test_refusals(tmp_path):
    with pytest.raises(ParameterError, match="models among"):
        accuracy.experiments(["huge"], ["sst2"], 1)
    with pytest.raises(FileError, match="--keep-models"):
        fidelity.draw_cells(tmp_path)
