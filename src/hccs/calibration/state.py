"""Statistics as arrays and text: the form in which they are saved, sent, pickled and compared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hccs._files.checked import Format

if TYPE_CHECKING:
    from hccs.calibration.statistics import HeadStatistics

FORMAT = Format("hccs.HeadStatistics", version=4)

_BLOBS = {"rows": np.uint8, "weights": np.int64, "cells": np.uint8}
"""What every bucket, a head's rows of one length, holds; their sizes end its line of the index."""

_SAMPLE = {"sample_index": np.int64, "sample_rows": np.uint8, "quantised_sums": np.int64}
"""The sampled rows of heads with counted rows: (head, length, weight) of each, their distances, and of float
logits the sums of the int8 softmax of those heads, in their order."""

_SUMS = 2 * 257
"""Two halves of each sum of a head: one per distance, and the logarithms."""


def state_of(stats: HeadStatistics) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Everything, in one form for one multiset of rows."""
    per_head = stats._native.state(list(range(stats.scale.size)))  # one moment's, whatever threads add
    index = []
    parts = {name: [np.empty(0, dtype)] for name, dtype in _BLOBS.items()}
    for head, (_, buckets, _) in enumerate(per_head):
        for length, count, weight, *blobs in buckets:
            index.append([head, length, count, weight, *(blob.size for blob in blobs)])
            for part, blob in zip(parts.values(), blobs, strict=True):
                part.append(blob)
    arrays: dict[str, NDArray[Any]] = {
        "scale": stats.scale,
        "sums": np.stack([sums for sums, _, _ in per_head]),
        "index": np.array(index, np.int64).reshape(-1, 4 + len(_BLOBS)),
        **{name: np.concatenate(part) for name, part in parts.items()},
        **({} if stats.qkv_scale is None else {"qkv_scale": stats.qkv_scale}),
        **_sampled([sample for _, _, sample in per_head]),
    }
    metadata = {
        "n": str(stats.n),
        "reference": stats.reference,
        "weight_unit": str(stats.weight_unit),
        **({} if stats.layers is None else {"layers": json.dumps(stats.layers)}),
    }
    return arrays, metadata


def _sampled(samples: list[Any]) -> dict[str, NDArray[Any]]:
    """The arrays of `_SAMPLE`, unless every row of every head is kept."""
    if all(sample is None for sample in samples):
        return {}
    index, rows, sums = [], [], []
    for head, sample in enumerate(samples):
        if sample is not None:
            lengths, weights, blob, quantised = sample
            index.append(np.stack([np.full(len(lengths), head), lengths, weights], -1))
            rows.append(blob)
            sums.append(quantised)
    return {
        "sample_index": np.concatenate(index).astype(np.int64),
        "sample_rows": np.concatenate(rows),
        "quantised_sums": np.stack(sums),
    }


def _restore_samples(stats: HeadStatistics, arrays: dict[str, NDArray[Any]]) -> None:
    if not any(name in arrays for name in _SAMPLE):
        return
    index, rows, sums = (arrays[name] for name in _SAMPLE)
    if any(arrays[name].dtype != dtype for name, dtype in _SAMPLE.items()):
        raise ValueError("a sample of other types")
    if index.ndim != 2 or index.shape[1] != 3 or sums.ndim != 2 or rows.ndim != 1:
        raise ValueError(f"a sample of shapes {index.shape}, {rows.shape}, {sums.shape}")
    heads = np.unique(index[:, 0])
    if len(heads) != len(sums) or (np.diff(index[:, 0]) < 0).any() or (index[:, 1] < 1).any():
        raise ValueError("a sample of heads out of order")
    if index[:, 1].max(initial=0) > stats.n or index[:, 1].sum() != len(rows):
        raise ValueError("sampled rows of other lengths")
    begin = 0
    for head, quantised in zip(heads.tolist(), sums, strict=True):
        of_head = index[index[:, 0] == head]
        end = begin + int(of_head[:, 1].sum())
        lengths, weights = np.ascontiguousarray(of_head[:, 1]), np.ascontiguousarray(of_head[:, 2])
        stats._native.restore_sample(
            head, lengths, weights, np.ascontiguousarray(rows[begin:end]), np.ascontiguousarray(quantised)
        )
        begin = end


def restored(
    kind: type[HeadStatistics], arrays: dict[str, NDArray[Any]], metadata: dict[str, str]
) -> HeadStatistics:
    """The statistics of a state; one that does not fit together is a KeyError, ValueError or TypeError."""
    layers, heads = arrays["scale"].shape
    _require_layout(arrays, layers * heads)
    stats = kind(
        (layers, heads),
        int(metadata["n"]),
        arrays["scale"],
        reference=metadata["reference"],
        weight_unit=int(metadata["weight_unit"]),
        layers=json.loads(metadata["layers"]) if "layers" in metadata else None,
        qkv_scale=arrays.get("qkv_scale"),
    )
    at = dict.fromkeys(_BLOBS, 0)
    for head, length, count, weight, *sizes in arrays["index"].tolist():
        blobs = []
        for name, size in zip(_BLOBS, sizes, strict=True):
            blobs.append(np.ascontiguousarray(arrays[name][at[name] : at[name] + size]))
            at[name] += size
        stats._native.restore_bucket(head, length, count, weight, *blobs)
    # After the rows: the native code checks that these sums could be theirs.
    for head, halves in enumerate(arrays["sums"]):
        stats._native.restore_sums(head, np.ascontiguousarray(halves))
    _restore_samples(stats, arrays)
    if (stats.sampled < 0).any():
        raise ValueError("counted rows without a sample of them")
    return stats


def _require_layout(arrays: dict[str, NDArray[Any]], heads: int) -> None:
    index, sums = arrays["index"], arrays["sums"]
    if sums.dtype != np.int64 or sums.shape != (heads, _SUMS):
        raise ValueError(f"sums of {sums.dtype} {sums.shape}")
    if index.dtype != np.int64 or index.ndim != 2 or index.shape[1] != 4 + len(_BLOBS):
        raise ValueError(f"an index of {index.dtype} {index.shape}")
    if index.size and not 0 <= index[:, 0].min() <= index[:, 0].max() < heads:
        raise ValueError("an index of heads that do not exist")
    for sizes, (name, dtype) in zip(index[:, 4:].T.tolist(), _BLOBS.items(), strict=True):
        blob = arrays[name]
        if blob.dtype != dtype or blob.shape != (sum(sizes),) or min(sizes, default=0) < 0:
            raise ValueError(f"{name} of {blob.dtype} {blob.shape} for an index of {sum(sizes)}")
