from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import hccs
from hccs._files import safetensors as _safetensors
from hccs.calibration import HeadStatistics, calibrate, files, search
from hccs.calibration.files import collect_files
from hccs.errors import DataError, DtypeError, FileError, ParameterError, ShapeError
from tests.calibration.conftest import random_logits


@pytest.fixture
def logits(rng):
    x = random_logits(rng, (2, 3, 60, 12))
    return x, rng.integers(1, 13, (2, 3, 60))


def one_pass(x, lengths, scale=0.1):
    stats = HeadStatistics(x.shape[:2], x.shape[-1], scale)
    stats.update(x, lengths)
    return stats


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_every_format_gives_the_statistics_of_the_arrays(logits, tmp_path, suffix):
    x, lengths = logits
    path = tmp_path / f"x.{suffix}"
    if suffix == "npy":
        np.save(path, x)
        lengths = None
    elif suffix == "npz":
        np.savez(path, logits=x, lengths=lengths, scale=np.full((2, 3), 0.1))
    else:
        _safetensors.write(path, {"logits": x, "valid": np.arange(12) < lengths[..., None]}, {})
    scale = None if suffix == "npz" else 0.1
    assert collect_files([path], scale=scale) == one_pass(x, lengths)


def test_one_file_per_layer_and_many_pieces(logits, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 500)
    x, lengths = logits
    for layer in range(2):
        np.savez(tmp_path / f"{layer}.npz", logits=x[layer], lengths=lengths[layer], scale=0.1)
    assert collect_files([tmp_path / "0.npz", tmp_path / "1.npz"]) == one_pass(x, lengths)


def test_more_files_are_more_rows(logits, tmp_path):
    x, _ = logits
    np.save(tmp_path / "a.npy", x[:, :, :20])
    np.save(tmp_path / "b.npy", x[:, :, 20:])
    assert collect_files([tmp_path / "a.npy", tmp_path / "b.npy"], scale=0.1) == one_pass(x, None)


def test_float_files_get_a_scale(rng, tmp_path):
    z = rng.normal(0, 2, (1, 2, 80, 16)).astype(np.float32)
    np.save(tmp_path / "z.npy", z)
    largest, given = (collect_files([tmp_path / "z.npy"], scale=scale) for scale in (None, 0.07))
    assert np.allclose(largest.scale, abs(z).max((2, 3)) / 127)
    assert (given.scale == 0.07).all()


def test_layers_with_the_same_logits_are_two(logits, tmp_path):
    x = np.stack([logits[0][0]] * 2)
    for layer in range(2):
        np.savez(tmp_path / f"{layer}.npz", logits=x[layer], scale=0.1)
    paths = [tmp_path / "0.npz", tmp_path / "1.npz"]
    assert collect_files(paths) == one_pass(x, None)


def damaged(tmp_path):
    """Files that make numpy, zipfile, zlib, struct, tokenize or ast stumble."""
    x = np.zeros((1, 2, 5, 8), np.int8)
    np.save(tmp_path / "x.npy", x)
    np.savez_compressed(tmp_path / "x.npz", logits=x, scale=0.1)
    npy, npz = (tmp_path / "x.npy").read_bytes(), (tmp_path / "x.npz").read_bytes()
    at = npz.index(b"logits.npy") + len(b"logits.npy")
    yield "magic.npy", b"\x93NUMPX" + npy[6:]
    yield "token.npy", npy.replace(b"{'descr'", b"(((descr")
    yield "nul.npy", npy.replace(b"{'descr'", b"{'descr\0")
    yield "shape.npy", npy.replace(b"(1, 2, 5, 8)", b"(9**99999,) ")
    yield "huge.npy", npy.replace(b"(1, 2, 5, 8), ", b"(9,9999999999,)"[:14].ljust(14))
    yield "dtype.npy", npy.replace(b"'|i1'", b"'|O1'")
    yield "empty.npy", b""
    yield "empty.npz", b""
    yield "cut.npz", npz[: len(npz) // 2]
    yield "stream.npz", npz[: at + 30] + bytes(20) + npz[at + 50 :]
    yield "text.npz", b"not an archive at all"
    yield "folder.npz", None
    with zipfile.ZipFile(tmp_path / "raw.npz", "w") as archive:
        archive.writestr("logits", b"no array")
    yield "raw.npz", (tmp_path / "raw.npz").read_bytes()


def test_damaged_arrays_are_refused_in_one_line(tmp_path):
    for name, content in damaged(tmp_path):
        path = tmp_path / "bad" / name
        path.parent.mkdir(exist_ok=True)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
        with pytest.raises(
            FileError, match=r"to be a readable array file; got (a damaged one|\[Errno)"
        ) as caught:
            collect_files([path], scale=0.1)
        assert "\n" not in str(caught.value), name


def refusals(tmp_path):
    x = np.zeros((1, 2, 5, 8), np.int8)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "flat.npy", x[0, 0])
    np.save(tmp_path / "other.npy", x[:, :1])
    np.save(tmp_path / "f.npy", x.astype(np.float32))
    np.savez(tmp_path / "named.npz", scores=x)
    np.savez(tmp_path / "s1.npz", logits=x, scale=0.1)
    np.savez(tmp_path / "s2.npz", logits=x, scale=0.2)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:40])
    (tmp_path / "x.txt").write_text("0 1")
    yield FileError, ["absent.npy"], {}, "readable"
    yield FileError, ["cut.npy"], {}, "readable"
    yield FileError, ["x.txt"], {}, "a file .npy"
    yield FileError, ["named.npz"], {}, "'logits'"
    yield ShapeError, ["flat.npy"], {}, "layers, heads, rows, k"
    yield ShapeError, ["x.npy", "other.npy"], {}, "one model"
    yield DtypeError, ["x.npy", "f.npy"], {}, "all int8 or all float"
    yield ParameterError, ["x.npy"], {}, "a scale for int8"
    yield DataError, ["s1.npz", "s2.npz"], {}, "one scale per head"
    yield DataError, [], {}, "at least one file"
    yield ShapeError, ["x.npy"], {"scale": 0.1, "n": 4}, "at most n = 4"
    np.savez(tmp_path / "s3.npz", logits=x, scale=[0.1, 0.2, 0.3])
    np.savez(tmp_path / "s4.npz", logits=x, scale="wide")
    yield ShapeError, ["s3.npz"], {}, r"broadcasts to the heads \(1, 2\)"
    yield DtypeError, ["s4.npz"], {}, "numbers as the scale"


