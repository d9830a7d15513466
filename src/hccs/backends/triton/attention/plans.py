"""What shapes and parameters decide of a launch: kernel, block sizes, table of parameters, arguments."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton

from hccs.backends.triton.attention import few_queries, one_query
from hccs.backends.triton.attention.prefetched import attention_prefetched
from hccs.backends.triton.attention.resident import attention_resident
from hccs.backends.triton.attention.starting import Plan, SplitPlan
from hccs.backends.triton.attention.streamed import attention_streamed
from hccs.backends.triton.attention.tiles import Tile, tile_for
from hccs.backends.triton.attention.whole_row import attention_of_one
from hccs.backends.triton.codes import (
    APART,
    BY_BLOCK,
    BYTES,
    FLOATS,
    INT8,
    ONE_LINE,
    PACKED,
    PAIR,
    how_scores_come_about,
    normalisation,
)
from hccs.backends.triton.devices import FUSED, HOPPER, capability, multiprocessors
from hccs.backends.triton.parameters import heads_and_factors_on
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs.ops.arguments import LENGTHS, MASK, NO_MASK

try:
    from hccs.backends.triton.attention.all_held import attention_all_held
    from hccs.backends.triton.attention.held import attention_held
    from hccs.backends.triton.attention.pipelined import attention_pipelined
    from hccs.backends.triton.attention.twice import attention_twice
except (ImportError, AttributeError):  # a Triton without Gluon, or with another
    attention_all_held = attention_held = attention_pipelined = attention_twice = None

_OUTPUTS = {torch.int8: INT8.value, torch.int32: PAIR.value}


def _by_batch(table: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """Parameters [..., numbers] of every head as [batch, heads, numbers], steps of 0 where shared."""
    full = table.expand(*lead, table.shape[-1])
    return full.reshape(-1, *full.shape[-2:]) if len(lead) > 2 else full[(None,) * (2 - len(lead))]


def _how_scores_are_added(largest: int, nk: int, keys: int) -> int:
    """By the largest score: half a block's fit 16 bits or not; an eighth of all keys' do, or not."""
    if keys // 2 * largest > 0xFFFF:
        return int(APART.value)
    return int(PACKED.value if -(-nk // 8) * largest <= 0xFFFF else BY_BLOCK.value)


def _fill(heads: int, processors: int) -> bool:
    """Whether programs of one head each, two to a multiprocessor, leave few of them idle until the end."""
    together = 2 * processors
    left = heads % together
    return heads >= processors and (left == 0 or 2 * left >= together or heads >= 4 * together)


@lru_cache(maxsize=256)
def plan_for(
    shape: tuple[int, ...], keys: tuple[int, int], lead: tuple[int, ...], theta: HeadParams, requant: Requant,
    device: torch.device, masking: int, one_length: bool, causal: bool, mode: Mode | None, dtype: torch.dtype,
    many_heads: bool, words: bool, dense: bool, aligned: bool, tile: Tile | None,
) -> Plan | SplitPlan:  # fmt: skip
    """For q of this shape [batch, heads, nq, d]; `keys` are the heads of k and v and their rows.

    `dense` says that those rows follow one another, `aligned` that q, k and v step by whole 16 bytes.
    """
    batches, heads, nq, d = shape
    kv_heads, nk = keys
    sharing = heads // kv_heads
    able = capability(device)
    bare = aligned and masking == NO_MASK and mode is None and can_hold(theta, nk, d, dtype, able)
    tile = tile or tile_for(
        nq, nk, d, capability=able, masked=causal or masking != NO_MASK, causal=causal,
        mask_per_row=masking == MASK, many_heads=many_heads,
        rows=nq * sharing if mode is None and masking <= LENGTHS and d <= 128 else None, words=words,
        filling=_fill(batches * heads, multiprocessors(device)),
        held=bare and nq == nk, pipelined=bare and _can_pipeline(theta, nq, nk, causal),
    )  # fmt: skip
    block_d = min(max(1 << (d - 1).bit_length(), 32), 128)
    table = _by_batch(heads_and_factors_on(theta, requant, device), lead)
    largest = theta.max_score
    options: dict[str, Any] = {
        "MASKING": masking, "CAUSAL": causal, "OUT": _OUTPUTS.get(dtype, FLOATS.value),
        "SCORES": how_scores_come_about(theta), "HIGH": mode is None and largest >= 2**11,
        "LONG": mode is None and nk * largest > 2**17, "HOPPER": able >= HOPPER,
        "BLOCK_D": block_d, "KEYS": tile.keys,
        "num_warps": tile.warps, "num_stages": tile.stages, **FUSED,
    }  # fmt: skip
    if tile.registers is not None:  # which AMD's compiler does not know
        options["maxnreg"] = tile.registers
    plain = masking == NO_MASK and not causal
    if tile.split:
        return _split(
            shape, keys, tile, table, {**options, "ALL": plain and nk % tile.keys == 0 and d == block_d}
        )
    if tile.single:
        return _whole_row(shape, nk, tile, table, {**options, "ALL": plain, "DENSE": dense})
    if tile.held:
        return _held(shape, sharing, tile, table, options)
    if tile.pipelined:
        return _pipelined(shape, nk, sharing, tile, table, options)
    chunks = -(-d // block_d)
    resident = nk <= tile.keys * tile.tiles
    repeat = min(tile.repeat, -(-nq // tile.rows)) if resident else 1
    blocks = -(-nq // (tile.rows * repeat))
    tasks = batches * blocks  # per head, as programs
    programs = tasks
    if resident and tile.persistent:
        programs = min(tasks, max(tile.persistent * multiprocessors(device) // heads, 1))
    whole = nk > 0 and nk % (tile.keys * (tile.tiles if resident else 1)) == 0
    options |= {
        "ALL": plain and whole, "MODE": normalisation(mode), "IS_WIDE": theta.wide, "ROWS": tile.rows,
        "SUMS": _how_scores_are_added(largest, nk, tile.keys),
    }  # fmt: skip
    if resident:
        options |= {"REPEAT": repeat, "SHARED": table.stride(0) == 0 or batches == 1}
    if tile.prefetched:
        sizes = nq, nk, heads, sharing, blocks, tasks
        return Plan(tile, attention_prefetched, (heads * programs,), table, sizes, options)
    if not resident:
        in_step = (nk - nq) % tile.rows == 0 and tile.keys % tile.rows == 0
        cut = causal and in_step and masking == NO_MASK and not options["LONG"]
        options |= {"FLUSH": max(2**17 // (largest * tile.keys), 1), "CUT": cut}
    options |= {"CHUNKS": chunks, "FULL": whole and nq % (tile.rows * repeat) == 0 and d % block_d == 0}
    kernel: Any = attention_resident if resident else attention_streamed
    if resident:
        # Blocks of queries whose keys all end in the same block of keys.
        in_step = not causal or ((nk - nq) % tile.rows == 0 and tile.keys % tile.rows == 0)
        alike = masking == NO_MASK or (masking == LENGTHS and one_length)
        stepwise = tile.tiles > 1 and masking in (NO_MASK, LENGTHS) and (causal or one_length)
        options |= {
            "TILES": tile.tiles, "LOOP": repeat > 1 and not tile.persistent, "STEPWISE": stepwise,
            "LAST": stepwise and in_step and alike, "ONE_LENGTH": one_length,
        }  # fmt: skip
    sizes = nq, nk, d, heads, sharing, blocks, tasks
    return Plan(tile, kernel, (heads * programs, chunks), table, sizes, options)


def can_hold(theta: HeadParams, nk: int, d: int, dtype: torch.dtype, able: tuple[int, int]) -> bool:
    """Whether the kernels in Gluon know such scores and outputs, and a device of this capability."""
    largest = theta.max_score
    return (
        attention_held is not None
        and able[0] == HOPPER[0]  # later ones multiply in another way
        and d == 64
        and dtype not in _OUTPUTS
        and largest < 2**11
        and nk * largest <= 2**17
        and how_scores_come_about(theta) in (ONE_LINE.value, BYTES.value)
    )


def _can_pipeline(theta: HeadParams, nq: int, nk: int, causal: bool) -> bool:
    """Whether `pipelined.py` knows rows whose scores `held.py` knows: one line, and sums of 128 + v."""
    one_line = how_scores_come_about(theta) == ONE_LINE.value
    whole = nq % 128 == nk % 128 == 0 and (nq <= nk or not causal)
    return one_line and whole and nk * theta.max_score <= 2**16


def _held(
    shape: tuple[int, ...], sharing: int, tile: Tile, table: torch.Tensor, options: dict[str, Any]
) -> Plan:
    batches, heads, nq, _ = shape
    held = attention_all_held if nq <= 256 else attention_held
    kernel: Any = attention_twice if options["CAUSAL"] else held
    options |= {"ROWS": tile.rows, "TILES": tile.tiles}
    return Plan(tile, kernel, (batches * heads,), table, (heads, sharing), _known_to(kernel, options))


def _pipelined(
    shape: tuple[int, ...], nk: int, sharing: int, tile: Tile, table: torch.Tensor, options: dict[str, Any]
) -> Plan:
    batches, heads, nq, _ = shape
    blocks = nq // tile.rows
    kernel: Any = attention_pipelined
    return Plan(
        tile, kernel, (batches * heads * blocks,), table, (nq, nk, heads, sharing, blocks),
        _known_to(kernel, {**options, "ROWS": tile.rows}),
    )  # fmt: skip


def _known_to(kernel: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The compiler's options, and of the others those that the kernel has."""
    return {name: value for name, value in options.items() if not name.isupper() or name in kernel.arg_names}


