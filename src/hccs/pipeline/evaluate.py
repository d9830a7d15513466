"""`hccs evaluate RUN`: score a finished run again, in any mode, on its own dev set or another file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import hccs.nn
from hccs.errors import FileError
from hccs.nn.attach import saved_table
from hccs.pipeline import tasks
from hccs.pipeline.models import accuracy, best_device, load_classifier, saved_labels
from hccs.pipeline.run_folder import read_json
from hccs.pipeline.tokens import tokenise
from hccs.spec import Mode


def evaluate(run: str | Path, modes: tuple[str, ...] = (), file: str | None = None) -> dict[str, Any]:
    """Accuracy of the float and the converted model of a run, the latter in each mode (default: all four)."""
    folder = Path(run)
    if not (folder / "model" / "config.json").exists():
        raise FileError(
            f"{folder} to hold a converted model",
            "no model/config.json",
            "Finish the run with hccs convert first.",
        )
    chosen = [Mode(mode) for mode in modes] or list(Mode)
    saved = read_json(folder / "settings.json")
    task = saved_task(saved["task"])
    labels = saved_labels(folder / "model")
    known = replace(task, labels=labels)
    if file is not None:
        examples = tasks.to_examples(tasks.read_table(Path(file), known), known, file)
    else:
        examples = tasks.load(task, saved["data"]).dev
    converted = load_classifier(str(folder / "model"), labels)
    dev = tokenise(examples, converted.tokenizer, task.n).to(best_device())
    original = load_classifier(str(folder / "float"), labels).model.to(best_device())
    scores: dict[str, Any] = {"examples": len(dev), "float": accuracy(original, dev)}
    table = saved_table(converted.model)
    for mode in chosen:
        scores[mode.value] = accuracy(hccs.nn.attach(converted.model.to(best_device()), table, mode), dev)
    return scores


def saved_task(saved: dict[str, Any]) -> tasks.Task:
    """The task of a run's settings file."""
    lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()}
    return tasks.Task(**lists)
