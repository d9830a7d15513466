"""Classification tasks: named ones from folders or the Hub, and any table of texts with a label column."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hccs._extras import require
from hccs.errors import DataError, FileError, ParameterError

EMBEDDED = Path(__file__).parents[2] / "embedded"


@dataclass(frozen=True)
class Examples:
    """Texts (one or two columns each) and their label numbers."""

    texts: list[tuple[str, ...]]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, count: int, seed: int = 0) -> Examples:
        """At most `count` examples, drawn by a fixed seed."""
        chosen = random.Random(seed).sample(range(len(self)), min(count, len(self)))
        return Examples([self.texts[i] for i in chosen], [self.labels[i] for i in chosen])


@dataclass(frozen=True)
class Task:
    """What to read: columns, the labels in order of their numbers, the longest row, and where the data is."""

    name: str
    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...] | None
    n: int
    train: str
    dev: str | None
    hub: tuple[str, str | None, str, str] | None = None


_PAIR = ("premise", "hypothesis")
_NLI = ("entailment", "neutral", "contradiction")
_GLUE = "nyu-mll/glue"
TASKS = {
    task.name: task
    for task in (
        Task(
            "sst2",
            ("sentence",),
            "label",
            ("0", "1"),
            64,
            "train.tsv",
            "dev.tsv",
            (_GLUE, "sst2", "train", "validation"),
        ),
        Task(
            "mnli",
            _PAIR,
            "label",
            _NLI,
            128,
            "train.tsv",
            "dev_matched.tsv",
            (_GLUE, "mnli", "train", "validation_matched"),
        ),
        Task(
            "snli",
            _PAIR,
            "label",
            _NLI,
            128,
            "train.tsv",
            None,
            ("stanfordnlp/snli", None, "train", "validation"),
        ),
        Task("movies", ("sentence",), "label", ("0", "1"), 64, "train.tsv", "dev.tsv"),
    )
}


@dataclass(frozen=True)
class TaskData:
    """A task with its examples in memory."""

    task: Task
    labels: tuple[str, ...]
    train: Examples
    dev: Examples


def custom_task(train: str, dev: str | None, text: Sequence[str], label: str, n: int) -> Task:
    """A task of the user's own: CSV, TSV or JSONL files with named columns."""
    return Task(Path(train).stem, tuple(text), label, None, n, train, dev)


def load(task: Task, folder: str | Path | None = None) -> TaskData:
    """Read a task from `folder`, from the package (movies), from its own paths, or from the Hub."""
    if task.name == "movies" and folder is None:
        folder = EMBEDDED / "movies"
    if folder is None and task.hub is not None:
        return _from_hub(task)
    base = Path(folder or ".")
    train = read_table(base / task.train, task)
    labels = task.labels or tuple(sorted({row[task.label] for row in train}))
    if len(labels) < 2:
        raise DataError("at least two labels", f"only {labels} in {task.train}", "Check the label column.")
    known = replace(task, labels=labels)
    examples = to_examples(train, known, task.train)
    if task.dev is not None:
        dev = to_examples(read_table(base / task.dev, known), known, task.dev)
    else:
        examples, dev = _split(examples)
    return TaskData(known, labels, examples, dev)


def read_table(path: Path, task: Task) -> list[dict[str, str]]:
    """The rows of a CSV, TSV or JSONL file, which must have the task's columns."""
    rows: list[dict[str, str]]
    try:
        with open(path, encoding="utf-8", newline="") as file:
            if path.suffix in (".jsonl", ".json"):
                rows = [{k: str(v) for k, v in json.loads(line).items()} for line in file if line.strip()]
            elif path.suffix == ".tsv":
                # Plain tab-separated text: quotes are characters like any other.
                rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
            else:
                rows = list(csv.DictReader(file))
    except OSError as error:
        raise FileError(
            f"the data file {path}", str(error), "Name the folder that holds it with --data."
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError, csv.Error, AttributeError) as error:
        raise FileError(
            f"{path} to be CSV, TSV or JSON lines in UTF-8", str(error), "Check the file."
        ) from error
    if not rows:
        raise DataError(
            f"examples in {path}", "an empty file", "It needs a header line and at least one row."
        )
    missing = [c for c in (*task.text, task.label) if rows[0].get(c) is None]
    if missing:
        raise DataError(
            f"columns {', '.join((*task.text, task.label))} in {path}",
            f"no {', '.join(missing)} among {', '.join(map(str, rows[0]))}",
            "Name the columns with --text and --label.",
        )
    return rows


def to_examples(rows: Sequence[Mapping[str, Any]], task: Task, where: str) -> Examples:
    """Rows as examples; an unknown label is refused with its line."""
    assert task.labels is not None
    numbers = {label: i for i, label in enumerate(task.labels)}
    texts, labels = [], []
    for line, row in enumerate(rows, 2):
        label = row.get(task.label)
        if label not in numbers:
            raise DataError(
                f"labels {', '.join(task.labels)} in {where}",
                f"{label!r} in row {line}",
                "Correct or remove the row.",
            )
        texts.append(tuple(str(row.get(column) or "") for column in task.text))
        labels.append(numbers[str(label)])
    return Examples(texts, labels)


def _split(examples: Examples) -> tuple[Examples, Examples]:
    """One example in ten, at most 5,000, by a fixed shuffle, as the dev set of data that has none."""
    order = list(range(len(examples)))
    random.Random(0).shuffle(order)
    held = min(max(len(order) // 10, 1), 5000)

    def part(index: list[int]) -> Examples:
        return Examples([examples.texts[i] for i in index], [examples.labels[i] for i in index])

    return part(order[held:]), part(order[:held])


def _from_hub(task: Task) -> TaskData:
    assert task.hub is not None and task.labels is not None
    datasets = require("datasets", "hf", "for the Hub")
    path, config, train, dev = task.hub
    try:
        loaded = datasets.load_dataset(path, config)
        parts = [[r for r in loaded[split] if r[task.label] >= 0] for split in (train, dev)]
    except Exception as error:
        raise FileError(
            f"{path} from the Hub",
            str(error).splitlines()[0] if str(error) else repr(error),
            f"Without network, name a folder with {task.train} by --data.",
        ) from error
    named = [[{**row, task.label: task.labels[row[task.label]]} for row in part] for part in parts]
    return TaskData(task, task.labels, *(to_examples(part, task, path) for part in named))


def hub_task(path: str, text: Sequence[str], label: str, labels: Sequence[str], n: int) -> Task:
    """Any Hub data set `name[:config]` with train and validation splits and integer labels."""
    if not labels:
        raise ParameterError(
            "the labels of a Hub data set, in order", "none", "Name them: --labels negative,positive."
        )
    name, _, config = path.partition(":")
    return Task(
        name.replace("/", "-"),
        tuple(text),
        label,
        tuple(labels),
        n,
        "",
        None,
        (name, config or None, "train", "validation"),
    )
