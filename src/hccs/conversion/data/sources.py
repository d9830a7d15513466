"""Examples given as objects: pairs, `datasets`, DataLoaders; written as a file that a run reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs.conversion.data.reading import is_saved_dataset, label_names, named
from hccs.conversion.data.tasks import IDS
from hccs.errors import DataError

DEV_SPLITS = ("validation", "dev", "validation_matched", "eval", "test")
"""Names of a split to score on, in the order in which they are looked for."""


@dataclass(frozen=True)
class Given:
    """Rows of a table, its columns of text, and the names of its labels where the data brings them."""

    rows: list[dict[str, Any]]
    text: tuple[str, ...]
    labels: tuple[str, ...] = ()
    labelled: bool = True

    @property
    def content(self) -> bytes:
        """The rows as JSON lines."""
        return "".join(json.dumps(row, default=_plain) + "\n" for row in self.rows).encode()

    def write(self, path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.replace(path, self.content)
        return str(path)

    @property
    def longest(self) -> int | None:
        """The length of the longest row of token ids; None for texts."""
        return max(len(row[IDS]) for row in self.rows) if self.text[0] == IDS else None


def _plain(value: Any) -> Any:
    """A value that JSON has no form for: arrays and their scalars as lists and numbers, bytes as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise DataError("text in UTF-8", f"the bytes {value!r:.60}", "Decode them first.") from None


def parts_of(train: Any, dev: Any) -> tuple[Any, Any]:
    """The two sets; a dictionary of splits, in memory or in a folder, brings its own to score on."""
    if isinstance(train, str | os.PathLike) and (Path(train) / "dataset_dict.json").is_file():
        splits: Mapping[str, Any] = {
            path.name: path for path in sorted(Path(train).iterdir()) if is_saved_dataset(path)
        }
    elif isinstance(train, Mapping):
        splits = train
    else:
        return train, dev
    if "train" not in splits:
        raise DataError("a split 'train'", ", ".join(splits) or "none", "Pass the splits as train and dev.")
    own = next((splits[name] for name in DEV_SPLITS if name in splits), None)
    return splits["train"], own if dev is None else dev


def given_as(source: Any, text: Sequence[str], label: str, part: str) -> Given:
    """Rows of a `datasets` object, of a DataLoader's batches, or of (text, label) pairs."""
    if hasattr(source, "column_names") and hasattr(source, "features"):
        return _of_dataset(source, text, label, part)
    if hasattr(source, "batch_sampler") or hasattr(source, "collate_fn"):
        return _of_batches(source, label, part)
    return _of_pairs(source, label, part)


def _of_dataset(source: Any, text: Sequence[str], label: str, part: str) -> Given:
    columns = tuple(text)
    if columns == ("sentence",) and "sentence" not in source.column_names:
        columns = tuple(name for name in ("text", IDS) if name in source.column_names)[:1] or columns
    if columns == (IDS,) and "token_type_ids" in source.column_names:
        columns = (IDS, "token_type_ids")
    if label not in source.column_names and label == "label" and "labels" in source.column_names:
        source = source.rename_column("labels", "label")
    missing = [name for name in (*columns, label) if name not in source.column_names]
    if missing:
        raise DataError(
            f"columns {', '.join((*columns, label))} in {part}",
            f"no {', '.join(missing)} among {', '.join(source.column_names)}",
            "Name them: text=('premise', 'hypothesis'), label='label'.",
        )
    kind = source.features[label]
    names = label_names(kind)
    rows = [
        {**{name: row[name] for name in columns}, label: named(row[label], kind)}
        for row in source.select_columns([*columns, label])
        if not (names and row[label] == -1)  # the Hub marks what has no label so
    ]
    if not rows:
        raise DataError(f"examples in {part}", "none", "Pass a data set with labelled rows.")
    return Given(rows, columns, names)


def _of_batches(loader: Iterable[Any], label: str, part: str) -> Given:
    """Batches of token ids as they stand, without their padding."""
    rows: list[dict[str, Any]] = []
    types = False
    for number, batch in enumerate(loader):
        keys = [*batch.keys()] if hasattr(batch, "keys") else []
        wanted = "labels" if "labels" in keys else label
        if IDS not in keys or wanted not in keys:
            raise DataError(
                f"batches with {IDS} and labels in {part}",
                f"{', '.join(map(str, keys)) or type(batch).__name__} in batch {number}",
                "A DataLoader's batches are dictionaries of tensors, as transformers' collators make them.",
            )
        ids = batch[IDS].tolist()
        types = types or "token_type_ids" in keys
        masks, kinds = (
            batch[name].tolist() if name in keys else [[fill] * len(row) for row in ids]
            for name, fill in (("attention_mask", 1), ("token_type_ids", 0))
        )
        for row, mask, types_of_row, target in zip(ids, masks, kinds, batch[wanted].tolist(), strict=True):
            real = [place for place, counts in enumerate(mask) if counts]
            columns = {IDS: row, "token_type_ids": types_of_row}
            rows.append({**{k: [v[i] for i in real] for k, v in columns.items()}, label: target})
    if not rows:
        raise DataError(f"batches in {part}", "none", "Is the DataLoader empty?")
    return Given(rows, (IDS, "token_type_ids") if types else (IDS,))


def _of_pairs(examples: Iterable[Any], label: str, part: str) -> Given:
    """Pairs (text, label), or texts alone, which have no label."""
    rows = []
    names: tuple[str, ...] = ("text",)
    for number, example in enumerate(examples):
        try:
            given, wanted = (example, None) if isinstance(example, str) else example
        except (TypeError, ValueError):
            raise DataError(
                f"examples (text, label) in {part}", f"{example!r:.60} at {number}", "Pass pairs."
            ) from None
        texts = given if isinstance(given, tuple) else (given,)
        own = ("text",) if len(texts) == 1 else tuple(f"text{i + 1}" for i in range(len(texts)))
        if number and own != names:
            raise DataError(
                f"as many texts in every example of {part}",
                f"{len(texts)} at {number} after {len(names)}",
                "Pass texts alone, or pairs of texts alone.",
            )
        names = own
        rows.append({**dict(zip(names, texts, strict=True)), label: wanted})
    if not rows:
        raise DataError(f"examples in {part}", "none", "Pass (text, label) pairs.")
    without = [number for number, row in enumerate(rows) if row[label] is None]
    if without and len(without) < len(rows):
        raise DataError(
            f"labels of all examples in {part}, or of none",
            f"none at {without[0]}",
            "Leave out examples without a label, or all labels.",
        )
    return Given(rows, names, labelled=not without)
