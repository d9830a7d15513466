"""Commands on real runs: JSON on stdout alone, quiet logs, next commands, one rule of export, times told."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
typer_testing = pytest.importorskip("typer.testing")

from hccs.cli.app import app
from hccs.conversion import training
from hccs.conversion.data.tasks import Examples
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.training import Recipe, train
from hccs.errors import ParameterError
from hccs_lab.compare import speed
from tests.report.wellformed import checked

pytestmark = pytest.mark.filterwarnings("ignore")
runner = typer_testing.CliRunner()


def run(*words):
    done = runner.invoke(app, [str(word) for word in words], env={"COLUMNS": "300"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_a_conversion_for_machines_and_for_logs(material, tmp_path):
    rows = [{"text": text, "label": label} for text, label in material.rows(48, 0)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "run"
    words = ["convert", material.folder, "--train", tmp_path / "rows.jsonl", "--text", "text", "--n", 16]
    done = run(*words, "--no-retrain", "--no-refine", "--lines", 1, "--out", out, "--json")
    found = json.loads(done.stdout)
    assert found["report"] == str(out / "report.html") and (out / "report.html").exists()
    assert found["stages"]["save"]["mode"] == "i16_div" and set(found["seconds"]) == set(found["stages"])
    assert not re.search(r"[\x1b\r]|[│╭]", done.stderr)
    for stage, seconds in found["seconds"].items():
        assert re.search(rf"^{stage}: .*{seconds:.1f} s$", done.stderr, re.MULTILINE)
    assert f"hccs bench {out}" in done.stderr and "in all: " in done.stderr
    again = run(*words, "--no-retrain", "--no-refine", "--lines", 1, "--out", out)
    assert "float_model: done before" in again.stdout and f"report: {out / 'report.html'}" in again.stdout


def test_where_for_machines(finished):
    found = json.loads(run("where", finished[0].folder, "--examples", 16, "--json").stdout)
    assert {"noise", "kinds", "operators", "whole", "accuracy"} == set(found)
    assert {cost["layer"] for cost in found["operators"]} == {0, 1, None}


def test_one_rule_of_export(finished, tmp_path):
    """Both exports write the whole integer model of a run; floats around HCCS are asked for."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    folder = finished[0].folder
    whole = run("export", "onnx", folder, "-o", tmp_path / "whole.onnx")
    assert "32 of 32 random inputs get the same scores in every bit" in whole.output
    assert "bytes of constants" in run("export", "c", folder, "-o", tmp_path / "c").output
    floats = run(
        "export", "onnx", folder, "-o", tmp_path / "float.onnx", "--float-layers", "--mode", "u8_div"
    )
    assert "64 of 64 predictions as PyTorch's" in floats.output
    kinds = [
        {n.op_type for n in onnx.load(tmp_path / f"{name}.onnx").graph.node} for name in ("whole", "float")
    ]
    assert "MatMulInteger" in kinds[0] and "MatMulInteger" not in kinds[1]
    for words in (["--mode", "u8_div"], ["--attentions"]):
        refused = runner.invoke(app, ["export", "onnx", str(folder), *words])
        assert isinstance(refused.exception, ParameterError) and "--float-layers" in str(refused.exception)
    refused = runner.invoke(app, ["export", "onnx", str(folder / "model.hccs"), "--float-layers"])
    assert isinstance(refused.exception, ParameterError)


def test_a_long_training_tells_its_time(material, tmp_path, monkeypatch):
    rows = material.rows(48, 0)
    data = tokenise(Examples([(t,) for t, _ in rows], [label for _, label in rows]), material.tokenizer, 16)
    recipe = Recipe(epochs=1, batch_size=4, evaluations_per_epoch=1)
    said = []
    model = type(material.model)(material.model.config)
    train(model, data, data, recipe, tmp_path / "a", say=said.append)
    assert said == []  # it is over soon
    monkeypatch.setattr(training, "WORTH_TELLING", 0.0)
    train(model, data, data, recipe, tmp_path / "b", say=said.append)
    assert len(said) == 1
    assert re.fullmatch(r"  about [\d.]+ m?s for 8 steps of \d\.\d\d s, evaluations apart", said[0]), said


def test_a_comparison_of_files_has_a_report(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    logits = np.random.default_rng(0).normal(size=(1, 2, 64, 16)).astype(np.float32) * 3
    np.save(tmp_path / "x.npy", logits)
    out = tmp_path / "out"
    words = ["compare", tmp_path / "x.npy", "--methods", "hccs softmax ibert", "--rows", 16, "--out", out]
    found = json.loads(run(*words, "--json").stdout)
    assert set(found["methods"]) == {"hccs", "softmax", "ibert"}
    elements = checked((out / "report.html").read_text())
    words = "".join(elements.text)
    assert "2 replacements of softmax on the same 16 rows of every head" in words
    assert elements.names.count("svg") == 3 and "--methods 'hccs softmax ibert'" in words
