"""Linear layers: int8 products in tensor cores; bias, requantisation, table and width before the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from hccs.backends.triton.devices import (
    FUSED,
    HOPPER,
    INTERPRETED,
    capability,
    multiprocessors,
    overlapping,
)
from hccs.backends.triton.program.integers import (
    clamped,
    exact_float,
    look_up,
    nearest,
    nearest_float,
    nearest_small,
    nearest_within,
    power_of_2,
    small_power_of_2,
    wait_for_launch_before,
)
from hccs.numbers.layers import INT16_LIMIT, MULTIPLIER_SHIFT, ROW_SHIFT, LinearParams

LINE = 64
"""Rows of values and of weights are whole numbers of so many bytes."""

MOST_COLUMNS = 256
"""Of a tile: constants are padded to a whole number of them."""

PROGRAMS = 2
"""On a multiprocessor: each computes one tile after the other."""

KEPT_ROWS, KEPT_COLUMNS, KEPT_INPUTS = 128, 64, 384
"""Rows of at most so many inputs, with two tiles of weights, leave a multiprocessor of Hopper's shared memory
for a second program."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's constants on a device; `small`: float32 holds its sums and its bias, which has 23 bits."""

    weight: torch.Tensor
    bias: torch.Tensor
    multiplier: torch.Tensor | None
    table: torch.Tensor | None
    outputs: int
    inputs: int
    limit: int
    exponents: bool
    small: bool


