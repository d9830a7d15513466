"""Integer attention on CUDA tensors: shapes, tables and block sizes for the kernels of `attention_triton`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton

from hccs.kernels import attention_triton as kernels
from hccs.kernels.triton import NO_MASK, selection
from hccs.requant import Requant
from hccs.spec import HeadParams, Mode

_MODES = {None: kernels.NO_MODE, Mode.U8_DIV: kernels.U8_DIV, Mode.U8_CLB: kernels.U8_CLB}
_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "pair": torch.int32,
}


@dataclass(frozen=True)
class Tile:
    """Block sizes of a launch, and how its programs share the machine."""

    rows: int
    keys: int
    # Blocks of `keys` that a program keeps; sequences beyond that are streamed through it, twice.
    tiles: int = 1
    # Blocks of `rows` queries that a program takes over the keys it keeps.
    repeat: int = 1
    warps: int = 4
    stages: int = 1
    # Programs per multiprocessor that stay and load their next head while they compute; 0 for one per task.
    persistent: int = 0
    # The compiler's limit per thread, where one more program per multiprocessor is worth a few spills.
    registers: int | None = None


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    theta: HeadParams,
    requant: Requant,
    *,
    valid: torch.Tensor | None = None,
    causal: bool = False,
    mode: Mode | None = None,
    out: str = "float32",
    tile: Tile | None = None,
) -> Any:
    """`hccs.attention` of int8 tensors [..., n, d] that its door has checked; `tile` overrides the table."""
    lead, (nq, d), nk = q.shape[:-2], q.shape[-2:], k.shape[-2]
    result = torch.empty(q.shape, dtype=_DTYPES[out], device=q.device)
    Z = torch.empty(q.shape[:-1], dtype=torch.int32, device=q.device) if out == "pair" else None
    if result.numel():
        tile = tile or tile_for(nq, nk, d, _is_hopper(q.device), causal or valid is not None)
        _launch(_by_head(q, lead), _by_head(k, lead), _by_head(v, lead), theta, requant, valid, causal, mode,
                result, Z, tile)  # fmt: skip
    return result if Z is None else (result, Z)


def tile_for(nq: int, nk: int, d: int, hopper: bool, masked: bool = False) -> Tile:
    """Block sizes measured to be fast on an H200 (benchmarks/attention_gpu.py --tune)."""
    keys = max(triton.next_power_of_2(nk), 32)
    rows = 16 if nq <= 16 else 64
    if d > 64 or not hopper:
        return Tile(rows, min(keys, 64), stages=2)
    if nk <= 64:
        return Tile(rows, keys, stages=2, persistent=6, registers=80)
    if nk <= 128:
        if nq <= 64:
            return Tile(rows, 128, stages=2, persistent=3)
        return Tile(128, 128, warps=8, stages=3, persistent=2, registers=128)
    if nk <= 256:
        return Tile(rows, 128, tiles=2, repeat=4, stages=2, registers=160)
    if nk <= 512 and not masked:  # masks would not fit the registers too
        return Tile(rows, 128, tiles=4, repeat=8, stages=2)
    if nq <= 64:
        return Tile(rows, 128, stages=2, registers=128)
    return Tile(128, 128, warps=8, stages=3, registers=128)


def _by_head(x: torch.Tensor, lead: torch.Size) -> torch.Tensor:
    """As [batch, heads, n, d] with contiguous rows; a copy only where strides cannot say it."""
    x = x.expand(*lead, *x.shape[-2:])
    x = x.reshape(-1, *x.shape[-3:]) if len(lead) > 2 else x[(None,) * (2 - len(lead))]
    # The kernels step inside a head in 32 bits.
    far = x.stride(-2) * x.shape[-2] >= 2**31
    return x.contiguous() if x.stride(-1) != 1 or far else x


@lru_cache(maxsize=256)
def _table(theta: HeadParams, requant: Requant, device: torch.device) -> torch.Tensor:
    """B, S, D, then the five integers of `Requant.packed`, per head.

    Kept: a copy to the device takes longer than a small attention.
    """
    shape = np.broadcast_shapes(theta.shape, requant.shape)
    parts = [np.broadcast_to(part.packed, (*shape, part.packed.shape[-1])) for part in (theta, requant)]
    return torch.tensor(np.concatenate(parts, axis=-1), device=device)


def _launch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, theta: HeadParams, requant: Requant,
    valid: torch.Tensor | None, causal: bool, mode: Mode | None, result: torch.Tensor, Z: torch.Tensor | None,
    tile: Tile,
) -> None:  # fmt: skip
    (batches, heads, nq, d), nk, lead = q.shape, k.shape[-2], result.shape[:-2]
    table = _table(theta, requant, q.device)
    table = table.expand(*lead, 8)
    table = table.reshape(-1, heads, 8) if len(lead) > 2 else table[(None,) * (2 - len(lead))]
    chosen, strides, masking = selection(valid, torch.Size((*lead, nq, nk)))
    block_d = min(max(triton.next_power_of_2(d), 32), 128)
    chunks = triton.cdiv(d, block_d)
    resident = nk <= tile.keys * tile.tiles
    repeat = min(tile.repeat, triton.cdiv(nq, tile.rows)) if resident else 1
    blocks = triton.cdiv(nq, tile.rows * repeat)
    tasks = batches * blocks  # per head
    persistent = resident and tile.persistent > 0
    if persistent:
        programs = heads * min(tasks, max(tile.persistent * _multiprocessors(q.device) // heads, 1))
    else:
        programs = heads * tasks
    whole = nk > 0 and nk % (tile.keys * (tile.tiles if resident else 1)) == 0
    every = masking == NO_MASK and not causal and whole
    kernel: Any = kernels.attention_resident if resident else kernels.attention_streamed
    shared = table.stride(0) == 0 or batches == 1
    kernel[(programs, chunks)](
        q, k, v, table, chosen, result, Z, nq, nk, d, heads, blocks, tasks,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *table.stride()[:2], *strides,
        MASKING=masking, CAUSAL=causal, ALL=every,
        FULL=whole and nq % (tile.rows * repeat) == 0 and d % block_d == 0, MODE=_MODES[mode],
        OUT=kernels.PAIR if Z is not None else kernels.INT8 if result.dtype == torch.int8 else kernels.FLOATS,
        WIDE=mode is None and bool((theta.packed[..., 0] >= 2**11).any()), HOPPER=_is_hopper(q.device),
        CHUNKS=chunks, BLOCK_D=block_d, ROWS=tile.rows, KEYS=tile.keys, TILES=tile.tiles,
        REPEAT=repeat, LOOP=repeat > 1 and not persistent, SHARED=shared,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers if every else None,
    )  # fmt: skip


@lru_cache(maxsize=16)
def _is_hopper(device: torch.device) -> bool:
    """Hopper and later, which compute with two 16-bit integers to a register."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@lru_cache(maxsize=16)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
