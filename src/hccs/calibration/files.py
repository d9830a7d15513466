"""Statistics from files of logits: `.npy`, `.npz`, `.safetensors`, read in pieces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs._files import safetensors
from hccs._progress import track
from hccs.calibration.rows import LogitRange
from hccs.calibration.statistics import HeadStatistics
from hccs.errors import DataError, DtypeError, FileError, MaskError, ParameterError, ShapeError

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

    def pieces(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        rows = self.logits.shape[-2]
        step = max(1, PIECE // max(1, self.logits.size // max(1, rows)))
        for first in range(0, rows, step):
            chosen = slice(first, first + step)
            yield np.asarray(self.logits[..., chosen, :]), self._valid(chosen)

    def _valid(self, chosen: slice) -> NDArray[Any] | None:
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
    paths: Sequence[str | os.PathLike[str]], *, n: int | None = None, scale: float | None = None
) -> HeadStatistics:
    """Statistics of the logits in some files.

    Without a `scale` int8 logits take the files' own, and float logits reach each head's largest magnitude.
    """
    files, shape = open_model(paths)
    n = n or max(file.logits.shape[-1] for file in files)
    if hold_int8(files):
        stats = HeadStatistics(shape, n, int8_scale(files, shape, scale))
    else:
        found = largest_scale(files, shape) if scale is None else scale
        stats = HeadStatistics(shape, n, found, reference="float")
    for file in track(files, total=len(files), description="collecting"):
        for logits, valid in file.pieces():
            stats.update(logits, valid, layer=file.layer)
    return stats


def largest_scale(files: Sequence[LogitFile], shape: tuple[int, int]) -> NDArray[np.float64]:
    """The scale of float logits that reaches the largest magnitude of every head."""
    extremes = LogitRange(shape)
    for file in track(files, total=len(files), description="finding the range"):
        for logits, valid in file.pieces():
            extremes.update(logits, valid, layer=file.layer)
    return extremes.scale


def hold_int8(files: Sequence[LogitFile]) -> bool:
    """Whether the logits are int8; otherwise they are floats, and anything else is refused."""
    kinds = {"int8" if file.logits.dtype == np.int8 else file.logits.dtype.kind for file in files}
    if kinds not in ({"int8"}, {"f"}):
        raise DtypeError("logits all int8 or all float", str(sorted(kinds)), "Convert the files alike.")
    return kinds == {"int8"}


def int8_scale(files: list[LogitFile], shape: tuple[int, int], scale: float | None = None) -> Any:
    """The scale of int8 logits: the one given, or those that the files bring."""
    if scale is not None:
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
