"""Classification tasks: named ones from folders or the Hub, and any table of texts with a label column."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hccs._extras import require
from hccs.errors import DataError, FileError, ParameterError
from hccs.pipeline.data import labels
from hccs.pipeline.data.reading import read_table

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
        return self.at(random.Random(seed).sample(range(len(self)), min(count, len(self))))

    def at(self, indices: Sequence[int]) -> Examples:
        """The examples at these places."""
        return Examples([self.texts[i] for i in indices], [self.labels[i] for i in indices])


@dataclass(frozen=True)
class Task:
    """What to read: columns, the labels in order of their numbers, the longest row, and where the data is.

    Without `labels` they are those of the training data. `custom` tasks are the user's own files.
    """

    name: str
    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...] | None
    n: int
    train: str
    dev: str | None
    hub: tuple[str, str | None, str, str] | None = None
    custom: bool = False


_PAIR = ("premise", "hypothesis")
_NLI = ("entailment", "neutral", "contradiction")
_SENTIMENT = ("negative", "positive")
_GLUE = "nyu-mll/glue"
TASKS = {
    task.name: task
    for task in (
        Task(
            "sst2",
            ("sentence",),
            "label",
            _SENTIMENT,
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
        Task("movies", ("sentence",), "label", _SENTIMENT, 64, "train.tsv", "dev.tsv"),
    )
}


@dataclass(frozen=True)
class TaskData:
    """A task with its examples in memory."""

    task: Task
    labels: tuple[str, ...]
    train: Examples
    dev: Examples

    def numbered_as(self, names: Sequence[str]) -> TaskData:
        """The same examples, their labels numbered as `names` stand: in the order of a model's outputs."""
        known = labels.numbers(names)
        unknown = [label for label in self.labels if labels.key(label) not in known]
        if unknown:
            raise DataError(
                f"data with the model's labels, {labels.shown(names)}",
                f"labels {labels.shown(unknown)}",
                "Has the data changed since the model was converted?",
            )
        number = [known[labels.key(label)] for label in self.labels]
        train, dev = (
            replace(part, labels=[number[i] for i in part.labels]) for part in (self.train, self.dev)
        )
        return replace(self, labels=tuple(names), train=train, dev=dev)


def custom_task(
    train: str,
    dev: str | None,
    text: Sequence[str],
    label: str,
    n: int,
    names: Sequence[str] = (),
) -> Task:
    """A task of the user's own: CSV, TSV or JSONL files with named columns."""
    given = labels.checked(names) if names else None
    return Task(Path(train).stem, tuple(text), label, given, n, train, dev, custom=True)


def load(task: Task, folder: str | Path | None = None) -> TaskData:
    """Read a task from `folder`, from the package (movies), from its own paths, or from the Hub."""
    if task == replace(TASKS["movies"], n=task.n) and folder is None:
        folder = EMBEDDED / "movies"
    if folder is None and task.hub is not None:
        return _from_hub(task)
    base = Path(folder or ".")
    train = _read(base / task.train, task, "--train")
    known = task
    if task.labels is None:
        known = replace(task, labels=labels.from_column([row[task.label] for row in train], task.train))
    examples = to_examples(train, known, task.train)
    if task.dev is not None:
        dev = to_examples(_read(base / task.dev, known, "--dev"), known, task.dev)
    else:
        examples, dev = _split(examples)
    assert known.labels is not None
    return TaskData(known, known.labels, examples, dev)


def load_file(path: str | Path, task: Task) -> Examples:
    """The examples of another file with the columns and labels of a task."""
    rows = read_table(
        Path(path),
        (*task.text, task.label),
        if_missing="Check --file.",
        if_other_columns="The file needs the columns of the data that the run was converted on.",
    )
    return to_examples(rows, task, str(path))


def _read(path: Path, task: Task, option: str) -> list[dict[str, str]]:
    if task.custom:
        missing, other = f"Check {option}.", "Name the columns with --text and --label."
    else:
        missing = "Name the folder that holds it with --data."
        other = "A file with other columns is given with --train, --text and --label instead of --task."
    return read_table(path, (*task.text, task.label), if_missing=missing, if_other_columns=other)


def to_examples(rows: Sequence[Mapping[str, Any]], task: Task, where: str) -> Examples:
    """Rows as examples; an empty or unknown label is refused with its row."""
    assert task.labels is not None
    known = labels.numbers(task.labels)
    found = [str(row[task.label]) for row in rows]
    labels.require_filled(found, where)
    for row, label in enumerate(found, 2):
        if labels.key(label) not in known:
            raise DataError(
                f"labels {labels.shown(task.labels)} in {where}",
                f"{label!r} in row {row}",
                "Correct or remove the row.",
            )
    texts = [tuple(str(row.get(column) or "") for column in task.text) for row in rows]
    return Examples(texts, [known[labels.key(label)] for label in found])


def _split(examples: Examples) -> tuple[Examples, Examples]:
    """One example in ten, at most 5,000, by a fixed shuffle, as the dev set of data that has none."""
    order = list(range(len(examples)))
    random.Random(0).shuffle(order)
    held = min(max(len(order) // 10, 1), 5000)
    return examples.at(order[held:]), examples.at(order[:held])


def _from_hub(task: Task) -> TaskData:
    assert task.hub is not None and task.labels is not None
    datasets = require("datasets", "hf", "for the Hub")
    path, config, train, dev = task.hub
    try:
        loaded = datasets.load_dataset(path, config)
        parts = [
            [row for row in loaded[split] if row[task.label] not in (-1, None)] for split in (train, dev)
        ]
    except Exception as error:
        raise FileError(
            f"{path} from the Hub",
            str(error).splitlines()[0] if str(error) else repr(error),
            f"Without network, name a folder with {task.train} by --data."
            if task.train
            else "Check the name, or save the data as a file and give it with --train.",
        ) from error
    return TaskData(task, task.labels, *(to_examples(part, task, path) for part in parts))


def hub_task(path: str, text: Sequence[str], label: str, names: Sequence[str], n: int) -> Task:
    """Any Hub data set `name[:config]` with train and validation splits and integer labels."""
    if not names:
        raise ParameterError(
            "the labels of a Hub data set, in order", "none", "Name them: --labels negative,positive."
        )
    name, _, config = path.partition(":")
    return Task(
        name.replace("/", "-"),
        tuple(text),
        label,
        labels.checked(names),
        n,
        "",
        None,
        (name, config or None, "train", "validation"),
    )
