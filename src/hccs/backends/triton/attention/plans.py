"""The kernel, grid, parameter table and arguments of a launch, from its shapes and parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton

from hccs._extras import is_tried_triton
from hccs.backends.triton.attention import few_queries, tiles
from hccs.backends.triton.attention.launch_plan import KernelLaunch, LaunchPlan
from hccs.backends.triton.attention.tuning import Kernel, Seen, Shape, Tuning, tuning_for
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
from hccs.backends.triton.devices import FUSED, HOPPER, capability, heads_and_factors_on, multiprocessors
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs.ops.arguments import LENGTHS, MASK, NO_MASK

shared_memory: Any = None
attention_pipelined: Any = None
if is_tried_triton(triton.__version__):  # another has no Gluon, or one whose products nobody has counted
    from hccs.backends.triton.attention import keys_in_shared_memory as shared_memory
    from hccs.backends.triton.attention.pipelined import attention_pipelined

_OUTPUTS = {torch.int8: INT8.value, torch.int32: PAIR.value}


@dataclass(frozen=True)
class Request:
    """A call of attention as far as its plan depends on it."""

    shape: tuple[int, ...]
    """Of q: batches, heads, queries, columns."""
    kv_heads: int
    keys: int
    """Keys of a row; where `growing`, the most of their class."""
    lead: tuple[int, ...]
    """The leading dimensions of q as the caller has them."""
    theta: HeadParams
    requant: Requant
    device: torch.device
    masking: int = NO_MASK
    one_length: bool = False
    """Whether all queries of a head have the same length."""
    causal: bool = False
    mode: Mode | None = None
    dtype: torch.dtype = torch.float32
    words: bool = False
    """Whether q, k and v can be read as words of four columns."""
    dense: bool = False
    """Whether rows of k and v follow one another."""
    aligned: bool = False
    """Whether q, k and v step by multiples of 16 bytes."""
    growing: bool = False
    tuning: Tuning | None = None

    @property
    def sharing(self) -> int:
        """Heads of q on one of k and v."""
        return self.shape[1] // self.kv_heads

    @property
    def seen(self) -> Seen:
        """What the tuning tables know of masks."""
        if self.masking == MASK:
            return Seen.ROW_MASK
        if self.causal:
            return Seen.CAUSAL
        return Seen.ALL if self.masking == NO_MASK and not self.growing else Seen.SOME

    @property
    def plain(self) -> bool:
        """Whether every query sees every key of every block."""
        return self.masking == NO_MASK and not self.causal and not self.growing


@lru_cache(maxsize=256)
def plan_for(request: Request) -> LaunchPlan:
    """How a request is launched."""
    able = capability(request.device)
    tuning = request.tuning or tuning_for(_shape(request, able), able)
    theta, nk, d = request.theta, request.keys, request.shape[-1]
    largest = theta.max_score
    options: dict[str, Any] = {
        "MASKING": request.masking, "CAUSAL": request.causal,
        "OUT": _OUTPUTS.get(request.dtype, FLOATS.value), "SCORES": how_scores_come_about(theta),
        "HIGH": request.mode is None and largest >= 2**11,
        "LONG": request.mode is None and nk * largest > 2**17, "HOPPER": able >= HOPPER,
        "BLOCK_D": min(max(1 << (d - 1).bit_length(), 32), 128), "ROWS": tuning.rows, "KEYS": tuning.keys,
        "TILES": tuning.blocks, "num_warps": tuning.warps, "num_stages": tuning.stages, **FUSED,
    }  # fmt: skip
    if tuning.registers is not None:  # an option that AMD's compiler does not have
        options["maxnreg"] = tuning.registers
    table = _by_batch(heads_and_factors_on(theta, request.requant, request.device), request.lead)
    planners: dict[Kernel, Callable[..., LaunchPlan]] = {
        Kernel.TILES: _tiles, Kernel.KEYS_IN_SHARED_MEMORY: _shared_memory, Kernel.PIPELINED: _pipelined,
        Kernel.SPLIT_KEYS: _split_keys, Kernel.ONE_QUERY: _one_query,
    }  # fmt: skip
    return planners[tuning.kernel](request, tuning, table, options)


def _shape(request: Request, able: tuple[int, int]) -> Shape:
    batches, heads, nq, d = request.shape
    runnable = set()
    rows = nq * request.sharing
    if request.mode is None and request.masking <= LENGTHS and d <= 128 and rows <= few_queries.ROWS:
        runnable.add(Kernel.SPLIT_KEYS)
        if rows == 1 and request.words and d in (32, 64, 128):
            runnable.add(Kernel.ONE_QUERY)
    if can_run_gluon(request, able):
        if nq == request.keys:
            runnable.add(Kernel.KEYS_IN_SHARED_MEMORY)
        if _can_pipeline(request):
            runnable.add(Kernel.PIPELINED)
    fills_gpu = _fills_gpu(batches * heads, multiprocessors(request.device))
    return Shape(nq, request.keys, d, request.seen, frozenset(runnable), fills_gpu)


def can_run_gluon(request: Request, able: tuple[int, int]) -> bool:
    """Whether the kernels in Gluon know such scores and outputs, and a device of this capability."""
    theta, largest = request.theta, request.theta.max_score
    return (
        shared_memory is not None
        and able[0] == HOPPER[0]  # later ones multiply in another way
        and request.aligned
        and request.masking == NO_MASK
        and request.mode is None
        and request.shape[-1] == 64
        and request.dtype not in _OUTPUTS
        and largest < 2**11
        and request.keys * largest <= 2**17
        and how_scores_come_about(theta) in (ONE_LINE.value, BYTES.value)
    )


def _can_pipeline(request: Request) -> bool:
    """Whether `pipelined.py` takes rows that Gluon can: causal, blocks of 128, one line, sums of 128 + v."""
    nq, nk = request.shape[2], request.keys
    in_blocks = request.causal and nq % 128 == nk % 128 == 0 and nq <= nk
    one_line = how_scores_come_about(request.theta) == ONE_LINE.value
    return one_line and in_blocks and nk * request.theta.max_score <= 2**16


def _fills_gpu(heads: int, processors: int) -> bool:
    """Whether programs of one head each, two to a multiprocessor, leave few of them idle until the end."""
    together = 2 * processors
    left = heads % together
    return heads >= processors and (left == 0 or 2 * left >= together or heads >= 4 * together)


def _by_batch(table: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """Parameters [..., numbers] of every head as [batch, heads, numbers], steps of 0 where shared."""
    full = table.expand(*lead, table.shape[-1])
    return full.reshape(-1, *full.shape[-2:]) if len(lead) > 2 else full[(None,) * (2 - len(lead))]


def _launch(kernel: Any, options: dict[str, Any], **takes: Any) -> KernelLaunch:
    """With the compiler's options, and the compile-time arguments that the kernel has."""
    known = {name: value for name, value in options.items() if not name.isupper() or name in kernel.arg_names}
    return KernelLaunch(kernel, known, **takes)


