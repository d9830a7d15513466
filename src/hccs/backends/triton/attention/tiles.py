"""Block sizes of integer attention, as data: a table for each kind of GPU, found by measuring on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hccs.backends.triton.devices import HOPPER


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
    # Programs per multiprocessor that go from head to head and load the next while they compute; 0 for one
    # per task. More than fit at once even out the end.
    persistent: int = 0
    # The compiler's limit per thread, where one more program per multiprocessor is worth a few spills.
    registers: int | None = None
    # The kernel of `prefetched.py`, which needs one block of keys, heads of 32 or 64 columns and steps of
    # whole 16 bytes.
    prefetched: bool = False
    # The kernel of `held.py`, of `all_held.py` for short heads or of `twice.py` for causal rows, on heads as
    # they need them; programs take all queries of a head.
    held: bool = False
    # The kernel of `pipelined.py`, on rows as it needs them, which takes them in 128 by 128 keys.
    pipelined: bool = False
    # Keys of a program of `few_queries.py`; 0 for the other kernels.
    split: int = 0
    # Those of `one_query.py` instead, which need heads of 32, 64 or 128 columns, four to a word; without a
    # split the kernel of `whole_row.py`, which loads `stages` blocks ahead.
    single: bool = False


FITTING = 0
"""In a table, rows: 16 for up to 16 queries, else 64; keys: the power of two that holds them all."""


@dataclass(frozen=True)
class Entry:
    """The tile for every launch that meets all its conditions; None is no condition."""

    tile: Tile
    most_keys: int | None = None
    most_queries: int | None = None
    least_columns: int = 1
    # Whether the keys fill their blocks and nothing is masked: masks take registers too.
    whole: bool | None = None
    masked: bool | None = None
    causal: bool | None = None
    # Whether queries of one head have masks of their own, which fill the shared memory.
    mask_per_row: bool | None = None
    # So many that every program has several, and laid out as `prefetched.py` needs them.
    many_heads: bool | None = None
    # Heads as `held.py` needs them: as many queries as keys, 64 columns, steps of whole 16 bytes, no mask but
    # a causal one, one line or uint8 scores, sums that float32 holds, a float output.
    held: bool | None = None
    # Rows as `pipelined.py` needs them: queries and keys in whole blocks of 128, in causal rows no more
    # queries than keys; otherwise as for `held.py`, but of one line, with sums that leave float32 a bit.
    pipelined: bool | None = None
    # The number of keys is a multiple of this.
    multiple: int = 1
    # Queries of heads that share keys are so few that they fit one tile together.
    few: bool | None = None
    # Only one query, whose keys no other head shares, and rows of whole words.
    one: bool | None = None
    least_keys: int = 0
    # Heads enough that a program for each keeps the GPU busy.
    filling: bool | None = None


@dataclass(frozen=True)
class _Launch:
    """What an entry's conditions are about."""

    queries: int
    keys: int
    columns: int
    whole: bool
    masked: bool
    causal: bool
    mask_per_row: bool
    many_heads: bool
    held: bool
    pipelined: bool
    few: bool
    one: bool
    filling: bool

    def meets(self, entry: Entry) -> bool:
        bounds = ((self.keys, entry.most_keys), (self.queries, entry.most_queries))
        facts = (
            (self.whole, entry.whole),
            (self.masked, entry.masked),
            (self.causal, entry.causal),
            (self.few, entry.few),
            (self.one, entry.one),
            (self.filling, entry.filling),
            (self.mask_per_row, entry.mask_per_row),
            (self.many_heads, entry.many_heads),
            (self.held, entry.held),
            (self.pipelined, entry.pipelined),
        )
        return (
            all(most is None or value <= most for value, most in bounds)
            and all(wanted is None or fact == wanted for fact, wanted in facts)
            and self.keys % entry.multiple == 0
            and self.columns >= entry.least_columns
            and self.keys >= entry.least_keys
        )


_ANY_GPU = (
    Entry(Tile(16, 64, split=512, single=True), one=True, least_keys=256),
    Entry(Tile(16, 64, stages=3, split=512), few=True, least_keys=512),
    Entry(Tile(FITTING, FITTING, stages=2), most_keys=64),
    Entry(Tile(FITTING, 64, stages=2)),
)