def _whole_row(
    shape: tuple[int, ...], nk: int, tile: Tile, table: torch.Tensor, options: dict[str, Any]
) -> Plan:
    batches, heads, _, d = shape
    # A power of two, so that a growing cache seldom needs another kernel; keys that are not there cost no
    # memory's time.
    blocks = triton.next_power_of_2(-(-nk // tile.keys))
    options |= {
        "ALL": options["ALL"] and nk == blocks * tile.keys, "D": d, "ROWS": tile.keys // 2, "BLOCKS": blocks,
        "AHEAD": min(tile.stages, 2 * blocks), "num_stages": 1,
    }  # fmt: skip
    kernel: Any = attention_of_one
    return Plan(tile, kernel, (batches * heads,), table, (nk, heads), _known_to(kernel, options))


def _split(
    shape: tuple[int, ...], keys: tuple[int, int], tile: Tile, table: torch.Tensor, options: dict[str, Any]
) -> SplitPlan:
    batches, heads, nq, d = shape
    kv_heads, nk = keys
    tasks, rows = batches * kv_heads, batches * heads * nq
    splits = -(-nk // tile.split)
    width = -(-nk // tile.keys) * tile.keys // 2
    # Logits, then sums, then maxima, sums of scores and counts: see `few_queries.py`.
    places = rows * width, rows * (width + d), rows * (width + d + splits), rows * (width + d + splits + 1)
    sums = {**options, "SPLIT": tile.split, "SPLITS": 1 << (splits - 1).bit_length()}
    if tile.single:
        kernels: tuple[Any, Any] = one_query.logits_of_one, one_query.sums_of_one
        sizes: tuple[int, ...] = nk, heads, splits, width, *places
        sums["D"] = d
    else:
        kernels = few_queries.logits_of_split, few_queries.sums_of_split
        sizes = nq, nk, d, kv_heads, heads // kv_heads, splits, width, *places
        sums["ROWS"] = few_queries.ROWS
    passed = [_known_to(kernel, sums) for kernel in kernels]
    return SplitPlan(tile, kernels, (tasks, splits), table, sizes, places[-1] + tasks, *passed)
