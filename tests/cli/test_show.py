"""`hccs show`: a file or a run, and one line where there is no integer model."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from hccs.cli.app import app
from hccs.program import IntegerModel
from tests.cli.test_boundary import one_line, outcome
from tests.program.test_program import small_program


@pytest.fixture
def whole(tmp_path):
    model = IntegerModel(small_program())
    model.save(tmp_path / "model.hccs")
    return model


@pytest.mark.parametrize("given", ["model.hccs", "."])
def test_a_file_or_a_run_is_shown(whole, tmp_path, given):
    result = CliRunner().invoke(app, ["show", str(tmp_path / given)])
    assert result.exit_code == 0 and result.output == f"{whole!r}\n"


def test_anything_else_is_refused_in_one_line(monkeypatch, tmp_path):
    (tmp_path / "text").write_text("no model")
    for given, said in (
        ("text", "text"),
        ("nothing", "nothing"),
        (".", "no model.hccs in it"),
    ):
        assert said in one_line(outcome(monkeypatch, "show", tmp_path / given))


def test_text_settings_are_shown(tmp_path):
    settings = {"kind": "rerank", "max_length": 9, "prompts": {"q": "query: "}}
    program = replace(small_program(), facts={"text": settings}, tokenizer="")
    IntegerModel(program).save(tmp_path / "model.hccs")
    shown = CliRunner().invoke(app, ["show", str(tmp_path)]).output
    assert "texts: rerank, up to 9 tokens, prompts q, without a tokenizer" in shown
    found = json.loads(CliRunner().invoke(app, ["show", str(tmp_path), "--json"]).stdout)
    assert found["text"]["prompts"] == {"q": "query: "} and found["tokenizer_bytes"] == 0
