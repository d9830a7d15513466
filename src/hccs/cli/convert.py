"""`hccs convert` and `hccs evaluate`: from a float model to a converted one, and its scores."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table


class Backend(str, Enum):
    """Where attention's q, k and v are floats, and where int8."""

    FLOAT = "float"
    INTEGER = "integer"


def convert(
    model: Annotated[str, typer.Argument(help="A folder with a transformers model, or a Hub name.")],
    out: Annotated[Path, typer.Option(help="The run's folder; an interrupted run goes on.")],
    task: Annotated[
        str, typer.Option(help="sst2, mnli, snli, movies (built in), or hub:NAME[:CONFIG].")
    ] = "",
    data: Annotated[
        str, typer.Option(help="Folder with the task's TSV files; without it the Hub is asked.")
    ] = "",
    train: Annotated[str, typer.Option(help="A CSV, TSV or JSONL file of your own, instead of --task.")] = "",
    dev: Annotated[str, typer.Option(help="Its dev file; without one a tenth of --train is held out.")] = "",
    text: Annotated[str, typer.Option(help="Its text column, or two separated by a comma.")] = "sentence",
    label: Annotated[str, typer.Option(help="Its label column.")] = "label",
    labels: Annotated[str, typer.Option(help="Label names of a hub: data set, in order.")] = "",
    vocabulary: Annotated[str, typer.Option(help="A BERT vocab.txt, for weights without a tokenizer.")] = "",
    n: Annotated[int, typer.Option(help="Longest sequence in tokens; the task's own by default.")] = 0,
    granularity: Annotated[str, typer.Option(help="One triple per head, layer, or global.")] = "head",
    mode: Annotated[str, typer.Option(help="i16_div, i16_clb, u8_div or u8_clb.")] = "i16_div",
    epochs: Annotated[float, typer.Option(help="Epochs of retraining.")] = 0,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of retraining.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Examples per step and process.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """Collect, calibrate, evaluate, retrain, evaluate and save."""
    from hccs.pipeline.convert import stages as pipeline
    from hccs.pipeline.convert.steps import RETRAINING
    from hccs.pipeline.runs.processes import state

    chosen = _task(task, train, dev, text, label, labels, n)
    changes = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size}
    given: dict[str, Any] = {name: value for name, value in changes.items() if value}
    settings = pipeline.Settings(
        model=model,
        task=chosen,
        data=data or None,
        vocabulary=vocabulary or None,
        granularity=granularity,
        mode=mode,
        seed=seed,
        retraining=replace(RETRAINING, **given),
    )
    console = Console(quiet=not state().is_main_process)
    results = pipeline.convert(settings, out, console.print)
    console.print(summary(results))
    console.print(f"saved in {out}")


def _task(task: str, train: str, dev: str, text: str, label: str, labels: str, n: int) -> Any:
    from hccs.errors import ParameterError
    from hccs.pipeline.data import tasks

    columns = text.split(",")
    if bool(task) == bool(train):
        raise ParameterError(
            "either --task or --train", "both" if task else "neither", "Name one source of data."
        )
    if train:
        return tasks.custom_task(train, dev or None, columns, label, n or 64)
    if task.startswith("hub:"):
        return tasks.hub_task(task[4:], columns, label, [name for name in labels.split(",") if name], n or 64)
    if task not in tasks.TASKS:
        raise ParameterError(f"a task among {', '.join(tasks.TASKS)}", repr(task), "Or give --train FILE.")
    return replace(tasks.TASKS[task], n=n or tasks.TASKS[task].n)


def summary(results: dict[str, Any]) -> Table:
    """The accuracies of a run as a table."""
    stages = results["stages"]
    table = Table(title="dev accuracy")
    for name in ("", "accuracy", "against float, points"):
        table.add_column(name, justify="left" if not name else "right")
    base = stages["float"]["accuracy"]
    for name in ("float", "without retraining", "retrain", "integer"):
        score = stages[name].get("accuracy")
        if score is None:
            continue
        difference = "" if name == "float" else f"{100 * (score - base):+.2f}"
        label = "retrained, attention in integers" if name == "integer" else name
        table.add_row(label, f"{score:.4f}", difference)
    return table


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    mode: Annotated[str, typer.Option(help="One mode; all four by default.")] = "",
    file: Annotated[str, typer.Option(help="Another file with the task's columns.")] = "",
    backend: Annotated[
        Backend, typer.Option(help="'integer' also quantises q, k and v, and shows what that costs.")
    ] = Backend.FLOAT,
) -> None:
    """Score a converted model again, in any mode, on any file."""
    from hccs.pipeline.convert.evaluate import evaluate as score

    found = score(run, (mode,) if mode else (), file or None, backend.value)
    table = Table(title=f"accuracy on {found.pop('examples')} examples")
    for name in (
        "model",
        "accuracy",
        *(["against float q, k, v, points"] if backend is Backend.INTEGER else []),
    ):
        table.add_column(name, justify="left" if name == "model" else "right")
    for name, value in found.items():
        base = found[name.removesuffix(" integer")]
        difference = [f"{100 * (value - base):+.2f}"] if name.endswith(" integer") else []
        table.add_row(name if name == "float" else f"HCCS {name}", f"{value:.4f}", *difference)
    Console().print(table)
