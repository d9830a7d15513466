"""Block sizes of integer attention on a GPU, as measured to be fast on an H200."""

from __future__ import annotations

from dataclasses import dataclass


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
    # The kernel of `attention_ahead`, which needs one block of keys, heads of 32 or 64 columns and steps of
    # whole 16 bytes.
    ahead: bool = False


def tile_for(
    nq: int,
    nk: int,
    d: int,
    *,
    hopper: bool,
    masked: bool = False,
    mask_per_row: bool = False,
    many_heads: bool = False,
) -> Tile:
    """The tile for nq queries on nk keys (benchmarks/attention_gpu.py --tune).

    `many_heads`: so many that every program has several, and laid out as `attention_ahead` needs them.
    """
    keys = max(1 << (nk - 1).bit_length(), 32)
    rows = 16 if nq <= 16 else 64
    whole = nk == keys and not masked  # masks take registers too
    if d > 64 or not hopper:
        return Tile(rows, min(keys, 64), stages=2)
    if nk <= 64:
        if whole:
            return Tile(rows, keys, stages=2, persistent=6, registers=80)
        if mask_per_row:
            return Tile(rows, keys, stages=2, persistent=4, registers=112)
        return Tile(rows, keys, stages=2, persistent=5, registers=96)
    if nk <= 128:
        if nq <= 64:
            return Tile(rows, 128, stages=2, persistent=3)
        if many_heads and not mask_per_row:  # a mask for every row would fill the shared memory
            return Tile(64, 128, repeat=2, stages=3, persistent=9, registers=168, ahead=True)
        if whole or mask_per_row:
            return Tile(128, 128, warps=8, stages=3, persistent=2)
        return Tile(64, 128, repeat=2, stages=2)
    if mask_per_row and nk <= 512:
        return Tile(rows, 64, stages=3, registers=128)
    if nk <= 256:
        return Tile(rows, 128, tiles=2, repeat=4, stages=3, registers=160 if whole else 168)
    if nk <= 512 and whole:
        return Tile(rows, 128, tiles=4, repeat=8, stages=2)
    if nq <= 64:
        return Tile(rows, 128, stages=2, registers=128)
    if masked or nk % 128:
        return Tile(128, 64, warps=8, stages=3, registers=128)
    return Tile(128, 128, warps=8, stages=3, registers=128)
