"""Commands on real runs: JSON on stdout alone, quiet logs, next commands, one rule of export, times told."""

from __future__ import annotations

import json
import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
typer_testing = pytest.importorskip("typer.testing")

from hccs.cli.app import app

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


def test_one_rule_of_export(finished, tmp_path):
    """Both exports write the whole integer model of a run."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    folder = finished[0].folder
    whole = run("export", "onnx", folder, "-o", tmp_path / "whole.onnx")
    assert "32 of 32 random inputs get the same scores in every bit" in whole.output
    assert "bytes of constants" in run("export", "c", folder, "-o", tmp_path / "c").output
