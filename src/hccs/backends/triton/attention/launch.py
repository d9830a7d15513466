"""Integer attention on CUDA tensors: shapes, tables and launches of its three kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import pad
from triton.tools.tensor_descriptor import TensorDescriptor

from hccs.backends.triton.attention.prefetched import attention_prefetched
from hccs.backends.triton.attention.resident import attention_resident
from hccs.backends.triton.attention.streamed import attention_streamed
from hccs.backends.triton.attention.tiles import Tile, tile_for
from hccs.backends.triton.codes import COMMON_MASK, FLOATS, INT8, MODES, PAIR
from hccs.backends.triton.devices import HOPPER, capability, made_current, multiprocessors
from hccs.backends.triton.faults import word
from hccs.backends.triton.parameters import heads_and_factors_on
from hccs.backends.triton.softmax import rows_in, selection
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs.ops.arguments import LENGTHS, MASK, NO_MASK

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "pair": torch.int32,
}
_OUTPUTS = {torch.int8: INT8.value, torch.int32: PAIR.value}

# Heads per multiprocessor from which on the kernel takes longer than its launch, which describing tiles makes
# longer still.
_MANY_HEADS = 64


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    theta: HeadParams,
    requant: Requant,
    masking: int = NO_MASK,
    valid: torch.Tensor | None = None,
    causal: bool = False,
    mode: Mode | None = None,
    out: str = "float32",
    threads: int | None = None,
    *,
    tile: Tile | None = None,
) -> Any:
    """The named output of int8 tensors [..., n, d]; lengths outside the row are brought inside and told.

    `tile` overrides the table. A GPU has its own number of threads: `threads` is not looked at.
    """
    theta.require_one_line("in attention on a GPU", "Move q, k and v to the CPU, or calibrate with lines=1.")
    faults = word(q.device)
    result = torch.empty(q.shape, dtype=_DTYPES[out], device=q.device)
    Z = torch.empty(q.shape[:-1], dtype=torch.int32, device=q.device) if out == "pair" else None
    if result.numel():
        lead, nk = q.shape[:-2], k.shape[-2]
        q, k, v = _by_head(q), _by_head(k), _by_head(v)
        chosen, places, kind = _selection(masking, valid, torch.Size((*lead, q.shape[-2], nk)))
        plan = _plan(
            tuple(q.shape), nk, tuple(lead), theta, requant, q.device, kind, causal, mode, result.dtype,
            tile is None and _are_many(q, k, v), tile,
        )  # fmt: skip
        with made_current(q.device):
            plan.launch(q, k, v, chosen, faults if kind == LENGTHS else None, places, result, Z)
    return result if Z is None else (result, Z)


def _by_head(x: torch.Tensor) -> torch.Tensor:
    """As [batch, heads, n, d] with contiguous rows; a copy only where strides cannot say it."""
    if x.ndim != 4:
        x = x.reshape(-1, *x.shape[-3:]) if x.ndim > 4 else x[(None,) * (4 - x.ndim)]
    # The kernels step inside a head in 32 bits.
    far = x.stride(-2) * x.shape[-2] >= 2**31
    return x.contiguous() if x.stride(-1) != 1 or far else x


def _selection(
    masking: int, valid: torch.Tensor | None, shape: torch.Size
) -> tuple[torch.Tensor | None, list[int], int]:
    """`valid` as the kernels take it, with (n1, s0, s1, s2) to find a row in it, and its kind.

    Lengths stay as they are; masks become words with ones for the keys that take part.
    """
    if valid is None or shape[-1] == 0:
        return None, [1, 0, 0, 0], NO_MASK
    if masking == LENGTHS:
        full, places = selection(masking, valid, shape)
        return full, [places[0], *places[2:5]], LENGTHS
    mask = valid.expand(*valid.shape[:-1], shape[-1])
    mask = mask.to(torch.int16, memory_format=torch.contiguous_format).neg_()
    words = (pad(mask, (0, 1)) if shape[-1] % 2 else mask).view(torch.int32)
    full, places = rows_in(words.expand(*shape[:-1], words.shape[-1]))
    return full, [places[0], *places[2:5]], MASK if full.stride(-2) else COMMON_MASK.value


def _are_many(*parts: torch.Tensor) -> bool:
    """Whether there are heads enough to load ahead, all of them where the copy engine can read them."""
    batches, heads, _, d = parts[0].shape
    if d not in (32, 64) or batches * heads < _MANY_HEADS * multiprocessors(parts[0].device):
        return False
    return all(x.data_ptr() % 16 == 0 and all(step and step % 16 == 0 for step in _steps(x)) for x in parts)


def _steps(x: torch.Tensor) -> list[int]:
    """Strides of all but the columns; that of a single row, head or batch, which is arbitrary, as 16."""
    return [step if size > 1 else 16 for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True)]


def _tiles(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """The heads in tiles of `rows`."""
    return TensorDescriptor(x, [*x.shape], [*_steps(x), 1], [1, 1, rows, x.shape[-1]])


@dataclass(frozen=True, eq=False)
class _Plan:
    """All of a launch that shapes and parameters decide."""

    kernel: Any
    tile: Tile
    grid: tuple[int, ...]
    table: torch.Tensor
    sizes: tuple[int, ...]
    options: dict[str, Any]

    def launch(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: torch.Tensor | None,
        faults: torch.Tensor | None, places: list[int], result: torch.Tensor, Z: torch.Tensor | None,
    ) -> None:  # fmt: skip
        """Fill `result`, and Z where there is one."""
        steps = *self.table.stride()[:2], *places
        if self.tile.prefetched:
            words, rows = v.view(torch.int32), self.tile.rows
            self.kernel[self.grid](
                _tiles(q, rows), _tiles(k, self.tile.keys), words, self.table, chosen, faults,
                _tiles(result.view(q.shape), rows), Z, *self.sizes, *words.stride()[:3], *steps,
                **self.options,
            )  # fmt: skip
        else:
            self.kernel[self.grid](
                q, k, v, self.table, chosen, faults, result, Z, *self.sizes,
                *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *steps, **self.options,
            )  # fmt: skip


@lru_cache(maxsize=256)
def _plan(
    shape: tuple[int, ...], nk: int, lead: tuple[int, ...], theta: HeadParams, requant: Requant,
    device: torch.device, masking: int, causal: bool, mode: Mode | None, dtype: torch.dtype, many_heads: bool,
    tile: Tile | None,
) -> _Plan:  # fmt: skip
    batches, heads, nq, d = shape
    able = capability(device)
    tile = tile or tile_for(
        nq, nk, d, capability=able, masked=causal or masking != NO_MASK, mask_per_row=masking == MASK,
        many_heads=many_heads,
    )  # fmt: skip
    block_d = min(max(1 << (d - 1).bit_length(), 32), 128)
    chunks = -(-d // block_d)
    resident = nk <= tile.keys * tile.tiles
    repeat = min(tile.repeat, -(-nq // tile.rows)) if resident else 1
    blocks = -(-nq // (tile.rows * repeat))
    tasks = batches * blocks  # per head, as programs
    programs = tasks
    if resident and tile.persistent:
        programs = min(tasks, max(tile.persistent * multiprocessors(device) // heads, 1))
    whole = nk > 0 and nk % (tile.keys * (tile.tiles if resident else 1)) == 0
    every = masking == NO_MASK and not causal and whole
    table = _by_head(heads_and_factors_on(theta, requant, device)[..., None, :].expand(*lead, 1, 8))[:, :, 0]
    options: dict[str, Any] = {
        "MASKING": masking, "CAUSAL": causal, "ALL": every, "MODE": MODES[mode],
        "OUT": _OUTPUTS.get(dtype, FLOATS.value),
        "WIDE": mode is None and bool((theta.packed[..., 0] >= 2**11).any()), "HOPPER": able >= HOPPER,
        "BLOCK_D": block_d, "ROWS": tile.rows, "KEYS": tile.keys,
        "num_warps": tile.warps, "num_stages": tile.stages, "maxnreg": tile.registers,
    }  # fmt: skip
    if resident:
        options |= {"REPEAT": repeat, "SHARED": table.stride(0) == 0 or batches == 1}
    if tile.prefetched:
        return _Plan(
            attention_prefetched, tile, (heads * programs,), table, (nq, nk, heads, blocks, tasks), options
        )
    options |= {"CHUNKS": chunks, "FULL": whole and nq % (tile.rows * repeat) == 0 and d % block_d == 0}
    kernel: Any = attention_resident if resident else attention_streamed
    if resident:
        options |= {"TILES": tile.tiles, "LOOP": repeat > 1 and not tile.persistent}
    return _Plan(kernel, tile, (heads * programs, chunks), table, (nq, nk, d, heads, blocks, tasks), options)
