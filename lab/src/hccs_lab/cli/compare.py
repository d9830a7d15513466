"""`hccs compare`: every softmax replacement on the same logits, in the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hccs.cli.boundary import require_models
from hccs.cli.output import Json, Output
from hccs.cli.tables import show
from hccs.errors import ParameterError

if TYPE_CHECKING:
    from hccs_lab.compare.source import ComparisonSettings


def compare(
    out: Annotated[Path, typer.Option(help="Folder for results; an interrupted comparison goes on.")],
    model: Annotated[
        list[str] | None,
        typer.Argument(
            help="A fine-tuned classifier (folder or Hub name), the folder of an hccs convert run, or files "
            "of logits as hccs calibrate takes them. Without it: the BERT-tiny that ships and its task."
        ),
    ] = None,
    task: Annotated[str, typer.Option(help="sst2, mnli, snli or movies; a run has its own.")] = "",
    data: Annotated[
        str, typer.Option(help="Folder with the task's TSV files; without it the Hub is asked.")
    ] = "",
    vocabulary: Annotated[str, typer.Option(help="A BERT vocab.txt, for weights without a tokenizer.")] = "",
    scale: Annotated[
        float | None,
        typer.Option(help="Logit value of an int8 step of files, instead of their own or the largest / 127."),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods separated by spaces, each NAME or NAME:parameter=value,...; all by default."
        ),
    ] = "",
    retrain: Annotated[bool, typer.Option(help="Also retrain the model with each method.")] = False,
    epochs: Annotated[float | None, typer.Option(help="Epochs of retraining.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of retraining.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step of retraining.")] = None,
    rows: Annotated[
        int, typer.Option(help="Rows per head, to calibrate on and to measure on.", min=1)
    ] = 2048,
    sentences: Annotated[int, typer.Option(help="Sentences that the rows are drawn from.", min=1)] = 512,
    examples: Annotated[
        int | None, typer.Option(help="Dev examples to score; all by default.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 0,
    jobs: Annotated[int, typer.Option(help="Processes at a time; a large GPU takes many.", min=1)] = 1,
    json: Json = False,
) -> None:
    """Fidelity, accuracy, cost and time of every softmax replacement, on the same data."""
    require_models()
    from hccs.conversion.report.write import write_report
    from hccs_lab.compare import entries, tables
    from hccs_lab.compare.run import compare as run
    from hccs_lab.figures import comparison_figures

    output = Output(json)
    chosen = entries.parse(methods.split() or entries.default_labels())
    changes = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size}
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    settings = _settings(model or [], task, data, vocabulary)
    settings = replace(
        settings,
        scale=scale,
        rows=rows,
        sentences=sentences,
        examples=examples,
        seed=seed,
        retraining=replace(settings.retraining, **given),
    )
    found = run(settings, chosen, out, retrain=retrain, jobs=jobs, say=output.say)
    tables.write_markdown(found, out / "comparison.md")
    for grid in tables.grids(found):
        show(output.console, grid.title, grid.header, grid.rows)
    output.results(found)
    drawn = comparison_figures(found, out)
    lines = [
        f"tables in {out / 'comparison.md'}, everything in {out / 'comparison.json'}",
        f"figures: {', '.join(map(str, drawn))}",
        f"report: {write_report(out)}",
    ]
    output.end("compare", lines, {"more methods": f"hccs compare ... --methods NAME --out {out}"})


def _settings(model: list[str], task: str, data: str, vocabulary: str) -> ComparisonSettings:
    """The source that MODEL names: files, a run, a classifier with --task, or what ships with the package."""
    from hccs.conversion.data.tasks import TASKS
    from hccs_lab.compare.source import ComparisonSettings, from_run
    from hccs_lab.demo import MODEL

    if model and Path(model[0]).suffix in (".npy", ".npz", ".safetensors"):
        if task or data:
            raise ParameterError("files of logits alone", "--task or --data", "Only a model has a task.")
        return ComparisonSettings(files=tuple(model))
    if len(model) > 1:
        raise ParameterError("one model", " ".join(model), "Only files of logits may be several.")
    if task and task not in TASKS:
        raise ParameterError(
            f"a task among {', '.join(TASKS)}", repr(task), "For other data run hccs convert first."
        )
    name = model[0] if model else str(MODEL)
    if model and (Path(name) / "float" / "config.json").exists():
        run = from_run(Path(name))
        return replace(run, task=TASKS[task] if task else run.task, data=data or run.data)
    if model and not task:
        raise ParameterError("--task with a model", "none", f"One of {', '.join(TASKS)}.")
    return ComparisonSettings(
        model=name, task=TASKS[task or "movies"], data=data or None, vocabulary=vocabulary or None
    )
