"""Integer attention on CUDA tensors: shapes, tables and launches for the kernels of `attention_triton`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from hccs.kernels import attention_triton as kernels
from hccs.kernels.attention_ahead import attention_ahead
from hccs.kernels.attention_tiles import Tile, tile_for
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
_OUTPUTS = {torch.int8: kernels.INT8, torch.int32: kernels.PAIR}

# Heads per multiprocessor from which on loading ahead pays for its longer launch.
_MANY_HEADS = 6


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
    result = torch.empty(q.shape, dtype=_DTYPES[out], device=q.device)
    Z = torch.empty(q.shape[:-1], dtype=torch.int32, device=q.device) if out == "pair" else None
    if result.numel():
        parts = _by_head(q), _by_head(k), _by_head(v)
        if tile is None:
            tile = tile_for(
                *q.shape[-2:-1], *k.shape[-2:], hopper=_is_hopper(q.device),
                masked=causal or valid is not None, many_heads=_are_many(*parts),
            )  # fmt: skip
        _launch(*parts, theta, requant, valid, causal, mode, result, Z, tile)
    return result if Z is None else (result, Z)


def _by_head(x: torch.Tensor) -> torch.Tensor:
    """As [batch, heads, n, d] with contiguous rows; a copy only where strides cannot say it."""
    lead = x.ndim - 2
    x = x.reshape(-1, *x.shape[-3:]) if lead > 2 else x[(None,) * (2 - lead)]
    # The kernels step inside a head in 32 bits.
    far = x.stride(-2) * x.shape[-2] >= 2**31
    return x.contiguous() if x.stride(-1) != 1 or far else x


def _are_many(*parts: torch.Tensor) -> bool:
    """Whether there are heads enough to load ahead, all of them where the copy engine can read them."""
    batches, heads, _, d = parts[0].shape
    if d not in (32, 64) or batches * heads < _MANY_HEADS * _multiprocessors(parts[0].device):
        return False
    return all(x.data_ptr() % 16 == 0 and all(step and step % 16 == 0 for step in _steps(x)) for x in parts)


def _steps(x: torch.Tensor) -> list[int]:
    """Strides of all but the columns; that of a single row, head or batch, which is arbitrary, as 16."""
    return [step if size > 1 else 16 for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True)]


def _tiles(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """The heads in tiles of `rows`."""
    return TensorDescriptor(x, [*x.shape], [*_steps(x), 1], [1, 1, rows, x.shape[-1]])


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
    resident = nk <= tile.keys * tile.tiles
    repeat = min(tile.repeat, triton.cdiv(nq, tile.rows)) if resident else 1
    blocks = triton.cdiv(nq, tile.rows * repeat)
    tasks = batches * blocks  # per head, as programs
    persistent = resident and tile.persistent > 0
    programs = tasks
    if persistent:
        programs = min(tasks, max(tile.persistent * _multiprocessors(q.device) // heads, 1))
    whole = nk > 0 and nk % (tile.keys * (tile.tiles if resident else 1)) == 0
    every = masking == NO_MASK and not causal and whole
    options: dict[str, Any] = {
        "MASKING": masking, "CAUSAL": causal, "ALL": every, "MODE": _MODES[mode],
        "OUT": _OUTPUTS.get(result.dtype, kernels.FLOATS),
        "WIDE": mode is None and bool((theta.packed[..., 0] >= 2**11).any()), "HOPPER": _is_hopper(q.device),
        "BLOCK_D": block_d, "ROWS": tile.rows, "KEYS": tile.keys,
        "num_warps": tile.warps, "num_stages": tile.stages, "maxnreg": tile.registers if every else None,
    }  # fmt: skip
    if resident:
        options |= {"REPEAT": repeat, "SHARED": table.stride(0) == 0 or batches == 1}
    steps = *table.stride()[:2], *strides
    if tile.ahead:
        words = v.view(torch.int32)
        attention_ahead[(heads * programs,)](
            _tiles(q, tile.rows), _tiles(k, tile.keys), words, table, chosen,
            _tiles(result.view(q.shape), tile.rows), Z, nq, nk, heads, blocks, tasks,
            *words.stride()[:3], *steps, **options,
        )  # fmt: skip
        return
    chunks = triton.cdiv(d, block_d)
    kernel: Any = kernels.attention_resident if resident else kernels.attention_streamed
    if resident:
        options |= {"TILES": tile.tiles, "LOOP": repeat > 1 and not persistent}
    kernel[(heads * programs, chunks)](
        q, k, v, table, chosen, result, Z, nq, nk, d, heads, blocks, tasks,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *steps,
        FULL=whole and nq % (tile.rows * repeat) == 0 and d % block_d == 0, CHUNKS=chunks, **options,
    )  # fmt: skip


@lru_cache(maxsize=16)
def _is_hopper(device: torch.device) -> bool:
    """Hopper and later, which compute with two 16-bit integers to a register."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@lru_cache(maxsize=16)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
