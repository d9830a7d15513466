"""Operators on whole rows: a source, LayerNorm, RMSNorm or another operator, then int8 where wanted.

A source is a value, perhaps at other rows, the sum of two, an embedding, or the patches of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from hccs.backends.triton.devices import FUSED, capability, overlapping
from hccs.backends.triton.program.integers import (
    clamped,
    exact_float,
    leading_bit,
    nearest,
    nearest_float,
    nearest_within,
    power_of_2,
    ramp,
    root_and_quotient,
    scaled,
    shift_half_even,
    small_power_of_2,
    wait_for_launch_before,
)
from hccs.numbers.layers import RAMP_PIECES, XHAT_BITS, NormParams, RampParams
from hccs.numbers.rms_norm import RMS_BITS, RmsParams
from hccs.numbers.rotary import ROTATE_SHIFT

VALUE, SUM, EMBEDDING, PATCHES = (tl.constexpr(number) for number in range(4))
COPY, MULTIPLY, TABLE, ROTATE = (tl.constexpr(number) for number in range(4))
AS_IS, NARROW, NARROW_ROWS = (tl.constexpr(number) for number in range(3))

_XHAT_BITS = tl.constexpr(XHAT_BITS)
_RMS_BITS = tl.constexpr(RMS_BITS)
_ROTATE_SHIFT = tl.constexpr(ROTATE_SHIFT)
_TILE = 4096
"""Integers of a program's rows, where one row has no more."""


