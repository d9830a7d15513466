"""What turns sequences into one row each, unit vectors, and the pixels of patches."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hccs.backends.triton.devices import FUSED
from hccs.backends.triton.program.integers import (
    clamped,
    floor_divide,
    leading_bit,
    shift_half_even,
    square_root,
)

MEAN, LAST, MAX = (tl.constexpr(number) for number in range(3))
POOLINGS = {"mean": MEAN.value, "last": LAST.value, "max": MAX.value}

_UNIT_BITS = tl.constexpr(25)


@triton.jit
def _pool(
    x_ptr, out_ptr, starts_ptr, count_ptr, width, x_step, out_step,
    POOLING: tl.constexpr, DIVIDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Channels of one sequence."""
    sequence = tl.program_id(0)
    if sequence < tl.load(count_ptr):
        start, end = tl.load(starts_ptr + sequence), tl.load(starts_ptr + sequence + 1)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < width
        if POOLING == LAST:
            line = x_ptr + (end - 1).to(tl.int64) * x_step
            pooled = tl.load(line + column, mask=inside, other=0).to(tl.int32)
        else:
            LEAST: tl.constexpr = 0 if POOLING == MEAN else -32768
            pooled = tl.full([COLUMNS], LEAST, tl.int32)
            for begin in tl.range(start, end, ROWS):
                row = begin + tl.arange(0, ROWS)
                there = (row < end)[:, None] & inside[None, :]
                place = x_ptr + row.to(tl.int64)[:, None] * x_step + column[None, :]
                x = tl.load(place, mask=there, other=LEAST).to(tl.int32)
                if POOLING == MEAN:
                    pooled += tl.sum(x, axis=0)
                else:
                    pooled = tl.maximum(pooled, tl.max(x, axis=0))
        if DIVIDED and POOLING == MEAN:
            n = (end - start).to(tl.int64)
            pooled = floor_divide(2 * pooled.to(tl.int64) + n, 2 * n, 65536)
        place = out_ptr + sequence.to(tl.int64) * out_step + column
        tl.store(place, pooled.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["dims"])
def _unit(
    x_ptr, out_ptr, count_ptr, dims, x_step, out_step, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """The first channels of rows as vectors of length 1, 32767 standing for 1."""
    count = tl.load(count_ptr)
    first = tl.program_id(0) * ROWS
    if first < count:
        row, column = first + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
        there = (row < count)[:, None] & (column < dims)[None, :]
        line = row.to(tl.int64)[:, None]
        x = tl.load(x_ptr + line * x_step + column[None, :], mask=there, other=0).to(tl.int64)
        largest = tl.max(tl.maximum(x, -x), axis=1)
        bits = tl.maximum(leading_bit(tl.maximum(largest, 1)) + (1 - _UNIT_BITS), 0)
        x = shift_half_even(x, bits[:, None])
        norm = square_root(tl.sum(x * x, axis=1).to(tl.uint64)).to(tl.int64)
        N = tl.maximum(norm, 1)[:, None]  # of zeros alone where it is 0
        unit = clamped(floor_divide(x * 65534 + N, N * 2, 65536), 32767)
        unit = tl.where(norm[:, None] > 0, unit, 0)
        tl.store(out_ptr + line * out_step + column[None, :], unit.to(tl.int16), mask=there)


@triton.jit
def _pixels(
    image_ptr, out_ptr, count_ptr, positions_ptr, sequences_ptr, width, height, across, out_step,
    SPECIAL: tl.constexpr, PATCH: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Pixels of one patch, channel by channel and row by row, as pixel - 128; zeros for special tokens."""
    row = tl.program_id(0)
    if row < tl.load(count_ptr):
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < CHANNELS * PATCH * PATCH
        patch = tl.zeros_like(column) + tl.load(positions_ptr + row) - SPECIAL
        down, right = patch // (across // PATCH), patch % (across // PATCH)
        channel, i, j = column // (PATCH * PATCH), column // PATCH % PATCH, column % PATCH
        image = tl.load(sequences_ptr + row).to(tl.int64) * (CHANNELS * height * across)
        place = image + ((channel * height + down * PATCH + i) * across + right * PATCH + j)
        pixel = tl.load(image_ptr + place, mask=inside & (patch >= 0), other=128).to(tl.int32) - 128
        tl.store(out_ptr + row.to(tl.int64) * out_step + column, pixel.to(tl.int8), mask=inside)


def pool(
    x: torch.Tensor, out: torch.Tensor, starts: torch.Tensor, count: torch.Tensor, width: int, pooling: str,
    divided: bool,
) -> None:  # fmt: skip
    """The sum, the last or the largest of every sequence's rows; with `divided` the sum becomes a mean."""
    columns = min(triton.next_power_of_2(width), 128)
    kernel: Any = _pool
    kernel[(len(starts) - 1, triton.cdiv(width, columns))](
        x, out, starts, count, width, x.stride(0), out.stride(0), POOLING=POOLINGS[pooling], DIVIDED=divided,
        ROWS=16, COLUMNS=columns, num_warps=4, **FUSED,
    )  # fmt: skip


def unit(x: torch.Tensor, out: torch.Tensor, count: torch.Tensor, room: int, dims: int, most: int) -> None:
    """Vectors of `dims` channels, of at most `most`."""
    columns = triton.next_power_of_2(most)
    rows = max(min(2048 // columns, room, 16), 1)
    kernel: Any = _unit
    kernel[(triton.cdiv(room, rows),)](
        x, out, count, dims, x.stride(0), out.stride(0), ROWS=rows, COLUMNS=columns, num_warps=4, **FUSED
    )


def cut_pixels(
    images: torch.Tensor, out: torch.Tensor, count: torch.Tensor, positions: torch.Tensor,
    sequences: torch.Tensor, patch: int, special: int,
) -> None:  # fmt: skip
    """int8 rows of pixels of uint8 images [batch, channels, height, width]."""
    _, channels, height, across = images.shape
    width = channels * patch * patch
    columns = min(triton.next_power_of_2(width), 1024)
    kernel: Any = _pixels
    kernel[(len(out), triton.cdiv(width, columns))](
        images, out, count, positions, sequences, width, height, across, out.stride(0), SPECIAL=special,
        PATCH=patch, CHANNELS=channels, COLUMNS=columns, num_warps=4, **FUSED,
    )  # fmt: skip
