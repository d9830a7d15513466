"""What calibration needs to know of the data: small, additive, exact. docs/calibration.md derives it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hccs._html import first_rows, framed, sparkline, table
from hccs.calibration import _native, state
from hccs.calibration.rows import layers_and_heads, plain_logits, require_finite, row_batch
from hccs.errors import DataError, DtypeError, FileError, ShapeError, require_one_of
from hccs.numbers.arrays import positive, require_integer
from hccs.numbers.region import Region
from hccs.numbers.table import layer_names, operand_scales
from hccs.ops.arguments import cores

DISTANCES = _native.DISTANCES
_LOGITS_PER_THREAD = 1 << 18


@dataclass(frozen=True)
class GroupSummary:
    """The means of a group of heads: softmax mass per distance, sum p log p, and the weight of the rows."""

    mass: NDArray[np.float64]
    negative_entropy: float
    weight: float
    version: int
    """Of the statistics: a search with these means refuses others."""


def with_means(
    call: Callable[..., Any], stats: HeadStatistics, heads: Sequence[int], means: GroupSummary, *options: Any
) -> Any:
    """What the native code finds for a group of heads; the rows that it reads must be those of the means."""
    try:
        return call(stats._native, list(heads), means.mass, means.negative_entropy, means.version, *options)
    except _native.Changed as error:
        raise DataError(
            "statistics that stay as they are during a search",
            "rows added meanwhile",
            "Search when all rows are in, or search a copy.",
        ) from error


class HeadStatistics:
    """Sufficient statistics of the calibration objective for [layers, heads], streamed over any data.

    `scale` is the logit value of one int8 step, one for all heads or one per head. With `reference="int8"`
    logits arrive quantised and the surrogate is fitted to softmax(x * scale); with `reference="float"` they
    arrive as floats, are quantised here, and the surrogate is fitted to softmax(z), so that rounding and
    clipping count.

    All sums are integers: the order and the split of the data change no bit. Weights are counted in
    multiples of 1/`weight_unit`. `layers` and `qkv_scale`, where they are known, are those of the
    `ParamTable` that is searched from here. Several threads may use one object at once.

    >>> rng = np.random.default_rng(0)
    >>> stats = HeadStatistics(shape=(1, 2), n=64, scale=0.1)
    >>> stats.update(rng.integers(-60, 60, (1, 2, 500, 64), dtype=np.int8))
    >>> stats.rows.tolist()
    [[500, 500]]
    """

    def __init__(
        self,
        shape: tuple[int, int],
        n: int = 64,
        scale: Any = 1.0,
        *,
        reference: str = "int8",
        weight_unit: int = 1,
        layers: Sequence[str] | None = None,
        qkv_scale: ArrayLike | None = None,
    ) -> None:
        self.shape = layers_and_heads(shape)
        require_one_of("reference", reference, ("int8", "float"), "Name the kind of logits.")
        hint = "1 counts rows; 65536 allows fractions."
        self.weight_unit = require_integer("weight_unit", weight_unit, 1, 1 << 40, hint)
        self.n = _longest_row(n)
        self.scale = _scale_grid(scale, self.shape)
        self.reference = reference
        self.layers = None if layers is None else layer_names(layers, self.shape[0])
        self.qkv_scale = None if qkv_scale is None else operand_scales(qkv_scale, self.shape)
        self._native = self._empty()

    def _empty(self) -> _native.Statistics:
        return _native.Statistics(self.n, self.scale.reshape(-1).tolist(), self.reference == "float")

    def update(self, x: Any, valid: Any = None, *, layer: int | None = None, weight: Any = None) -> None:
        """Add rows: `x` [layers, heads, rows, k], or [..., heads, q, k] of one `layer`; k <= n.

        `valid` is a boolean mask that broadcasts to x.shape or integer row lengths that broadcast to
        x.shape[:-1], as in `hccs.softmax`. Rows without a valid position are left out. `weight` broadcasts
        to x.shape[:-1].
        """
        x, valid = plain_logits(x, valid)
        batch = row_batch(
            self._of_reference_dtype(x),
            valid,
            layer=layer,
            weight=weight,
            weight_unit=self.weight_unit,
            shape=self.shape,
            n=self.n,
        )
        if self.reference == "float":
            require_finite(batch)
        if batch.logits.size == 0:
            return
        add = self._native.update_float if self.reference == "float" else self._native.update
        threads = max(1, min(cores(), len(set(batch.head_of_group.tolist())), x.size // _LOGITS_PER_THREAD))
        with _weights_that_fit():
            add(batch.logits, batch.head_of_group, batch.lengths, batch.mask, batch.weights, threads)

    def _of_reference_dtype(self, x: NDArray[Any]) -> NDArray[Any]:
        if self.reference == "int8" and x.dtype != np.int8:
            raise DtypeError(
                "x of dtype int8",
                f"dtype {x.dtype}",
                "Quantise float logits with hccs.calibration.quantise, or take reference='float'.",
            )
        if self.reference == "float":
            if x.dtype.kind != "f":
                raise DtypeError(
                    "float logits", f"dtype {x.dtype}", "These statistics quantise the logits themselves."
                )
            return x.astype(np.float32, copy=False)
        return x

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows seen, [layers, heads]."""
        counts = [sum(count for _, count, _ in self._native.totals(h)) for h in range(self.scale.size)]
        return np.array(counts, np.int64).reshape(self.shape)

    @property
    def sampled(self) -> NDArray[np.int64]:
        """Different rows that two lines are fitted to, [layers, heads]."""
        counts = [self._native.sampled(h) for h in range(self.scale.size)]
        return np.array(counts, np.int64).reshape(self.shape)

    @property
    def memory(self) -> NDArray[np.int64]:
        return np.array([self._native.bytes(h) for h in range(self.scale.size)], np.int64).reshape(self.shape)

    def summary(self, heads: Sequence[int], *, quantised: bool = False) -> GroupSummary:
        """The means over all rows of some heads, by flat index layer * heads + head.

        With `quantised` those of the int8 softmax, also where the reference is that of float logits.
        """
        int8 = self.reference == "int8" or quantised
        version, of_heads = self._native.sums(list(heads), quantised and self.reference == "float")
        weight = sum(head_weight for head_weight, _ in of_heads)
        if weight == 0:
            names = ", ".join(f"layer {h // self.shape[1]} head {h % self.shape[1]}" for h in heads[:4])
            raise DataError(
                f"rows of logits for {names}",
                "none",
                "Update the statistics with rows that have a valid position.",
            )
        mass = [0] * DISTANCES  # exact, in Python's integers, until the last division
        logarithms, linear = 0, 0.0
        for h, (_, packed) in zip(heads, of_heads, strict=True):
            halves = packed.tolist()
            sums = [
                (high << 64) | (low & (2**64 - 1))
                for high, low in zip(halves[::2], halves[1::2], strict=True)
            ]
            logarithms += sums[DISTANCES]
            if int8:
                sums = [w * e for w, e in zip(sums, self._native.exp_table(h).tolist(), strict=False)]
                moment = sum(d * m for d, m in enumerate(sums))
                linear += float(self.scale.flat[h]) * (
                    moment / (weight << (_native.EXP_BITS + _native.MASS_BITS))
                )
            mass = [a + b for a, b in zip(mass, sums, strict=False)]
        bits = _native.MASS_BITS + (_native.EXP_BITS if int8 else 0)
        logarithm = logarithms / (weight << _native.MASS_BITS)
        return GroupSummary(
            mass=np.array([m / (weight << bits) for m in mass]),
            # sum p log p = -scale * sum_d d P(d) - log sum exp for int8; summed row by row for float.
            negative_entropy=-linear - logarithm if int8 else logarithm,
            weight=weight / self.weight_unit,
            version=version,
        )

    def merge(self, other: HeadStatistics) -> None:
        """Add the rows of `other`, which must be of the same shape, n, scale, kind and layers.

        Merged with itself, every row counts twice.
        """
        require_alike([self._kind(), other._kind()])
        with _weights_that_fit():
            self._native.merge(other._native)
        self.qkv_scale = _wider(self.qkv_scale, other.qkv_scale)

    def _kind(self) -> dict[str, Any]:
        """What statistics must have in common to be added."""
        names = ("shape", "n", "reference", "weight_unit", "layers")
        return {**{name: getattr(self, name) for name in names}, "scale": self.scale.tolist()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeadStatistics):
            return NotImplemented
        mine, theirs = state.state_of(self), state.state_of(other)
        return (
            mine[1] == theirs[1]
            and mine[0].keys() == theirs[0].keys()
            and all(np.array_equal(mine[0][name], theirs[0][name]) for name in mine[0])
        )

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        seen = self.rows
        rows, more = first_rows(list(np.ndindex(self.shape)))
        cells = []
        for layer, head in rows:
            cell = [f"layer {layer}, head {head}", f"{seen[layer, head]:,}", f"{self.scale[layer, head]:.5f}"]
            if seen[layer, head]:
                found = self.summary([layer * self.shape[1] + head])
                shape = sparkline(found.mass[1:129:2].tolist(), described="softmax's mass by distance")
                cells.append([*cell, f"{-found.negative_entropy:.3f}", shape])
            else:
                cells.append([*cell, "", ""])
        layers, heads = self.shape
        return framed(
            f"HeadStatistics: {layers} layer{'s' * (layers > 1)} of {heads} heads, rows of up to {self.n}",
            table(["head", "rows", "scale", "entropy", "mass by distance"], cells),
            more,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return state.restored, (type(self), *state.state_of(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; it replaces an old one only once it is complete."""
        state.FORMAT.save(path, *state.state_of(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HeadStatistics:
        """Read what `save` wrote; a damaged or foreign file is refused."""
        arrays, metadata = state.FORMAT.load(path)
        try:
            return state.restored(cls, arrays, metadata)
        except (LookupError, ValueError, TypeError, ArithmeticError, RuntimeError, MemoryError) as error:
            hint = "Collect them again from the data."
            raise FileError(f"consistent statistics in {path}", repr(error), hint) from error

    def all_reduce(self, group: Any = None) -> None:
        """Give every process of a torch.distributed group the rows of all of them. Bits are equal on each."""
        dist = process_group()
        kinds: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(kinds, self._kind(), group=group)
        require_alike(kinds)  # on every process alike: either all go on or none
        merged, operands = self._empty(), self.qkv_scale
        for rank in range(len(kinds)):
            source = rank if group is None else dist.get_global_rank(group, rank)
            # One process at a time, so that memory holds two sets of statistics and not one per process.
            box: list[Any] = [state.state_of(self) if rank == dist.get_rank(group) else None]
            dist.broadcast_object_list(box, src=source, group=group)
            part = state.restored(type(self), *box[0])
            with _weights_that_fit():
                merged.merge(part._native)
            operands = _wider(operands, part.qkv_scale)
        self._native, self.qkv_scale = merged, operands


def require_alike(kinds: Sequence[dict[str, Any]]) -> None:
    first, *others = kinds
    for name, value in first.items():
        for other in others:
            if other[name] != value:
                raise DataError(
                    f"statistics that all have the {name} {value}",
                    str(other[name]),
                    "Collect all parts alike.",
                )


def _wider(
    mine: NDArray[np.float64] | None, theirs: NDArray[np.float64] | None
) -> NDArray[np.float64] | None:
    """Steps of q, k and v that reach what either reaches; those that are known where one is not."""
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return np.maximum(mine, theirs)


@contextmanager
def _weights_that_fit() -> Iterator[None]:
    try:
        yield
    except OverflowError as error:
        raise DataError(
            "weights that sum to less than 2^63 units for every head",
            "more",
            "Divide all weights by a common factor, or take a smaller weight_unit.",
        ) from error


def _longest_row(n: Any) -> int:
    """n, if any parameters serve rows so long."""
    region = Region(n)
    if region.max_base < region.floor:
        region.require(1, 0, 1)
    return region.n


def process_group() -> Any:
    """torch.distributed, once it is initialised."""
    try:
        import torch.distributed as dist
    except ModuleNotFoundError as error:
        raise DataError(
            "torch for all_reduce", "no torch", "Install torch, or save and merge files."
        ) from error
    if not (dist.is_available() and dist.is_initialized()):
        raise DataError(
            "an initialised process group",
            "none",
            "Call torch.distributed.init_process_group first; one process needs no all_reduce.",
        )
    return dist


def _scale_grid(scale: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    array: NDArray[np.float64] = positive("scale", scale)
    try:
        array = np.broadcast_to(array, shape).copy()
    except ValueError as error:
        raise ShapeError(
            f"scale to broadcast to (layers, heads) = {shape}", f"shape {array.shape}", "Give one per head."
        ) from error
    array.flags.writeable = False
    return array
