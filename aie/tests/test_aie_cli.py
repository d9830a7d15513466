"""The `hccs aie` commands, run as a user would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hccs import HeadParams, ParamTable
from hccs.errors import FileError
from hccs.reference.softmax import softmax as reference_softmax

typer_testing = pytest.importorskip("typer.testing")
app = pytest.importorskip("hccs.cli.app").app


def hccs(*arguments: object) -> str:
    result = typer_testing.CliRunner().invoke(app, ["aie", *map(str, arguments)], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_run_writes_the_references_bits(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (3, 10, 64), dtype=np.int8)
    lengths = np.arange(30).reshape(3, 10)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "lengths.npy", lengths)
    out = tmp_path / "p.npy"
    theta = ["--B", 444, "--S", 11, "--D", 40]
    text = hccs(
        "run",
        tmp_path / "x.npy",
        *theta,
        "--mode",
        "u8_div",
        "--lengths",
        tmp_path / "lengths.npy",
        "--out",
        out,
    )
    assert "30 rows of 64" in text
    assert "every bit equals" in text
    assert np.array_equal(np.load(out), reference_softmax(x, HeadParams(444, 11, 40), "u8_div", lengths))
    assert "by_row" in hccs("run", tmp_path / "x.npy", *theta, "--kernel", "by_row")


def test_run_refuses_what_is_no_array(tmp_path: Path) -> None:
    x = tmp_path / "x.npy"
    np.save(x, np.zeros((2, 32), np.int8))
    whole = x.read_bytes()
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 32), np.int8))
    archive = (tmp_path / "x.npz").read_bytes()
    damaged = [b"logits", b"", whole[:-1], whole[:40], whole.replace(b"{", b"("), whole.replace(b"}", b" ")]
    for content in [*damaged, archive, archive[:-30], archive[:60]]:
        x.write_bytes(content)
        with pytest.raises(FileError, match=r"\.npy"):
            hccs("run", x, "--B", 444, "--S", 11, "--D", 40)
    with pytest.raises(FileError, match=r"\.npy"):
        hccs("run", tmp_path, "--B", 444, "--S", 11, "--D", 40)


def test_run_says_when_it_cannot_write(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 32), np.int8))
    for out in (tmp_path / "nowhere" / "p.npy", tmp_path):
        with pytest.raises(FileError, match="writable"):
            hccs("run", tmp_path / "x.npy", "--B", 444, "--S", 11, "--D", 40, "--out", out)


def test_cycles_says_modelled_and_measured() -> None:
    text = hccs("cycles")
    assert "modelled unless marked measured" in text
    assert "mean absolute error" in text
    assert "5657, later 1845 (AMD)" in text
    assert text.count("u8_clb") == 10 + 3 + 3 + 1
    assert "two lines" in text and "u8_lin" in text
    assert "compiled" in text


def test_cycles_shows_a_schedule() -> None:
    text = hccs("cycles", "--schedule", "--n", 32)
    assert "row_groups: II = " in text
    assert "modelled cycles per row" in text


def test_scaling() -> None:
    text = hccs("scaling", "--isa", "aie2ps")
    assert "184" in text
    assert "modelled" in text


def test_export(tmp_path: Path) -> None:
    ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64).save(tmp_path / "t.safetensors")
    text = hccs(
        "export", tmp_path / "t.safetensors", "--target", "vitis", "--out", tmp_path / "project", "--rows", 32
    )
    assert "on 1 tiles" in text
    assert (tmp_path / "project/graph.cpp").exists()


def test_export_takes_runs_as_the_c_export_does(tmp_path: Path) -> None:
    table = ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64)
    run = tmp_path / "run"
    run.mkdir()
    table.save(run / "table.hccs.safetensors")
    arguments = ["export", run, "--target", "iron", "--rows", 32, "--out"]
    with pytest.raises(FileError, match="Finish the run with hccs convert"):
        hccs(*arguments, tmp_path / "project")
    table.save(run / "model.hccs.safetensors")
    out = tmp_path / "[/b] project"
    assert "[/b] project: 1 heads" in hccs(*arguments, out).replace("\n", "")
    (out / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match=r"notes\.txt"):
        hccs(*arguments, out)
