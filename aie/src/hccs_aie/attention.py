"""Attention of a head on one tile: q.k, HCCS and p.v in one kernel, by emulation, and as three kernels."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DtypeError, ParameterError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs_aie import _emulation, emulator, throughput
from hccs_aie.arguments import integer
from hccs_aie.cycles.machine import Generation
from hccs_aie.cycles.model import Compiler, KernelCycles, kernel_cycles
from hccs_aie.emulator import LANES, Kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs_aie.cycles.program import RawOperation

HEAD_SIZES = (32, 64)
"""Head sizes that the kernels were written for."""

MAX_KEYS = 256
"""Sums of so many clamped logits stay within 16 bits."""

UINT8_SCORES = 127
"""A base that every number of keys up to 256 admits, with scores in uint8."""

MAX_SHIFT = 23
"""Beyond it every q.k of these head sizes rounds to 0."""

ROWS_MULTIPLE = 32
"""Query rows of a call come in multiples of this; emulation adds rows of zeros."""

PRODUCTS_PER_CYCLE = {Generation.AIE2: 256, Generation.AIE2PS: 512}
"""int8 products of one matrix multiply instruction."""


def attention(
    q: NDArray[np.int8], k: NDArray[np.int8], v: NDArray[np.int8], theta: HeadParams, requant: Requant
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The pair (N, Z) of q [..., rows, d] over k and v [..., keys, d], every head on one tile, by emulation.

    Normalisation is deferred, so that the result is `hccs.attention(..., out="pair")`. theta and requant
    broadcast against q.shape[:-2]; the logits' factor must be a power of two, `2**-shift`.

    >>> from hccs.numbers.requant import FixedPoint
    >>> one = np.ones((1, 32, 32), np.int8)
    >>> N, Z = attention(one, one, one, HeadParams(B=8, S=0, D=1), Requant(FixedPoint(1, 5)))
    >>> int(N[0, 0, 0]), int(Z[0, 0])
    (256, 256)
    """
    heads, rows, n, dim = _heads(q, k, v)
    require_theta(theta, n)
    params = _per_head(theta.packed[..., :3], q.shape[:-2], "theta")
    shifts = _per_head(_shifts(requant)[..., None], q.shape[:-2], "requant")
    N, Z = np.empty((heads, rows, dim), np.int32), np.empty((heads, rows), np.int32)
    keys, values = k.reshape(heads, n, dim), v.reshape(heads, n, dim)
    for head, part, block in _blocks(q.reshape(heads, rows, dim), n):
        B, S, D = params[head].tolist()
        sums, totals = np.empty(block.size, np.int32), np.empty(2 * len(block), np.int16)
        tiles = tiled_queries(block), tiled_keys(keys[head]), tiled_values(values[head])
        sizes = len(block), n, dim, int(shifts[head, 0])
        _emulation.attention_kernel(*tiles, sums, totals, *sizes, B, S, D, record=False)
        taken = part.stop - part.start
        N[head, part] = untiled_sums(sums, dim)[:taken]
        Z[head, part] = totals.reshape(-1, 2, 8)[:, 0].reshape(-1)[:taken]
    return N.reshape(q.shape), Z.reshape(q.shape[:-1])


def by_three_kernels(
    q: NDArray[np.int8], k: NDArray[np.int8], v: NDArray[np.int8], theta: HeadParams, requant: Requant
) -> NDArray[np.int32]:
    """N of the paper's form, `u8_clb` probabilities first, by a kernel each for q.k, softmax and p.v."""
    heads, rows, n, dim = _heads(q, k, v)
    require_theta(theta, n)
    shifts = _per_head(_shifts(requant)[..., None], q.shape[:-2], "requant")
    keys, values = k.reshape(heads, n, dim), v.reshape(heads, n, dim)
    x = np.empty((heads, rows, n), np.int8)
    for head, part, block in _blocks(q.reshape(heads, rows, dim), n):
        logits = np.empty(len(block) * n, np.int8)
        sizes = len(block), n, dim, int(shifts[head, 0])
        _emulation.logits_kernel(tiled_queries(block), tiled_keys(keys[head]), logits, *sizes, record=False)
        x[head, part] = _rows_of_blocks(logits, n)[: part.stop - part.start]
    p = emulator.softmax(x.reshape(*q.shape[:-1], n), theta, Mode.U8_CLB).reshape(heads, rows, n)
    N = np.empty((heads, rows, dim), np.int32)
    for head, part, weights in _blocks(p, n, dim):
        sums = np.empty(len(weights) * dim, np.int32)
        tiles = tiled_queries(weights), tiled_values(values[head])
        _emulation.values_kernel(*tiles, sums, len(weights), n, dim, record=False)
        N[head, part] = untiled_sums(sums, dim)[: part.stop - part.start]
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


