"""Block sizes of integer attention, measured: a table for each kind of GPU, keyed by classes of shapes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from hccs.backends.triton.devices import HOPPER


class Kernel(Enum):
    """The kernels that share the work, and their modules."""

    TILES = "tiles: in one pass, or in two where a program cannot keep all keys"
    KEYS_IN_SHARED_MEMORY = "keys_in_shared_memory"
    PIPELINED = "pipelined"
    SPLIT_KEYS = "few_queries: the keys split over programs"
    ONE_QUERY = "few_queries: a program for each head"


@dataclass(frozen=True)
class Tuning:
    """A kernel, its block sizes, and how its programs share the machine."""

    kernel: Kernel
    rows: int
    keys: int
    blocks: int = 1
    """Blocks of keys that a program keeps; rows on more keys take two passes."""
    repeat: int = 1
    """Blocks of queries that a program takes over the keys it keeps."""
    warps: int = 4
    stages: int = 1
    """Loops load this many blocks ahead."""
    persistent: int = 0
    """Programs per multiprocessor that go from head to head; 0 starts one program per task."""
    registers: int | None = None
    """The compiler's limit per thread, where one more program per multiprocessor is worth spills."""
    split: int = 0
    """Keys of one program where they are split."""


class Seen(Enum):
    """The keys that the queries of a head see."""

    ALL = "all keys, in full blocks"
    CAUSAL = "keys up to the diagonal"
    SOME = "lengths, a mask that all queries share, or a last block that is not full"
    ROW_MASK = "a mask with rows of its own"


@dataclass(frozen=True)
class Shape:
    """A launch as far as the choice of its block sizes depends on it."""

    queries: int
    keys: int
    columns: int
    seen: Seen = Seen.ALL
    runnable: frozenset[Kernel] = frozenset()
    """The kernels, besides TILES, that can run it."""
    fills_gpu: bool = True
    """Whether one program per head keeps the GPU busy."""

    @property
    def length(self) -> int:
        """The class of lengths that a table knows."""
        return next(most for most in LENGTHS if self.keys <= most)

    @property
    def seen_in_blocks(self) -> Seen:
        """`seen`, with keys that do not fill their blocks counted as masked."""
        if self.length == LONG:
            return self.seen if self.keys % 128 == 0 else Seen.SOME
        return Seen.SOME if self.seen is Seen.ALL and self.keys not in _FULL else self.seen


LONG = 1 << 31
LENGTHS = (64, 128, 256, 512, LONG)
"""Upper bounds of the classes of lengths."""

_FULL = (32, 64, 128, 256, 512)

FITTING = 0
"""In a table, rows: 16 for up to 16 queries, else 64; keys: the power of two that holds them all."""


@dataclass(frozen=True)
class Table:
    """The tunings of one kind of GPU."""

    tiles: dict[tuple[int, Seen], Tuning]
    split_keys: Tuning
    up_to_64_queries: dict[int, Tuning] = field(default_factory=dict)
    shared: dict[tuple[int, Seen], Tuning] = field(default_factory=dict)
    pipelined: Tuning | None = None
    one_query: dict[int, Tuning] = field(default_factory=dict)
    """By the most keys that a program takes."""


def _tiles(rows: int, keys: int, **settings: int) -> Tuning:
    return Tuning(Kernel.TILES, rows, keys, **settings)


def _shared(rows: int, keys: int, **settings: int) -> Tuning:
    return Tuning(Kernel.KEYS_IN_SHARED_MEMORY, rows, keys, **settings)


def _one_query(keys: int) -> Tuning:
    return Tuning(Kernel.ONE_QUERY, 1, keys, warps=16, stages=2, registers=128)


_ANY_GPU = Table(
    tiles={
        (most, seen): _tiles(FITTING, FITTING if most == 64 else 64, stages=2)
        for most in LENGTHS
        for seen in Seen
    },
    split_keys=Tuning(Kernel.SPLIT_KEYS, 16, 64, stages=3, split=512),
)

