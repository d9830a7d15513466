"""`hccs.convert`: the pipeline of the command on a live model and lists of examples."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs.errors import DataError, ParameterError
from hccs.pipeline.convert.stages import Conversion, ConversionSettings
from hccs.pipeline.convert.steps import RETRAINING
from hccs.pipeline.convert.whole import load_whole
from hccs.pipeline.data import tasks
from hccs.pipeline.data.problems import CLASSIFICATION
from hccs.pipeline.metrics import Function, spelled
from hccs.pipeline.training import Recipe
from hccs.program import IntegerModel

GIVEN = "given"
"""The folder in a run that holds the model and the examples that it was called with."""

Example = tuple[Any, Any] | str
"""A text, a pair of texts or a list of words; and its label, value or list of labels, or None.

A text alone has no label.
"""


@dataclass(frozen=True)
class Converted:
    """A finished run: what every stage found, and where the models are."""

    folder: Path
    results: dict[str, Any]

    @property
    def model(self) -> Path:
        """The converted transformers model and its tokenizer."""
        return self.folder / "model"

    @property
    def whole(self) -> IntegerModel:
        """The model all in integers; where it has no such form the refusal says why."""
        return load_whole(self.folder)

    @property
    def scores(self) -> dict[str, float]:
        """The dev score of every stage that has one, in the order of stages."""
        stages = self.results["stages"]
        metric = stages["float"]["metric"]
        return {name: stage[metric] for name, stage in stages.items() if metric in stage}


def convert(
    model: Any,
    train: str | os.PathLike[str] | Iterable[Example],
    dev: str | os.PathLike[str] | Iterable[Example] | None = None,
    *,
    out: str | os.PathLike[str],
    tokenizer: Any = None,
    text: Sequence[str] = ("sentence",),
    label: str | None = "label",
    labels: Sequence[str] = (),
    problem: str = CLASSIFICATION,
    metric: str | Function | None = None,
    n: int = 64,
    integer: str = "whole",
    retraining: Recipe | None = RETRAINING,
    say: Callable[[str], None] = print,
    **settings: Any,
) -> Converted:
    """Convert a model as `hccs convert` does; an interrupted run goes on when it is called again.

    `model` is a folder, a Hub name, or a transformers model, with its `tokenizer`. `train` and `dev` are
    files with the columns `text` and `label`, or examples (text, label): a text may be a pair of texts, and
    where the problem is "tokens" a list of words with a list of labels. `train` needs no labels: texts alone,
    or (text, None), or a file with `label` None; then the float model's answers are followed. `settings` are
    further fields of `ConversionSettings`. All that is found and made lies in the folder `out`.
    """
    folder = Path(out)
    given = folder / GIVEN
    if isinstance(model, str | os.PathLike):
        name = os.fspath(model)
    else:
        if tokenizer is None:
            raise ParameterError(
                "the tokenizer of a model that is given as an object", "none", "Pass tokenizer=..."
            )
        name = str(given / "model")
        model.save_pretrained(name)
        tokenizer.save_pretrained(name)
    columns, named = tuple(text), label or "label"
    unlabelled = label is None
    files: list[str | None] = []
    for part, examples in (("train", train), ("dev", dev)):
        if examples is None or isinstance(examples, str | os.PathLike):
            files.append(None if examples is None else os.fspath(examples))
            continue
        rows, columns, labelled = _rows(examples, named, part)
        unlabelled = unlabelled or not labelled
        if part == "dev" and not labelled:
            raise DataError("labels in dev", "none", "Leave dev out: some of train are asked instead.")
        given.mkdir(parents=True, exist_ok=True)
        atomic.replace(given / f"{part}.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
        files.append(str(given / f"{part}.jsonl"))
    assert files[0] is not None
    task = tasks.custom_task(files[0], files[1], columns, named, n, labels, problem, unlabelled=unlabelled)
    chosen = ConversionSettings(
        model=name,
        task=task,
        labels=tuple(labels),
        integer=integer,
        retraining=retraining,
        metric=spelled(metric),
        **settings,
    )
    own = metric if callable(metric) else None
    run = Conversion(chosen, folder, say, metric=own, marker=GIVEN)
    return Converted(folder, run.run())


def _rows(
    examples: Iterable[Example], label: str, part: str
) -> tuple[list[dict[str, Any]], tuple[str, ...], bool]:
    """Examples as rows of a table, the names of its columns of text, and whether they are labelled."""
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
        names = ("text",) if len(texts) == 1 else tuple(f"text{i + 1}" for i in range(len(texts)))
        rows.append({**dict(zip(names, texts, strict=True)), label: wanted})
    if not rows:
        raise DataError(f"examples in {part}", "none", "Pass (text, label) pairs.")
    without = [number for number, row in enumerate(rows) if row[label] is None]
    if without and len(without) < len(rows):
        raise DataError(
            f"labels of all examples in {part}, or of none",
            f"none at {without[0]}" if without[0] else "none at 0, but some further on",
            "Leave out examples without a label, or all labels.",
        )
    return rows, names, not without
