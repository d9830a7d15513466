import json
import re
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from typer.testing import CliRunner

import hccs.nn
from hccs.cli.app import app
from hccs.errors import FileError, HccsError, ParameterError
from hccs.numbers.modes import Mode
from hccs.pipeline.convert.demo import MODEL
from hccs.pipeline.data import tasks
from hccs.pipeline.reproduce import experiment, plan, run, stages
from hccs.pipeline.training import Recipe

pytestmark = pytest.mark.filterwarnings("ignore")

SHORT = Recipe(epochs=1, learning_rate=1e-5, batch_size=32, evaluations_per_epoch=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The embedded model as encoder, a few of its sentences as SST-2."""
    folder = tmp_path_factory.mktemp("data")
    source = tasks.load(tasks.TASKS["movies"])
    (folder / "sst2").mkdir()
    for name, examples in (("train", source.train.subset(64)), ("dev", source.dev.subset(48))):
        rows = [f"{text[0]}\t{label}" for text, label in zip(examples.texts, examples.labels, strict=True)]
        (folder / "sst2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    words = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=words.get)) + "\n")
    (folder / "tiny").symlink_to(MODEL)
    return folder


@pytest.fixture
def small(monkeypatch):
    """Recipes of seconds."""
    recipe = plan.TaskRecipe(SHORT, 1e-5, whole_epochs=1, whole_batch=32)
    monkeypatch.setitem(plan.ENCODERS, "tiny", plan.Encoder("tiny", "BERT-tiny", {"sst2": recipe}))
    for module in (stages, run):
        monkeypatch.setattr(module, "RETRAINING", replace(SHORT, distil=0.5))
    monkeypatch.setattr(experiment, "CALIBRATION_SENTENCES", 16)
    monkeypatch.setattr(experiment, "MENDING_SENTENCES", 32)
    monkeypatch.setattr(hccs.nn, "refine", partial(hccs.nn.refine, steps=4))


def read(out):
    return json.loads((out / "cells" / "tiny-sst2-0.json").read_text())["stages"]


def test_an_experiment_measures_every_stage_from_one_float_model(data, small, tmp_path):
    own = plan.Plan(data, tmp_path / "out", tmp_path / "work", tuple(stages.STAGES))
    chosen, said = plan.experiments(["tiny"], ["sst2"], 1), []
    run.run(own, chosen, say=said.append)
    print("\n".join(said))
    record = read(own.out)
    assert list(record) == list(stages.STAGES)
