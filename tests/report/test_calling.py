"""`hccs.convert` from Python: every form of data, what it returns, the card, and models that restore HCCS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
typer_testing = pytest.importorskip("typer.testing")

import hccs
import hccs.nn
from hccs.conversion.card import card
from hccs.conversion.converted import Converted
from hccs.conversion.data.sources import given_as, parts_of
from hccs.conversion.data.tasks import custom_task, load
from hccs.errors import DataError
from tests.report.conftest import LABELS
from tests.report.wellformed import checked

pytestmark = pytest.mark.filterwarnings("ignore")
runner = typer_testing.CliRunner()


def test_what_a_conversion_returns(finished, tmp_path):
    found, _ = finished
    assert list(found.tables) == ["calibrated", "delivered"]
    assert found.tables["delivered"].shape == (2, 2) and found.tables["delivered"].qkv_scale is not None
    assert found.summary.startswith("model on train reaches") and "all in integers" in found.summary
    words = "".join(checked(found._repr_html_()).text)
    assert found.summary in words and all(f"{100 * s:.2f} %" in words for s in found.scores.values())
    found.report.unlink()
    assert found.report.exists()


def test_the_model_has_a_card(finished):
    found, _ = finished
    card = (found.model / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n") and "- hccs" in card
    for name in ("float_model", "integer"):
        assert f"{100 * found.scores[name]:.2f} %" in card
    assert f"hccs convert {found.folder / 'given' / 'model'}" in card


def test_names_in_the_card_stay_text(finished, tmp_path):
    """A model's folder and a metric whose names are markup."""
    found, _ = finished
    folder = tmp_path / "copy"
    shutil.copytree(found.folder, folder)
    for name, change in (
        ("settings.json", {"model": "given/<img src=x>*a*|b[c](d)`e`"}),
        ("results.json", {"metric": 'a: "b"_<i>'}),
    ):
        content = json.loads((folder / name).read_text())
        (content if name == "settings.json" else content["stages"]["float_model"]).update(change)
        (folder / name).write_text(json.dumps(content))
    text = card(Converted(folder))
    title = next(line for line in text.splitlines() if line.startswith("# "))
    assert title == r"# &lt;img src=x&gt;\*a\*\|b\[c\](d)\`e\`, converted by hccs"
    assert '- "a: \\"b\\"_<i>"' in text.split("---")[1]  # YAML reads a string
    outside = text.split("## Made by")[0].split("---", 2)[2]
    assert "<img" not in outside and "<i>" not in outside
    command = text.split("## Made by")[1]
    assert command.count("```sh\n") == 1 and command.rstrip().endswith("\n```")


def test_a_pipeline_on_the_delivered_folder_runs_hccs(finished, material):
    found, _ = finished
    text = material.rows(1, 5)[0][0]
    classify = transformers.pipeline("text-classification", model=str(found.model), device="cpu", top_k=None)
    scores = {answer["label"]: answer["score"] for answer in classify(text)[0]}
    batch = material.tokenizer(text, return_tensors="pt")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(found.model)
    assert hccs.nn.current_table(model) == found.tables["delivered"]
    with torch.no_grad():
        integer = model(**batch).logits.softmax(-1)[0].tolist()
        floating = hccs.nn.detach(model)(**batch).logits.softmax(-1)[0].tolist()
    assert [scores[label] for label in LABELS] == pytest.approx(integer, abs=1e-6)
    assert integer != pytest.approx(floating, abs=1e-6)


def test_a_model_from_the_hub_runs_hccs(finished, material, tmp_path):
    """A cache as downloading leaves it, and no network: the name alone restores the model."""
    found, _ = finished
    cache = tmp_path / "hub" / "models--somebody--converted"
    shutil.copytree(found.model, cache / "snapshots" / ("a" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("a" * 40)
    program = (
        "import hccs.nn, json; from transformers import pipeline, logging; logging.set_verbosity_error()\n"
        "p = pipeline('text-classification', model='somebody/converted', device='cpu', top_k=None)\n"
        f"print(json.dumps([hccs.nn.current_table(p.model).B.tolist(), p({material.rows(1, 5)[0][0]!r})]))"
    )
    own = {
        **os.environ,
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
    }
    done = subprocess.run([sys.executable, "-c", program], env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    B, answers = json.loads(done.stdout.splitlines()[-1])
    assert found.tables["delivered"].B.tolist() == B
    assert {answer["label"] for answer in answers[0]} == {*LABELS}


def test_every_form_of_data_holds_the_same_examples(material, tmp_path):
    """Files and folders are read as they are; objects are written down and read again."""
    rows = material.rows(12, 3)
    table = material.dataset(12, 3)
    table.save_to_disk(str(tmp_path / "saved"))
    table.to_parquet(str(tmp_path / "rows.parquet"))
    pairs = given_as([(text, LABELS[label]) for text, label in rows], ("sentence",), "label", "train")
    named = given_as(table, ("sentence",), "label", "train")
    assert named.text == pairs.text == ("text",) and named.labels == LABELS and named.rows == pairs.rows
    numbers = [label for _, label in rows]
    forms = [tmp_path / "saved", tmp_path / "rows.parquet", pairs.write(tmp_path / "a.jsonl")]
    for form in map(str, forms):
        read = load(custom_task(form, form, ("text",), "label", 32, LABELS))
        assert read.train.texts == [(text,) for text, _ in rows] and read.train.labels == numbers
    splits = datasets.DatasetDict(train=table, test=table.select(range(4)))
    splits.save_to_disk(str(tmp_path / "splits"))
    assert parts_of(splits, None)[1].num_rows == 4
    train, dev = parts_of(tmp_path / "splits", None)
    assert (train.name, dev.name) == ("train", "test")
    assert parts_of(str(tmp_path / "splits"), "mine.csv")[1] == "mine.csv"
    with pytest.raises(DataError, match="no premise, label among text"):
        given_as(table.remove_columns("label"), ("premise", "text"), "label", "dev")
