"""`hccs show`: a file or a run, and one line where there is no integer model."""

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
