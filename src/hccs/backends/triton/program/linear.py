"""Linear layers: int8 products in tensor cores; bias, requantisation, table and width before the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from hccs.backends.triton.devices import FUSED, capability
from hccs.backends.triton.program.integers import (
    clamped,
    exact_float,
    look_up,
    nearest,
    nearest_byte,
    nearest_float,
    power_of_2,
)
from hccs.numbers.layers import INT8_LIMIT, MULTIPLIER_SHIFT, ROW_SHIFT, LinearParams

LINE = 64
"""Rows of values and of weights are whole numbers of so many bytes."""

MOST_COLUMNS = 256


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's constants on a device; `narrow`: no output can leave int32 before it is clamped."""

    weight: torch.Tensor
    bias: torch.Tensor
    multiplier: torch.Tensor | None
    table: torch.Tensor | None
    outputs: int
    inputs: int
    limit: int
    exponents: bool
    narrow: bool


def layer_on(
    params: LinearParams, outputs: slice, table: Any | None, exponents: int, device: torch.device
) -> Layer:
    """The constants of some output channels, with zeros up to whole lines and tiles.

    Multipliers are those of outputs in float64, or in float32 where no more is needed. `exponents` is the
    largest of a row, 0 where rows have none.
    """
    chosen, bias = params.weight[outputs], params.bias[outputs]
    count, inputs = chosen.shape
    room = -(-count // MOST_COLUMNS) * MOST_COLUMNS

    def on_device(array: Any, dtype: torch.dtype) -> torch.Tensor:
        whole = torch.zeros((room, *array.shape[1:]), dtype=dtype)
        whole[:count] = torch.tensor(array)
        return whole.to(device)

    multiplier, narrow = None, True
    if params.multiplier is not None:
        step = params.multiplier[outputs] * 0.5 ** (ROW_SHIFT if exponents else MULTIPLIER_SHIFT)
        most = 128.0 * abs(chosen.astype(np.int64)).sum(1) + abs(bias.astype(np.int64))
        narrow = bool(((most + 1) * step * 2**exponents < 2**31 - 1).all())
        dtype = torch.float64 if exponents or params.limit > INT8_LIMIT else torch.float32
        multiplier = on_device(step, dtype)
    weight = np.pad(chosen, ((0, 0), (0, -inputs % LINE)))
    return Layer(
        on_device(weight, torch.int8), on_device(bias, torch.float64 if exponents else torch.int32),
        multiplier, None if table is None else torch.tensor(table.astype(np.int32), device=device),
        count, inputs, params.limit, exponents > 0, narrow,
    )  # fmt: skip


@triton.jit
def _linear(
    x_ptr, weight_ptr, bias_ptr, multiplier_ptr, table_ptr, out_ptr, count_ptr, outputs, x_step, out_step,
    INPUTS: tl.constexpr, WEIGHT_STEP: tl.constexpr, LIMIT: tl.constexpr, EXPONENTS: tl.constexpr,
    NARROW: tl.constexpr, NVIDIA: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A tile of outputs: clamp(rhe(acc * M / 2^16)), with row exponents clamp(rhe(acc * M / 2^(23 - e))).

    Constants reach to the end of the tile; what x holds behind the last input meets weights of zero.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(1) * ROWS
    if first < count:
        row = first + tl.arange(0, ROWS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        step = tl.arange(0, DEPTH)
        x_rows = x_ptr + row.to(tl.int64)[:, None] * x_step
        weight = weight_ptr + column.to(tl.int64)[None, :] * WEIGHT_STEP
        acc = tl.zeros([ROWS, COLUMNS], tl.int32)
        for start in tl.range(0, WEIGHT_STEP, DEPTH):
            x = tl.load(x_rows + (start + step)[None, :])
            w = tl.load(weight + (start + step)[:, None])
            acc = tl.dot(x, w, acc, out_dtype=tl.int32)
        bias = tl.load(bias_ptr + column)[None, :]
        if EXPONENTS:
            exponent = tl.load(x_rows + INPUTS).to(tl.int32)
            bias = nearest(bias, power_of_2(-exponent))
        acc += bias
        if multiplier_ptr is not None:
            multiplier = tl.load(multiplier_ptr + column)[None, :]
            if LIMIT == 127 and not EXPONENTS:
                # Products below 2^24 are exact in float32, and larger ones are clamped.
                acc = nearest_byte(acc.to(tl.float32) * multiplier)
            else:
                if EXPONENTS:
                    multiplier = multiplier * power_of_2(exponent)
                if NARROW:
                    acc = clamped(nearest(exact_float(acc), multiplier), LIMIT)
                else:
                    acc = clamped(nearest_float(exact_float(acc), multiplier), LIMIT).to(tl.int32)
        if table_ptr is not None:
            acc = look_up(table_ptr, acc.to(tl.int32) + 128, NVIDIA)
        place = out_ptr + row.to(tl.int64)[:, None] * out_step + column[None, :]
        tl.store(
            place, acc.to(out_ptr.dtype.element_ty), mask=(row < count)[:, None] & (column < outputs)[None, :]
        )


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
    outputs, depth = layer.outputs, layer.weight.shape[1]
    tile = tile_of(len(x), outputs, depth)
    kernel: Any = _linear
    kernel[(triton.cdiv(outputs, tile["COLUMNS"]), triton.cdiv(len(x), tile["ROWS"]))](
        x, layer.weight, layer.bias, layer.multiplier, layer.table, out, count, outputs, x.stride(0),
        out.stride(0), INPUTS=layer.inputs, WEIGHT_STEP=depth, LIMIT=layer.limit, EXPONENTS=layer.exponents,
        NARROW=layer.narrow, NVIDIA=capability(x.device) > (0, 0), **tile, **FUSED,
    )  # fmt: skip
