"""Attention of a head on one tile: q.k, HCCS and p.v in one kernel, by emulation, and as three kernels."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DtypeError, MaskError, ParameterError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import INT16_MAX, UINT8_MAX, Mode
from hccs.numbers.requant import Requant
from hccs_aie import _emulation, emulator, throughput
from hccs_aie.arguments import integer
from hccs_aie.cycles.machine import Generation
from hccs_aie.cycles.model import Compiler, KernelCycles, kernel_cycles
from hccs_aie.emulator import LANES, Kernel

if TYPE_CHECKING:
    from hccs_aie.cycles.program import RawOperation

HEAD_SIZES = (32, 64)
"""Head sizes that the kernels were written for."""

MAX_KEYS = 256
"""Sums of so many clamped logits stay within 16 bits."""

UINT8_SCORES = 127
"""A base that every number of keys up to 256 admits, with scores in uint8."""

ROWS_MULTIPLE = 32
"""Query rows of a call come in multiples of this; emulation adds rows of zeros."""

PRODUCTS_PER_CYCLE = {Generation.AIE2: 256, Generation.AIE2PS: 512}
"""int8 products of one matrix multiply instruction."""


def attention(
    q: NDArray[np.int8],
    k: NDArray[np.int8],
    v: NDArray[np.int8],
    theta: HeadParams,
    requant: Requant,
    *,
    lengths: Any = None,
    causal: bool = False,
    out: str = "pair",
) -> Any:
    """Attention of q [..., rows, d] over k and v [..., keys, d], every head on one tile, by emulation.

    Normalisation is deferred, so that the result is `hccs.attention`'s, as the pair (N, Z) or, with
    `out="int8"`, in int8. theta and requant broadcast against q.shape[:-2], and so do `lengths`, the keys
    that take part. With `causal` the last query sees all of them and each one before a key less.

    >>> from hccs.numbers.requant import FixedPoint
    >>> one = np.ones((1, 32, 32), np.int8)
    >>> N, Z = attention(one, one, one, HeadParams(B=8, S=0, D=1), Requant(FixedPoint(1, 5)))
    >>> int(N[0, 0, 0]), int(Z[0, 0])
    (256, 256)
    """
    heads, rows, n, dim = _heads(q, k, v)
    require_theta(theta, n)
    if out not in ("pair", "int8"):
        raise ParameterError("out to be 'pair' or 'int8'", repr(out), "Floats are the host's to make.")
    if causal and rows > n:
        raise ShapeError("no more queries than keys in causal attention", f"{rows} over {n}", "Pad the keys.")
    params = _per_head(theta.packed, q.shape[:-2], "theta")
    factors = _per_head(np.stack(logit_factors(requant), -1), q.shape[:-2], "requant")
    outputs = _per_head(_output_factor(requant, out), q.shape[:-2], "requant")
    valid = _per_head(_lengths(lengths, n)[..., None], q.shape[:-2], "lengths")[:, 0]
    N, Z = np.empty((heads, rows, dim), np.int32), np.empty((heads, rows), np.int32)
    y = np.empty((heads, rows, dim), np.int8)
    keys, values = k.reshape(heads, n, dim), v.reshape(heads, n, dim)
    for head, part, block in _blocks(q.reshape(heads, rows, dim), n):
        sums, totals = np.empty(block.size, np.int32), np.empty(len(block), np.int32)
        result = np.empty(block.size if out == "int8" else 0, np.int8)
        arrays = [tiled_queries(block), tiled_keys(keys[head]), tiled_values(values[head])]
        masked = causal or valid[head] < n
        mask = [int(masked), int(valid[head]), int(causal), n - rows + part.start if causal else 0]
        numbers = [len(block), n, dim, *factors[head].tolist(), *mask, *outputs[head].tolist()]
        run_tile("attention", [*arrays, sums, totals, result], [*numbers, *params[head].tolist()])
        taken = part.stop - part.start
        N[head, part], Z[head, part] = untiled(sums, dim)[:taken], totals[:taken]
        if out == "int8":
            y[head, part] = untiled(result, dim)[:taken]
    return y.reshape(q.shape) if out == "int8" else (N.reshape(q.shape), Z.reshape(q.shape[:-1]))


def run_tile(
    name: str, arrays: list[NDArray[Any]], numbers: list[int], record: bool = False
) -> list[RawOperation]:
    """One kernel on one tile, by emulation; results are in the arrays, the trace comes back if recorded."""
    return _emulation.tile_kernel(name, [array.view(np.uint8) for array in arrays], numbers, record) or []


def by_three_kernels(
    q: NDArray[np.int8], k: NDArray[np.int8], v: NDArray[np.int8], theta: HeadParams, requant: Requant
) -> NDArray[np.int32]:
    """N of the paper's form, `u8_clb` probabilities first, by a kernel each for q.k, softmax and p.v.

    One line, full rows, and a power of two as the factor of the logits.
    """
    heads, rows, n, dim = _heads(q, k, v)
    require_theta(theta, n)
    theta.require_one_line("in the three kernels", "Use the one kernel.")
    factors = _per_head(np.stack(logit_factors(requant), -1), q.shape[:-2], "requant")
    if factors[:, 0].any():
        raise ParameterError(
            "a power of two as the factor of the logits", str(requant.logits), "Use the one kernel."
        )
    keys, values = k.reshape(heads, n, dim), v.reshape(heads, n, dim)
    x = np.empty((heads, rows, n), np.int8)
    for head, part, block in _blocks(q.reshape(heads, rows, dim), n):
        logits = np.empty(len(block) * n, np.int8)
        sizes = [len(block), n, dim, int(factors[head, 1])]
        run_tile("logits", [tiled_queries(block), tiled_keys(keys[head]), logits], sizes)
        x[head, part] = untiled(logits, n)[: part.stop - part.start]
    p = emulator.softmax(x.reshape(*q.shape[:-1], n), theta, Mode.U8_CLB).reshape(heads, rows, n)
    N = np.empty((heads, rows, dim), np.int32)
    for head, part, weights in _blocks(p, n, dim):
        sums = np.empty(len(weights) * dim, np.int32)
        run_tile("values", [tiled_queries(weights), tiled_values(values[head]), sums], [len(weights), n, dim])
        N[head, part] = untiled(sums, dim)[: part.stop - part.start]
    return N.reshape(q.shape)


def tiled_queries(rows: NDArray[Any]) -> NDArray[Any]:
    """[rows, columns] as tiles of eight columns by eight rows: what multiplies from the right."""
    count, columns = rows.shape
    tiles = rows.reshape(count // 8, 8, columns // 8, 8).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(tiles).reshape(-1)


def tiled_keys(k: NDArray[np.int8]) -> NDArray[np.int8]:
    """[keys, d] as tiles of four keys by eight columns: what multiplies from the left."""
    n, dim = k.shape
    return np.ascontiguousarray(k.reshape(n // 4, 4, dim // 8, 8).transpose(0, 2, 1, 3)).reshape(-1)


def tiled_values(v: NDArray[np.int8]) -> NDArray[np.int8]:
    """[keys, d] as tiles of four columns by eight keys."""
    return tiled_keys(v.T)


def untiled(tiles: NDArray[Any], columns: int) -> NDArray[Any]:
    """[rows, columns] from tiles of four or eight columns by eight rows."""
    rows: NDArray[Any] = tiles.reshape(-1, columns, 8).transpose(0, 2, 1).reshape(-1, columns)
    return rows


def _blocks(rows: NDArray[Any], n: int, dim: int | None = None) -> Iterator[tuple[int, slice, NDArray[Any]]]:
    """What one call takes: a head, which of its rows, and those filled up with zeros."""
    heads, count, columns = rows.shape
    most = _emulation.attention_rows(n, columns if dim is None else dim)
    for head in range(heads):
        for start in range(0, count, most):
            part = slice(start, min(start + most, count))
            taken = part.stop - part.start
            block = np.zeros((-(-taken // ROWS_MULTIPLE) * ROWS_MULTIPLE, columns), rows.dtype)
            block[:taken] = rows[head, part]
            yield head, part, block


def require_sizes(n: int, dim: int) -> None:
    n, dim = integer("keys", n), integer("d", dim)
    if n % LANES or not LANES <= n <= MAX_KEYS:
        raise ShapeError(
            f"a multiple of {LANES} keys, up to {MAX_KEYS}",
            f"{n} keys",
            "Pad k and v to such a number and give their lengths.",
        )
    if dim not in HEAD_SIZES:
        raise ShapeError(
            f"a head size of {' or '.join(map(str, HEAD_SIZES))}",
            str(dim),
            "Pad q, k and v with columns of zeros: they change no result.",
        )


def require_theta(theta: Any, n: int) -> None:
    """Refuse what the kernel cannot run: of two lines, scores beyond uint8 and offsets beyond int16."""
    if not isinstance(theta, HeadParams):
        raise DtypeError(
            "theta to be hccs.HeadParams", type(theta).__name__, "Use HeadParams(B=..., S=..., D=...)."
        )
    theta.require_columns(n)
    if not theta.wide:
        return
    if theta.max_score > UINT8_MAX:
        raise ParameterError(
            f"scores of at most {UINT8_MAX} (B >> f) of two lines in the attention kernels of the AI Engine",
            str(theta.max_score),
            "Calibrate with scores='uint8'.",
        )
    largest = int((np.asarray(theta.B) + 128 * (np.asarray(theta.S) + theta.S2)).max())
    if largest > INT16_MAX:
        raise ParameterError(
            f"B + 128 * (S + S2) <= {INT16_MAX} of two lines in the attention kernels of the AI Engine",
            str(largest),
            "Use smaller slopes.",
        )


def logit_factors(requant: Requant) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Multiplier and shift of each head's logits; multiplier 0 for a power of two, which needs no product."""
    if not isinstance(requant, Requant):
        raise DtypeError("requant to be hccs.Requant", type(requant).__name__, "Use Requant.from_scales.")
    multiplier, shift = np.moveaxis(requant.logits.packed.astype(np.int64), -1, 0)
    exponent = shift - np.log2(multiplier).astype(np.int64)
    # Beyond 2^24 every q.k of these head sizes rounds to 0: SRS shifts by less than 31 places.
    plain = (multiplier & (multiplier - 1) == 0) & (exponent >= 0)
    return np.where(plain, 0, multiplier), np.where(plain, np.minimum(exponent, 24), shift)


