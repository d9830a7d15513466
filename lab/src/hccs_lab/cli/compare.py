"""`hccs compare`: every softmax replacement on the same logits, in the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hccs.cli.boundary import require_models
from hccs.cli.output import Json, Output
from hccs.cli.tables import show
from hccs.errors import ParameterError, require_one_of

if TYPE_CHECKING:
    from hccs_lab.compare.source import ComparisonSettings


def compare(
    out: Annotated[Path, typer.Option(help="Folder for results; an interrupted comparison goes on.")],
    model: Annotated[
        str | None,
        typer.Argument(
            help="A fine-tuned classifier (folder or Hub name), or the folder of an hccs convert run. "
            "Without it: the BERT-tiny that ships and its task."
        ),
    ] = None,
    task: Annotated[str, typer.Option(help="sst2, mnli, snli or movies; a run has its own.")] = "",
    data: Annotated[
        str, typer.Option(help="Folder with the task's TSV files; without it the Hub is asked.")
    ] = "",
    vocabulary: Annotated[str, typer.Option(help="A BERT vocab.txt, for weights without a tokenizer.")] = "",
    methods: Annotated[
        str,
        typer.Option(
            help="Methods separated by spaces, each NAME or NAME:parameter=value,...; all by default."
        ),
    ] = "",
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
    from hccs_lab.compare import entries, tables
    from hccs_lab.compare.run import compare as run

    output = Output(json)
    chosen = entries.parse(methods.split() or entries.default_labels())
    settings = replace(
        _settings(model, task, data, vocabulary),
        rows=rows,
        sentences=sentences,
        examples=examples,
        seed=seed,
    )
    found = run(settings, chosen, out, jobs=jobs, say=output.say)
    tables.write_markdown(found, out / "comparison.md")
    for grid in tables.grids(found):
        show(output.console, *grid)
    output.results(found)
    lines = [f"tables in {out / 'comparison.md'}, everything in {out / 'comparison.json'}"]
    output.end("compare", lines, {"more methods": f"hccs compare ... --methods NAME --out {out}"})


def _settings(model: str | None, task: str, data: str, vocabulary: str) -> ComparisonSettings:
    """The source that MODEL names: a run, a classifier with --task, or what ships with the package."""
    from hccs.conversion.data.tasks import TASKS
    from hccs_lab.compare.source import ComparisonSettings, from_run
    from hccs_lab.demo import MODEL

    if task:
        require_one_of("task", task, TASKS, "For other data run hccs convert first.")
    if model and (Path(model) / "float" / "config.json").exists():
        run = from_run(Path(model))
        return replace(run, task=TASKS[task] if task else run.task, data=data or run.data)
    if model and not task:
        raise ParameterError("--task with a model", "none", f"One of {', '.join(TASKS)}.")
    return ComparisonSettings(
        model or str(MODEL), TASKS[task or "movies"], data=data or None, vocabulary=vocabulary or None
    )
