"""Linear layers: int8 products in tensor cores; bias, requantisation, table and width before the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from hccs.backends.triton.devices import FUSED
from hccs.backends.triton.program.integers import clamped, shift_half_even
from hccs.numbers.layers import INT16_LIMIT, MULTIPLIER_SHIFT, ROW_SHIFT, LinearParams

LINE = 64
"""Rows of values and of weights are whole numbers of so many bytes."""

_SHIFT = tl.constexpr(MULTIPLIER_SHIFT)
_ROW_SHIFT = tl.constexpr(ROW_SHIFT)
_NO_CLAMP = 2**31 - 2


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's constants on a device.

    `reach` says from which |sum| on a channel's output is clamped for certain. Sums are clamped to it before
    they are multiplied, and what the product is shifted to then fits 32 bits.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    multiplier: torch.Tensor | None
    reach: torch.Tensor | None
    table: torch.Tensor | None
    inputs: int
    limit: int
    exponents: bool


def layer_on(
    params: LinearParams, outputs: slice, table: Any | None, exponents: bool, device: torch.device
) -> Layer:
    """The constants of some output channels; weights end in zeros up to whole lines."""
    chosen = params.weight[outputs]
    weight = np.zeros((len(chosen), -(-chosen.shape[1] // LINE) * LINE), np.int8)
    weight[:, : chosen.shape[1]] = chosen
    multiplier = reach = None
    if params.multiplier is not None:
        multiplier = torch.tensor(params.multiplier[outputs], device=device)
        wide = np.int64(params.limit + 1) << (ROW_SHIFT if exponents else MULTIPLIER_SHIFT)
        most = -(-wide // params.multiplier[outputs].astype(np.int64))
        reach = torch.tensor(np.minimum(most, _NO_CLAMP).astype(np.int32), device=device)
    return Layer(
        torch.tensor(weight, device=device), torch.tensor(params.bias[outputs], device=device), multiplier,
        reach, None if table is None else torch.tensor(table, device=device), chosen.shape[1], params.limit,
        exponents,
    )  # fmt: skip


@triton.jit
def _nearest(
    acc, multiplier, reach, exponent, LIMIT: tl.constexpr, EXPONENTS: tl.constexpr, LONG: tl.constexpr
):
    """clamp(rhe(acc * M / 2^16)), with a row's exponent e clamp(rhe(acc * M / 2^(23 - e)))."""
    if not LONG:
        most = reach
        if EXPONENTS:
            most = (reach >> exponent) + 1
        acc = tl.minimum(tl.maximum(acc, -most), most)
    product = acc.to(tl.int64) * multiplier
    shift = _SHIFT
    if EXPONENTS:
        shift = _ROW_SHIFT - exponent
    # The shift is 7 or more: half a step may be added first.
    half = (tl.zeros_like(product) + 1) << (shift - 1)
    nearest = (product + (half - 1) + ((product >> shift) & 1)) >> shift
    if not LONG:
        nearest = nearest.to(tl.int32)
    return clamped(nearest, LIMIT).to(tl.int32)


@triton.jit
def _linear(
    x_ptr, weight_ptr, bias_ptr, multiplier_ptr, reach_ptr, table_ptr, out_ptr, count_ptr,
    outputs, x_step, out_step,
    INPUTS: tl.constexpr, WEIGHT_STEP: tl.constexpr, LIMIT: tl.constexpr, MULTIPLIED: tl.constexpr,
    EXPONENTS: tl.constexpr, TABLE: tl.constexpr, LONG: tl.constexpr,
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
        exponent = tl.zeros([ROWS, 1], tl.int32)
        if EXPONENTS:
            exponent = tl.load(x_rows + INPUTS).to(tl.int32)
            wide = tl.zeros([ROWS, COLUMNS], tl.int64) + bias
            bias = shift_half_even(wide, exponent.to(tl.int64)).to(tl.int32)
        acc += bias
        if MULTIPLIED:
            multiplier = tl.load(multiplier_ptr + read).to(tl.int64)[None, :]
            reach = tl.load(reach_ptr + read)[None, :]
            acc = _nearest(acc, multiplier, reach, exponent, LIMIT, EXPONENTS, LONG)
        if TABLE:
            acc = tl.load(table_ptr + (acc + 128))
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
        MULTIPLIED=layer.multiplier is not None, EXPONENTS=layer.exponents, TABLE=layer.table is not None,
        LONG=layer.limit > INT16_LIMIT, **tile, **FUSED,
    )  # fmt: skip