# Measured on an H200 (benchmarks/attention_gpu.py --tune), heads of 64 columns.
_H200 = Table(
    tiles={
        (64, Seen.ALL): _tiles(FITTING, FITTING, stages=2, persistent=6, registers=80),
        (64, Seen.CAUSAL): _tiles(FITTING, FITTING, stages=2, persistent=5, registers=96),
        (64, Seen.SOME): _tiles(FITTING, FITTING, stages=2, persistent=5, registers=96),
        (64, Seen.ROW_MASK): _tiles(FITTING, FITTING, stages=2, persistent=4, registers=112),
        (128, Seen.ALL): _tiles(128, 128, warps=8, stages=3, persistent=2),
        (128, Seen.CAUSAL): _tiles(64, 128, repeat=2, stages=2),
        (128, Seen.SOME): _tiles(64, 128, repeat=2, stages=2),
        (128, Seen.ROW_MASK): _tiles(128, 128, warps=8, stages=3, persistent=2),
        (256, Seen.ALL): _tiles(FITTING, 128, blocks=2, repeat=4, stages=3, registers=160),
        (256, Seen.CAUSAL): _tiles(FITTING, 128, blocks=2, repeat=4, stages=3, registers=168),
        (256, Seen.SOME): _tiles(FITTING, 128, blocks=2, repeat=4, stages=3, registers=168),
        (256, Seen.ROW_MASK): _tiles(FITTING, 128, blocks=2, repeat=4, stages=3, registers=168),
        (512, Seen.ALL): _tiles(64, 128, blocks=4, repeat=8, stages=2),
        (512, Seen.CAUSAL): _tiles(64, 64, stages=3, registers=128),
        (512, Seen.SOME): _tiles(64, 128, blocks=4, repeat=8, stages=2),
        (512, Seen.ROW_MASK): _tiles(128, 128, blocks=4, repeat=4, warps=8, stages=2),
        (LONG, Seen.ALL): _tiles(128, 128, warps=8, stages=3, registers=128),
        (LONG, Seen.CAUSAL): _tiles(128, 128, warps=8, stages=3, registers=128),
        (LONG, Seen.SOME): _tiles(128, 64, warps=8, stages=3, registers=128),
        (LONG, Seen.ROW_MASK): _tiles(128, 128, warps=8, stages=3, registers=128),
    },
    split_keys=Tuning(Kernel.SPLIT_KEYS, 16, 128, stages=4, split=2048),
    up_to_64_queries={
        128: _tiles(FITTING, 128, stages=2, persistent=3),
        512: _tiles(FITTING, 128, stages=2, registers=128),
        LONG: _tiles(FITTING, 128, stages=2, registers=128),
    },
    shared={
        (256, Seen.CAUSAL): _shared(64, 32, blocks=8, registers=128),
        (256, Seen.ALL): _shared(64, 128, blocks=2, registers=168),
        (512, Seen.CAUSAL): _shared(128, 32, blocks=16, warps=8, registers=128),
        (512, Seen.ALL): _shared(64, 64, blocks=8),
    },
    pipelined=Tuning(Kernel.PIPELINED, 128, 128, warps=8, registers=128),
    one_query={4096: _one_query(256), 8192: _one_query(512)},
)

TABLES = {HOPPER: _H200, (0, 0): _ANY_GPU}
"""By the compute capability from which on a table holds; a GPU takes the highest that it reaches."""


def tuning_for(shape: Shape, capability: tuple[int, int]) -> Tuning:
    """The kernel and block sizes for a launch on a GPU of this compute capability."""
    table = TABLES[max(least for least in TABLES if least <= capability)]
    tuning = _special(shape, table)
    if tuning is None:
        tiles = _ANY_GPU.tiles if shape.columns > 64 else table.tiles
        tuning = tiles[shape.length, shape.seen_in_blocks]
        if shape.queries <= 64 and shape.columns <= 64:
            tuning = table.up_to_64_queries.get(shape.length, tuning)
    rows = tuning.rows or (16 if shape.queries <= 16 else 64)
    return replace(tuning, rows=rows, keys=tuning.keys or max(1 << (shape.keys - 1).bit_length(), 32))


def _special(shape: Shape, table: Table) -> Tuning | None:
    """The tuning of a kernel that beats TILES on such a launch; None without one."""
    if Kernel.ONE_QUERY in shape.runnable and shape.fills_gpu and shape.keys > 256:
        for most, tuning in table.one_query.items():
            if shape.keys <= most and (shape.columns <= 64 or tuning.keys == 256):
                return tuning
    if Kernel.SPLIT_KEYS in shape.runnable and shape.keys > 512:
        return table.split_keys
    pays = shape.fills_gpu or shape.seen is Seen.ALL or shape.keys == 256
    if Kernel.KEYS_IN_SHARED_MEMORY in shape.runnable and pays and shape.keys in (256, 512):
        return table.shared.get((shape.keys, shape.seen))
    if Kernel.PIPELINED in shape.runnable and shape.length == LONG:
        return table.pipelined
    return None