def _output_factor(requant: Requant, out: str) -> NDArray[np.int64]:
    if out == "pair":
        return np.zeros(2, np.int64)
    if requant.output is None:
        raise ParameterError("a factor for int8 output", "none", "Give out_scale to Requant.from_scales.")
    return requant.output.packed.astype(np.int64)


def _lengths(lengths: Any, n: int) -> NDArray[np.int64]:
    found = np.asarray(n if lengths is None else lengths)
    if found.dtype.kind not in "iu" or (found < 0).any() or (found > n).any():
        raise MaskError(f"whole lengths from 0 to {n}", repr(lengths), "One for each sequence or head.")
    return found.astype(np.int64)


def _per_head(values: NDArray[Any], heads: tuple[int, ...], what: str) -> NDArray[Any]:
    try:
        return np.broadcast_to(values, (*heads, values.shape[-1])).reshape(-1, values.shape[-1])
    except ValueError as error:
        raise ShapeError(
            f"{what} that broadcasts to {heads}", str(values.shape[:-1]), "Give one value, or one per head."
        ) from error


def _heads(q: Any, k: Any, v: Any) -> tuple[int, int, int, int]:
    for name, array in (("q", q), ("k", k), ("v", v)):
        plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
        if not plain or array.dtype != np.int8:
            got = str(getattr(array, "dtype", type(array).__name__))
            raise DtypeError(f"{name} to be an int8 array", got, "Quantise it first.")
    alike = k.shape == v.shape and k.shape[:-2] == q.shape[:-2] and k.shape[-1:] == q.shape[-1:]
    if q.ndim < 2 or q.size == 0 or k.ndim != q.ndim or not alike:
        raise ShapeError(
            "q [..., rows, d] and k, v [..., keys, d] of the same heads",
            f"q {q.shape}, k {k.shape}, v {v.shape}",
            "Repeat keys and values that several heads share.",
        )
    n, dim = k.shape[-2:]
    require_sizes(n, dim)
    return int(np.prod(q.shape[:-2])), q.shape[-2], n, dim


