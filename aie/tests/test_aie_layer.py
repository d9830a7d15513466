"""A whole encoder layer on tiles: every bit of BERT-tiny's layers, extreme rows, the mapping, its drawing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from aie.tests.verifier import violations
from typer.testing import CliRunner

from hccs.errors import ParameterError, ShapeError
from hccs.numbers.layers import LinearParams, NormParams
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from hccs.reference.layer_norm import layer_norm
from hccs.reference.linear import linear, narrow
from hccs_aie.attention import untiled
from hccs_aie.cli import app
from hccs_aie.cycles.machine import machine
from hccs_aie.layer import (
    INT8_KEYS,
    INT8_ROWS,
    INT16_ROWS,
    TILE_MEMORY,
    EncoderLayer,
    LinearTile,
    NormTile,
    differences,
    mapped,
    tiled,
)
from tests.export.programs import bert_tiny, dev_sentences, random_program


def program() -> Program:
    pytest.importorskip("transformers")
    return bert_tiny(2, "uint8").program


@pytest.mark.parametrize(("limit", "largest"), [(127, 400), (32767, 60000), (32767, 2**20)])
def test_a_linear_tile_has_the_reference_integers(limit: int, largest: int) -> None:
    rng = np.random.default_rng(largest)
    weight = rng.integers(-127, 128, (32, 64)).astype(np.int8)
    multiplier = rng.integers(1, largest, 32).astype(np.int32)
    params = LinearParams(weight, rng.integers(-9999, 9999, 32).astype(np.int32), multiplier, limit, 128)
    x = rng.integers(-128, 128, (32, 64)).astype(np.int8)
    expected = linear(x, params)
    if limit == 32767:
        y, _ = LinearTile(params, slice(None), INT16_ROWS).run(tiled(x), 32)
        np.testing.assert_array_equal(untiled(y, 32), expected)
        return
    entries = rng.integers(-127, 128, 256).astype(np.int8)
    y, _ = LinearTile(params, slice(None), INT8_ROWS, entries).run(tiled(x), 32)
    np.testing.assert_array_equal(untiled(y, 32), entries[expected.astype(int) + 128])
    keys, _ = LinearTile(params, slice(None), INT8_KEYS).run(tiled(x), 32)
    np.testing.assert_array_equal(keys.reshape(8, 4, 4, 8).swapaxes(1, 2).reshape(32, 32), expected)


@pytest.mark.parametrize("h", [32, 128, 384, 1024])
def test_layer_norm_of_extreme_rows(h: int) -> None:
    rng = np.random.default_rng(h)
    rows = [
        np.zeros(h),
        np.full(h, 65534),
        np.where(np.arange(h) % 2, 65534, -65534),
        np.eye(1, h)[0] * 65534,
    ]
    rows += [np.eye(1, h)[0], np.eye(1, h)[0] * 2 - 1, np.full(h, -1), np.arange(h) % 3]
    rows += [rng.normal(0, spread, h) for spread in np.geomspace(0.3, 40000, 24)]
    v = np.clip(np.rint(np.stack(rows)), -65534, 65534).astype(np.int32)
    x = (v // 2).astype(np.int16)
    part = (v - x).astype(np.int16)
    gain, bias = rng.integers(-(2**23) + 1, 2**23, (2, h)).astype(np.int32)
    for epsilon in (1, 1650, 2**40 + 12345, 2**62 - 1):
        params = NormParams(gain, bias, 11, epsilon)
        y, small, _ = NormTile(params, 7).run(tiled(x), tiled(part), 32)
        expected = layer_norm(v, params)
        np.testing.assert_array_equal(untiled(y, h), expected)
        np.testing.assert_array_equal(untiled(small, h), narrow(expected, 7))


def test_layer_norm_of_many_random_rows() -> None:
    rng = np.random.default_rng(5)
    params = NormParams(*rng.integers(-(2**22), 2**22, (2, 64)).astype(np.int32), 9, 7)
    for _ in range(100):
        v = np.rint(rng.normal(0, np.exp(rng.uniform(-2, 10)), (64, 64))).clip(-65534, 65534).astype(np.int32)
        x = (v // 2).astype(np.int16)
        y, _, _ = NormTile(params, 0).run(tiled(x), tiled((v - x).astype(np.int16)), 64)
        np.testing.assert_array_equal(untiled(y, 64), layer_norm(v, params))


@pytest.mark.parametrize("lines", [1, 2])
def test_every_bit_of_bert_tiny(lines: int) -> None:
    pytest.importorskip("transformers")
    model = bert_tiny(lines, "int16" if lines == 1 else "uint8").program
    for number in (0, 1):
        for sentence in dev_sentences(6):
            assert differences(model, number, np.array([sentence]), None) == 0


@pytest.mark.slow
def test_every_bit_of_bert_tiny_on_a_thousand_sentences() -> None:
    model = program()
    for sentence in dev_sentences(1000):
        for number in (0, 1):
            assert differences(model, number, np.array([sentence]), None) == 0


def test_the_mapping_fills_tiles_and_its_schedules_are_sound(tmp_path: Path) -> None:
    model = program()
    IntegerModel(model).save(tmp_path / "tiny.hccs")
    done = CliRunner().invoke(app, ["layer", str(tmp_path / "tiny.hccs"), "--svg", str(tmp_path / "l.svg")])
    assert done.exit_code == 0, done.output
    assert "24 sequences: every bit" in done.output
    found = mapped(EncoderLayer.of(model, 0))
    assert found.share_of_array >= 0.40
    assert found.share_of_array < found.share_of_work < 1
    assert found.products == 64 * (128 * 384 + 128 * 128 + 2 * 128 * 512) + 2 * 2 * 64 * 64 * 64
    assert max(tile.memory for tile in found.tiles) <= TILE_MEMORY
    for tile in found.tiles:
        for region in tile.kernel.regions:
            assert violations(region.schedule, machine("aie2")) == [], region.name
    drawn = ElementTree.parse(tmp_path / "l.svg").getroot()
    boxes = [
        text.text for text in drawn.iter() if text.tag.endswith("text") and "cycles," in (text.text or "")
    ]
    assert len(boxes) == len(found.tiles) == 18


def test_layers_that_the_kernels_lack_are_named() -> None:
    with pytest.raises(ParameterError, match="a layer from 0 to"):
        EncoderLayer.of(program(), 2)
    with pytest.raises(
        (ParameterError, ShapeError), match=r"unclamped residuals|a layer of Narrow|channels in 32s"
    ):
        EncoderLayer.of(random_program(3), 0)
    model = program()
    steps = [replace(s, limit=20000) if isinstance(s, op.Add) else s for s in model.operators]
    with pytest.raises(ParameterError, match="unclamped"):
        EncoderLayer.of(replace(model, operators=tuple(steps)), 0)
