"""A whole encoder layer on tiles, by emulation: linear layers, attention, residuals with LayerNorm, a table.

Rows travel between tiles as products write them, [rows/8][channels][8]. Each tile runs one kernel on its
share: output channels of a linear layer, a head of attention, rows of a LayerNorm.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError, ParameterError, ShapeError
from hccs.numbers.layers import XHAT_BITS, LinearParams, NormParams
from hccs.program import operators as op
from hccs.program.fingerprints import fixed_inputs
from hccs.program.operators.operator import Batch
from hccs.reference.layer_norm import root_of, root_shift
from hccs_aie import _emulation
from hccs_aie.attention import (
    HEAD_SIZES,
    MAX_KEYS,
    PRODUCTS_PER_CYCLE,
    fused_trace,
    logit_factors,
    require_theta,
    run_tile,
    tiled_keys,
    untiled,
)
from hccs_aie.cycles.machine import Generation
from hccs_aie.cycles.model import Compiler, KernelCycles, kernel_cycles
from hccs_aie.throughput import STREAM_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs.program import Program
    from hccs_aie.cycles.program import RawOperation

ROWS = 32
"""Rows of one call of a linear layer, or half as many where the tile's memory has no room for them."""

WEIGHTS_PER_TILE = 24576
TABLE_WEIGHTS = 14336
"""A linear layer is dealt out to tiles in shares of at most so many weights; fewer where look-ups follow."""

TILE_MEMORY = 65536 - 1024
"""Bytes of a tile's memory, its stack apart."""

NORM_ROWS = 32
"""Rows of a sequence that a LayerNorm's tile takes."""

NORM_SCRATCH = 64 * 4 * 14
"""Bytes of `norm_scratch`; sums and parts are twice buffered, results once: they are written last."""

INT8_ROWS, INT8_KEYS, INT16_ROWS = range(3)
_PATTERN = (
    op.Narrow, op.Linear, op.Attention, op.Linear, op.Add, op.LayerNorm, op.Narrow, op.Linear, op.Table,
    op.Linear, op.Add, op.LayerNorm,
)  # fmt: skip


def tiled(rows: NDArray[Any]) -> NDArray[Any]:
    """[rows, channels] as [rows/8][channels][8]."""
    return np.ascontiguousarray(rows.reshape(-1, 8, rows.shape[-1]).swapaxes(1, 2)).reshape(-1)


class LinearTile:
    """Output channels `part` of a linear layer as a tile holds them, and the entries of a table after it."""

    def __init__(
        self, params: LinearParams, part: slice, layout: int, entries: NDArray[np.int8] | None = None
    ) -> None:
        assert params.multiplier is not None
        weight, multiplier = params.weight[part], params.multiplier[part]
        self.outputs, self.inputs = weight.shape
        self.layout = layout
        small = int(multiplier.max()) < 2**16
        spread = np.repeat(multiplier, 8).astype(np.uint16 if small else np.int32)
        # By the byte's pattern, each line of sixteen twice.
        lines = np.zeros((0, 1, 16), np.int8) if entries is None else np.roll(entries, 128).reshape(-1, 1, 16)
        table = np.repeat(lines, 2, axis=1).reshape(-1)
        self.arrays: list[NDArray[Any]] = [tiled_keys(weight), np.repeat(params.bias[part], 8), spread, table]

    @property
    def size(self) -> int:
        """Bytes of a result."""
        return 2 if self.layout == INT16_ROWS else 1

    def memory(self, rows: int) -> int:
        """Bytes of the constants, and twice those of what comes and goes."""
        held = sum(array.nbytes for array in self.arrays)
        return int(held + 2 * rows * (self.inputs + self.outputs * self.size))

    @property
    def rows(self) -> int:
        return ROWS if self.memory(ROWS) <= TILE_MEMORY else ROWS // 2

    def run(
        self, x: NDArray[np.int8], rows: int, record: bool = False
    ) -> tuple[NDArray[Any], list[RawOperation]]:
        y = np.empty(rows * self.outputs, np.int16 if self.layout == INT16_ROWS else np.int8)
        numbers = [rows, self.inputs, self.outputs, self.layout]
        return y, run_tile("linear", [x, *self.arrays, y], numbers, record)


