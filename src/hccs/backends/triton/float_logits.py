"""Forward and backward of `hccs_softmax` on CUDA, each one pass over memory, in Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hccs.backends.triton.codes import NO_MASK
from hccs.backends.triton.devices import made_current
from hccs.backends.triton.faults import NAN, SCALE, THETA, fault_bytes
from hccs.backends.triton.formulas import (
    OFFSET,
    block_of_rows,
    group_of,
    head_parameters,
    is_runnable,
    mark,
    nearest,
    probabilities,
    scores,
    valid_columns,
)
from hccs.backends.triton.softmax import heads_of, selection, tile
from hccs.errors import ParameterError
from hccs.numbers.modes import Mode
from hccs.ops import arguments

_TILE = 4096


@triton.jit
def _forward(
    z_ptr, theta_ptr, scale_ptr, valid_ptr, fault_ptr, p_ptr, x_ptr, rows, columns, rows_per_group, heads,
    scales, n1, n2, v0, v1, v2, v3,
    MASKING: tl.constexpr, FULL: tl.constexpr, ONE_GROUP: tl.constexpr, IS_U8: tl.constexpr,
    RECIPROCAL: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    row, column, inside, place = block_of_rows(rows, columns, BLOCK_ROWS, BLOCK_COLUMNS)
    live = row < rows
    group = group_of(row, rows_per_group, ONE_GROUP)
    scale = tl.load(scale_ptr + group % scales).to(tl.float32)
    per_step = scale if ONE_GROUP else scale[:, None]
    z = tl.load(z_ptr + place, mask=inside, other=0.0).to(tl.float32)
    # The rule of logits in docs/spec.md: a correctly rounded division. Kept unclamped (to int16): the
    # backward pass must know what left the quantiser's range.
    real = tl.div_rn(z, per_step + tl.zeros_like(z))
    wide = nearest(tl.minimum(tl.maximum(real, -32768.0), 32767.0))
    tl.store(x_ptr + place, wide.to(tl.int16), mask=inside)
    x = tl.minimum(tl.maximum(wide, -128.0), 127.0)
    ALL: tl.constexpr = FULL and MASKING == NO_MASK
    valid = valid_columns(valid_ptr, fault_ptr, row, column, inside, columns, n1, n2, v0, v1, v2, v3, MASKING)
    B, S, D = head_parameters(theta_ptr, group, heads, ONE_GROUP)
    _, _, delta, Z = scores(x, valid, columns, B, S, D, -128.0, ALL)
    p = probabilities(delta, valid, Z, B, S, IS_U8, RECIPROCAL, ALL) - OFFSET
    p = tl.div_rn(p, tl.zeros_like(p) + (255.0 if IS_U8 else 32767.0))
    # Rows that integers cannot answer are reported, and become NaN.
    every = live[:, None]
    no_theta = every & ~is_runnable(B, S, D, columns)
    no_scale = every & ~((per_step > 0) & (per_step < float("inf")))
    no_number = tl.max(((real != real) & inside).to(tl.int32), axis=1)[:, None] > 0
    mark(fault_ptr, THETA, no_theta)
    mark(fault_ptr, SCALE, no_scale)
    mark(fault_ptr, NAN, no_number & ~no_scale)
    p = tl.where(no_theta | no_scale | no_number, float("nan"), p)
    tl.store(p_ptr + place, p.to(p_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    g_ptr, x_ptr, theta_ptr, scale_ptr, valid_ptr, fault_ptr, dz_ptr, parameter_ptr,
    rows, columns, rows_per_group, heads, scales, n1, n2, v0, v1, v2, v3,
    MASKING: tl.constexpr, FULL: tl.constexpr, ONE_GROUP: tl.constexpr, LEARN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    row, column, inside, place = block_of_rows(rows, columns, BLOCK_ROWS, BLOCK_COLUMNS)
    live = row < rows
    group = group_of(row, rows_per_group, ONE_GROUP)
    scale = tl.load(scale_ptr + group % scales).to(tl.float32)
    per_step = scale if ONE_GROUP else scale[:, None]
    wide = tl.load(x_ptr + place, mask=inside, other=-128).to(tl.float32)
    g = tl.load(g_ptr + place, mask=inside, other=0.0).to(tl.float32)
    x = tl.minimum(tl.maximum(wide, -128.0), 127.0)
    ALL: tl.constexpr = FULL and MASKING == NO_MASK
    valid = valid_columns(valid_ptr, fault_ptr, row, column, inside, columns, n1, n2, v0, v1, v2, v3, MASKING)
    B, S, D = head_parameters(theta_ptr, group, heads, ONE_GROUP)
    m, distance, delta, Z = scores(x, valid, columns, B, S, D, -128.0, ALL)

    s = tl.where(valid, B - S * delta, 0.0)
    mean = tl.sum(g * s, axis=1)[:, None] / Z
    t = tl.where(valid, (g - mean) / Z, 0.0)  # dL/ds
    free = tl.where(distance <= D, t, 0.0)
    peak = valid & (x == m)
    peaks = tl.maximum(tl.sum(peak.to(tl.float32), axis=1), 1.0)[:, None]
    share = tl.sum(free, axis=1)[:, None] / peaks
    dx = tl.where(wide == x, S * (free - tl.where(peak, share, 0.0)), 0.0)
    tl.store(dz_ptr + place, (dx / per_step).to(dz_ptr.dtype.element_ty), mask=inside)
    if LEARN:
        beyond = tl.sum(tl.where(distance > D, t, 0.0) * S, axis=1)
        tl.store(parameter_ptr + row * 4, tl.sum(t, axis=1), mask=live)
        tl.store(parameter_ptr + row * 4 + 1, -tl.sum(t * delta, axis=1), mask=live)
        tl.store(parameter_ptr + row * 4 + 2, -beyond, mask=live)
        tl.store(parameter_ptr + row * 4 + 3, -tl.sum(dx * x, axis=1) / scale, mask=live)


def _layout(
    x: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None
) -> tuple[Any, list[Any], list[Any], dict[str, Any]]:
    rows, columns = x.numel() // x.shape[-1], x.shape[-1]
    lead = x.shape[:-2]
    if theta.shape[-1] != 3:
        raise ParameterError(
            "one line (B, S, D) and sums of 15 bits for float logits on a GPU",
            f"theta of shape {tuple(theta.shape)}",
            "Quantise the logits and use hccs.softmax, move them to the CPU, or calibrate with lines=1.",
        )
    packed, heads = heads_of(theta, lead)
    if scale.shape != lead[len(lead) - scale.ndim :]:
        scale = scale.expand(lead)
    masking = arguments.NO_MASK if valid is None else arguments.kind_of(valid)
    chosen, strides = selection(masking, valid, x.shape)
    rows_per_group = x.shape[-2] if x.ndim > 1 else 1
    grid, block = tile(rows, columns, rows_per_group, _TILE)
    numbers = [rows, columns, rows_per_group, heads, max(scale.numel(), 1), *strides]
    tensors = [packed, scale.contiguous(), chosen, fault_bytes(x.device)]
    return grid, tensors, numbers, {"MASKING": masking, **block}


def forward(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: Mode
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities in z's dtype and the rounded logits as int16, clamped to that width only.

    Rows with NaN logits, a theta that no integers could run or a scale that is not positive become NaN.
    """
    z = z.contiguous()
    p, x = torch.empty_like(z), torch.empty(z.shape, dtype=torch.int16, device=z.device)
    if z.numel():
        grid, tensors, numbers, options = _layout(z, theta, scale, valid)
        kernel: Any = _forward
        with made_current(z.device):
            kernel[grid](z, *tensors, p, x, *numbers, IS_U8=mode.is_u8, RECIPROCAL=mode.reciprocal, **options)
    return p, x


def backward(
    g: torch.Tensor,
    x: torch.Tensor,
    theta: torch.Tensor,
    scale: torch.Tensor,
    valid: torch.Tensor | None,
    learn: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """dL/dz in g's dtype and, when learning, dL/d(B, S, D, scale) of every row as float32 [..., q, 4]."""
    g = g.contiguous()
    dz = torch.empty_like(g)
    rows = torch.empty((*g.shape[:-1], 4) if learn else (0, 4), dtype=torch.float32, device=g.device)
    if g.numel():
        grid, tensors, numbers, options = _layout(x, theta, scale, valid)
        kernel: Any = _backward
        with made_current(g.device):
            kernel[grid](g, x, *tensors, dz, rows, *numbers, LEARN=learn, **options)
    return dz, rows
