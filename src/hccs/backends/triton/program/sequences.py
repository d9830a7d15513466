"""What packs sequences, turns each into one row, makes unit vectors, and cuts pixels of patches."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hccs.backends.triton.devices import FUSED, made_current, overlapping
from hccs.backends.triton.program.integers import (
    clamped,
    floor_divide,
    leading_bit,
    shift_half_even,
    square_root,
    wait_for_launch_before,
)

MEAN, LAST, MAX = (tl.constexpr(number) for number in range(3))
POOLINGS = {"mean": MEAN.value, "last": LAST.value, "max": MAX.value}

_UNIT_BITS = tl.constexpr(25)


@triton.jit
def _measure(
    ids_ptr, mask_ptr, types_ptr, length_ptr, wrong_ptr, n, vocabulary, type_count, COLUMNS: tl.constexpr
):  # fmt: skip
    """How many tokens a sequence has; and whether one is unknown, or stands behind a gap."""
    sequence = tl.program_id(0)
    line = sequence.to(tl.int64) * n
    length, last, wrong = 0, 0, 0
    for begin in tl.range(0, n, COLUMNS):
        position = begin + tl.arange(0, COLUMNS)
        inside = position < n
        token = tl.load(ids_ptr + line + position, mask=inside, other=0)
        bad = (token < 0) | (token >= vocabulary)
        shown = inside.to(tl.int32)
        if mask_ptr is not None:
            mask = tl.load(mask_ptr + line + position, mask=inside, other=0)
            bad = bad | ((mask != 0) & (mask != 1))
            shown = (mask != 0).to(tl.int32)
        if types_ptr is not None:
            kind = tl.load(types_ptr + line + position, mask=inside, other=0)
            bad = bad | (kind < 0) | (kind >= type_count)
        length += tl.sum(shown)
        last = tl.maximum(last, tl.max(shown * (position + 1)))
        wrong = tl.maximum(wrong, tl.max(bad.to(tl.int32)))
    gap = tl.where((length == 0) | (last != length), 1, 0)
    wrong = tl.maximum(wrong, gap)
    tl.store(length_ptr + sequence, length)
    tl.store(wrong_ptr + sequence, wrong)


@triton.jit
def _pack(
    ids_ptr, types_ptr, ends_ptr, out_ids, out_types, out_positions, out_sequences, out_lasts, out_starts,
    out_ones, out_counts, n, count, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The tokens of a sequence behind those of the ones before it. Beyond `count` sequences are empty."""
    sequence, begin = tl.program_id(0), tl.program_id(1) * COLUMNS
    known = tl.minimum(sequence, count - 1)
    end = tl.load(ends_ptr + known)
    start = tl.load(ends_ptr + known - 1, mask=known > 0, other=0)
    if sequence >= count:
        start = end
    position = begin + tl.arange(0, COLUMNS)
    there = position < end - start
    place = start + position
    line = known.to(tl.int64) * n
    tl.store(
        out_ids + place, tl.load(ids_ptr + line + position, mask=there, other=0).to(tl.int32), mask=there
    )
    kind = tl.zeros([COLUMNS], tl.int32)
    if types_ptr is not None:
        kind = tl.load(types_ptr + line + position, mask=there, other=0).to(tl.int32)
    tl.store(out_types + place, kind, mask=there)
    tl.store(out_positions + place, position, mask=there)
    tl.store(out_sequences + place, tl.zeros_like(position) + sequence, mask=there)
    if begin == 0:
        tl.store(out_starts + sequence + 1, end)
        tl.store(out_ones + sequence + 1, tl.minimum(sequence + 1, count))
        tl.store(out_lasts + sequence, end - 1)
        if sequence == 0:
            tl.store(out_starts, 0)
            tl.store(out_ones, 0)
            tl.store(out_counts, tl.load(ends_ptr + count - 1))
            tl.store(out_counts + 1, count)


