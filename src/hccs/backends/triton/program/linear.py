"""Linear layers: int8 products in tensor cores; bias, requantisation, table and width before the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from hccs.backends.triton.devices import FUSED
from hccs.backends.triton.program.integers import (
    clamped,
    nearest,
    nearest_byte,
    nearest_float,
    power_of_2,
)
from hccs.numbers.layers import MULTIPLIER_SHIFT, ROW_SHIFT, LinearParams

LINE = 64
"""Rows of values and of weights are whole numbers of so many bytes."""

_NO_CLAMP = 2**31 - 2


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's constants on a device.

    `reach` says from which |sum| on a channel's output is clamped for certain. Sums are clamped to it before
    they are multiplied, and their outputs then fit 32 bits; without it outputs are clamped in float64.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    multiplier: torch.Tensor | None
    reach: torch.Tensor | None
    table: torch.Tensor | None
    inputs: int
    limit: int
    exponents: int
    shift: int


def layer_on(
    params: LinearParams, outputs: slice, table: Any | None, exponents: int, device: torch.device
) -> Layer:
    """The constants of some output channels; weights end in zeros up to whole lines."""
    chosen = params.weight[outputs]
    weight = np.zeros((len(chosen), -(-chosen.shape[1] // LINE) * LINE), np.int8)
    weight[:, : chosen.shape[1]] = chosen
    multiplier = reach = None
    shift = ROW_SHIFT if exponents else MULTIPLIER_SHIFT
    if params.multiplier is not None:
        multiplier = torch.tensor(params.multiplier[outputs], device=device)
        if (params.limit + 1) << exponents <= 2**30:
            most = -(-(np.int64(params.limit + 1) << shift) // params.multiplier[outputs].astype(np.int64))
            reach = torch.tensor(np.minimum(most, _NO_CLAMP).astype(np.int32), device=device)
    return Layer(
        torch.tensor(weight, device=device), torch.tensor(params.bias[outputs], device=device), multiplier,
        reach, None if table is None else torch.tensor(table, device=device), chosen.shape[1], params.limit,
        exponents, shift,
    )  # fmt: skip


@triton.jit
def _output(
    acc, multiplier_ptr, reach_ptr, column, exponent,
    LIMIT: tl.constexpr, EXPONENTS: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """clamp(rhe(acc * M / 2^16)), with a row's exponent e clamp(rhe(acc * M / 2^(23 - e)))."""
    multiplier = tl.load(multiplier_ptr + column)
    if LIMIT == 127 and not EXPONENTS:
        # Products below 2^24 are exact in float32, and larger ones are clamped.
        acc = nearest_byte(acc.to(tl.float32) * (multiplier.to(tl.float32) * 0.5**SHIFT)[None, :])
    else:
        step = multiplier.to(tl.float64)[None, :] * power_of_2(exponent - SHIFT)
        if reach_ptr is None:
            acc = clamped(nearest_float(acc.to(tl.float64), step), LIMIT).to(tl.int32)
        else:
            most = tl.load(reach_ptr + column)[None, :]
            acc = tl.minimum(tl.maximum(acc, -most), most)
            acc = clamped(nearest(acc.to(tl.float64), step), LIMIT)
    return acc


@triton.jit
def _linear(
    x_ptr, weight_ptr, bias_ptr, multiplier_ptr, reach_ptr, table_ptr, out_ptr, count_ptr,
    outputs, x_step, out_step,
    INPUTS: tl.constexpr, WEIGHT_STEP: tl.constexpr, LIMIT: tl.constexpr, MULTIPLIED: tl.constexpr,
    EXPONENTS: tl.constexpr, SHIFT: tl.constexpr, TABLE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A tile of outputs. Weights behind the last input are zeros: what x holds there does not count."""
    count = tl.load(count_ptr)
    first = tl.program_id(1) * ROWS
    if first < count:
        row = first + tl.arange(0, ROWS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < outputs
        read = tl.where(inside, column, 0)
        step = tl.arange(0, DEPTH)
        x_rows = x_ptr + row.to(tl.int64)[:, None] * x_step
        weight = weight_ptr + read.to(tl.int64)[None, :] * WEIGHT_STEP
        acc = tl.zeros([ROWS, COLUMNS], tl.int32)
        for start in tl.range(0, WEIGHT_STEP, DEPTH):
            x = tl.load(x_rows + (start + step)[None, :])
            w = tl.load(weight + (start + step)[:, None])
            acc = tl.dot(x, w, acc, out_dtype=tl.int32)
        bias = tl.load(bias_ptr + read)[None, :]
        exponent = 0
        if EXPONENTS:
            exponent = tl.load(x_rows + INPUTS).to(tl.int32)
            bias = nearest(bias.to(tl.float64), power_of_2(-exponent))
        acc += bias
        if MULTIPLIED:
            acc = _output(acc, multiplier_ptr, reach_ptr, read, exponent, LIMIT, EXPONENTS, SHIFT)
        if TABLE:
            acc = tl.load(table_ptr + (acc.to(tl.int32) + 128))
        place = out_ptr + row.to(tl.int64)[:, None] * out_step + column[None, :]
        tl.store(place, acc.to(out_ptr.dtype.element_ty), mask=(row < count)[:, None] & inside[None, :])


def tile_of(room: int, outputs: int, depth: int) -> dict[str, int]:
    """A tile's rows, columns and depth, its warps and stages, for so many rows and columns."""
    rows = min(room, 128 if room * outputs >= 2**21 else 64)
    columns = min(max(triton.next_power_of_2(outputs), 16), 128 if rows >= 64 else 64)
    return {
        "ROWS": rows, "COLUMNS": columns, "DEPTH": 128 if depth % 128 == 0 else LINE,
        "num_warps": 8 if rows * columns >= 2**14 else 4, "num_stages": 3,
    }  # fmt: skip


def linear(x: torch.Tensor, out: torch.Tensor, count: torch.Tensor, layer: Layer) -> None:
    """`out` of the int8 rows x; there is room for a whole number of tiles of rows."""
    outputs, depth = layer.weight.shape
    tile = tile_of(len(x), outputs, depth)
    kernel: Any = _linear
    kernel[(triton.cdiv(outputs, tile["COLUMNS"]), triton.cdiv(len(x), tile["ROWS"]))](
        x, layer.weight, layer.bias, layer.multiplier, layer.reach, layer.table, out, count,
        outputs, x.stride(0), out.stride(0), INPUTS=layer.inputs, WEIGHT_STEP=depth, LIMIT=layer.limit,
        MULTIPLIED=layer.multiplier is not None, EXPONENTS=layer.exponents > 0, TABLE=layer.table is not None,
        SHIFT=layer.shift, **tile, **FUSED,
    )  # fmt: skip