@dataclass(frozen=True, eq=False)
class Source:
    """What rows are made of, in the fields of its kind; `clamped` is where a sum or an embedding is kept."""

    kind: int = VALUE.value
    a: torch.Tensor | None = None
    b: torch.Tensor | None = None
    index: torch.Tensor | None = None
    ids: torch.Tensor | None = None
    types: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    words_table: torch.Tensor | None = None
    types_table: torch.Tensor | None = None
    positions_table: torch.Tensor | None = None
    shift: int = 0
    special: int = 0
    limit: int = 0
    clamped: torch.Tensor | None = None

    def arguments(self) -> tuple[Any, ...]:
        return (
            self.a, self.b, self.index, self.ids, self.types, self.positions, self.words_table,
            self.types_table, self.positions_table, self.clamped, _step(self.a), _step(self.b),
            _step(self.clamped),
        )  # fmt: skip

    def options(self) -> dict[str, Any]:
        return {"SOURCE": self.kind, "SHIFT": self.shift, "SPECIAL": self.special, "BOUND": self.limit}


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What follows: nothing, `Narrow` by so many bits, or `NarrowRows`, perhaps with scales of `scale_on`."""

    out: torch.Tensor | None = None
    kind: int = AS_IS.value
    bits: int = 0
    scale: torch.Tensor | None = None


def _step(value: torch.Tensor | None) -> int:
    return 0 if value is None else value.stride(0)


@triton.jit
def _source(
    a_ptr, b_ptr, index_ptr, ids_ptr, types_ptr, positions_ptr, words_ptr, type_table_ptr, position_table_ptr,
    clamped_ptr, a_step, b_step, clamped_step, row, column, there, width,
    SOURCE: tl.constexpr, SHIFT: tl.constexpr, SPECIAL: tl.constexpr, BOUND: tl.constexpr,
):  # fmt: skip
    """int32 rows of a source; clamped and stored where someone else reads them."""
    line = row.to(tl.int64)[:, None]
    if SOURCE == EMBEDDING:
        word = tl.load(ids_ptr + row).to(tl.int64)[:, None]
        x = tl.load(words_ptr + word * width + column[None, :], mask=there, other=0).to(tl.int32) << SHIFT
        if position_table_ptr is not None:
            position = tl.load(positions_ptr + row).to(tl.int64)[:, None]
            x += tl.load(position_table_ptr + position * width + column[None, :], mask=there, other=0)
        if type_table_ptr is not None:
            kind = tl.load(types_ptr + row).to(tl.int64)[:, None]
            x += tl.load(type_table_ptr + kind * width + column[None, :], mask=there, other=0)
    elif SOURCE == PATCHES:  # words are the rows of special tokens
        position = tl.load(positions_ptr + row).to(tl.int64)[:, None]
        special = there & (position < SPECIAL)
        x = tl.load(a_ptr + line * a_step + column[None, :], mask=there, other=0).to(tl.int32)
        own = tl.load(words_ptr + position * width + column[None, :], mask=special, other=0)
        x = tl.where(special, own.to(tl.int32), x)
        x += tl.load(position_table_ptr + position * width + column[None, :], mask=there, other=0)
    else:
        read = line
        if index_ptr is not None:
            read = tl.load(index_ptr + row).to(tl.int64)[:, None]
        x = tl.load(a_ptr + read * a_step + column[None, :], mask=there, other=0).to(tl.int32)
        if SOURCE == SUM:
            x += tl.load(b_ptr + line * b_step + column[None, :], mask=there, other=0)
    if BOUND:
        x = clamped(x, BOUND)
    if clamped_ptr is not None:
        place = clamped_ptr + line * clamped_step + column[None, :]
        tl.store(place, x.to(clamped_ptr.dtype.element_ty), mask=there)
    return x


@triton.jit
def _part(part, row, count, width, COLUMNS: tl.constexpr, EXACT: tl.constexpr):
    """The columns of a part of rows, and which of its elements there are; EXACT parts end where rows end."""
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    there = tl.broadcast_to((row < count)[:, None], [row.shape[0], COLUMNS])
    if not EXACT:
        there = there & (column < width)[None, :]
    return column, there


@triton.jit
def _of_columns(
    ptr, part, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """A constant of each column, for every row: threads that shared them would wait for each other."""
    column = tl.broadcast_to((part * COLUMNS + tl.arange(0, COLUMNS))[None, :], [ROWS, COLUMNS])
    if EXACT:
        found = tl.load(ptr + column)
    else:
        found = tl.load(ptr + column, mask=column < width, other=0)
    return found


@triton.jit
def _stored(
    parts, out_ptr, narrow_ptr, scale_ptr, out_step, narrow_step, row, count, first_part, width, bits,
    AFTER: tl.constexpr, NVIDIA: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Rows in parts, where they are kept; and int8 of 24 bits by so many bits, or by each row's own.

    They are int32, or int16 in float32.
    """
    if out_ptr is not None:
        for i in tl.static_range(len(parts)):
            column, there = _part(first_part + i, row, count, width, COLUMNS, EXACT)
            place = out_ptr + row.to(tl.int64)[:, None] * out_step + column[None, :]
            tl.store(place, parts[i].to(out_ptr.dtype.element_ty), mask=there)
    if AFTER != AS_IS:
        line = narrow_ptr + row.to(tl.int64)[:, None] * narrow_step
        exponent = bits
        if AFTER == NARROW_ROWS:
            if scale_ptr is not None:
                smaller = ()
                for i in tl.static_range(len(parts)):
                    scale = _of_columns(scale_ptr, i, width, row.shape[0], COLUMNS, EXACT)
                    if scale.dtype == tl.float32:
                        smaller += (scaled(parts[i].to(tl.float32), scale, NVIDIA),)
                    else:
                        smaller += (((parts[i] * scale.to(tl.int64) + 16384) >> 15).to(tl.int32),)
                parts = smaller
            most = tl.abs(parts[0])
            for i in tl.static_range(1, len(parts)):
                most = tl.maximum(most, tl.abs(parts[i]))
            # Up to 2^23 they are float32, whose exponent is that of their leading bit.
            largest = tl.max(most, axis=1).to(tl.float32).to(tl.int32, bitcast=True)
            exponent = tl.maximum((largest >> 23) - (127 + 6), 0)[:, None]
            column, there = _part(0, row, count, width, COLUMNS, EXACT)
            alike = tl.broadcast_to(exponent, there.shape).to(tl.int8)  # the threads that have it store it
            tl.store(line + (width + column)[None, :], alike, mask=there & (column == 0)[None, :])
        step = small_power_of_2(-exponent)
        for i in tl.static_range(len(parts)):
            column, there = _part(first_part + i, row, count, width, COLUMNS, EXACT)
            small = nearest_within(parts[i].to(tl.float32), step, 127)
            tl.store(line + column[None, :], small.to(tl.int8), mask=there)