def test_wrong_files_are_refused(tmp_path):
    for error, names, options, message in refusals(tmp_path):
        with pytest.raises(error, match=message):
            collect_files([tmp_path / name for name in names], **options)


def run_cli(monkeypatch, *arguments):
    """The command as the console script runs it; returns its exit message, if any."""
    from hccs.cli import main

    monkeypatch.setattr(sys, "argv", ["hccs", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code


def test_command_writes_table_and_statistics(logits, tmp_path, monkeypatch, capsys):
    pytest.importorskip("typer")
    x, lengths = logits
    np.savez(tmp_path / "x.npz", logits=x, lengths=lengths)
    table, saved = (tmp_path / name for name in ("t.safetensors", "s.safetensors"))
    code = run_cli(
        monkeypatch, "calibrate", tmp_path / "x.npz", "--scale", 0.1, "--out", table, "--statistics", saved
    )
    assert code == 0
    shown = capsys.readouterr().out
    expected = calibrate(one_pass(x, lengths))
    found = hccs.ParamTable.load(table)
    assert np.array_equal(found.B, expected.B) and np.array_equal(found.scale, expected.scale)
    assert found.provenance["inputs"] == ["x.npz"]
    assert "6 heads, n = 12" in shown and str(expected.B[1, 2]) in shown

    # From the statistics, twice the rows: the same optimum.
    again = tmp_path / "t2.safetensors"
    assert run_cli(monkeypatch, "calibrate", saved, saved, "--out", again, "--granularity", "layer") == 0
    layer = search(one_pass(x, lengths), granularity="layer").table
    assert np.array_equal(hccs.ParamTable.load(again).D, layer.D)


def test_command_finds_out_before_computing_that_it_cannot_write(tmp_path, monkeypatch, logits):
    pytest.importorskip("typer")
    np.save(tmp_path / "x.npy", logits[0])
    monkeypatch.setattr(HeadStatistics, "update", lambda *_, **__: pytest.fail("it computed"))
    (tmp_path / "folder").mkdir()
    for option in ("--out", "--statistics"):
        for target in ("absent/t.png", "folder"):
            said = run_cli(
                monkeypatch, "calibrate", tmp_path / "x.npy", "--scale", 0.1,
                "--out", tmp_path / "t.safetensors", option, tmp_path / target,
            )  # fmt: skip
            assert "to be writable" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "x.npy"]


def test_command_tells_what_is_wrong(tmp_path, monkeypatch, logits):
    pytest.importorskip("typer")
    np.save(tmp_path / "x.npy", logits[0])
    one_pass(*logits).save(tmp_path / "s.safetensors")
    out = tmp_path / "t.safetensors"
    assert "expected a scale for int8" in run_cli(monkeypatch, "calibrate", tmp_path / "x.npy", "--out", out)
    mixed = run_cli(monkeypatch, "calibrate", tmp_path / "x.npy", tmp_path / "s.safetensors", "--out", out)
    assert "either files of logits or saved statistics" in mixed
    assert not out.exists()


def run_process(folder, *arguments, **environment):
    """The command in a process of its own, whose output must be UTF-8."""
    command = [sys.executable, "-c", "from hccs.cli import main; main()", *map(os.fsencode, arguments)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict", **environment}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


@pytest.mark.skipif(sys.platform == "darwin", reason="names of files are text there")
def test_command_takes_names_that_are_no_text(logits, tmp_path):
    pytest.importorskip("typer")
    odd = os.fsdecode(b"odd\xff[b]")
    np.savez(tmp_path / f"{odd}.npz", logits=logits[0], scale=0.1)
    saved = tmp_path / f"{odd}.safetensors"
    done = run_process(
        tmp_path, "calibrate", f"{odd}.npz", "--out", f"{odd}.table", "--statistics", str(saved)
    )
    assert done.returncode == 0 and done.stdout.endswith(b"wrote odd\\udcff[b].table\n")
    assert hccs.ParamTable.load(tmp_path / f"{odd}.table").provenance["inputs"] == [f"{odd}.npz"]
    assert HeadStatistics.load(saved).rows.tolist() == [[60] * 3] * 2
    refused = run_process(tmp_path, "calibrate", f"{odd}.npy", "--out", "t")
    assert refused.returncode == 1 and refused.stderr.count(b"\n") == 1
    assert run_process(tmp_path, "calibrate", f"{odd}.npz", "--out", "t").returncode == 0


@pytest.mark.parametrize("command", [["info"], ["calibrate", "x.npz"]])
def test_an_unknown_instruction_set_is_one_line(logits, tmp_path, command):
    pytest.importorskip("typer")
    np.savez(tmp_path / "x.npz", logits=logits[0], scale=0.1)
    done = run_process(tmp_path, *command, HCCS_ISA="foo")
    if command == ["info"]:
        assert done.stderr.startswith(b"hccs: expected HCCS_ISA to be one of scalar") and done.returncode == 1
        assert done.stderr.count(b"\n") == 1
    else:
        assert done.returncode == 0  # calibration has no kernels of several instruction sets


X = np.random.default_rng(0).integers(-60, 60, (1, 2, 20, 8)).astype(np.int8)
ODD = {
    "no rows": dict(logits=X[:, :, :0], scale=0.1),
    "no columns": dict(logits=X[..., :0], scale=0.1),
    "no heads": dict(logits=X[:, :0], scale=0.1),
    "no layers": dict(logits=X[:0], scale=0.1),
    "no rows of floats": dict(logits=X[:, :, :0].astype(np.float32)),
    "int32": dict(logits=X.astype(np.int32), scale=0.1),
    "uint8": dict(logits=X.astype(np.uint8), scale=0.1),
    "complex": dict(logits=X.astype(np.complex64), scale=0.1),
    "booleans": dict(logits=X > 0, scale=0.1),
    "text": dict(logits=X.astype("U4"), scale=0.1),
    "NaN": dict(logits=np.full(X.shape, np.nan, np.float32)),
    "float64 beyond float32": dict(logits=X * 1e300),
    "float lengths": dict(logits=X, scale=0.1, lengths=np.full((1, 2, 20), 8.5)),
    "lengths beyond the row": dict(logits=X, scale=0.1, lengths=np.full((1, 2, 20), 9)),
    "negative lengths": dict(logits=X, scale=0.1, lengths=np.full((1, 2, 20), -1)),
    "no valid column": dict(logits=X, scale=0.1, lengths=np.zeros((1, 2, 20), int)),
    "lengths of other rows": dict(logits=X, scale=0.1, lengths=np.zeros(3, int)),
    "lengths of text": dict(logits=X, scale=0.1, lengths=np.array(["a"])),
    "a mask of other columns": dict(logits=X, scale=0.1, valid=np.ones(7, bool)),
    "scale 0": dict(logits=X, scale=0.0),
    "scale NaN": dict(logits=X, scale=np.nan),
    "scale inf": dict(logits=X, scale=np.inf),
    "negative scale": dict(logits=X, scale=-1),
    "no scale": dict(logits=X, scale=np.zeros(0)),
    "rows too long": dict(logits=np.zeros((1, 1, 2, 40000), np.int8), scale=0.1),
}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("arrays", ODD.values(), ids=ODD)
def test_odd_arrays_are_refused_in_one_line(arrays, tmp_path, monkeypatch):
    pytest.importorskip("typer")
    np.savez(tmp_path / "x.npz", **arrays)
    told = run_cli(monkeypatch, "calibrate", tmp_path / "x.npz", "--out", tmp_path / "t")
    assert isinstance(told, str) and told.startswith("hccs: expected ") and "\n" not in told
    assert not (tmp_path / "t").exists()


def test_a_scale_that_is_no_number_is_told_as_such(tmp_path):
    np.savez(tmp_path / "x.npz", **ODD["scale NaN"])
    with pytest.raises(ParameterError, match="scale > 0 and finite"):
        collect_files([tmp_path / "x.npz"])
