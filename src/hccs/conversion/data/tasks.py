"""Tasks: named ones from folders or the Hub, and any table of texts with a column of labels or values."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hccs._extras import require, require_distribution
from hccs.conversion.data import labels
from hccs.conversion.data.problems import CLASSIFICATION, IMAGES, REGRESSION, TOKENS, require_problem
from hccs.conversion.data.reading import read_table, read_texts
from hccs.errors import DataError, FileError, ParameterError

IDS = "input_ids"
"""A column of text with this name holds token ids as they stand; `token_type_ids` may stand beside it."""


@dataclass(frozen=True)
class Examples:
    """Texts (one or two columns each) and their label numbers, values, or label numbers of every word.

    Of texts that nobody has labelled, zeros stand where labels would. Of images the one column
    holds files, or images as `datasets` have them.
    """

    texts: list[tuple[Any, ...]]
    labels: list[Any]
    labelled: bool = True
    tokenised: bool = False
    """Whether the texts are token ids between blanks, and token types beside them."""

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, count: int, seed: int = 0) -> Examples:
        """At most `count` examples, drawn by a fixed seed."""
        return self.at(random.Random(seed).sample(range(len(self)), min(count, len(self))))

    def at(self, indices: Sequence[int]) -> Examples:
        """The examples at these places."""
        return replace(self, texts=[self.texts[i] for i in indices], labels=[self.labels[i] for i in indices])


@dataclass(frozen=True)
class Task:
    """What to read: columns, the labels in order of their numbers, the longest row, and where the data is.

    Without `labels` they are those of the training data. `custom` tasks are the user's own files. Of a
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
        require_problem(self.problem)
        if self.problem == TOKENS and IDS in self.text:
            raise ParameterError(
                "words for a problem of tokens", "token ids", "Pass the words: their labels follow them."
            )
        if self.problem == TOKENS and len(self.text) != 1:
            raise ParameterError(
                "one column of words for a problem of tokens", ", ".join(self.text), "Name it with --text."
            )


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
        if self.task.problem == REGRESSION:
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
    n: int,
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
    known = _with_labels(task, train, task.train)
    examples = to_examples(train, known, task.train)
    if task.dev is not None:
        dev = to_examples(_read(base / task.dev, known, "--dev"), known, task.dev)
    else:
        examples, dev = _split(examples)
    assert known.labels is not None
    return TaskData(known, known.labels, examples, dev)


def _with_labels(task: Task, rows: Sequence[Mapping[str, str]], where: str) -> Task:
    """The task with the labels that its data have, where it brings none."""
    if task.problem == REGRESSION:
        return replace(task, labels=(task.label,))
    if task.labels is not None:
        return task
    column = [row[task.label] for row in rows]
    if task.problem == TOKENS:
        labels.require_filled(column, where)
        column = [label for words in column for label in words.split()]
    return replace(task, labels=labels.from_column(column, where))


def _without_labels(task: Task, base: Path) -> TaskData:
    """Texts to train on, and a labelled dev set or, where there is none, some of the texts."""
    texts = read_texts(base / task.train, task.text)
    empty: Any = 0.0 if task.problem == REGRESSION else 0
    blank = [[0] * len(text[0].split()) if task.problem == TOKENS else empty for text in texts]
    examples = Examples(texts, blank, labelled=False, tokenised=task.text[0] == IDS)
    if task.dev is None:
        train, dev = _split(examples)
        return TaskData(task, (task.label,) if task.problem == REGRESSION else (), train, dev)
    rows = _read(base / task.dev, task, "--dev")
    known = _with_labels(task, rows, task.dev)
    assert known.labels is not None
    return TaskData(known, known.labels, examples, to_examples(rows, known, task.dev))


def load_file(path: str | Path, task: Task) -> Examples:
    """The examples of another file with the columns and labels of a task."""
    if task.problem == IMAGES:
        return to_examples(_read(Path(path), task, "--file"), task, str(path))
    rows = read_table(
        Path(path),
        (*task.text, task.label),
        if_missing="Check --file.",
        if_other_columns="The file needs the columns of the data that the run was converted on.",
    )
    return to_examples(rows, task, str(path))


def _read(path: Path, task: Task, option: str) -> list[dict[str, Any]]:
    if task.problem == IMAGES:
        from hccs.conversion.data.images import read_images  # torch reads them, which tables do not need

        return read_images(path, task.text[0], task.label, option)
    if task.custom:
        missing, other = f"Check {option}.", "Name the columns with --text and --label."
    else:
        missing = "Name the folder that holds it with --data."
        other = "A file with other columns is given with --train, --text and --label instead of --task."
    return read_table(path, (*task.text, task.label), if_missing=missing, if_other_columns=other)


def to_examples(rows: Sequence[Mapping[str, Any]], task: Task, where: str) -> Examples:
    """Rows as examples; an empty or unknown label is refused with its row."""
    assert task.labels is not None
    found = [_joined(row[task.label]) for row in rows]
    if task.problem == IMAGES:
        texts: list[tuple[Any, ...]] = [(row[task.text[0]],) for row in rows]
    else:
        texts = [tuple(_joined(row.get(column) or "") for column in task.text) for row in rows]
    tokenised = task.text[0] == IDS
    if task.problem == REGRESSION:
        return Examples(texts, labels.values(found, where), tokenised=tokenised)
    labels.require_filled(found, where)
    known = labels.numbers(task.labels)
    numbers = []
    for row, label in enumerate(found, 2):
        given = label.split() if task.problem == TOKENS else [label]
        for one in given:
            if labels.key(one) not in known:
                raise DataError(
                    f"labels {labels.shown(task.labels)} in {where}",
                    f"{one!r} in row {row}",
                    "Correct or remove the row.",
                )
        numbers.append([known[labels.key(one)] for one in given])
    if task.problem != TOKENS:
        return Examples(texts, [only for (only,) in numbers], tokenised=tokenised)
    for row, ((words,), of_words) in enumerate(zip(texts, numbers, strict=True), 2):
        if len(words.split()) != len(of_words):
            raise DataError(
                f"a label for every word in {where}",
                f"{len(words.split())} words and {len(of_words)} labels in row {row}",
                "Words and labels stand between blanks, or in lists of JSON lines.",
            )
    return Examples(texts, numbers)


def _joined(cell: Any) -> str:
    """A cell as text; lists, as the Hub has them, with blanks between their parts."""
    return " ".join(map(str, cell)) if isinstance(cell, list) else str(cell)


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
            [row for row in loaded[split] if not _is_hidden(row[task.label], task)] for split in (train, dev)
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


def _is_hidden(label: Any, task: Task) -> bool:
    """Whether a row has no label: the Hub marks those of hidden test sets by -1."""
    return label is None or (label == -1 and task.problem == CLASSIFICATION)


def hub_task(
    path: str,
    text: Sequence[str],
    label: str,
    names: Sequence[str],
    n: int,
    problem: str = CLASSIFICATION,
) -> Task:
    """Any Hub data set `name[:config]` with train and validation splits, and integer labels or values."""
    if not names and problem != REGRESSION:
        raise ParameterError(
            "the labels of a Hub data set, in order", "none", "Name them: --labels negative,positive."
        )
    name, _, config = path.partition(":")
    return Task(
        name.replace("/", "-"),
        tuple(text),
        label,
        (label,) if problem == REGRESSION else labels.checked(names),
        n,
        "",
        None,
        (name, config or None, "train", "validation"),
        problem=problem,
    )
