"""Operators on whole rows: a source, LayerNorm, RMSNorm or another operator, then int8 where wanted.

A source is a value, perhaps at other rows, the sum of two, an embedding, or the patches of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from hccs.backends.triton.devices import FUSED
from hccs.backends.triton.program.integers import (
    clamped,
    exact_float,
    leading_bit,
    nearest,
    nearest_byte,
    nearest_float,
    power_of_2,
    shift_half_even,
    square_root,
)
from hccs.numbers.layers import XHAT_BITS, NormParams
from hccs.numbers.rms_norm import RMS_BITS, RmsParams
from hccs.numbers.rotary import ROTATE_SHIFT

VALUE, SUM, EMBEDDING, PATCHES = (tl.constexpr(number) for number in range(4))
COPY, MULTIPLY, TABLE, ROTATE = (tl.constexpr(number) for number in range(4))
AS_IS, NARROW, NARROW_ROWS = (tl.constexpr(number) for number in range(3))

_XHAT_BITS = tl.constexpr(XHAT_BITS)
_RMS_BITS = tl.constexpr(RMS_BITS)
_ROTATE_SHIFT = tl.constexpr(ROTATE_SHIFT)
_TILE = 2048
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
    """What follows: nothing, `Narrow` by so many bits, or `NarrowRows` with scales or without."""

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
    known = there.to(tl.int1)
    line = row.to(tl.int64)[:, None]
    if SOURCE == EMBEDDING:
        word = tl.load(ids_ptr + row).to(tl.int64)[:, None]
        x = tl.load(words_ptr + word * width + column[None, :], mask=known, other=0).to(tl.int32) << SHIFT
        if position_table_ptr is not None:
            position = tl.load(positions_ptr + row).to(tl.int64)[:, None]
            x += tl.load(position_table_ptr + position * width + column[None, :], mask=known, other=0)
        if type_table_ptr is not None:
            kind = tl.load(types_ptr + row).to(tl.int64)[:, None]
            x += tl.load(type_table_ptr + kind * width + column[None, :], mask=known, other=0)
    elif SOURCE == PATCHES:  # words are the rows of special tokens
        position = tl.load(positions_ptr + row).to(tl.int64)[:, None]
        special = known & (position < SPECIAL)
        x = tl.load(a_ptr + line * a_step + column[None, :], mask=known, other=0).to(tl.int32)
        own = tl.load(words_ptr + position * width + column[None, :], mask=special, other=0)
        x = tl.where(special, own.to(tl.int32), x)
        x += tl.load(position_table_ptr + position * width + column[None, :], mask=known, other=0)
    else:
        read = line
        if index_ptr is not None:
            read = tl.load(index_ptr + row).to(tl.int64)[:, None]
        x = tl.load(a_ptr + read * a_step + column[None, :], mask=known, other=0).to(tl.int32)
        if SOURCE == SUM:
            x += tl.load(b_ptr + line * b_step + column[None, :], mask=known, other=0)
    if BOUND:
        x = clamped(x, BOUND)
    if clamped_ptr is not None:
        place = clamped_ptr + line * clamped_step + column[None, :]
        tl.store(place, x.to(clamped_ptr.dtype.element_ty), mask=known)
    return x


@triton.jit
def _narrowed(
    y, narrow_ptr, scale_ptr, narrow_step, row, column, there, width, bits, AFTER: tl.constexpr,
):  # fmt: skip
    """int8 of int32 rows of 24 bits: by so many bits, or by each row's own, which lie behind it."""
    line = narrow_ptr + row.to(tl.int64)[:, None] * narrow_step
    if AFTER == NARROW:
        exponent = bits
    else:
        if scale_ptr is not None:
            scale = tl.load(scale_ptr + column, mask=column < width, other=0).to(tl.int64)
            y = ((y * scale[None, :] + 16384) >> 15).to(tl.int32)
        largest = tl.max(tl.where(there, tl.abs(y), 0), axis=1)
        # Up to 2^23 they are float32, whose exponent is that of their leading bit.
        leading = (largest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        exponent = tl.maximum(leading - 6, 0)[:, None]
        known = tl.max(there.to(tl.int32), axis=1)[:, None] > 0
        tl.store(line + width, exponent.to(tl.int8), mask=known)
    step = ((tl.full([], 127, tl.int32) - exponent) << 23).to(tl.float32, bitcast=True)
    tl.store(line + column[None, :], nearest_byte(y.to(tl.float32) * step), mask=there)


@triton.jit
def _xhat(d, epsilon, root, root_shift):
    """d / sqrt((sum(d^2) + epsilon) / h) of int32 rows of h channels, with 20 fraction bits, as float64."""
    Q = tl.sum(d.to(tl.int64) * d.to(tl.int64), axis=1) + epsilon
    up = (63 - leading_bit(Q)) // 2
    s = square_root(Q.to(tl.uint64) << (2 * up).to(tl.uint64)).to(tl.int64)
    # The quotient of float64 has 31 bits in front of the point, and is off by far less than one.
    whole = tl.zeros_like(s) + root
    reciprocal = (whole.to(tl.float64) / s.to(tl.float64)).to(tl.int64)
    rest = whole - reciprocal * s
    reciprocal += (rest >= s).to(tl.int64) - (rest < 0).to(tl.int64)
    step = reciprocal.to(tl.float64) * power_of_2(up + (_XHAT_BITS - root_shift))
    return nearest_float(exact_float(d), step[:, None])


@triton.jit
def _norm(
    a_ptr, b_ptr, index_ptr, ids_ptr, types_ptr, positions_ptr, words_ptr, type_table_ptr, position_table_ptr,
    clamped_ptr, a_step, b_step, clamped_step, gain_ptr, bias_ptr, out_ptr, narrow_ptr, scale_ptr, count_ptr,
    width, epsilon, root, root_shift, gain_bits, out_step, narrow_step, bits,
    SOURCE: tl.constexpr, SHIFT: tl.constexpr, SPECIAL: tl.constexpr, BOUND: tl.constexpr,
    AFTER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """LayerNorm, or RMSNorm where there is no bias, in 64 bits without an error."""
    count = tl.load(count_ptr)
    first = tl.program_id(0) * ROWS
    if first < count:
        row, column = first + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
        there = (row < count)[:, None] & (column < width)[None, :]
        x = _source(
            a_ptr, b_ptr, index_ptr, ids_ptr, types_ptr, positions_ptr, words_ptr, type_table_ptr,
            position_table_ptr, clamped_ptr, a_step, b_step, clamped_step, row, column, there, width,
            SOURCE, SHIFT, SPECIAL, BOUND,
        )  # fmt: skip
        inside = column < width
        gain = tl.load(gain_ptr + column, mask=inside, other=0).to(tl.float64)[None, :]
        if bias_ptr is not None:
            d = tl.where(inside[None, :], x * width - tl.sum(x, axis=1)[:, None], 0)
        else:
            d = x << _RMS_BITS
        y = _xhat(d, epsilon, root, root_shift) * gain
        if bias_ptr is not None:  # together below 2^52
            y += tl.load(bias_ptr + column, mask=inside, other=0)[None, :]
        y = clamped(nearest(y, power_of_2(-_XHAT_BITS - gain_bits)), 32767)
        if out_ptr is not None:
            tl.store(
                out_ptr + row.to(tl.int64)[:, None] * out_step + column[None, :], y.to(tl.int16), mask=there
            )
        if AFTER != AS_IS:
            _narrowed(y, narrow_ptr, scale_ptr, narrow_step, row, column, there, width, bits, AFTER)


@triton.jit
def _norm_heads(
    x_ptr, out_ptr, gain_ptr, gain_bits_ptr, epsilon_ptr, count_ptr, x_step, out_step, width, dim, heads,
    root, root_shift, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """RMSNorm of one head of rows; the channels behind all heads are copied."""
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
            y = _xhat(y << _RMS_BITS, tl.load(epsilon_ptr + head), root, root_shift) * gain
            y = clamped(nearest(y, power_of_2(-_XHAT_BITS - tl.load(gain_bits_ptr + head))), 32767)
        tl.store(out_ptr + line * out_step + column[None, :], y.to(tl.int16), mask=there)


@triton.jit
def _ramp(x, pieces_ptr, BITS: tl.constexpr):
    """max(x, 0) - r(|x|); of 64 pieces slopes, and behind them knots with BITS fraction bits and a half."""
    distance = tl.minimum(tl.abs(x), (64 << BITS) - 1)
    piece = tl.load(pieces_ptr + (distance >> BITS))
    slope, knot = piece.to(tl.int32), (piece >> 32).to(tl.int32)
    return tl.maximum(x, 0) - ((slope * (distance & ((1 << BITS) - 1)) + knot) >> BITS)


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
    PAIRS: tl.constexpr, AFTER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Any other operator that needs no more than its row. RAMP_BITS, from 0 on, is a ramp in front of it."""
    count = tl.load(count_ptr)
    first = tl.program_id(0) * ROWS
    if first < count:
        row, column = first + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        there = (row < count)[:, None] & (column < width)[None, :]
        line = row.to(tl.int64)[:, None]
        x = _source(
            a_ptr, b_ptr, index_ptr, ids_ptr, types_ptr, positions_ptr, words_ptr, type_table_ptr,
            position_table_ptr, clamped_ptr, a_step, b_step, clamped_step, row, column, there, width,
            SOURCE, SHIFT, SPECIAL, BOUND,
        )  # fmt: skip
        if RAMP_BITS >= 0:
            x = _ramp(x, first_ptr, RAMP_BITS)
        if MAIN == MULTIPLY:
            other = tl.load(other_ptr + line * other_step + column[None, :], mask=there, other=0)
            x = clamped(shift_half_even(x * other.to(tl.int32), PRODUCT_BITS), LIMIT)
        elif MAIN == TABLE:
            x = tl.load(first_ptr + (x + 128)).to(tl.int32)
        elif MAIN == ROTATE:
            x = _rotated(
                x, a_ptr, first_ptr, second_ptr, third_ptr, positions_ptr, a_step, row, column, there, width,
                dim, turned, PAIRS,
            )  # fmt: skip
        if out_ptr is not None:
            tl.store(out_ptr + line * out_step + column[None, :], x.to(out_ptr.dtype.element_ty), mask=there)
        if AFTER != AS_IS:
            _narrowed(x, narrow_ptr, scale_ptr, narrow_step, row, column, there, width, bits, AFTER)


def _tile(width: int, room: int, whole: bool) -> dict[str, int]:
    """Rows and columns of a program; `whole` rows where something is found out about them."""
    columns = triton.next_power_of_2(width)
    columns = columns if whole else min(columns, _TILE)
    rows = max(min(_TILE // columns, room, 16), 1)
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": 8 if columns >= 4096 else 4}


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
    return torch.tensor(gain, device=device), bias


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
        _step(out), _step(epilogue.out), epilogue.bits, **source.options(), AFTER=epilogue.kind, **tile,
        **FUSED,
    )  # fmt: skip


def norm_heads(
    x: torch.Tensor, out: torch.Tensor, count: torch.Tensor, room: int, width: int,
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor], numbers: tuple[int, int],
) -> None:  # fmt: skip
    """RMSNorm of each head; `heads`: gains, gain bits, epsilons; `numbers`: the constant root, its shift."""
    gain, gain_bits, epsilon = heads
    count_of_heads, dim = gain.shape
    tile = _tile(dim, room, whole=True)
    kernel: Any = _norm_heads
    kernel[(triton.cdiv(room, tile["ROWS"]), triton.cdiv(width, dim))](
        x, out, gain, gain_bits, epsilon, count, _step(x), _step(out), width, dim, count_of_heads, *numbers,
        **tile, **FUSED,
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
    kernel[(triton.cdiv(room, tile["ROWS"]), triton.cdiv(width, tile["COLUMNS"]))](
        *source.arguments(), other, first, second, third, out, epilogue.out, epilogue.scale, count, width,
        _step(other), _step(out), _step(epilogue.out), epilogue.bits, dim, turned, **source.options(),
        MAIN=main, RAMP_BITS=ramp_bits, PRODUCT_BITS=product_bits, LIMIT=limit, PAIRS=pairs,
        AFTER=epilogue.kind, **tile, **FUSED,
    )  # fmt: skip
