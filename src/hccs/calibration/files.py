"""Statistics from files of logits: `.npy`, `.npz`, `.safetensors`, read in pieces, resumable."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._files import safetensors
from hccs._progress import track
from hccs.calibration.scale import LogitRange, ScaleCandidates
from hccs.calibration.state import CollectionProgress, SeenFile
from hccs.calibration.statistics import HeadStatistics
from hccs.errors import DataError, DtypeError, FileError, MaskError, ParameterError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE = 1 << 24
"""Logits taken from a file at once."""

SUFFIXES = (".npy", ".npz", ".safetensors")
ARRAYS = ("logits", "lengths", "valid", "scale")


@dataclass(frozen=True)
class LogitFile:
    """Logits [layers, heads, rows, k] of a model or [heads, rows, k] of its `layer`, and what is valid."""

    path: Path
    logits: NDArray[Any]
    valid: NDArray[Any] | None
    scale: NDArray[Any] | None
    layer: int | None

    @cached_property
    def identity(self) -> SeenFile:
        """What tells the file from any other, wherever it lies: its content and the layer it is of."""
        digest = hashlib.sha256()
        try:
            with open(self.path, "rb") as file:
                while part := file.read(1 << 20):
                    digest.update(part)
        except OSError as error:
            raise FileError(f"a readable file at {self.path}", str(error), "Check the path.") from error
        return SeenFile(self.path.name, digest.hexdigest(), self.layer)

    def pieces(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        rows = self.logits.shape[-2]
        step = max(1, PIECE // max(1, self.logits.size // max(1, rows)))
        for first in range(0, rows, step):
            chosen = slice(first, first + step)
            yield self.rows(chosen)

    def rows(self, chosen: slice | NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        return np.asarray(self.logits[..., chosen, :]), self._valid(chosen)

    def _valid(self, chosen: slice | NDArray[np.int64]) -> NDArray[Any] | None:
        if self.valid is None:
            return None
        axis = -2 if self.valid.dtype == bool else -1
        if self.valid.ndim < -axis or self.valid.shape[axis] == 1:
            return self.valid
        if self.valid.shape[axis] != self.logits.shape[-2]:
            raise MaskError(
                f"a mask or row lengths in {self.path} that broadcast to the logits {self.logits.shape}",
                f"shape {self.valid.shape}",
                "Save one length per row, or a mask of the logits' shape.",
            )
        return self.valid[..., chosen, :] if axis == -2 else self.valid[..., chosen]


def read_logits(path: str | os.PathLike[str], layer: int | None = None) -> LogitFile:
    """Open one file. An archive holds `logits`, and may hold `lengths` or `valid`, and `scale`."""
    path = Path(path)
    arrays = _arrays(path)
    logits = arrays["logits"]
    if logits.ndim not in (3, 4):
        raise ShapeError(
            f"logits [layers, heads, rows, k] or [heads, rows, k] in {path}",
            f"shape {logits.shape}",
            "Bring the rows of all sequences together in one dimension.",
        )
    scale = arrays.get("scale")
    if scale is not None and scale.dtype.kind not in "iuf":
        raise DtypeError(f"numbers as the scale in {path}", f"dtype {scale.dtype}", "Store steps of logits.")
    valid = arrays.get("lengths", arrays.get("valid"))
    return LogitFile(path, logits, valid, scale, None if logits.ndim == 4 else layer)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    if path.suffix not in SUFFIXES:
        raise FileError(f"a file {', '.join(SUFFIXES)}", str(path), "Save the logits with numpy.save.")
    if path.suffix == ".safetensors":
        arrays, _ = safetensors.read(path)
        _require_logits(path, arrays)
        return arrays
    try:
        if path.suffix == ".npy":
            return {"logits": np.load(path, mmap_mode="r", allow_pickle=False)}
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            _require_logits(path, archive.files)
            found = {name: archive[name] for name in ARRAYS if name in archive.files}
            if not all(isinstance(array, np.ndarray) for array in found.values()):
                raise ValueError("a member that is no array")
            return found
    except FileError:
        raise
    except Exception as error:
        # On damaged bytes numpy, zipfile, zlib, struct, tokenize and ast each raise errors of their own.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise FileError(
            f"{path} to be a readable array file",
            str(error) if isinstance(error, OSError) else f"a damaged one ({reason})",
            "Check the path, or save the logits again.",
        ) from error


def _require_logits(path: Path, names: Iterable[str]) -> None:
    if "logits" not in names:
        raise FileError(
            f"an array 'logits' in {path}", f"{sorted(names)}", "Rename it: np.savez(p, logits=...)."
        )


def open_model(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[LogitFile], tuple[int, int]]:
    """The files and the shape (layers, heads) they describe: 3-D files are one layer each, in order."""
    if not paths:
        raise DataError("at least one file of logits", "none", f"Name {', '.join(SUFFIXES)} files.")
    files = [read_logits(path, layer) for layer, path in enumerate(paths)]
    if files[0].layer is None:
        shapes = {file.logits.shape[:2] for file in files}
    else:
        shapes = {(len(files), file.logits.shape[0]) for file in files}
    if len({file.logits.ndim for file in files}) != 1 or len(shapes) != 1:
        raise ShapeError(
            "files of one model: all [layers, heads, rows, k], or one [heads, rows, k] per layer",
            ", ".join(f"{file.path.name} {file.logits.shape}" for file in files),
            "Calibrate one model at a time.",
        )
    layers, heads = shapes.pop()
    return files, (int(layers), int(heads))


def collect_files(
    paths: Sequence[str | os.PathLike[str]],
    *,
    n: int | None = None,
    scale: float | str = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
) -> HeadStatistics:
    """Statistics of the logits in some files.

    `scale` serves int8 logits that bring none, and float logits: a number, "max-abs", or "auto" for the best
    of a handful of candidates per head. With `checkpoint` the statistics are saved after every file, and a
    run that finds the file goes on from there.
    """
    files, shape = open_model(paths)
    n = n or max(file.logits.shape[-1] for file in files)
    collection = _resumed(files, shape, n, scale, checkpoint) or _started(files, shape, n, scale)
    collecting = collection.statistics if isinstance(collection, ScaleCandidates) else collection
    progress = collecting.progress or CollectionProgress(
        scale, collection.count if isinstance(collection, ScaleCandidates) else 0
    )
    left = Counter(progress.seen)
    for file in track(files, total=len(files), description="collecting"):
        if left and left[file.identity]:
            left[file.identity] -= 1
            continue
        for logits, valid in file.pieces():
            collection.update(logits, valid, layer=file.layer)
        if checkpoint is not None:
            progress = replace(progress, seen=(*progress.seen, file.identity))
            collecting.progress = progress
            collecting.save(checkpoint)
    if not isinstance(collection, ScaleCandidates):
        return collection
    best = collection.best()
    if checkpoint is not None:
        best.progress = replace(progress, candidates=0)
        best.save(checkpoint)
    return best


def _started(
    files: list[LogitFile], shape: tuple[int, int], n: int, scale: float | str
) -> HeadStatistics | ScaleCandidates:
    collection: HeadStatistics | ScaleCandidates
    if hold_int8(files):
        collection = HeadStatistics(shape, n, int8_scale(files, shape, scale))
    elif not isinstance(scale, str):
        collection = HeadStatistics(shape, n, scale, reference="float")
    elif scale not in ("auto", "max-abs"):
        raise ParameterError(
            "scale to be a number, 'auto' or 'max-abs'", repr(scale), "'auto' is the default."
        )
    else:
        extremes = LogitRange(shape)
        for file in track(files, total=len(files), description="finding the range"):
            for logits, valid in file.pieces():
                extremes.update(logits, valid, layer=file.layer)
        if scale == "auto":
            collection = ScaleCandidates(extremes, n)
        else:
            collection = HeadStatistics(shape, n, extremes.scale, reference="float")
    return collection


def hold_int8(files: Sequence[LogitFile]) -> bool:
    """Whether the logits are int8; otherwise they are floats, and anything else is refused."""
    kinds = {"int8" if file.logits.dtype == np.int8 else file.logits.dtype.kind for file in files}
    if kinds not in ({"int8"}, {"f"}):
        raise DtypeError("logits all int8 or all float", str(sorted(kinds)), "Convert the files alike.")
    return kinds == {"int8"}


def int8_scale(files: list[LogitFile], shape: tuple[int, int], scale: float | str) -> Any:
    """The scale of int8 logits: the one given, or those that the files bring."""
    if not isinstance(scale, str):
        return scale
    found = [np.asarray(file.scale) for file in files if file.scale is not None]
    if len(found) < len(files):
        raise ParameterError(
            "a scale for int8 logits", "none", "Give --scale, or store an array 'scale' beside 'logits'."
        )
    if files[0].layer is not None:
        return np.stack([_per_head(part, shape[1:]) for part in found])
    if any(not np.array_equal(part, found[0], equal_nan=True) for part in found):
        raise DataError("one scale per head in all files", "different ones", "Quantise all files alike.")
    return _per_head(found[0], shape)


def _per_head(scale: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        return np.broadcast_to(scale, shape)
    except ValueError as error:
        raise ShapeError(
            f"a scale that broadcasts to the heads {shape}", f"shape {scale.shape}", "Give one per head."
        ) from error


def _resumed(
    files: list[LogitFile],
    shape: tuple[int, int],
    n: int,
    scale: float | str,
    checkpoint: str | os.PathLike[str] | None,
) -> HeadStatistics | ScaleCandidates | None:
    if checkpoint is None or not Path(checkpoint).exists():
        return None
    statistics = HeadStatistics.load(checkpoint)
    difference = _difference(statistics, files, shape, n, scale)
    if difference:
        raise DataError(
            f"{checkpoint} to hold the beginning of this calibration",
            f"statistics of {difference}",
            "Name another checkpoint, or delete it to start over.",
        )
    count = statistics.progress.candidates if statistics.progress is not None else 0
    return ScaleCandidates.resume(statistics, count) if count else statistics


def _difference(
    statistics: HeadStatistics, files: list[LogitFile], shape: tuple[int, int], n: int, scale: float | str
) -> str:
    """How a checkpoint differs from what is asked for now, in words; nothing when it can go on."""
    progress = statistics.progress
    if progress is None:
        return "another source than files of logits"
    strange = Counter(progress.seen) - Counter(file.identity for file in files)
    if strange:
        return ", ".join(sorted({file.name for file in strange}))
    if statistics.shape != (shape[0], shape[1] * max(1, progress.candidates)):
        return f"shape {statistics.shape}"
    if statistics.n != n:
        return f"n = {statistics.n}, not {n}"
    if progress.scale != scale:
        return f"scale {progress.scale}, not {scale}"
    if files[0].logits.dtype == np.int8:
        steps = np.broadcast_to(np.asarray(int8_scale(files, shape, scale), np.float64), shape)
        if not np.array_equal(statistics.scale, steps):
            return "other scales than the files'"
    return ""
