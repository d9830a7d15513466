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
from hccs.pipeline.convert.demo import MODEL
from hccs.pipeline.data import tasks
from hccs.pipeline.report import fidelity
from hccs.pipeline.reproduce import accuracy, tables
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


def test_interrupted_experiments_keep_their_finished_stages(plan, monkeypatch):
    from hccs.pipeline.reproduce.experiment import ExperimentRun

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


@pytest.mark.parametrize("kept", ["kept", "deleted", "of an earlier version"])
def test_variants_are_added_to_what_is_there(plan, kept):
    chosen = accuracy.experiments(["tiny"], ["sst2"], 1)
    accuracy.run(replace(plan, variants=("float-same-budget",), keep_models=False), chosen)
    first = read(plan)
    if kept != "kept":
        shutil.rmtree(plan.out / "models")
    if kept == "of an earlier version":  # no settings, and the stages by other names beside their seconds
        (plan.out / "settings.json").unlink()
        old = {key.replace("float-same-budget", "float, same budget"): value for key, value in first.items()}
        (plan.out / "cells" / "tiny-sst2-0.json").write_text(json.dumps({**old, "seconds": {}}))
    accuracy.run(replace(plan, variants=("paper",), keep_models=False), chosen)
    assert read(plan).items() >= first.items()
    assert set(read(plan)) == {*first, "retrained/paper"}
    tables.write(plan.out)
    score = 100 * (first["retrained/float-same-budget"]["accuracy"] - first["float"]["accuracy"])
    assert f"{score:+.2f}" in (plan.out / "accuracy.md").read_text().splitlines()[-1]


def test_names_are_checked_before_anything_is_done(plan, tmp_path):
    command = ["reproduce", "accuracy", "--data", str(plan.data), "--out", str(plan.out), "--models", "tiny"]
    for options, message in (
        (["--variants", "head,hed"], "variants among .*float-same-budget; got 'hed'"),
        (["--tasks", "sst3"], "tasks among .*; got 'sst3'"),
        (["--tasks", "mnli"], "tasks among sst2; got 'mnli'"),
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
