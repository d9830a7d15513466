"""Examples given as objects, pairs or `datasets`, and written as a file that a run reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs.conversion.data.reading import is_saved_dataset, label_names, named
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
        return "".join(json.dumps(row, default=_plain) + "\n" for row in self.rows).encode()

    def write(self, path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.replace(path, self.content)
        return str(path)


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
    """Rows of a `datasets` object, or of (text, label) pairs."""
    if hasattr(source, "column_names") and hasattr(source, "features"):
        return _of_dataset(source, text, label, part)
    return _of_pairs(source, label, part)


def _of_dataset(source: Any, text: Sequence[str], label: str, part: str) -> Given:
    columns = tuple(text)
    if columns == ("sentence",) and "sentence" not in source.column_names and "text" in source.column_names:
        columns = ("text",)
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