# Measured on an H200 (benchmarks/attention_gpu.py --tune), heads of 64 columns; the first that fits is taken.
_H200 = (
    Entry(
        Tile(1, 256, warps=16, stages=2, registers=128, single=True), 4096, least_keys=256, one=True,
        filling=True,
    ),
    Entry(Tile(16, 32, warps=2, split=512, single=True), least_columns=65, least_keys=256, one=True),
    Entry(
        Tile(1, 512, warps=16, stages=2, registers=128, single=True), 8192, least_keys=256, one=True,
        filling=True,
    ),
    Entry(Tile(16, 32, warps=2, split=512, single=True), one=True, least_keys=256),
    Entry(Tile(16, 128, stages=4, split=2048), few=True, least_keys=512),
    *(replace(entry, least_columns=65) for entry in _ANY_GPU[2:]),
    Entry(Tile(FITTING, FITTING, stages=2, persistent=6, registers=80), 64, whole=True),
    Entry(Tile(FITTING, FITTING, stages=2, persistent=4, registers=112), 64, mask_per_row=True),
    Entry(Tile(FITTING, FITTING, stages=2, persistent=5, registers=96), 64),
    Entry(Tile(FITTING, 128, stages=2, persistent=3), 128, most_queries=64),
    Entry(
        Tile(64, 128, repeat=2, stages=3, persistent=9, registers=168, prefetched=True), 128, many_heads=True,
    ),
    Entry(Tile(128, 128, warps=8, stages=3, persistent=2), 128, whole=True),
    Entry(Tile(128, 128, warps=8, stages=3, persistent=2), 128, mask_per_row=True),
    Entry(Tile(64, 128, repeat=2, stages=2), 128),
    Entry(Tile(FITTING, 128, stages=2, registers=128), most_queries=64, least_keys=257),
    Entry(Tile(64, 32, tiles=8, registers=128, held=True), 256, causal=True, held=True, multiple=256),
    Entry(Tile(64, 128, tiles=2, registers=168, held=True), 256, causal=False, held=True, multiple=256),
    Entry(Tile(FITTING, 128, tiles=2, repeat=4, stages=3, registers=160), 256, whole=True),
    Entry(Tile(FITTING, 128, tiles=2, repeat=4, stages=3, registers=168), 256),
    Entry(Tile(128, 128, tiles=4, repeat=4, warps=8, stages=2), 512, mask_per_row=True),
    Entry(
        Tile(128, 32, tiles=16, warps=8, registers=128, held=True), 512, causal=True, held=True, multiple=512,
        filling=True,
    ),
    Entry(Tile(64, 64, tiles=8, held=True), 512, causal=False, held=True, multiple=512),
    Entry(Tile(64, 64, stages=3, registers=128), 512, causal=True),
    Entry(Tile(64, 128, tiles=4, repeat=8, stages=2), 512),
    Entry(Tile(128, 128, warps=8, registers=128, pipelined=True), pipelined=True),
    Entry(Tile(128, 128, warps=8, stages=3, registers=128), causal=True, multiple=128),
    Entry(Tile(128, 64, warps=8, stages=3, registers=128), masked=True, mask_per_row=False),
    Entry(Tile(128, 128, warps=8, stages=3, registers=128), multiple=128),
    Entry(Tile(128, 64, warps=8, stages=3, registers=128)),
)  # fmt: skip

TABLES = {HOPPER: _H200, (0, 0): _ANY_GPU}
"""By the compute capability from which on a table holds; a GPU takes the highest that it reaches."""


def tile_for(
    nq: int,
    nk: int,
    d: int,
    *,
    capability: tuple[int, int],
    masked: bool = False,
    causal: bool = False,
    mask_per_row: bool = False,
    many_heads: bool = False,
    held: bool = False,
    pipelined: bool = False,
    rows: int | None = None,
    words: bool = False,
    filling: bool = False,
) -> Tile:
    """The tile for nq queries on nk keys of d columns, on a GPU of this compute capability.

    `rows` counts the queries of heads that share keys, where the kernels of few queries can run; `words`
    tells that q, k and v can be read as words of four columns, `filling` that the heads are so many that a
    program for each keeps the GPU busy; `held` and `pipelined` that the kernels of these names can run.
    """
    keys = max(1 << (nk - 1).bit_length(), 32)
    few = rows is not None and rows <= 16
    launch = _Launch(
        nq, nk, d, nk == keys and not masked, masked, causal, mask_per_row, many_heads, held, pipelined, few,
        rows == 1 and words and d in (32, 64, 128), filling,
    )  # fmt: skip
    table = TABLES[max(least for least in TABLES if least <= capability)]
    tile = next(entry.tile for entry in table if launch.meets(entry))
    return replace(tile, rows=tile.rows or (16 if nq <= 16 else 64), keys=tile.keys or keys)
