"""Runs that were stopped at an awkward moment, or whose model has changed since."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hccs
from hccs.conversion.fingerprints import of_weights
from hccs.conversion.models import load_classifier
from hccs.conversion.run import convert, finish
from hccs.errors import FileError, ModelError
from hccs_lab.demo import MODEL
from tests.conversion.test_convert import RECIPE, settings, silent, write_data

pytestmark = pytest.mark.filterwarnings("ignore")


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def changed_head(folder):
    model = load_classifier(str(folder), ("negative", "positive")).model
    with torch.no_grad():
        model.classifier.weight[0, 0] += 1
    model.save_pretrained(folder)


def changed_config(**changes):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


@pytest.mark.parametrize(
    "change",
    [changed_head, changed_config(hidden_act="relu"), changed_config(layer_norm_eps=1e-3)],
    ids=["head", "activation", "epsilon"],
)
def test_a_run_is_not_resumed_with_another_head_or_configuration(data, tmp_path, change):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    chosen = settings(data, model=str(model), retraining=None)

    def stops(line):
        if line.startswith("collect"):
            raise Killed

    for _ in range(2):  # the same model is taken up
        with pytest.raises(Killed):
            convert(chosen, tmp_path / "run", stops)
    change(model)
    with pytest.raises(FileError, match="the weights that"):
        convert(chosen, tmp_path / "run", silent)


def test_where_a_model_came_from_changes_nothing(tmp_path):
    loaded = load_classifier(str(MODEL), ("negative", "positive"))
    first = loaded.model
    for part in (first, loaded.tokenizer):
        part.save_pretrained(tmp_path / "copy")
    second = load_classifier(str(tmp_path / "copy"), ("negative", "positive")).model
    assert of_weights(first) == of_weights(second)
    with torch.no_grad():
        second.classifier.weight[0, 0] += 1
    assert of_weights(first) != of_weights(second)
    assert of_weights(first, with_head=False) == of_weights(second, with_head=False)


def test_a_kill_at_any_write_of_the_end_loses_no_file(data, tmp_path):
    """A finished run is killed before each file of its last part appears; the same command brings all."""
    out = tmp_path / "run"
    convert(settings(data, retraining=RECIPE), out, silent)
    ending = {"report.html", "README.md"}
    everything = {path.name for path in out.rglob("*")}
    assert ending <= everything
    really = os.replace
    for stop in sorted(ending):
        for path in out.rglob("*"):
            if path.name in ending:
                path.unlink()

        def stops(source, target, stop=stop):
            if str(target).endswith(stop):
                raise Killed
            really(source, target)

        with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
            patched.setattr(os, "replace", stops)
            finish(out, silent)
        finish(out, silent)
        assert {path.name for path in out.rglob("*")} == everything, stop


def test_a_new_head_that_does_badly_is_not_asked_about_the_order_of_labels(data, tmp_path):
    """Dev labels are the wrong way round: both heads score below chance, a new one in the data's order."""
    turned = tmp_path / "data"
    shutil.copytree(data, turned)
    lines = (turned / "dev.tsv").read_text().splitlines()
    rows = [f"{line[:-1]}{1 - int(line[-1])}" for line in lines[1:]]
    (turned / "dev.tsv").write_text("\n".join([lines[0], *rows]) + "\n")
    tuning = replace(RECIPE, epochs=4, learning_rate=1e-3, distil=0.0)
    for new_head in (True, False):
        chosen = settings(turned, new_head=new_head, fine_tuning=tuning, retraining=None, integer="attention")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            found = convert(chosen, tmp_path / str(new_head), silent).results.float_model
        assert found.score.value < 0.5 and found.fine_tuned == new_head
        assert any("order of its outputs" in line for line in found.warnings) == (not new_head)


class Adapter(torch.nn.Module):
    """A low-rank adapter around a layer, as peft makes them."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = torch.nn.Linear(base_layer.in_features, 2, bias=False)
        self.lora_B = torch.nn.Linear(2, base_layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def test_a_live_model_with_adapters_is_refused_by_name(tmp_path):
    loaded = load_classifier(str(MODEL), ("negative", "positive"))
    attention = loaded.model.bert.encoder.layer[0].attention.self
    attention.query = Adapter(attention.query)
    with pytest.raises(
        ModelError, match=r"BertForSequenceClassification with .*query\.base_layer.*merge_and_unload"
    ):
        hccs.convert(loaded.model, ["a", "b"], out=tmp_path / "run", tokenizer=loaded.tokenizer)
    with pytest.raises(ModelError, match="got Adapter with Adapter"):
        hccs.convert(attention.query, ["a", "b"], out=tmp_path / "run", tokenizer=loaded.tokenizer)
    assert not (tmp_path / "run" / "given").exists()


def test_peft_models_are_refused_by_name(tmp_path):
    peft = pytest.importorskip("peft")
    loaded = load_classifier(str(MODEL), ("negative", "positive"))
    lora = peft.get_peft_model(loaded.model, peft.LoraConfig(target_modules=["query", "value"]))
    for model in (lora, lora.get_base_model()):
        with pytest.raises(ModelError, match="merge_and_unload"):
            hccs.convert(model, ["a", "b"], out=tmp_path / "run", tokenizer=loaded.tokenizer)


def test_a_model_that_was_converted_before_is_no_adapter(data, tmp_path):
    loaded = load_classifier(str(MODEL), ("negative", "positive"))
    texts = [line.split("\t")[0] for line in (data / "train.tsv").read_text().splitlines()[1:]]
    given = {"tokenizer": loaded.tokenizer, "sentences": 16, "refine": False, "retraining": None,
             "integer": "attention", "reconstruct": False, "say": silent}  # fmt: skip
    table = hccs.convert(loaded.model, texts, out=tmp_path / "first", **given).tables["delivered"]
    hccs.nn.attach(loaded.model, table)
    assert hccs.convert(loaded.model, texts, out=tmp_path / "second", **given).scores["float_model"] == 1.0


def test_the_longest_sequence_is_chosen_from_the_data_and_told(data, tmp_path):
    """Both fronts: a call in Python, and the command."""
    from typer.testing import CliRunner

    from hccs.cli.app import app

    loaded = load_classifier(str(MODEL), ("negative", "positive"))
    texts = ["a fine film"] * 30 + ["dull"] * 30
    said = []
    found = hccs.convert(
        loaded.model, texts, out=tmp_path / "call", tokenizer=loaded.tokenizer, retraining=None,
        integer="attention", reconstruct=False, refine=False, say=said.append,
    )  # fmt: skip
    assert found.settings.task.n == 16 and any(line.startswith("n = 16 tokens") for line in said)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    command = ["convert", str(MODEL), "--unlabelled", str(tmp_path / "texts.txt"), "--no-retrain"]
    command += ["--integer", "attention", "--no-refine", "--no-reconstruct"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert "n = 16 tokens" in done.output
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["task"]["n"] == 16
    told = CliRunner().invoke(
        app, [*command, "--n", "24", "--out", str(tmp_path / "told")], catch_exceptions=False
    )
    assert "n = " not in told.output.split("collect")[0]
    assert json.loads((tmp_path / "told" / "settings.json").read_text())["task"]["n"] == 24
