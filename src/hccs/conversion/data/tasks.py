"""Tasks: named ones from folders or the Hub, and any table of texts with a column of labels or values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hccs._extras import require, require_distribution
from hccs.conversion.data import labels
from hccs.conversion.data.problems import CLASSIFICATION, IMAGES, PROBLEMS, RERANK, TOKENS, VALUES
from hccs.conversion.data.reading import TextTable, is_saved_dataset, read_table, read_texts
from hccs.errors import DataError, FileError, ParameterError, require_one_of

LONGEST = 64
"""Tokens of the longest sequence, until the data is known; of images it stays."""

LARGEST_DEV = 5000
"""Examples that are split off as the dev set of data that has none."""


@dataclass(frozen=True)
class Examples:
    """Texts (one or two columns each) and their label numbers, values, or label numbers of every word.

    Texts that are not `labelled` have zeros for labels. Images are one column of files, or of images as
    `datasets` have them.
    """

    texts: list[tuple[Any, ...]]
    labels: list[Any]
    labelled: bool = True

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, count: int, seed: int = 0) -> Examples:
        """At most `count` examples, drawn by a fixed seed."""
        return self.at(random.Random(seed).sample(range(len(self)), min(count, len(self))))

    def at(self, indices: Sequence[int]) -> Examples:
        return replace(self, texts=[self.texts[i] for i in indices], labels=[self.labels[i] for i in indices])


@dataclass(frozen=True)
class Task:
    """What to read: columns, the labels in order of their numbers, the longest row, and where the data is.

    Without `labels` they are those of the training data. `custom` tasks are the user's own files. In a
    `problem` of tokens, text and labels are words between blanks; a regression has one output and no labels.
    The training data of an `unlabelled` task are texts alone; its dev set, where it has one, is labelled.
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
    problem: str = CLASSIFICATION
    unlabelled: bool = False

    def __post_init__(self) -> None:
        require_one_of("problem", self.problem, PROBLEMS, "Choose another --problem.")
        most = 1 if self.problem in (TOKENS, IMAGES) else 2
        if not 0 < len(self.text) <= most:
            raise ParameterError(
                f"{'one column' if most == 1 else 'one or two columns'} of text",
                ", ".join(self.text) or "none",
                "Name them with --text.",
            )
        if self.problem == RERANK and len(self.text) != 2:
            raise ParameterError(
                "two columns of text for rerank, query and passage",
                ", ".join(self.text),
                "Name them with --text.",
            )
        if self.label in self.text and not self.unlabelled:
            raise ParameterError(
                "a column of labels beside those of text", f"{self.label} as both", "Name it with --label."
            )


def _glue(name: str, text: tuple[str, ...], names: tuple[str, ...], n: int, matched: str = "") -> Task:
    hub = ("nyu-mll/glue", name, "train", f"validation{matched}")
    return Task(name, text, "label", names, n, "train.tsv", f"dev{matched}.tsv", hub)


_SENTENCE, _PAIR = ("sentence",), ("premise", "hypothesis")
_SENTIMENT, _NLI = ("negative", "positive"), ("entailment", "neutral", "contradiction")
_SNLI = ("stanfordnlp/snli", None, "train", "validation")
TASKS = {
    "sst2": _glue("sst2", _SENTENCE, _SENTIMENT, 64),
    "mnli": _glue("mnli", _PAIR, _NLI, 128, "_matched"),
    "snli": Task("snli", _PAIR, "label", _NLI, 128, "train.tsv", None, _SNLI),
    "movies": Task("movies", _SENTENCE, "label", _SENTIMENT, 64, "train.tsv", "dev.tsv"),
}


@dataclass(frozen=True)
class TaskData:
    task: Task
    labels: tuple[str, ...]
    train: Examples
    dev: Examples

    def numbered_as(self, names: Sequence[str]) -> TaskData:
        """The same examples, their labels numbered as `names` stand: in the order of a model's outputs."""
        if self.task.problem in VALUES:
            return self
        known = labels.numbers(names)
        unknown = [label for label in self.labels if labels.key(label) not in known]
        if unknown:
            raise DataError(
                f"data with the model's labels, {labels.shown(names)}",
                f"labels {labels.shown(unknown)}",
                "Has the data changed since the model was converted?",
            )
        number = [known[labels.key(label)] for label in self.labels]

        def renumbered(label: Any) -> Any:
            return [number[i] for i in label] if isinstance(label, list) else number[label]

        train, dev = (
            replace(part, labels=[renumbered(label) for label in part.labels]) if part.labelled else part
            for part in (self.train, self.dev)
        )
        return replace(self, labels=tuple(names), train=train, dev=dev)


def custom_task(
    train: str,
    dev: str | None,
    text: Sequence[str],
    label: str,
    n: int = LONGEST,
    names: Sequence[str] = (),
    problem: str = CLASSIFICATION,
    *,
    unlabelled: bool = False,
) -> Task:
    """A task of the user's own: files or saved folders with named columns; `unlabelled` ones also .txt."""
    given = labels.checked(names) if names else None
    name, columns = Path(train).stem, tuple(text)
    return Task(
        name, columns, label, given, n, train, dev, custom=True, problem=problem, unlabelled=unlabelled
    )