def layer_on(
    params: LinearParams, outputs: slice, table: Any | None, exponents: bool, device: torch.device
) -> Layer:
    """The constants of some output channels, with zeros up to whole lines and tiles."""
    chosen, bias = params.weight[outputs], params.bias[outputs]
    count, inputs = chosen.shape
    room = -(-count // MOST_COLUMNS) * MOST_COLUMNS

    def on_device(array: Any, dtype: torch.dtype) -> torch.Tensor:
        whole = torch.zeros((room, *array.shape[1:]), dtype=dtype)
        whole[:count] = torch.tensor(array)
        return whole.to(device)

    multiplier, small = None, False
    if params.multiplier is not None:
        step = params.multiplier[outputs] * 0.5 ** (ROW_SHIFT if exponents else MULTIPLIER_SHIFT)
        most = 128 * abs(chosen.astype(np.int64)).sum(1) + abs(bias.astype(np.int64))
        small = most.max() < 2**24 and abs(bias).max() < 2**22 and params.limit <= INT16_LIMIT
        multiplier = on_device(step, torch.float32 if small else torch.float64)
    weight = np.pad(chosen, ((0, 0), (0, -inputs % LINE)))
    return Layer(
        on_device(weight, torch.int8), on_device(bias, torch.float32 if small else torch.int32), multiplier,
        None if table is None else torch.tensor(table, device=device),
        count, inputs, params.limit, exponents, bool(small),
    )  # fmt: skip


_WITH_BIAS = tl.constexpr("""{
    .reg .f32 t;
    .reg .b32 u;
    fma.rn.f32 t, $2, $3, 0f4B400000;
    mov.b32 u, t;
    add.s32 u, u, 0xB4C00000;
    add.s32 $0, u, $1;
}""")


@triton.jit
def _with_bias(acc, bias, step, NVIDIA: tl.constexpr):
    """acc + rhe(bias * step). One operation, so that what all rows share reaches acc's threads by itself."""
    if NVIDIA:
        return tl.inline_asm_elementwise(
            _WITH_BIAS, "=r,r,f,f", [acc, bias, step], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        return acc + nearest_small(bias, step)


@triton.jit
def _stored(
    acc, row, column, exponent, count, outputs, bias_ptr, multiplier_ptr, table_ptr, out_ptr, out_step,
    LIMIT: tl.constexpr, EXPONENTS: tl.constexpr, SMALL: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """A tile of outputs: clamp(rhe(acc * M / 2^16)), with row exponents clamp(rhe(acc * M / 2^(23 - e)))."""
    bias = tl.load(bias_ptr + column)[None, :]
    if multiplier_ptr is None:
        acc += bias
    elif SMALL:
        multiplier = tl.load(multiplier_ptr + column)[None, :]
        if EXPONENTS:
            acc = _with_bias(acc, bias, small_power_of_2(-exponent), NVIDIA)
            a = acc.to(tl.float32) * small_power_of_2(exponent)
        else:
            a = acc.to(tl.float32) + bias
        acc = nearest_within(a, multiplier, LIMIT)
    else:
        multiplier = tl.load(multiplier_ptr + column)[None, :]
        if EXPONENTS:
            bias = nearest(bias.to(tl.float64), power_of_2(-exponent))
            multiplier = multiplier * power_of_2(exponent)
        acc = clamped(nearest_float(exact_float(acc + bias), multiplier), LIMIT).to(tl.int32)
    if table_ptr is not None:
        acc = look_up(table_ptr, acc + 128, NVIDIA)
    place = out_ptr + row.to(tl.int64)[:, None] * out_step + column[None, :]
    there = (row < count)[:, None] & (column < outputs)[None, :]
    tl.store(place, acc.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def _linear(
    x_ptr, weight_ptr, bias_ptr, multiplier_ptr, table_ptr, out_ptr, count_ptr, outputs, x_step, out_step,
    INPUTS: tl.constexpr, WEIGHT_STEP: tl.constexpr, LIMIT: tl.constexpr, EXPONENTS: tl.constexpr,
    SMALL: tl.constexpr, NVIDIA: tl.constexpr, OVERLAPS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Tiles of outputs, each from its own x and weights.

    Constants reach to the end of the tile; what x holds behind the last input meets weights of zero.
    """
    wait_for_launch_before(OVERLAPS)
    count = tl.load(count_ptr)
    across = tl.cdiv(outputs, COLUMNS)
    tiles = tl.cdiv(count, ROWS) * across
    steps = WEIGHT_STEP // DEPTH
    step = tl.arange(0, DEPTH)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile // across * ROWS + tl.arange(0, ROWS)
        column = tile % across * COLUMNS + tl.arange(0, COLUMNS)
        x_rows = x_ptr + row.to(tl.int64)[:, None] * x_step
        weight = weight_ptr + column.to(tl.int64)[None, :] * WEIGHT_STEP
        acc = tl.zeros([ROWS, COLUMNS], tl.int32)
        for k in tl.range(0, steps):
            x = tl.load(x_rows + (k * DEPTH + step)[None, :])
            w = tl.load(weight + (k * DEPTH + step)[:, None])
            acc = tl.dot(x, w, acc, out_dtype=tl.int32)
        exponent = count
        if EXPONENTS:
            exponent = tl.load(x_rows + INPUTS, mask=(row < count)[:, None], other=0).to(tl.int32)
        _stored(
            acc, row, column, exponent, count, outputs, bias_ptr, multiplier_ptr, table_ptr, out_ptr,
            out_step, LIMIT, EXPONENTS, SMALL, NVIDIA,
        )  # fmt: skip


@triton.jit
def _products(
    xs, weight_ptr, column, WEIGHT_STEP: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Sums of a tile from rows that come in pieces of DEPTH inputs."""
    weight = weight_ptr + column.to(tl.int64)[None, :] * WEIGHT_STEP
    acc = tl.zeros([ROWS, column.shape[0]], tl.int32)
    for k in tl.static_range(WEIGHT_STEP // DEPTH):
        w = tl.load(weight + (k * DEPTH + tl.arange(0, DEPTH))[:, None])
        acc = tl.dot(xs[k], w, acc, out_dtype=tl.int32)
    return acc


@triton.jit
def _linear_of_kept_rows(
    x_ptr, weight_ptr, bias_ptr, multiplier_ptr, table_ptr, out_ptr, count_ptr, outputs, x_step, out_step,
    INPUTS: tl.constexpr, WEIGHT_STEP: tl.constexpr, LIMIT: tl.constexpr, EXPONENTS: tl.constexpr,
    SMALL: tl.constexpr, NVIDIA: tl.constexpr, OVERLAPS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The same outputs from rows of x that stay in shared memory, where many tiles meet them.

    A program has an equal share of all tiles, one row of tiles after the other. Weights of the next tile are
    on their way while the outputs of the last one are made: these come first in the loop.
    """
    wait_for_launch_before(OVERLAPS)
    count = tl.load(count_ptr)
    across = tl.cdiv(outputs, COLUMNS)
    tiles = tl.cdiv(count, ROWS) * across
    share = tl.cdiv(tiles, tl.num_programs(0))
    begin = tl.program_id(0) * share
    end = tl.minimum(begin + share, tiles)
    for block in tl.range(begin // across, tl.cdiv(end, across)):
        row = block * ROWS + tl.arange(0, ROWS)
        x_rows = x_ptr + row.to(tl.int64)[:, None] * x_step
        xs = ()
        for k in tl.static_range(WEIGHT_STEP // DEPTH):
            xs += (tl.load(x_rows + (k * DEPTH + tl.arange(0, DEPTH))[None, :]),)
        exponent = count
        if EXPONENTS:
            exponent = tl.load(x_rows + INPUTS, mask=(row < count)[:, None], other=0).to(tl.int32)
        first = tl.maximum(begin - block * across, 0)
        last = tl.minimum(end - block * across, across) - 1
        column = first * COLUMNS + tl.arange(0, COLUMNS)
        acc = _products(xs, weight_ptr, column, WEIGHT_STEP, ROWS, DEPTH)
        for tile in tl.range(first, last):
            _stored(
                acc, row, tile * COLUMNS + tl.arange(0, COLUMNS), exponent, count, outputs, bias_ptr,
                multiplier_ptr, table_ptr, out_ptr, out_step, LIMIT, EXPONENTS, SMALL, NVIDIA,
            )  # fmt: skip
            column = (tile + 1) * COLUMNS + tl.arange(0, COLUMNS)
            acc = _products(xs, weight_ptr, column, WEIGHT_STEP, ROWS, DEPTH)
        _stored(
            acc, row, last * COLUMNS + tl.arange(0, COLUMNS), exponent, count, outputs, bias_ptr,
            multiplier_ptr, table_ptr, out_ptr, out_step, LIMIT, EXPONENTS, SMALL, NVIDIA,
        )  # fmt: skip


def tile_of(room: int, outputs: int, depth: int, kept: bool, nvidia: bool) -> dict[str, int]:
    """A tile's rows, columns and depth, its warps and stages, for so many rows and columns."""
    rows, columns, stages = KEPT_ROWS, KEPT_COLUMNS, 2
    if not kept:
        rows, stages = min(room, 128 if room * outputs >= 2**21 else 64), 3
        columns = min(max(triton.next_power_of_2(outputs), 16), 128 if rows >= 64 else 64)
    warps = 8 if rows * columns >= 2**14 and room * outputs >= 2**25 else 4
    # A multiprocessor has registers for two programs of eight warps with so many.
    limits = {"maxnreg": 128} if warps == 8 and nvidia else {}
    return {
        "ROWS": rows, "COLUMNS": columns, "DEPTH": 128 if depth % 128 == 0 else LINE,
        "num_warps": warps, "num_stages": stages, **limits,
    }  # fmt: skip


def keeps_rows(room: int, outputs: int, depth: int, device: torch.device) -> bool:
    """Whether a program finds room for whole rows of x, and several tiles for each of them.

    Then x is read once, and not once for every tile: what comes from the cache of all multiprocessors limits
    layers of few inputs.
    """
    if not INTERPRETED and capability(device)[0] != HOPPER[0]:
        return False
    tiles = room // KEPT_ROWS * triton.cdiv(outputs, KEPT_COLUMNS)
    return depth <= KEPT_INPUTS and room % KEPT_ROWS == 0 and tiles >= 5 * multiprocessors(device)


def linear(x: torch.Tensor, out: torch.Tensor, count: torch.Tensor, layer: Layer) -> None:
    """`out` of the int8 rows x; there is room for a whole number of tiles of rows."""
    outputs, depth = layer.outputs, layer.weight.shape[1]
    nvidia = capability(x.device) > (0, 0)
    kept = keeps_rows(len(x), outputs, depth, x.device)
    tile = tile_of(len(x), outputs, depth, kept, nvidia)
    kernel: Any = _linear_of_kept_rows if kept else _linear
    tiles = triton.cdiv(outputs, tile["COLUMNS"]) * triton.cdiv(len(x), tile["ROWS"])
    kernel[(min(tiles, PROGRAMS * multiprocessors(x.device)),)](
        x, layer.weight, layer.bias, layer.multiplier, layer.table, out, count, outputs, x.stride(0),
        out.stride(0), INPUTS=layer.inputs, WEIGHT_STEP=depth, LIMIT=layer.limit, EXPONENTS=layer.exponents,
        SMALL=layer.small, NVIDIA=nvidia, **tile, **overlapping(x.device, len(x)), **FUSED,
    )  # fmt: skip
