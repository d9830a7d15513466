"""`hccs export c`: a run, a program and a table each become what they hold; sentences are ids or text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from hccs import ParamTable
from hccs.cli.app import app
from hccs.errors import DataError, FileError, ParameterError
from hccs.program import IntegerModel
from tests.program.test_program import small_program

TABLE = ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64)


def export(*words: str | Path) -> str:
    done = CliRunner().invoke(app, ["export", "c", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    IntegerModel(small_program()).save(tmp_path / "run" / "model.hccs")
    return tmp_path / "run" / "model.hccs"


def test_a_program_and_a_run_become_whole_models(program: Path, tmp_path: Path) -> None:
    said = export(program, "-o", tmp_path / "c")
    assert re.search(
        r"[\d,]+ bytes of constants, of them 640 of words; [\d,]+ bytes of RAM; 12 examples", said
    )
    TABLE.save(program.parent / "model.hccs.safetensors")
    assert "12 examples" in export(program.parent, "-o", tmp_path / "c")
    assert (tmp_path / "c" / "hccs_model.c").exists()


def test_a_table_and_a_run_without_a_program_become_row_functions(program: Path, tmp_path: Path) -> None:
    TABLE.save(program.parent / "model.hccs.safetensors")
    said = export(program.parent / "model.hccs.safetensors", "-o", tmp_path / "rows")
    assert "1 layers of 1 heads" in said
    program.unlink()
    assert "1 layers of 1 heads" in export(program.parent, "-o", tmp_path / "rows")
    assert (tmp_path / "rows" / "hccs_softmax.c").exists()
    with pytest.raises(ParameterError, match="with a whole integer model"):
        export(program.parent, "-o", tmp_path / "rows", "--vocabulary", "used")


def test_sentences_are_ids_or_text(program: Path, tmp_path: Path) -> None:
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("2 7 3\n\n 5 \n" + "9 " * 20 + "\n")
    said = export(program, "-o", tmp_path / "c", "--sentences", sentences, "--vocabulary", "used")
    assert f"of them {5 * (16 + 4)} of words" in said and "3 examples" in said
    assert "tokens[16]" in (tmp_path / "c" / "hccs_examples.c").read_text()  # 3 + 1 + 12 of 20
    sentences.write_text("a fine film\n")
    with pytest.raises(FileError, match=r"tokenizer\.json"):  # its tokenizer is "a tokenizer"
        export(program, "-o", tmp_path / "c", "--sentences", sentences)
    IntegerModel(replace(small_program(), tokenizer="")).save(program)
    with pytest.raises(FileError, match="Give token ids"):
        export(program, "-o", tmp_path / "c", "--sentences", sentences)
    sentences.write_text("\n")
    with pytest.raises(DataError, match="one per line"):
        export(program, "-o", tmp_path / "c", "--sentences", sentences)
    with pytest.raises(DataError, match="Give --sentences"):
        export(program, "-o", tmp_path / "c", "--vocabulary", "used")


def test_the_tokenizer_in_a_program_reads_text(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from hccs_lab.demo import MODEL

    text = (MODEL / "tokenizer.json").read_text(encoding="utf-8")
    IntegerModel(replace(small_program(words=30522), tokenizer=text)).save(tmp_path / "model.hccs")
    (tmp_path / "text.txt").write_text("a fine film\nHow dull.\n")
    export(tmp_path / "model.hccs", "-o", tmp_path / "c", "--sentences", tmp_path / "text.txt")
    assert "101, 1037, 2986, 2143, 102, 101, 2129" in (tmp_path / "c" / "hccs_examples.c").read_text()