def _how_scores_are_added(largest: int, nk: int, keys: int) -> int:
    """By the largest score: whether the sums of half a block, and of an eighth of a row, fit 16 bits."""
    if keys // 2 * largest > 0xFFFF:
        return int(APART.value)
    return int(PACKED.value if -(-nk // 8) * largest <= 0xFFFF else BY_BLOCK.value)


def _tiles(request: Request, tuning: Tuning, table: torch.Tensor, options: dict[str, Any]) -> LaunchPlan:
    batches, heads, nq, d = request.shape
    nk, theta, masking, causal = request.keys, request.theta, request.masking, request.causal
    in_one_pass = nk <= tuning.keys * tuning.blocks
    repeat = min(tuning.repeat, -(-nq // tuning.rows)) if in_one_pass else 1
    blocks = -(-nq // (tuning.rows * repeat))
    tasks = programs = batches * blocks  # per head
    if in_one_pass and tuning.persistent:
        programs = min(tasks, max(tuning.persistent * multiprocessors(request.device) // heads, 1))
    full_keys = nk > 0 and nk % (tuning.keys * (tuning.blocks if in_one_pass else 1)) == 0
    chunks = -(-d // options["BLOCK_D"])
    in_step = not causal or ((nk - nq) % tuning.rows == 0 and tuning.keys % tuning.rows == 0)
    one_end = masking == NO_MASK or (masking == LENGTHS and request.one_length)
    stepwise = tuning.blocks > 1 and masking in (NO_MASK, LENGTHS) and (causal or request.one_length)
    options |= {
        "ALL": request.plain and full_keys, "MODE": normalisation(request.mode), "IS_WIDE": theta.wide,
        "SUMS": _how_scores_are_added(theta.max_score, nk, tuning.keys), "CHUNKS": chunks,
        "FULL": full_keys and nq % (tuning.rows * repeat) == 0 and d % options["BLOCK_D"] == 0,
        "REPEAT": repeat, "SHARED": table.stride(0) == 0 or batches == 1, "STEPWISE": stepwise,
        "LAST": stepwise and in_step and one_end, "ONE_LENGTH": request.one_length,
        "FLUSH": max(2**17 // (theta.max_score * tuning.keys), 1),
    }  # fmt: skip
    kernel: Any = tiles.attention_in_one_pass if in_one_pass else tiles.attention_in_two_passes
    sizes = nq, d, heads, request.sharing, blocks, tasks
    grid = heads * programs, chunks
    return LaunchPlan(tuning, (_launch(kernel, options),), grid, table, sizes, request.growing)


def _shared_memory(
    request: Request, tuning: Tuning, table: torch.Tensor, options: dict[str, Any]
) -> LaunchPlan:
    batches, heads, nq, _ = request.shape
    kernel = shared_memory.attention_causal if request.causal else shared_memory.attention_of_all_keys
    options["QUERIES"] = nq if nq <= 256 else tuning.rows
    sizes = heads, request.sharing
    return LaunchPlan(tuning, (_launch(kernel, options),), (batches * heads,), table, sizes)


def _pipelined(request: Request, tuning: Tuning, table: torch.Tensor, options: dict[str, Any]) -> LaunchPlan:
    batches, heads, nq, _ = request.shape
    blocks = nq // tuning.rows
    sizes = nq, heads, request.sharing, blocks
    grid = (batches * heads * blocks,)
    return LaunchPlan(tuning, (_launch(attention_pipelined, options),), grid, table, sizes)


def _one_query(request: Request, tuning: Tuning, table: torch.Tensor, options: dict[str, Any]) -> LaunchPlan:
    batches, heads, _, d = request.shape
    blocks = triton.next_power_of_2(-(-request.keys // tuning.keys))
    options |= {
        "D": d, "ROWS": tuning.keys // 2, "BLOCKS": blocks, "AHEAD": min(tuning.stages, 2 * blocks),
        "DENSE": request.dense, "num_stages": 1,
    }  # fmt: skip
    launches = (_launch(few_queries.attention_of_one_query, options),)
    return LaunchPlan(tuning, launches, (batches * heads,), table, (heads,), request.growing)


def _split_keys(request: Request, tuning: Tuning, table: torch.Tensor, options: dict[str, Any]) -> LaunchPlan:
    batches, heads, nq, d = request.shape
    nk, kv_heads = request.keys, request.kv_heads
    tasks, rows = batches * kv_heads, batches * heads * nq
    splits = -(-nk // tuning.split)
    width = -(-nk // tuning.keys) * tuning.keys // 2
    # Logits, then sums, then maxima, sums of scores and counts: see `few_queries.py`.
    places = rows * width, rows * (width + d), rows * (width + d + splits), rows * (width + d + splits + 1)
    options |= {"ROWS": few_queries.ROWS, "SPLIT": tuning.split, "SPLITS": triton.next_power_of_2(splits)}
    sizes = nq, d, kv_heads, request.sharing, splits, width, *places
    shared = "table", "valid", "faults", "scratch"
    launches = (
        _launch(few_queries.logits_of_split, options, tensors=("q", "k", *shared)),
        _launch(few_queries.sums_of_split, options, tensors=("v", *shared, "result", "Z")),
    )
    room = places[-1] + tasks
    return LaunchPlan(tuning, launches, (tasks, splits), table, sizes, request.growing, room)