def untiled_sums(sums: NDArray[np.int32], dim: int) -> NDArray[np.int32]:
    """N [rows, d] from tiles of four columns by eight rows."""
    rows: NDArray[np.int32] = sums.reshape(-1, dim // 4, 4, 8).transpose(0, 3, 1, 2).reshape(-1, dim)
    return rows


def _rows_of_blocks(x: NDArray[np.int8], n: int) -> NDArray[np.int8]:
    rows: NDArray[np.int8] = x.reshape(-1, n // 8, 8, 8).transpose(0, 3, 1, 2).reshape(-1, n)
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
            "These kernels know no padding: hccs.attention takes any number, with lengths.",
        )
    if dim not in HEAD_SIZES:
        raise ShapeError(
            f"a head size of {' or '.join(map(str, HEAD_SIZES))}",
            str(dim),
            "Pad q, k and v with columns of zeros: they change no result.",
        )


def require_theta(theta: HeadParams, n: int) -> None:
    if not isinstance(theta, HeadParams):
        raise DtypeError(
            "theta to be hccs.HeadParams", type(theta).__name__, "Use HeadParams(B=..., S=..., D=...)."
        )
    theta.require_one_line("in the attention kernels of the AI Engine", "Use one line.")
    emulator.require_theta(theta, n)


def _shifts(requant: Requant) -> NDArray[np.int64]:
    if not isinstance(requant, Requant):
        raise DtypeError("requant to be hccs.Requant", type(requant).__name__, "Use Requant.from_scales.")
    multiplier, shift = np.moveaxis(requant.logits.packed.astype(np.int64), -1, 0)
    if (multiplier & (multiplier - 1)).any():
        raise ParameterError(
            "a power of two as the factor of the logits: a tile shifts sums of 32 bits",
            f"multiplier {multiplier[(multiplier & (multiplier - 1)) != 0].flat[0]}",
            "The logits' scale is free: make q_scale * k_scale * scaling / logit_scale a power of two.",
        )
    exponent: NDArray[np.int64] = shift - np.log2(multiplier).astype(np.int64)
    if exponent.min() < 0 or exponent.max() > MAX_SHIFT:
        raise ParameterError(
            f"a factor of the logits from 2^-{MAX_SHIFT} to 1",
            f"2^{-int(exponent.max())} to 2^{-int(exponent.min())}",
            "Choose another scale of the logits.",
        )
    return exponent


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


def traces(
    n: int, dim: int, base: int = UINT8_SCORES
) -> tuple[list[RawOperation], list[RawOperation], list[RawOperation]]:
    """What the one kernel and those of q.k and p.v do, operation by operation, whatever the data."""
    require_sizes(n, dim)
    theta = HeadParams(base, 0, 1)
    require_theta(theta, n)
    rows = _emulation.attention_rows(n, dim)
    q, k = np.zeros(rows * dim, np.int8), np.zeros(n * dim, np.int8)
    N, Z = np.empty(rows * dim, np.int32), np.empty(2 * rows, np.int16)
    fused = _emulation.attention_kernel(q, k, k, N, Z, rows, n, dim, 8, base, 0, 1, record=True)
    x, p = np.empty(rows * n, np.int8), np.zeros(rows * n, np.uint8)
    logits = _emulation.logits_kernel(q, k, x, rows, n, dim, 8, record=True)
    values = _emulation.values_kernel(p, k, N, rows, n, dim, record=True)
    return fused or [], logits or [], values or []
