"""The command that makes the same run, from the settings it was begun with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from hccs.conversion.data.tasks import TASKS
from hccs.conversion.settings import Settings
from hccs.conversion.training import Recipe

_SPELLED_APART = (
    "model",
    "task",
    "data",
    "labels",
    "retraining",
    "fine_tuning",
    "sentences",
    "held_back",
    "reconstruction_sentences",
)
"""Settings whose options have other names, or none."""

_RECIPE = ("epochs", "learning_rate", "batch_size")
"""What of a recipe the command line sets."""


def convert_command(settings: Settings, out: Path) -> str:
    """`hccs convert` with every setting that differs from its default."""
    words = ["hccs", "convert", settings.model, "--out", str(out), *_data_words(settings)]
    if settings.labels:
        words += ["--labels", ",".join(settings.labels)]
    defaults: dict[str, Any] = {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(Settings)
    }
    for name, default in defaults.items():
        value = getattr(settings, name)
        if name not in _SPELLED_APART and value not in (default, None):
            words += _option(name, value)
    if settings.fine_tuning.epochs != defaults["fine_tuning"].epochs:
        words += _option("fine_tuning_epochs", settings.fine_tuning.epochs)
    words += _recipe_words(settings.retraining, defaults["retraining"])
    return shlex.join(words)


def _data_words(settings: Settings) -> Iterator[str]:
    task = settings.task
    if task.custom:
        yield from ("--unlabelled" if task.unlabelled else "--train", task.train)
        if task.dev:
            yield from ("--dev", task.dev)
    elif task.name in TASKS:
        yield from ("--task", task.name)
        if task.n != TASKS[task.name].n:
            yield from ("--n", str(task.n))
    elif task.hub:
        name, config = task.hub[:2]
        yield from ("--task", f"hub:{name}" + (f":{config}" if config else ""))
    if task.name not in TASKS or task.custom:
        yield from ("--text", ",".join(task.text), "--label", task.label, "--n", str(task.n))
        if task.problem != "classification":
            yield from ("--problem", task.problem)
    if settings.data:
        yield from ("--data", settings.data)


def _recipe_words(chosen: Recipe | None, default: Recipe) -> list[str]:
    if chosen is None:
        return ["--no-retrain"]
    changed = [name for name in _RECIPE if getattr(chosen, name) != getattr(default, name)]
    return [word for name in changed for word in _option(name, getattr(chosen, name))]


def _option(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{option}"]
    return [f"--{option}", str(value)]
