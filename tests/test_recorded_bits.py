"""Bits as they were recorded once: every mode, instruction set, statistic and export on fixed inputs.

The reference says what is right; this says that nothing changed. A deliberate change of docs/spec.md, or of
what an export writes, records anew: `HCCS_RECORD=1 pytest tests/test_recorded_bits.py`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hccs
from hccs.calibration import HeadStatistics
from hccs.calibration.state import state_of
from hccs.export.c import export_c

RECORD = Path(__file__).with_name("recorded_bits.json")
HEADS = hccs.HeadParams(B=[61, 100, 33], S=[2, 1, 0], D=[30, 90, 5])
TABLE = {"B": [[444, 300], [511, 260]], "S": [[11, 4], [7, 2]], "D": [[40, 60], [70, 127]]}


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """int8 values that depend on the name alone, on every machine and with every NumPy."""
    count = int(np.prod(shape))
    return np.frombuffer(hashlib.shake_256(name.encode()).digest(count), np.int8).reshape(shape)


def same_as_recorded(name: str, parts: Any) -> bool:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            part = np.ascontiguousarray(part).tobytes()
        digest.update(part)
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if os.environ.get("HCCS_RECORD"):
        recorded[name] = digest.hexdigest()
        RECORD.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    return recorded.get(name) == digest.hexdigest()


def selections(name: str, columns: int) -> dict[str, np.ndarray | None]:
    return {
        "all": None,
        "lengths": drawn(f"{name} lengths", (2, 1, 9)).astype(np.int64) % (columns + 1),
        "mask": drawn(f"{name} mask", (2, 1, 9, columns)) > -60,
    }


@pytest.mark.parametrize("mode", list(hccs.Mode), ids=str)
def test_softmax(mode, instruction_set):
    outputs = []
    for columns in (1, 5, 17, 64, 100, 127, 300):
        name = f"softmax {columns}"
        x = drawn(name, (2, 3, 9, columns))
        outputs += [hccs.softmax(x, HEADS, mode, valid) for valid in selections(name, columns).values()]
    assert same_as_recorded(f"softmax {mode.value}", outputs)


@pytest.mark.parametrize("out", ["pair", "int8", "float32"])
def test_attention(out, instruction_set):
    requant = hccs.Requant.from_scales(
        q_scale=0.02,
        k_scale=[0.02, 0.03, 0.01],
        v_scale=0.01,
        logit_scale=0.05,
        scaling=0.125,
        out_scale=0.009,
    )
    outputs: list[np.ndarray] = []
    for (keys, d), mode in itertools.product(((9, 20), (64, 64), (130, 33)), (None, "u8_div", "u8_clb")):
        name = f"attention {keys} {d}"
        q, k, v = (drawn(f"{name} {part}", (2, 3, n, d)) for part, n in (("q", 9), ("k", keys), ("v", keys)))
        for valid, causal in itertools.product(selections(name, keys).values(), (False, True)):
            options = {"valid": valid, "causal": causal, "mode": mode, "out": out}
            found = hccs.attention(q, k, v, HEADS, requant, **options)
            outputs += found if out == "pair" else [found]
    assert same_as_recorded(f"attention {out}", outputs)


def statistics(reference: str) -> HeadStatistics:
    stats = HeadStatistics(shape=(1, 3), n=64, scale=[[0.05, 0.1, 0.02]], reference=reference)
    for piece, columns in enumerate((64, 40, 64)):
        x = drawn(f"statistics {piece}", (1, 3, 700, columns)) // 2
        lengths = drawn(f"statistics {piece} lengths", (1, 1, 700)).astype(np.int64) % (columns + 1)
        stats.update(x.astype(np.float32) / 16 if reference == "float" else x, lengths)
    return stats


@pytest.mark.parametrize("reference", ["int8", "float"])
def test_statistics_and_calibration(reference):
    stats = statistics(reference)
    arrays, _ = state_of(stats)
    assert same_as_recorded(f"statistics {reference}", [arrays[name] for name in sorted(arrays)])
    tables = [hccs.calibrate(stats, granularity=granularity) for granularity in ("head", "layer", "global")]
    assert same_as_recorded(
        f"calibration {reference}", [part for t in tables for part in (t.B, t.S, t.D, t.scale)]
    )


def test_export_of_c(tmp_path):
    table = hccs.ParamTable(**TABLE, scale=[[0.1, 0.05], [0.02, 0.01]], n=64)
    folder = export_c(table, tmp_path / "c")
    names = ("hccs_parameters.h", "vectors.txt")
    assert same_as_recorded("export c", [(folder / name).read_bytes() for name in names])


@pytest.mark.parametrize("mode", ["u8_clb", "i16_div"])
def test_export_of_aie(mode, tmp_path):
    from hccs_aie.export import Target, export, plan

    table = hccs.ParamTable(**TABLE, scale=[[0.1, 0.05], [0.02, 0.01]], n=64)
    folder = export(plan(table, mode=mode), Target.VITIS, tmp_path / "aie")
    files = [*sorted((folder / "vectors").iterdir()), folder / "src" / "hccs_parameters.hpp"]
    assert same_as_recorded(f"export aie {mode}", [file.read_bytes() for file in files])