class NormTile:
    """The sum of two streams, its LayerNorm, and that in int8."""

    def __init__(self, params: NormParams, narrow_bits: int) -> None:
        h = params.channels
        self.arrays: list[NDArray[Any]] = [np.repeat(of, 8) for of in (params.gain, params.bias)]
        shift = root_shift(h) - XHAT_BITS
        self.numbers = [h, params.epsilon, root_of(h), shift, params.gain_bits, narrow_bits]

    def run(
        self, x: NDArray[np.int16], part: NDArray[np.int16], rows: int, record: bool = False
    ) -> tuple[NDArray[np.int16], NDArray[np.int8], list[RawOperation]]:
        y, narrowed = np.empty_like(x), np.empty(x.size, np.int8)
        arrays = [x, part, *self.arrays, y, narrowed]
        return y, narrowed, run_tile("layer_norm", arrays, [rows, *self.numbers], record)


@dataclass(frozen=True, eq=False)
class EncoderLayer:
    """The operators of a layer that normalises after its residuals, and what follows them."""

    operators: tuple[Any, ...]
    narrow_bits: int
    """By how many bits the next operator narrows the layer's output; 0 where none does."""

    @classmethod
    def of(cls, program: Program, number: int) -> EncoderLayer:
        """Layer `number` of a program; refuses one that the kernels cannot run."""
        places = [i for i, step in enumerate(program.operators) if isinstance(step, op.Attention)]
        if not 0 <= number < len(places):
            raise ParameterError(f"a layer from 0 to {len(places) - 1}", str(number), "Layers count from 0.")
        first = places[number] - 2
        steps = program.operators[max(first, 0) : first + len(_PATTERN)]
        if first < 0 or tuple(map(type, steps)) != _PATTERN:
            raise ParameterError(
                "a layer of " + ", ".join(kind.__name__ for kind in _PATTERN),
                ", ".join(type(step).__name__ for step in steps),
                "The AI Engine's layer normalises after its residuals, with one step per value and a table.",
            )
        after = program.operators[first + len(_PATTERN) : first + len(_PATTERN) + 1]
        bits = after[0].bits if after and isinstance(after[0], op.Narrow) else 0
        layer = cls(tuple(steps), bits)
        layer.require_sizes()
        return layer

    def require_sizes(self) -> None:
        x, first, part = self.operators[0].inputs[0], self.operators[4], self.operators[3].output
        second, inner = self.operators[10], (self.operators[5].output, self.operators[9].output)
        if (first.inputs, second.inputs) != ((x, part), inner) or first.limit or second.limit:
            raise ParameterError(
                "unclamped residuals of the stream that the layer reads",
                f"{first.inputs} up to {first.limit}, {second.inputs} up to {second.limit}",
                "Layers that normalise first are not written for the AI Engine.",
            )
        if self.channels % 32 or self.channels > 1024 or self.dim not in HEAD_SIZES or self.wide % 16:
            raise ShapeError(
                f"channels in 32s up to 1024, heads of {HEAD_SIZES} and an inner width in 16s",
                f"{self.channels} channels, heads of {self.dim}, {self.wide} inside",
                "These are the sizes that the kernels were written for.",
            )

    @property
    def attention(self) -> op.Attention:
        return self.operators[2]  # type: ignore[no-any-return]

    @property
    def channels(self) -> int:
        return len(self.operators[5].params.gain)

    @property
    def wide(self) -> int:
        return int(self.operators[7].params.weight.shape[0])

    @property
    def dim(self) -> int:
        return self.channels // self.attention.heads

    @functools.cached_property
    def linear_tiles(self) -> dict[str, list[LinearTile]]:
        h, qkv = self.channels, self.operators[1].params
        made = {name: _dealt(qkv, i * h, h, INT8_ROWS) for i, name in enumerate("qkv")}
        made["k"] = _dealt(qkv, h, h, INT8_KEYS)
        made["projection"] = _dealt(self.operators[3].params, 0, h, INT16_ROWS)
        made["wide"] = _dealt(self.operators[7].params, 0, self.wide, INT8_ROWS, self.operators[8].entries)
        made["summed"] = _dealt(self.operators[9].params, 0, h, INT16_ROWS)
        return made

    @functools.cached_property
    def norm_tiles(self) -> list[NormTile]:
        bits = (self.operators[6].bits, self.narrow_bits)
        return [NormTile(self.operators[i].params, b) for i, b in zip((5, 11), bits, strict=True)]

    def attention_numbers(self, head: int, n: int, first: int, length: int) -> list[int]:
        step = self.attention
        multiplier, shift = (np.broadcast_to(part, step.theta.shape) for part in logit_factors(step.requant))
        output = np.broadcast_to(step.requant.output.packed, (step.heads, 2))  # type: ignore[union-attr]
        masked = step.causal or length < n
        mask = [int(masked), length, int(step.causal), first if step.causal else 0]
        factors = [int(multiplier[head]), int(shift[head]), *mask, *output[head].tolist()]
        return [*factors, *step.theta.packed[head].tolist()]

    def run(self, x: NDArray[np.int16], length: int) -> dict[str, NDArray[Any]]:
        """The layer's values for the int16 stream [n, channels], n in 32s, `length` rows of it valid."""
        n, h = x.shape
        require_theta(self.attention.theta, n)
        if n % 32 or n > MAX_KEYS or length > n:
            raise ShapeError(f"rows in 32s up to {MAX_KEYS}", f"{n}, {length} valid", "Pad the sequence.")
        found: dict[str, NDArray[Any]] = {}
        stream, taken = tiled(x), tiled(self.operators[0].run([x], None))
        q, k, v = (self._linear(name, taken, n) for name in "qkv")
        keys = k.reshape(n // 4, h // 8, 32)
        heads = range(self.attention.heads)
        context = np.concatenate([self._head(i, q, keys, v, n, length) for i in heads], axis=1).reshape(-1)
        attended, narrowed = self._norm(0, stream, self._linear("projection", context, n), n)
        active = self._linear("wide", narrowed, n)
        found["context"], found["attended"] = untiled(context, h), untiled(attended, h)
        out, out8 = self._norm(1, attended, self._linear("summed", active, n), n)
        found["active"], found["out"] = untiled(active, self.wide), untiled(out, h)
        return found | ({"out_int8": untiled(out8, h)} if self.narrow_bits else {})

    def _linear(self, name: str, x: NDArray[np.int8], n: int) -> NDArray[Any]:
        """All tiles' shares; one block of rows after the other."""
        tiles = self.linear_tiles[name]
        group = 4 if tiles[0].layout == INT8_KEYS else 8
        blocks = []
        for rows, part in _row_blocks(x, n, ROWS):
            shares = [tile.run(part, rows)[0].reshape(rows // group, -1) for tile in tiles]
            blocks.append(np.concatenate(shares, axis=1).reshape(-1))
        return np.concatenate(blocks)

    def _norm(
        self, number: int, x: NDArray[np.int16], part: NDArray[np.int16], n: int
    ) -> tuple[NDArray[np.int16], NDArray[np.int8]]:
        tile, blocks = self.norm_tiles[number], []
        for (rows, stream), (_, added) in zip(
            _row_blocks(x, n, NORM_ROWS), _row_blocks(part, n, NORM_ROWS), strict=True
        ):
            blocks.append(tile.run(stream, added, rows)[:2])
        return np.concatenate([y for y, _ in blocks]), np.concatenate([y for _, y in blocks])

    def _head(
        self, head: int, q: NDArray[Any], keys: NDArray[Any], v: NDArray[Any], n: int, length: int
    ) -> NDArray[Any]:
        """One head's output [n/8, dim, 8]: streams bring its channels of q, k and v in 32-byte pieces."""
        d = self.dim
        part, eighths = slice(head * d, (head + 1) * d), slice(head * d // 8, (head + 1) * d // 8)
        k = np.ascontiguousarray(keys[:, eighths]).reshape(-1)
        values = v.reshape(n // 8, -1, 32)[:, head * d // 4 : (head + 1) * d // 4]
        values = np.ascontiguousarray(values.swapaxes(0, 1)).reshape(-1)
        blocks = []
        queries = np.ascontiguousarray(q.reshape(n // 8, -1, 8)[:, part]).reshape(-1)
        most = _emulation.attention_rows(n, d)
        for at, (rows, block) in enumerate(_row_blocks(queries, n, most)):
            N, Z, y = np.empty(rows * d, np.int32), np.empty(rows, np.int32), np.empty(rows * d, np.int8)
            numbers = [rows, n, d, *self.attention_numbers(head, n, at * most, length)]
            run_tile("attention", [block, k, values, N, Z, y], numbers)
            blocks.append(y.reshape(rows // 8, d, 8))
        return np.concatenate(blocks)


def _dealt(
    params: LinearParams, start: int, outputs: int, layout: int, entries: NDArray[np.int8] | None = None
) -> list[LinearTile]:
    """Output channels over the fewest tiles whose shares, in 16s, are small enough."""
    most = WEIGHTS_PER_TILE if entries is None else TABLE_WEIGHTS
    groups = outputs // 16
    tiles = -(-groups // max(most // (16 * params.weight.shape[1]), 1))
    cuts = [start + 16 * -(-groups * i // tiles) for i in range(tiles + 1)]
    return [LinearTile(params, slice(a, b), layout, entries) for a, b in itertools.pairwise(cuts)]


def _row_blocks(tiles: NDArray[Any], n: int, most: int) -> Iterator[tuple[int, NDArray[Any]]]:
    per_row = tiles.size // n
    for start in range(0, n, most):
        rows = min(most, n - start)
        yield rows, tiles[start * per_row : (start + rows) * per_row]


def reference_values(program: Program, batch: Batch) -> dict[str, NDArray[Any]]:
    """Every value of a program by the reference."""
    found: dict[str, NDArray[Any]] = {}
    for step in program.operators:
        found[step.output] = step.run([found[name] for name in step.inputs], batch)
    return found


def differences(program: Program, number: int, tokens: NDArray[Any], types: NDArray[Any] | None) -> int:
    """Integers of a layer that differ from the reference's for token ids [1, n], of n at most 256."""
    layer = EncoderLayer.of(program, number)
    n = tokens.shape[1]
    padded = -(-n // 32) * 32
    kinds = np.zeros_like(tokens) if types is None else types
    values = reference_values(program, Batch(tokens, np.array([n]), kinds))
    names = {"context": 2, "attended": 5, "active": 8, "out": 11}
    x = np.zeros((padded, layer.channels), np.int16)
    x[:n] = values[layer.operators[0].inputs[0]][0]
    found = layer.run(x, n)
    wrong = sum(
        int((found[name][:n] != values[layer.operators[i].output][0]).sum()) for name, i in names.items()
    )
    if layer.narrow_bits:
        narrowed = next(s.output for s in program.operators if s.inputs == (layer.operators[11].output,))
        wrong += int((found["out_int8"][:n] != values[narrowed][0]).sum())
    return wrong


def require_equal_bits(program: Program, number: int) -> int:
    """Run the layer on the fixed inputs of fingerprints; the number of sequences, all bits equal."""
    counted = 0
    for tokens, types in fixed_inputs(program):
        wrong = differences(program, number, tokens, types)
        if wrong:
            raise DataError(
                "equal bits", f"{wrong} integers differ from the reference", "Please report this."
            )
        counted += 1
    return counted


@dataclass(frozen=True)
class MappedTile:
    """One tile's work for a sequence: products, modelled cycles, bytes of its memory and of its streams."""

    stage: str
    kernel: KernelCycles
    calls: int
    products: int
    memory: int
    bytes_in: tuple[int, ...]
    bytes_out: tuple[int, ...]

    @property
    def compute(self) -> int:
        return self.kernel.cycles * self.calls

    @property
    def streams(self) -> int:
        """Cycles of its busiest stream: a tile has two each way."""
        return -(-max(*self.bytes_in, *self.bytes_out) // STREAM_BYTES[self.kernel.generation])

    @property
    def cycles(self) -> int:
        return max(self.compute, self.streams)

    @property
    def bound(self) -> str:
        return "streams" if self.streams > self.compute else self.kernel.binding_slot


@dataclass(frozen=True)
class LayerCycles:
    """A layer's tiles, all at work on sequences of n rows, one behind the other."""

    generation: Generation
    n: int
    tiles: tuple[MappedTile, ...]

    @property
    def products(self) -> int:
        return sum(tile.products for tile in self.tiles)

    @property
    def slowest(self) -> MappedTile:
        return max(self.tiles, key=lambda tile: tile.cycles)

    @property
    def share_of_work(self) -> float:
        """The products' share of all tiles' busy cycles at the matrix units' peak."""
        busy = sum(tile.compute for tile in self.tiles)
        return self.products / PRODUCTS_PER_CYCLE[self.generation] / busy

    @property
    def share_of_array(self) -> float:
        """The same when every tile waits for the slowest."""
        held = len(self.tiles) * self.slowest.cycles
        return self.products / PRODUCTS_PER_CYCLE[self.generation] / held


def mapped(
    layer: EncoderLayer,
    n: int = 64,
    generation: Generation | str = Generation.AIE2,
    compiler: Compiler | str = Compiler.PIPELINED,
) -> LayerCycles:
    """The layer's tiles with modelled cycles for sequences of n rows, all valid but one."""
    generation = Generation(generation)
    if n % 32 or not 32 <= n <= MAX_KEYS:
        raise ShapeError(f"rows in 32s up to {MAX_KEYS}", str(n), "Pad the sequences.")
    require_theta(layer.attention.theta, n)
    h, d = layer.channels, layer.dim
    made: list[MappedTile] = []

    def add_linear(name: str) -> None:
        known: dict[int, KernelCycles] = {}
        for tile in layer.linear_tiles[name]:
            rows, moved = tile.rows, n * tile.inputs
            if tile.outputs not in known:
                trace = tile.run(np.zeros(rows * tile.inputs, np.int8), rows, record=True)[1]
                known[tile.outputs] = kernel_cycles(trace, generation, rows, compiler)
            products, out = moved * tile.outputs, n * tile.outputs * tile.size
            cycles, streams = known[tile.outputs], (moved // 2, moved // 2)
            made.append(MappedTile(name, cycles, n // rows, products, tile.memory(rows), streams, (out,)))

    for name in "qkv":
        add_linear(name)
    most = _emulation.attention_rows(n, d)
    for head in range(layer.attention.heads):
        trace = fused_trace(layer.attention_numbers(head, n, 0, n - 1), most, n, d, int8=True)
        kernel = kernel_cycles(trace, generation, most, compiler)
        # Keys and values come by one stream, queries by the other, twice buffered.
        memory = 2 * (most + 2 * n) * d + most * (6 * d + 2 * n)
        products, streams = 2 * n * n * d, (n * d, 2 * n * d)
        made.append(MappedTile("attention", kernel, -(-n // most), products, memory, streams, (n * d,)))
    add_linear("projection")

    def add_norm(number: int) -> None:
        tile = layer.norm_tiles[number]
        zeros = np.zeros(NORM_ROWS * h, np.int16)
        kernel = kernel_cycles(tile.run(zeros, zeros, NORM_ROWS, True)[2], generation, NORM_ROWS, compiler)
        one = 2 * NORM_ROWS * h
        held = sum(array.nbytes for array in tile.arrays) + 11 * NORM_ROWS * h + NORM_SCRATCH
        for _ in range(n // NORM_ROWS):
            made.append(MappedTile(f"norm {number + 1}", kernel, 1, 0, held, (one, one), (one, one // 2)))

    add_norm(0)
    add_linear("wide")
    add_linear("summed")
    add_norm(1)
    return LayerCycles(generation, n, tuple(made))