@triton.jit
def _step_of_xhat(Q, root, root_shift):
    """1 / sqrt(Q / h), with 20 fraction bits, as float64; `root` is that of h."""
    up = (63 - leading_bit(Q)) // 2
    shifted = Q.to(tl.uint64) << (2 * up).to(tl.uint64)
    _, reciprocal = root_and_quotient(shifted, tl.zeros_like(Q) + root)
    return reciprocal.to(tl.float64) * power_of_2(up + (_XHAT_BITS - root_shift))


@triton.jit
def _norm(
    a_ptr, b_ptr, index_ptr, ids_ptr, types_ptr, positions_ptr, words_ptr, type_table_ptr, position_table_ptr,
    clamped_ptr, a_step, b_step, clamped_step, gain_ptr, bias_ptr, out_ptr, narrow_ptr, scale_ptr, count_ptr,
    width, epsilon, root, root_shift, gain_bits, out_step, narrow_step, bits,
    SOURCE: tl.constexpr, SHIFT: tl.constexpr, SPECIAL: tl.constexpr, BOUND: tl.constexpr,
    AFTER: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
    EXACT: tl.constexpr, NVIDIA: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """LayerNorm, or RMSNorm where there is no bias, without an error."""
    wait_for_launch_before(OVERLAPS)
    count = tl.load(count_ptr)
    first = tl.program_id(0) * ROWS
    if first < count:
        row = first + tl.arange(0, ROWS)
        xs = ()
        sum = tl.zeros([ROWS, COLUMNS], tl.int32)
        for i in tl.static_range(PARTS):
            column, there = _part(i, row, count, width, COLUMNS, EXACT)
            x = _source(
                a_ptr, b_ptr, index_ptr, ids_ptr, types_ptr, positions_ptr, words_ptr, type_table_ptr,
                position_table_ptr, clamped_ptr, a_step, b_step, clamped_step, row, column, there, width,
                SOURCE, SHIFT, SPECIAL, BOUND,
            )  # fmt: skip
            sum += x
            xs += (x,)
        ds = ()
        squares = tl.zeros([ROWS, COLUMNS], tl.int64)
        if bias_ptr is not None:
            total = tl.sum(sum, axis=1)[:, None]
        for i in tl.static_range(PARTS):
            if bias_ptr is not None:
                d = xs[i] * width - total
                if not EXACT:
                    column = i * COLUMNS + tl.arange(0, COLUMNS)
                    d = tl.where((column < width)[None, :], d, 0)
            else:
                d = xs[i] << _RMS_BITS
            squares += d.to(tl.int64) * d.to(tl.int64)
            ds += (d,)
        step = _step_of_xhat(tl.sum(squares, axis=1) + epsilon, root, root_shift)[:, None]
        ys = ()
        for i in tl.static_range(PARTS):
            gain = _of_columns(gain_ptr, i, width, ROWS, COLUMNS, EXACT)
            y = nearest_float(exact_float(ds[i]), step) * gain
            if bias_ptr is not None:  # together below 2^52
                y += _of_columns(bias_ptr, i, width, ROWS, COLUMNS, EXACT)
            ys += (clamped(nearest(y, power_of_2(-_XHAT_BITS - gain_bits)), 32767),)
        _stored(
            ys, out_ptr, narrow_ptr, scale_ptr, out_step, narrow_step, row, count, 0, width, bits, AFTER,
            NVIDIA, COLUMNS, EXACT,
        )  # fmt: skip


@triton.jit
def _norm_heads(
    x_ptr, out_ptr, gain_ptr, gain_bits_ptr, epsilon_ptr, count_ptr, x_step, out_step, width, dim, heads,
    root, root_shift, OVERLAPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """RMSNorm of one head of rows; the channels behind all heads are copied."""
    wait_for_launch_before(OVERLAPS)
    count = tl.load(count_ptr)
    first, head = tl.program_id(0) * ROWS, tl.program_id(1)
    if first < count:
        row, channel = first + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
        column = head * dim + channel
        inside = (channel < dim) & (column < width)
        there = (row < count)[:, None] & inside[None, :]
        line = row.to(tl.int64)[:, None]
        y = tl.load(x_ptr + line * x_step + column[None, :], mask=there, other=0).to(tl.int32)
        if head < heads:
            gain = tl.load(gain_ptr + column, mask=inside, other=0).to(tl.float64)[None, :]
            d = y << _RMS_BITS
            Q = tl.sum(d.to(tl.int64) * d.to(tl.int64), axis=1) + tl.load(epsilon_ptr + head)
            y = nearest_float(exact_float(d), _step_of_xhat(Q, root, root_shift)[:, None]) * gain
            y = clamped(nearest(y, power_of_2(-_XHAT_BITS - tl.load(gain_bits_ptr + head))), 32767)
        tl.store(out_ptr + line * out_step + column[None, :], y.to(tl.int16), mask=there)


@triton.jit
def _rotated(
    x, a_ptr, cosine_ptr, sine_ptr, multiplier_ptr, positions_ptr, a_step, row, column, there, width, dim,
    turned, PAIRS: tl.constexpr,
):  # fmt: skip
    """q and k turned by their position, then q, k and v in int8."""
    head, channel = column // dim, column % dim
    turns = (head < turned) & (channel < 2 * PAIRS) & (column < width)
    lower = channel < PAIRS
    other = tl.where(lower, column + PAIRS, column - PAIRS)
    mask = there & turns[None, :]
    place = tl.load(positions_ptr + row).to(tl.int64)[:, None] * PAIRS + (channel % PAIRS)[None, :]
    cosine = tl.load(cosine_ptr + place, mask=mask, other=0).to(tl.int64)
    sine = tl.load(sine_ptr + place, mask=mask, other=0).to(tl.int64)
    partner = tl.load(a_ptr + row.to(tl.int64)[:, None] * a_step + other[None, :], mask=mask, other=0)
    sine = tl.where(lower[None, :], -sine, sine)
    x = x.to(tl.int64)
    a = tl.where(turns[None, :], x * cosine + partner.to(tl.int64) * sine, x * 32767)
    multiplier = tl.load(multiplier_ptr + head, mask=column < width, other=1).to(tl.float64)
    return clamped(nearest(a.to(tl.float64), multiplier[None, :] * power_of_2(-_ROTATE_SHIFT)), 127)


@triton.jit
def _rows(
    a_ptr, b_ptr, index_ptr, ids_ptr, types_ptr, positions_ptr, words_ptr, type_table_ptr, position_table_ptr,
    clamped_ptr, a_step, b_step, clamped_step, other_ptr, first_ptr, second_ptr, third_ptr, out_ptr,
    narrow_ptr, scale_ptr, count_ptr, width, other_step, out_step, narrow_step, bits, dim, turned,
    SOURCE: tl.constexpr, SHIFT: tl.constexpr, SPECIAL: tl.constexpr, BOUND: tl.constexpr,
    MAIN: tl.constexpr, RAMP_BITS: tl.constexpr, PRODUCT_BITS: tl.constexpr, LIMIT: tl.constexpr,
    PAIRS: tl.constexpr, AFTER: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    COLUMNS: tl.constexpr, EXACT: tl.constexpr, NVIDIA: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Any other operator that needs no more than its row. RAMP_BITS, from 0 on, is a ramp in front of it."""
    wait_for_launch_before(OVERLAPS)
    count = tl.load(count_ptr)
    first = tl.program_id(0) * ROWS
    if first < count:
        row = first + tl.arange(0, ROWS)
        first_part = tl.program_id(1) * PARTS
        xs = ()
        for i in tl.static_range(PARTS):
            column, there = _part(first_part + i, row, count, width, COLUMNS, EXACT)
            x = _source(
                a_ptr, b_ptr, index_ptr, ids_ptr, types_ptr, positions_ptr, words_ptr, type_table_ptr,
                position_table_ptr, clamped_ptr, a_step, b_step, clamped_step, row, column, there, width,
                SOURCE, SHIFT, SPECIAL, BOUND,
            )  # fmt: skip
            if RAMP_BITS >= 0:
                x = ramp(x, first_ptr, RAMP_BITS, NVIDIA)
                if not EXACT:
                    x = tl.where(there, x, 0.0)
                if MAIN != COPY:
                    x = x.to(tl.int32)
            if MAIN == MULTIPLY:
                place = other_ptr + row.to(tl.int64)[:, None] * other_step + column[None, :]
                other = tl.load(place, mask=there, other=0).to(tl.int32)
                x = clamped(shift_half_even(x * other, PRODUCT_BITS), LIMIT)
            elif MAIN == TABLE:
                x = tl.load(first_ptr + (x + 128)).to(tl.int32)
            elif MAIN == ROTATE:
                x = _rotated(
                    x, a_ptr, first_ptr, second_ptr, third_ptr, positions_ptr, a_step, row, column, there,
                    width, dim, turned, PAIRS,
                )  # fmt: skip
            xs += (x,)
        _stored(
            xs, out_ptr, narrow_ptr, scale_ptr, out_step, narrow_step, row, count, first_part, width, bits,
            AFTER, NVIDIA, COLUMNS, EXACT,
        )  # fmt: skip


def _tile(width: int, room: int, whole: bool) -> dict[str, int]:
    """Rows of a program, the parts of a row and their columns; `whole` rows where something is found out."""
    columns, parts = triton.next_power_of_2(width), 1
    if columns * 3 == width * 4 and width >= 96:
        columns, parts = columns // 4, 3
    if not whole:
        columns, parts = min(columns, _TILE), 1
    held = columns * parts
    rows = 1 if held > 1024 else min(_TILE // columns // parts, room, 4 if held > 256 else 16)
    return {
        "ROWS": 1 << (rows.bit_length() - 1), "PARTS": parts, "COLUMNS": columns,
        "EXACT": width % columns == 0, "num_warps": 8 if held > 2048 else 4,
    }  # fmt: skip


def pieces_on(params: RampParams, device: torch.device) -> torch.Tensor:
    """A ramp as kernels take it: r + 1/2 of each piece as a line, its slopes and its values at x = 0.

    float32 holds them: a piece begins after 63 slopes of 16 bits at most.
    """
    slope, half = params.slope.astype(np.float64), 0.5 if params.bits else 0.0
    begin = params.knot + half - slope * np.arange(RAMP_PIECES)
    lines = np.stack([slope / 2**params.bits, begin], axis=1)
    return torch.tensor(lines, dtype=torch.float32, device=device)


def scale_on(scale: NDArray[np.int16] | None, small: bool, device: torch.device) -> torch.Tensor | None:
    """Scales in steps of 2^-15 of rows that get exponents; of `small` rows, which are int16, in float32."""
    if scale is None:
        return None
    if small:
        return torch.tensor(scale * 2.0**-15, dtype=torch.float32, device=device)
    return torch.tensor(scale, device=device)


def gain_and_bias_on(
    params: NormParams | RmsParams, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The constants of a norm as `norm` takes them: a bias counts in steps of gain * xhat.

    That of an output beyond 2^30 is cut there: xhat is too small to bring it back, and int32 holds the sum.
    """
    gain, bias = params.gain, getattr(params, "bias", None)
    if bias is not None:
        most = 2.0 ** (30 + params.gain_bits)
        bias = torch.tensor(bias.clip(-most, most) * 2.0**XHAT_BITS, device=device)
    return torch.tensor(gain, dtype=torch.float64, device=device), bias


def norm(
    source: Source, out: torch.Tensor | None, epilogue: Epilogue, count: torch.Tensor, room: int,
    gain: torch.Tensor, bias: torch.Tensor | None, numbers: tuple[int, int, int, int],
) -> None:  # fmt: skip
    """LayerNorm, or RMSNorm without a bias, of `gain_and_bias_on`.

    `numbers`: epsilon, the constant root, its shift, gain bits.
    """
    tile = _tile(len(gain), room, whole=True)
    kernel: Any = _norm
    kernel[(triton.cdiv(room, tile["ROWS"]),)](
        *source.arguments(), gain, bias, out, epilogue.out, epilogue.scale, count, len(gain), *numbers,
        _step(out), _step(epilogue.out), epilogue.bits, **source.options(), AFTER=epilogue.kind,
        NVIDIA=capability(count.device) > (0, 0), **tile, **overlapping(count.device, room), **FUSED,
    )  # fmt: skip


def norm_heads(
    x: torch.Tensor, out: torch.Tensor, count: torch.Tensor, room: int, width: int,
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor], numbers: tuple[int, int],
) -> None:  # fmt: skip
    """RMSNorm of each head; `heads`: gains, gain bits, epsilons; `numbers`: the constant root, its shift."""
    gain, gain_bits, epsilon = heads
    count_of_heads, dim = gain.shape
    columns = triton.next_power_of_2(dim)
    tile = {"ROWS": max(min(_TILE // columns, room, 16), 1), "COLUMNS": columns}
    kernel: Any = _norm_heads
    kernel[(triton.cdiv(room, tile["ROWS"]), triton.cdiv(width, dim))](
        x, out, gain, gain_bits, epsilon, count, _step(x), _step(out), width, dim, count_of_heads, *numbers,
        **tile, **overlapping(count.device, room), **FUSED,
    )  # fmt: skip


def rows(
    source: Source, out: torch.Tensor | None, epilogue: Epilogue, count: torch.Tensor, room: int, width: int,
    *, main: int = COPY.value, other: torch.Tensor | None = None,
    constants: tuple[torch.Tensor, ...] = (), ramp_bits: int = -1, product_bits: int = 0, limit: int = 0,
    dim: int = 1, turned: int = 0, pairs: int = 1,
) -> None:  # fmt: skip
    """Copies, sums, embeddings, ramps, products, look-ups and rotations, by `main` and its constants."""
    tile = _tile(width, room, whole=epilogue.kind == NARROW_ROWS.value)
    first, second, third = (*constants, None, None, None)[:3]
    kernel: Any = _rows
    kernel[(triton.cdiv(room, tile["ROWS"]), triton.cdiv(width, tile["COLUMNS"] * tile["PARTS"]))](
        *source.arguments(), other, first, second, third, out, epilogue.out, epilogue.scale, count, width,
        _step(other), _step(out), _step(epilogue.out), epilogue.bits, dim, turned, **source.options(),
        MAIN=main, RAMP_BITS=ramp_bits, PRODUCT_BITS=product_bits, LIMIT=limit, PAIRS=pairs,
        AFTER=epilogue.kind, NVIDIA=capability(count.device) > (0, 0), **tile,
        **overlapping(count.device, room), **FUSED,
    )  # fmt: skip
