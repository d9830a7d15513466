"""Statistics from files of logits: `.npy`, `.npz`, `.safetensors`, read in pieces, resumable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._files import safetensors as _safetensors
from hccs._progress import track
from hccs.calibration.scale import FACTORS, LogitRange, ScaleCandidates
from hccs.calibration.statistics import HeadStatistics
from hccs.errors import DataError, DtypeError, FileError, MaskError, ParameterError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE = 1 << 24
"""Logits taken from a file at once."""

SUFFIXES = (".npy", ".npz", ".safetensors")


@dataclass(frozen=True)
class LogitFile:
    """Logits [layers, heads, rows, k] of a model or [heads, rows, k] of its `layer`, and what is valid."""

    path: Path
    logits: NDArray[Any]
    valid: NDArray[Any] | None
    scale: NDArray[Any] | None
    layer: int | None

    @property
    def name(self) -> str:
        """Names the file's contents, so that a resumed run knows what it has seen."""
        found = os.stat(self.path)
        return f"{self.path.name} of {found.st_size} bytes, changed {found.st_mtime_ns}"

    def pieces(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        """The rows, some at a time, with their `valid`."""
        rows = self.logits.shape[-2]
        step = max(1, PIECE // max(1, self.logits.size // max(1, rows)))
        for first in range(0, rows, step):
            chosen = slice(first, first + step)
            yield self.rows(chosen)

    def rows(self, chosen: slice | NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Some of the rows, with their `valid`."""
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
    try:
        if path.suffix == ".npy":
            arrays: dict[str, Any] = {"logits": np.load(path, mmap_mode="r", allow_pickle=False)}
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        elif path.suffix == ".safetensors":
            arrays, _ = _safetensors.read(path)
        else:
            raise FileError(f"a file {', '.join(SUFFIXES)}", str(path), "Save the logits with numpy.save.")
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} to be a readable array file", str(error), "Check the path.") from error
    if "logits" not in arrays:
        raise FileError(
            f"an array 'logits' in {path}", f"{sorted(arrays)}", "Rename it: np.savez(p, logits=...)."
        )
    logits = arrays["logits"]
    if logits.ndim not in (3, 4):
        raise ShapeError(
            f"logits [layers, heads, rows, k] or [heads, rows, k] in {path}",
            f"shape {logits.shape}",
            "Bring the rows of all sequences together in one dimension.",
        )
    valid = arrays.get("lengths", arrays.get("valid"))
    return LogitFile(path, logits, valid, arrays.get("scale"), None if logits.ndim == 4 else layer)


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
    collection = _resumed(files, shape, checkpoint) or _started(files, shape, n, scale)
    collecting = collection.statistics if isinstance(collection, ScaleCandidates) else collection
    for file in track(files, total=len(files), description="collecting"):
        if file.name in collecting.progress["seen"]:
            continue
        for logits, valid in file.pieces():
            collection.update(logits, valid, layer=file.layer)
        collecting.progress["seen"].append(file.name)
        if checkpoint is not None:
            collecting.save(checkpoint)
    if not isinstance(collection, ScaleCandidates):
        return collection
    best = collection.best()
    best.progress = {**collecting.progress, "candidates": 0}
    if checkpoint is not None:
        best.save(checkpoint)
    return best


def _started(
    files: list[LogitFile], shape: tuple[int, int], n: int, scale: float | str
) -> HeadStatistics | ScaleCandidates:
    collection: HeadStatistics | ScaleCandidates
    if hold_int8(files):
        collection = HeadStatistics(shape, n, _int8_scale(files, shape, scale))
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
    statistics = collection.statistics if isinstance(collection, ScaleCandidates) else collection
    statistics.progress = {"seen": [], "candidates": len(FACTORS) if statistics is not collection else 0}
    return collection


def hold_int8(files: Sequence[LogitFile]) -> bool:
    """Whether the logits are int8; otherwise they are floats, and anything else is refused."""
    kinds = {"int8" if file.logits.dtype == np.int8 else file.logits.dtype.kind for file in files}
    if kinds not in ({"int8"}, {"f"}):
        raise DtypeError("logits all int8 or all float", str(sorted(kinds)), "Convert the files alike.")
    return kinds == {"int8"}


def _int8_scale(files: list[LogitFile], shape: tuple[int, int], scale: float | str) -> Any:
    if not isinstance(scale, str):
        return scale
    found = [np.asarray(file.scale) for file in files if file.scale is not None]
    if len(found) < len(files):
        raise ParameterError(
            "a scale for int8 logits", "none", "Give --scale, or store an array 'scale' beside 'logits'."
        )
    if files[0].layer is not None:
        return np.stack([np.broadcast_to(part, shape[1:]) for part in found])
    if any(not np.array_equal(part, found[0]) for part in found):
        raise DataError("one scale per head in all files", "different ones", "Quantise all files alike.")
    return found[0]


def _resumed(
    files: list[LogitFile], shape: tuple[int, int], checkpoint: str | os.PathLike[str] | None
) -> HeadStatistics | ScaleCandidates | None:
    if checkpoint is None or not Path(checkpoint).exists():
        return None
    statistics = HeadStatistics.load(checkpoint)
    count = statistics.progress.get("candidates", 0)
    strange = set(statistics.progress.get("seen", ())) - {file.name for file in files}
    if strange or statistics.shape != (shape[0], shape[1] * max(1, count)):
        raise DataError(
            f"{checkpoint} to hold the beginning of this calibration",
            f"statistics of {', '.join(sorted(strange)) or statistics.shape}",
            "Name another checkpoint, or delete it to begin anew.",
        )
    return ScaleCandidates.resume(statistics, count) if count else statistics