@triton.jit
def _pool(
    x_ptr, out_ptr, starts_ptr, count_ptr, width, x_step, out_step,
    POOLING: tl.constexpr, DIVIDED: tl.constexpr, OVERLAPS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Channels of one sequence."""
    wait_for_launch_before(OVERLAPS)
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
            found = tl.full([ROWS, COLUMNS], LEAST, tl.int32)
            for begin in tl.range(start, end, ROWS):
                row = begin + tl.arange(0, ROWS)
                there = (row < end)[:, None] & inside[None, :]
                place = x_ptr + row.to(tl.int64)[:, None] * x_step + column[None, :]
                x = tl.load(place, mask=there, other=LEAST).to(tl.int32)
                found = found + x if POOLING == MEAN else tl.maximum(found, x)
            pooled = tl.sum(found, axis=0) if POOLING == MEAN else tl.max(found, axis=0)
        if DIVIDED and POOLING == MEAN:
            n = (end - start).to(tl.int64)
            pooled = floor_divide(2 * pooled.to(tl.int64) + n, 2 * n, 65536)
        place = out_ptr + sequence.to(tl.int64) * out_step + column
        tl.store(place, pooled.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["dims"])
def _unit(
    x_ptr, out_ptr, count_ptr, dims, x_step, out_step, OVERLAPS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The first channels of rows as vectors of length 1, 32767 standing for 1."""
    wait_for_launch_before(OVERLAPS)
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
    SPECIAL: tl.constexpr, PATCH: tl.constexpr, CHANNELS: tl.constexpr, OVERLAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Pixels of one patch, channel by channel and row by row, as pixel - 128; zeros for special tokens."""
    wait_for_launch_before(OVERLAPS)
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


def _columns(n: int) -> int:
    return min(1 << (n - 1).bit_length(), 1024)


def measure(
    ids: torch.Tensor, mask: torch.Tensor | None, types: torch.Tensor | None, vocabulary: int, type_count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths of sequences [batch, n], and which of them are wrong."""
    length, wrong = torch.empty((2, len(ids)), dtype=torch.int32, device=ids.device)
    kernel: Any = _measure
    n = ids.shape[1]
    with made_current(ids.device):  # the other kernels run on a stream that their engine chooses
        kernel[(len(ids),)](ids, mask, types, length, wrong, n, vocabulary, type_count, COLUMNS=_columns(n))
    return length, wrong


def pack(
    ids: torch.Tensor, types: torch.Tensor | None, ends: torch.Tensor, longest: int, sequences: int,
    out: tuple[torch.Tensor, ...],
) -> None:  # fmt: skip
    """`out`: ids, types, positions, sequences, lasts, starts, ones and counts of the packed batch."""
    kernel: Any = _pack
    columns = _columns(longest)
    kernel[(sequences, triton.cdiv(longest, columns))](
        ids, types, ends, *out, ids.shape[1], len(ends), COLUMNS=columns
    )


def pool(
    x: torch.Tensor, out: torch.Tensor, starts: torch.Tensor, count: torch.Tensor, width: int, pooling: str,
    divided: bool,
) -> None:  # fmt: skip
    """The sum, the last or the largest of every sequence's rows; with `divided` the sum becomes a mean."""
    columns = min(triton.next_power_of_2(width), 128)
    kernel: Any = _pool
    kernel[(len(starts) - 1, triton.cdiv(width, columns))](
        x, out, starts, count, width, x.stride(0), out.stride(0), POOLING=POOLINGS[pooling], DIVIDED=divided,
        ROWS=16, COLUMNS=columns, num_warps=4, **overlapping(x.device, len(x)), **FUSED,
    )  # fmt: skip


def unit(x: torch.Tensor, out: torch.Tensor, count: torch.Tensor, room: int, dims: int, most: int) -> None:
    """Vectors of `dims` channels, of at most `most`."""
    columns = triton.next_power_of_2(most)
    rows = max(min(2048 // columns, room, 16), 1)
    kernel: Any = _unit
    kernel[(triton.cdiv(room, rows),)](
        x, out, count, dims, x.stride(0), out.stride(0), ROWS=rows, COLUMNS=columns, num_warps=4,
        **overlapping(x.device, len(x)), **FUSED,
    )  # fmt: skip


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
        PATCH=patch, CHANNELS=channels, COLUMNS=columns, num_warps=4, **overlapping(out.device, len(out)),
        **FUSED,
    )  # fmt: skip
