"""What calibration needs to know of the data: small, additive, exact. docs/calibration.md derives it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._files.checked import Format
from hccs.backends.cpu.instruction_sets import cores
from hccs.calibration import _native
from hccs.calibration.progress import CollectionProgress, SeenFile
from hccs.calibration.rows import require_finite, row_batch
from hccs.errors import DataError, DtypeError, FileError, ParameterError, ShapeError
from hccs.numbers.region import Region
from hccs.numbers.table import layer_names, operand_scales

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = Format("hccs.HeadStatistics", version=2, last_arrays_only=1)
DISTANCES = 256
_EXP_BITS, _MASS_BITS = 47, 48  # as in native/statistics.hpp
_LOGITS_PER_THREAD = 1 << 18


@dataclass(frozen=True)
class GroupSummary:
    """The means of a group of heads: softmax mass per distance, sum p log p, and the weight of the rows."""

    mass: NDArray[np.float64]
    negative_entropy: float
    weight: float


class HeadStatistics:
    """Sufficient statistics of the calibration objective for [layers, heads], streamed over any data.

    `scale` is the logit value of one int8 step, one for all heads or one per head. With `reference="int8"`
    logits arrive quantised and the surrogate is fitted to softmax(x * scale); with `reference="float"` they
    arrive as floats, are quantised here, and the surrogate is fitted to softmax(z), so that rounding and
    clipping count.

    All sums are integers: the order and the split of the data change no bit. Weights are counted in
    multiples of 1/`weight_unit`. `layers` and `qkv_scale`, where they are known, are those of the
    `ParamTable` that is searched from here. `progress` is how far a collection from files has come.

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
        qkv_scale: Any = None,
    ) -> None:
        self.shape = (int(shape[0]), int(shape[1]))
        if min(self.shape) < 1:
            raise ShapeError(
                "shape = (layers, heads), both >= 1", str(shape), "Count the heads to calibrate."
            )
        if reference not in ("int8", "float"):
            raise ParameterError("reference 'int8' or 'float'", repr(reference), "Name the kind of logits.")
        if weight_unit < 1:
            raise ParameterError(
                "weight_unit >= 1", str(weight_unit), "1 counts rows; 65536 allows fractions."
            )
        self.n = Region(n).n
        self.scale = _scale_grid(scale, self.shape)
        self.reference = reference
        self.weight_unit = int(weight_unit)
        self.layers = None if layers is None else layer_names(layers, self.shape[0])
        self.qkv_scale = None if qkv_scale is None else operand_scales(qkv_scale, self.shape)
        self.progress: CollectionProgress | None = None
        self._native = self._empty()

    def _empty(self) -> _native.Statistics:
        return _native.Statistics(self.n, self.scale.reshape(-1).tolist(), self.reference == "float")

    def update(self, x: Any, valid: Any = None, *, layer: int | None = None, weight: Any = None) -> None:
        """Add rows: `x` [layers, heads, rows, k], or [..., heads, q, k] of one `layer`; k <= n.

        `valid` is a boolean mask that broadcasts to x.shape or integer row lengths that broadcast to
        x.shape[:-1], as in `hccs.softmax`. Rows without a valid position are left out. `weight` broadcasts
        to x.shape[:-1].
        """
        x = np.asarray(x)
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
    def memory(self) -> NDArray[np.int64]:
        """Bytes in use, [layers, heads]."""
        return np.array([self._native.bytes(h) for h in range(self.scale.size)], np.int64).reshape(self.shape)

    def summary(self, heads: Sequence[int]) -> GroupSummary:
        """The means over all rows of some heads, by flat index layer * heads + head."""
        weight = sum(w for h in heads for _, _, w in self._native.totals(h))
        if weight == 0:
            names = ", ".join(f"layer {h // self.shape[1]} head {h % self.shape[1]}" for h in heads[:4])
            raise DataError(
                f"rows of logits for {names}",
                "none",
                "Update the statistics with rows that have a valid position.",
            )
        mass = [0] * DISTANCES  # exact, in Python's integers, until the last division
        logarithms, linear = 0, 0.0
        for h in heads:
            halves = self._native.sums(h).tolist()
            sums = [
                (high << 64) | (low & (2**64 - 1))
                for high, low in zip(halves[::2], halves[1::2], strict=True)
            ]
            logarithms += sums[DISTANCES]
            if self.reference == "int8":
                sums = [w * e for w, e in zip(sums, self._native.exp_table(h).tolist(), strict=False)]
                moment = sum(d * m for d, m in enumerate(sums))
                linear += float(self.scale.flat[h]) * (moment / (weight << (_EXP_BITS + _MASS_BITS)))
            mass = [a + b for a, b in zip(mass, sums, strict=False)]
        bits = _MASS_BITS + (_EXP_BITS if self.reference == "int8" else 0)
        logarithm = logarithms / (weight << _MASS_BITS)
        return GroupSummary(
            mass=np.array([m / (weight << bits) for m in mass]),
            # sum p log p = -scale * sum_d d P(d) - log sum exp for int8; summed row by row for float.
            negative_entropy=-linear - logarithm if self.reference == "int8" else logarithm,
            weight=weight / self.weight_unit,
        )

    def select(self, heads: NDArray[Any]) -> HeadStatistics:
        """The statistics of some heads as a set of their own; `heads` [layers, heads] holds flat indices."""
        chosen = HeadStatistics(
            (heads.shape[0], heads.shape[1]),
            self.n,
            self.scale.reshape(-1)[heads],
            reference=self.reference,
            weight_unit=self.weight_unit,
        )
        for new, old in enumerate(heads.reshape(-1).tolist()):
            chosen._native.restore_sums(new, self._native.sums(old))
            for bucket in self._native.buckets(old):
                chosen._native.restore_bucket(new, *bucket)
        return chosen

    def merge(self, other: HeadStatistics) -> None:
        """Add the rows of `other`, which must be of the same shape, n, scale and kind."""
        for name in ("shape", "n", "reference", "weight_unit"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise DataError(f"statistics with {name} = {mine}", str(theirs), "Collect all parts alike.")
        if not np.array_equal(self.scale, other.scale):
            raise DataError("statistics of the same scales", "others", "Fix the scales before collecting.")
        if self.layers and other.layers and self.layers != other.layers:
            layers = ", ".join(other.layers)
            raise DataError(f"statistics of {', '.join(self.layers)}", layers, "Collect from one model.")
        self._native.merge(other._native)
        self.layers = self.layers or other.layers
        if self.qkv_scale is None or other.qkv_scale is None:
            self.qkv_scale = other.qkv_scale if self.qkv_scale is None else self.qkv_scale
        else:
            self.qkv_scale = np.maximum(self.qkv_scale, other.qkv_scale)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeadStatistics):
            return NotImplemented
        mine, theirs = self._state(), other._state()
        return (
            mine[1] == theirs[1]
            and mine[0].keys() == theirs[0].keys()
            and all(np.array_equal(mine[0][name], theirs[0][name]) for name in mine[0])
        )

    __hash__ = None  # type: ignore[assignment]

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
        """Everything but `progress`, in one form for one multiset of rows."""
        self._native.settle()
        index, parts = [], [[np.empty(0, dtype)] for dtype in (np.uint8, np.int64, np.uint8)]
        for head in range(self.scale.size):
            for length, count, weight, *blobs in self._native.buckets(head):
                index.append([head, length, count, weight, *(blob.size for blob in blobs)])
                for part, blob in zip(parts, blobs, strict=True):
                    part.append(blob)
        rows, weights, cells = (np.concatenate(part) for part in parts)
        arrays: dict[str, NDArray[Any]] = {
            "scale": self.scale,
            "sums": np.stack([self._native.sums(head) for head in range(self.scale.size)]),
            "index": np.array(index, np.int64).reshape(-1, 7),
            "rows": rows,
            "weights": weights,
            "cells": cells,
            **({} if self.qkv_scale is None else {"qkv_scale": self.qkv_scale}),
        }
        metadata = {
            "n": str(self.n),
            "reference": self.reference,
            "weight_unit": str(self.weight_unit),
            **({} if self.layers is None else {"layers": json.dumps(self.layers)}),
        }
        return arrays, metadata

    @classmethod
    def _from_state(cls, arrays: dict[str, NDArray[Any]], metadata: dict[str, str]) -> HeadStatistics:
        shape = arrays["scale"].shape
        stats = cls(
            (shape[0], shape[1]),
            int(metadata["n"]),
            arrays["scale"],
            reference=metadata["reference"],
            weight_unit=int(metadata["weight_unit"]),
            layers=json.loads(metadata["layers"]) if "layers" in metadata else None,
            qkv_scale=arrays.get("qkv_scale"),
        )
        for head, halves in enumerate(arrays["sums"]):
            stats._native.restore_sums(head, np.ascontiguousarray(halves))
        at = [0, 0, 0]
        for head, length, count, weight, *sizes in arrays["index"].tolist():
            blobs = []
            for i, name in enumerate(("rows", "weights", "cells")):
                blobs.append(np.ascontiguousarray(arrays[name][at[i] : at[i] + sizes[i]]))
                at[i] += sizes[i]
            stats._native.restore_bucket(head, length, count, weight, *blobs)
        return stats

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (*self._state(), self.progress)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; it replaces an old one only once it is complete."""
        arrays, metadata = self._state()
        FORMAT.save(
            path,
            arrays,
            {**metadata, **({} if self.progress is None else {"progress": self.progress.to_json()})},
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HeadStatistics:
        """Read what `save` wrote; a damaged or foreign file is refused."""
        arrays, metadata = FORMAT.load(path)
        try:
            if metadata["version"] == "1":
                return cls._from_version_1(arrays, metadata)
            stats = cls._from_state(arrays, metadata)
            if "progress" in metadata:
                stats.progress = CollectionProgress.from_json(metadata["progress"])
        except (LookupError, ValueError, TypeError, ArithmeticError, RuntimeError, MemoryError) as error:
            raise FileError(f"consistent statistics in {path}", repr(error), "Collect them anew.") from error
        return stats

    @classmethod
    def _from_version_1(cls, arrays: dict[str, NDArray[Any]], metadata: dict[str, str]) -> HeadStatistics:
        """Files that kept layers and operands' scales among the progress, and told files apart by name."""
        noted = json.loads(metadata["progress"])
        stats = cls._from_state(arrays, metadata)
        if "layers" in noted:
            stats.layers = layer_names(noted["layers"], stats.shape[0])
        if "qkv_scale" in noted:
            stats.qkv_scale = operand_scales(noted["qkv_scale"], stats.shape)
        if "seen" in noted:
            seen = tuple(SeenFile(str(name), sha256="") for name in noted["seen"])
            stats.progress = CollectionProgress("unknown", int(noted["candidates"]), seen)
        return stats

    def all_reduce(self, group: Any = None) -> None:
        """Give every process of a torch.distributed group the rows of all of them. Bits are equal on each."""
        dist = process_group()
        merged = self._empty()
        for rank in range(dist.get_world_size(group)):
            source = rank if group is None else dist.get_global_rank(group, rank)
            # One process at a time, so that memory holds two sets of statistics and not one per process.
            box = [self._state() if rank == dist.get_rank(group) else None]
            dist.broadcast_object_list(box, src=source, group=group)
            state = box[0]
            assert state is not None
            merged.merge(type(self)._from_state(*state)._native)
        self._native = merged


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


def _restored(
    arrays: dict[str, NDArray[Any]], metadata: dict[str, str], progress: CollectionProgress | None
) -> HeadStatistics:
    stats = HeadStatistics._from_state(arrays, metadata)
    stats.progress = progress
    return stats


def _scale_grid(scale: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    array: NDArray[np.float64] = np.asarray(scale, np.float64)
    try:
        array = np.broadcast_to(array, shape).copy()
    except ValueError as error:
        raise ShapeError(
            f"scale to broadcast to (layers, heads) = {shape}", f"shape {array.shape}", "Give one per head."
        ) from error
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise ParameterError(
            "scale > 0 and finite", str(array.reshape(-1)[:8]), "A scale maps int8 steps to logits."
        )
    array.flags.writeable = False
    return array