@dataclass(frozen=True)
class AttentionCycles:
    """Modelled cycles of one head's attention: the one kernel, and the three that it replaces."""

    generation: Generation
    n: int
    dim: int
    fused: KernelCycles
    logits: KernelCycles
    softmax: KernelCycles
    values: KernelCycles

    @property
    def separate(self) -> float:
        return self.logits.per_row + self.softmax.per_row + self.values.per_row

    @property
    def peak(self) -> float:
        """Cycles per row that the two matrix products take at the multiplier's full rate."""
        return 2 * self.n * self.dim / PRODUCTS_PER_CYCLE[self.generation]

    @property
    def share_of_peak(self) -> float:
        """The two products' share of the fused kernel's cycles."""
        return self.peak / self.fused.per_row


def modelled(
    generation: Generation | str,
    n: int,
    dim: int,
    compiler: Compiler | str = Compiler.PIPELINED,
    base: int = UINT8_SCORES,
) -> AttentionCycles:
    """Modelled cycles of attention over n keys with heads of `dim`, on as many rows as a call takes.

    `base` is the head's B: up to 255 scores are uint8, beyond it they are never formed.
    """
    require_sizes(n, dim)
    return _modelled(Generation(generation), n, dim, Compiler(compiler), integer("base", base))


@functools.cache
def _modelled(generation: Generation, n: int, dim: int, compiler: Compiler, base: int) -> AttentionCycles:
    rows = _emulation.attention_rows(n, dim)
    fused, logits, values = (
        kernel_cycles(recorded, generation, rows, compiler) for recorded in traces(n, dim, base)
    )
    softmax = throughput.modelled(generation, Kernel.BLOCKED, Mode.U8_CLB, n, compiler)
    return AttentionCycles(generation, n, dim, fused, logits, softmax, values)