def load(task: Task, folder: str | Path | None = None) -> TaskData:
    """Read a task from `folder`, from hccs-lab (movies), from its own paths, or from the Hub."""
    if task == replace(TASKS["movies"], n=task.n) and folder is None:
        folder = Path(require_distribution("hccs_lab.demo", "the movie snippets").__file__).parent / "movies"
    if folder is None and task.hub is not None:
        return _from_hub(task)
    base = Path(folder or ".")
    if task.unlabelled:
        return _without_labels(task, base)
    train = _read(base / task.train, task, "--train")
    known = _with_labels(task, train)
    examples = to_examples(train, known)
    if task.dev is not None:
        dev = to_examples(_read(base / task.dev, known, "--dev"), known)
    else:
        examples, dev = _split(examples)
    assert known.labels is not None
    return TaskData(known, known.labels, examples, dev)


def _with_labels(task: Task, table: TextTable) -> Task:
    """The task with the labels that its data have, where it brings none."""
    if task.problem in VALUES:
        return replace(task, labels=(task.label,))
    if task.labels is not None:
        return task
    column = _label_cells(table, task)
    if task.problem == TOKENS:
        column = [label for words in column for label in words.split()]
    return replace(task, labels=labels.from_column(column, table.where))


def _label_cells(table: TextTable, task: Task) -> list[str]:
    found = table.cells(task.label, lists=task.problem == TOKENS, one_kind=True)
    labels.require_filled(found, table.numbers, table.where)
    return found


def _without_labels(task: Task, base: Path) -> TaskData:
    """Texts to train on, and a labelled dev set or, where there is none, a tenth of the texts."""
    texts = read_texts(base / task.train, task.text)
    empty: Any = 0.0 if task.problem in VALUES else 0
    blank = [[0] * len(text[0].split()) if task.problem == TOKENS else empty for text in texts]
    examples = Examples(texts, blank, labelled=False)
    if task.dev is None:
        train, dev = _split(examples)
        return TaskData(task, (task.label,) if task.problem in VALUES else (), train, dev)
    table = _read(base / task.dev, task, "--dev")
    known = _with_labels(task, table)
    assert known.labels is not None
    return TaskData(known, known.labels, examples, to_examples(table, known))


def load_file(path: str | Path, task: Task) -> Examples:
    """The examples of another file with the columns and labels of a task."""
    other = "The file needs the columns of the data that the run was converted on."
    return to_examples(_read(Path(path), task, "--file", other), task)


def _read(path: Path, task: Task, option: str, other: str = "") -> TextTable:
    if task.problem == IMAGES and not is_saved_dataset(path):
        from hccs.conversion.data.images import read_images  # torch reads them, which tables do not need

        rows = read_images(path, task.text[0], task.label, option)
        return TextTable(str(path), rows, range(1, len(rows) + 1))
    missing = f"Check {option}."
    if not task.custom and not other:
        missing = "Name the folder that holds it with --data."
        other = "A file with other columns is given with --train, --text and --label instead of --task."
    other = other or "Name the columns with --text and --label."
    return read_table(path, (*task.text, task.label), if_missing=missing, if_other_columns=other)


def to_examples(table: TextTable, task: Task) -> Examples:
    """Rows as examples; an empty or unknown label is refused with its row."""
    assert task.labels is not None
    given = _label_cells(table, task)
    texts: list[tuple[Any, ...]]
    if task.problem == IMAGES:
        texts = [(row[task.text[0]],) for row in table.rows]
    else:
        texts = list(table.texts(task.text))
    if task.problem in VALUES:
        return Examples(texts, labels.targets(given, table.numbers, table.where))
    known = labels.numbers(task.labels)
    numbers = []
    for row, cell in zip(table.numbers, given, strict=True):
        parts = cell.split() if task.problem == TOKENS else [cell]
        unknown = [part for part in parts if labels.key(part) not in known]
        if unknown:
            raise DataError(
                f"labels {labels.shown(task.labels)} in {table.where}",
                f"{unknown[0][:60]!r} in row {row}",
                "Correct or remove the row.",
            )
        numbers.append([known[labels.key(part)] for part in parts])
    if task.problem != TOKENS:
        return Examples(texts, [only for (only,) in numbers])
    for row, (words,), of_words in zip(table.numbers, texts, numbers, strict=True):
        if len(words.split()) != len(of_words):
            raise DataError(
                f"a label for every word in {table.where}",
                f"{len(words.split())} words and {len(of_words)} labels in row {row}",
                "Words and labels stand between blanks, or in lists of JSON lines.",
            )
    return Examples(texts, numbers)


def _split(examples: Examples) -> tuple[Examples, Examples]:
    """(train, dev): one example in ten is the dev set, drawn by a fixed shuffle."""
    order = list(range(len(examples)))
    random.Random(0).shuffle(order)
    count = min(max(len(order) // 10, 1), LARGEST_DEV)
    return examples.at(order[count:]), examples.at(order[:count])


def _from_hub(task: Task) -> TaskData:
    assert task.hub is not None and task.labels is not None
    datasets = require("datasets", "hf", "for the Hub")
    path, config, train, dev = task.hub
    # The Hub marks the labels of hidden test sets by -1.
    hidden = (None, -1) if task.problem == CLASSIFICATION else (None,)
    try:
        loaded = datasets.load_dataset(path, config)
        parts = [
            [pair for pair in enumerate(loaded[split], 1) if pair[1][task.label] not in hidden]
            for split in (train, dev)
        ]
    except Exception as error:
        raise FileError(
            f"{path} from the Hub",
            str(error).splitlines()[0] if str(error) else repr(error),
            f"Without network, name a folder with {task.train} by --data.",
        ) from error
    tables = [TextTable(path, [row for _, row in part], [number for number, _ in part]) for part in parts]
    return TaskData(task, task.labels, *(to_examples(table, task) for table in tables))
