"""Rows of int8 logits from files: those that `hccs calibrate` takes, through the same reader."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hccs._progress import track
from hccs.calibration.files import LogitFile, hold_int8, int8_scale, open_model
from hccs.calibration.rows import require_finite, row_batch
from hccs.calibration.scale import LogitRange, quantise
from hccs.errors import DataError
from hccs_lab.compare.sample import LogitSample, draw, joined, padded, require_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sample_files(
    paths: Sequence[str | os.PathLike[str]], *, rows: int, seed: int = 0, scale: float | None = None
) -> tuple[LogitSample, LogitSample]:
    """(rows to calibrate on, rows to measure on): disjoint draws of at most `rows` each from files.

    An int8 step is worth `scale`, else what the files say; float logits without either are quantised by the
    largest magnitude / 127 of each head. Files of one layer each give as many rows as the shortest has.
    """
    require_rows(rows)
    files, shape = open_model(paths)
    steps = _steps(files, shape, scale)
    counts = [file.logits.shape[-2] for file in files]
    columns = max(file.logits.shape[-1] for file in files)
    by_layer = files[0].layer is not None
    if by_layer:
        chosen = [draw(count, (seed,), min(2 * rows, *counts)) for count in counts]
    else:
        every = draw(sum(counts), (seed,), 2 * rows)
        ends = pairwise(np.cumsum([0, *counts]))
        chosen = [every[(every >= first) & (every < last)] - first for first, last in ends]
    parts = [
        padded(*_rows_of(file, which, steps, shape), columns)
        for file, which in zip(files, chosen, strict=True)
    ]
    logits, valid = joined(parts, 0 if by_layer else -2)
    if (valid == valid[:, :1]).all():
        valid = valid[:, :1]  # all heads of a layer share it, as in nearly every model
    sample = LogitSample(logits, valid, steps)
    if sample.rows < 2:
        raise DataError("at least two rows of logits per head", str(sample.rows), "Save more rows.")
    order = np.random.default_rng((seed, 1)).permutation(sample.rows)
    half = sample.rows // 2
    return sample.take(np.sort(order[:half])), sample.take(np.sort(order[half:]))


def _rows_of(
    file: LogitFile, chosen: NDArray[np.int64], scale: NDArray[np.float64], shape: tuple[int, int]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """The chosen rows of a file as int8 [layers, heads, rows, k], and their mask of the same shape."""
    part, valid = file.rows(chosen)
    batch = row_batch(part, valid, layer=file.layer, shape=shape, n=None)
    whole = (-1, shape[1], *part.shape[-2:])
    mask = np.ones(part.shape, bool) if batch.chosen is None else batch.chosen
    mask = mask.reshape(whole)
    if part.dtype == np.int8:
        return part.reshape(whole), mask
    require_finite(batch)
    own = scale if file.layer is None else scale[file.layer : file.layer + 1]
    return quantise(part.reshape(whole), own, mask), mask


def _steps(files: list[LogitFile], shape: tuple[int, int], given: float | None) -> NDArray[np.float64]:
    """The logit value of an int8 step of every head [layers, heads]."""
    integers = hold_int8(files)
    if given is not None:
        return np.full(shape, given)
    if integers or all(file.scale is not None for file in files):
        return np.broadcast_to(np.asarray(int8_scale(files, shape, "theirs"), np.float64), shape).copy()
    extremes = LogitRange(shape)
    for file in track(files, total=len(files), description="finding the range"):
        for logits, valid in file.pieces():
            extremes.update(logits, valid, layer=file.layer)
    return extremes.scale