def fused_trace(numbers: list[int], rows: int, n: int, dim: int, int8: bool = False) -> list[RawOperation]:
    """What the one kernel does, operation by operation, whatever the data; `numbers` are its own."""
    q, k = np.zeros(rows * dim, np.int8), np.zeros(n * dim, np.int8)
    N, Z, y = np.empty(rows * dim, np.int32), np.empty(rows, np.int32), np.empty(rows * dim * int8, np.int8)
    return run_tile("attention", [q, k, k, N, Z, y], [rows, n, dim, *numbers], record=True)


def traces(
    n: int, dim: int, base: int = UINT8_SCORES
) -> tuple[list[RawOperation], list[RawOperation], list[RawOperation]]:
    """What the one kernel and those of q.k and p.v do, operation by operation, whatever the data."""
    require_sizes(n, dim)
    theta = HeadParams(base, 0, 1)
    require_theta(theta, n)
    rows = _emulation.attention_rows(n, dim)
    q, k = np.zeros(rows * dim, np.int8), np.zeros(n * dim, np.int8)
    x, p, N = np.empty(rows * n, np.int8), np.zeros(rows * n, np.uint8), np.empty(rows * dim, np.int32)
    logits = run_tile("logits", [q, k, x], [rows, n, dim, 8], record=True)
    values = run_tile("values", [p, k, N], [rows, n, dim], record=True)
    fused = fused_trace([0, 8, 0, n, 0, 0, 0, 0, *theta.packed.tolist()], rows, n, dim)
    return fused, logits, values
