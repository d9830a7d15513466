"""`hccs convert` and `hccs evaluate`: from a float model to a converted one, and its scores."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from hccs.cli.boundary import require_models
from hccs.cli.calibrate import Granularity, Scores
from hccs.cli.output import Json, Output, on_run, stage_times
from hccs.cli.tables import show
from hccs.errors import ParameterError, require_one_of
from hccs.numbers.modes import Mode

if TYPE_CHECKING:
    from hccs.conversion.converted import Converted
    from hccs.conversion.results import AllInteger, Results

Problem = Literal["classification", "regression", "tokens", "images", "embeddings", "rerank"]
Pooling = Literal["mean", "first", "last", "max"]


def convert(
    model: Annotated[str, typer.Argument(help="A folder with a transformers model, or a Hub name.")],
    out: Annotated[Path, typer.Option(help="The run's folder; the same command resumes an interrupted run.")],
    task: Annotated[str, typer.Option(help="sst2, mnli, snli, or movies (comes with hccs-lab).")] = "",
    data: Annotated[
        str, typer.Option(help="A folder with the task's TSV files; by default they come from the Hub.")
    ] = "",
    train: Annotated[
        str,
        typer.Option(
            help="Your own data instead of --task: a CSV, TSV or JSONL file, or a folder of images."
        ),
    ] = "",
    dev: Annotated[
        str, typer.Option(help="The dev file of --train; by default a tenth of --train is held out.")
    ] = "",
    unlabelled: Annotated[
        str,
        typer.Option(
            help="Texts without labels, instead of --task or --train: CSV, TSV or JSONL with columns --text, "
            "or a .txt file with one text per line (a tab between pairs). Training follows the float model "
            "alone; scores are those on --dev or, without it, agreement with the float model."
        ),
    ] = "",
    text: Annotated[str, typer.Option(help="The text column, or two separated by a comma.")] = "sentence",
    label: Annotated[str, typer.Option(help="The column of labels or values.")] = "label",
    problem: Annotated[
        Problem,
        typer.Option(
            help="classification of texts or pairs; regression, one value per text; tokens, a label per word "
            "(separated by blanks, or lists in JSON lines); images, one folder per class; embeddings, unit "
            "vectors of texts, from --unlabelled texts alone; or rerank, one value per query and passage."
        ),
    ] = "classification",
    metric: Annotated[
        str,
        typer.Option(
            help="accuracy, f1 or matthews; pearson or spearman for values; or MODULE:FUNCTION of your own, "
            "which takes logits and labels and returns a number, higher for better."
        ),
    ] = "",
    labels: Annotated[
        str,
        typer.Option(
            help="The data's labels, separated by commas, in the order of the model's outputs, where the "
            "model names them otherwise."
        ),
    ] = "",
    new_head: Annotated[
        bool,
        typer.Option("--new-head", help="Replace the model's head, and fine-tune the model first."),
    ] = False,
    vocabulary: Annotated[str, typer.Option(help="A BERT vocab.txt, for weights without a tokenizer.")] = "",
    n: Annotated[
        int | None,
        typer.Option(
            help="Longest sequence in tokens; by default the task's own, or one that the data suggests."
        ),
    ] = None,
    granularity: Annotated[Granularity, typer.Option(help="Which heads share their parameters.")] = "head",
    mode: Annotated[Mode, typer.Option(help="How rows are normalised.")] = Mode.I16_DIV,
    lines: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2,
            help="Lines of a score: 1 is the paper's form, the default with retraining; 2 are close enough "
            "to softmax that no training is needed, the default with --no-retrain.",
        ),
    ] = None,
    scores: Annotated[
        Scores | None,
        typer.Option(
            help="Scores of two lines: 'uint8', the default up to n = 128, is fastest on CPUs; 'int16' is "
            "finer."
        ),
    ] = None,
    refine: Annotated[
        bool, typer.Option(help="Fit theta and scales to the model's answers after calibration.")
    ] = True,
    reconstruct: Annotated[
        bool,
        typer.Option(
            help="With --no-retrain: correct weights by closed-form ridge regression, so that layers follow "
            "those of the float model."
        ),
    ] = True,
    integer: Annotated[
        Literal["whole", "attention"],
        typer.Option(
            help="'whole' trains the model as its integer program computes and lowers it; 'attention' "
            "retrains with HCCS alone and leaves floats around it."
        ),
    ] = "whole",
    retrain: Annotated[
        bool, typer.Option(help="Train the model; --no-retrain delivers the calibrated model.")
    ] = True,
    fine_tuning_epochs: Annotated[
        float | None, typer.Option(help="Epochs of fine-tuning, where the model's head is new (3).")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Epochs of retraining.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of retraining.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step and process.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    pooling: Annotated[
        Pooling | None,
        typer.Option(help="For embeddings of a model that names no pooling: mean by default."),
    ] = None,
    pairs: Annotated[
        str,
        typer.Option(
            help="For embeddings: a table with sentence1, sentence2 and score, to compare both models on."
        ),
    ] = "",
    retrieval: Annotated[
        str,
        typer.Option(
            help="For embeddings: a folder with documents.tsv (id, title, text), queries.tsv (id, text) and "
            "relevance.txt (TREC's form), to compare both models on."
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Collect, calibrate, evaluate, train in integers, lower to an integer model, evaluate and save."""
    require_models()
    own = {
        "pooling": pooling,
        "pairs": pairs or None,
        "retrieval": retrieval or None,
    }
    if problem == "embeddings":
        options = {"--task": task, "--train": train, "--dev": dev, "--metric": metric, "--labels": labels}
        options |= {"--new-head": "yes" * new_head, "--data": data, "--vocabulary": vocabulary}
        shared = {
            "reconstruct": reconstruct,
            "seed": seed,
            "scores": scores,
        }
        _convert_encoder(model, unlabelled, out, options, json, text=text, n=n, **own, **shared)
        return
    if any(own.values()):
        raise ParameterError(
            "--problem embeddings",
            " and ".join(f"--{name}" for name, value in own.items() if value),
            "Leave it out for other problems.",
        )
    from hccs.conversion import run
    from hccs.conversion.converted import REPORT
    from hccs.conversion.data.tasks import TASKS
    from hccs.conversion.runs import state
    from hccs.conversion.settings import FINE_TUNING, Settings
    from hccs.conversion.training import RETRAINING

    names = tuple(name.strip() for name in labels.split(",") if name.strip())
    changes = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size}
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    if given and not retrain:
        raise ParameterError(
            "--no-retrain without a recipe for retraining",
            " and ".join(f"--{name.replace('_', '-')}" for name in given),
            "Leave one of them out; --fine-tuning-epochs is for the training of a new head.",
        )
    recipe = replace(RETRAINING, **given) if retrain else None
    tuning: dict[str, Any] = {} if fine_tuning_epochs is None else {"epochs": fine_tuning_epochs}
    output = Output(json, quiet=not state().is_main_process)
    if output.console.quiet:  # every process would give the same warnings
        warnings.simplefilter("ignore")
    chosen = _task(task, train, dev, text, label, names, n, problem, unlabelled)
    if chosen.name not in TASKS or chosen.custom:
        chosen = run.with_length(chosen, n, data or None, model, vocabulary or None, output.say)
    settings = Settings(
        model=model,
        task=chosen,
        data=data or None,
        vocabulary=vocabulary or None,
        labels=names,
        new_head=new_head,
        granularity=granularity,
        mode=mode.value,
        refine=refine,
        reconstruct=reconstruct,
        seed=seed,
        fine_tuning=replace(FINE_TUNING, **tuning),
        retraining=recipe,
        integer=integer,
        metric=metric,
        lines=lines,
        scores=scores,
    )
    with output.results_alone():
        found = run.convert(settings, out, output.say)
    show_summary(output.console, found.results)
    show_end(output, found)
    stages, seconds = found.results.stages, found.results.seconds
    written = {name: asdict(stage) for name, stage in stages.items()}
    output.results({"folder": str(out), "report": str(out / REPORT), "stages": written, "seconds": seconds})


def _convert_encoder(
    model: str, unlabelled: str, out: Path, options: dict[str, Any], json: bool, **settings: Any
) -> None:
    from hccs.conversion.certificate import FILE
    from hccs.conversion.converted import REPORT
    from hccs.conversion.embeddings import EmbeddingSettings, convert_embeddings

    given = [option for option, value in options.items() if value]
    if not unlabelled or given:
        raise ParameterError(
            "--unlabelled texts for embeddings, and no labels",
            " and ".join(given) or "none",
            "The float model's own vectors are followed: give texts like those it will be asked about.",
        )
    output = Output(json)
    chosen = EmbeddingSettings(model=model, texts=unlabelled, **settings)
    with output.results_alone():
        found = convert_embeddings(chosen, out, output.say)
    show(output.console, "certificate", ["", "float", "integers"], found.certificate.rows())
    lines = [
        found.summary,
        f"model in {found.model}, certificate in {out / FILE}",
        f"report: {found.report}",
        stage_times(found.results.seconds),
    ]
    commands = {"check it": f"hccs fingerprint {found.model}", "look at it": f"hccs show {found.model}"}
    output.end("converted", lines, commands)
    output.results(
        {
            "folder": str(out),
            "report": str(out / REPORT),
            "certificate": asdict(found.certificate),
            "seconds": found.results.seconds,
        }
    )


def _task(
    task: str,
    train: str,
    dev: str,
    text: str,
    label: str,
    names: tuple[str, ...],
    n: int | None,
    problem: str,
    unlabelled: str = "",
) -> Any:
    from hccs.conversion.data import tasks

    usual = {"images": ["image"], "rerank": ["query", "passage"]}.get(problem, ["sentence"])
    columns = usual if text == "sentence" else text.split(",")
    sources = {"--task": task, "--train": train, "--unlabelled": unlabelled}
    given = [option for option, value in sources.items() if value]
    if len(given) != 1:
        raise ParameterError(
            "either --task, --train or --unlabelled",
            " and ".join(given) or "none of them",
            "Name one source of data.",
        )
    if not task:
        return tasks.custom_task(
            unlabelled or train,
            dev or None,
            columns,
            label,
            names=names,
            problem=problem,
            unlabelled=bool(unlabelled),
        )
    require_one_of("task", task, tasks.TASKS, "Or give --train FILE.")
    if problem != tasks.TASKS[task].problem:
        raise ParameterError(
            f"the problem of {task}, {tasks.TASKS[task].problem}", problem, "Leave --problem out."
        )
    return tasks.TASKS[task] if n is None else replace(tasks.TASKS[task], n=n)


def show_summary(console: Console, results: Results) -> None:
    """What a run delivers: the score of every step, and its KL."""
    from hccs.conversion.settings import LineForm

    found = results.calibrate
    form = LineForm(found.lines, found.scores, found.sum_bits)
    title = "points are against the float model"
    if (form.lines, form.sum_bits) != (1, 15):  # the paper's own
        title += f"; HCCS of {form}"
    show(console, title, results.header, list(results.rows.values()))
    console.print(f"mean KL over heads: {found.kl:.4f} as calibrated, {results.save.kl:.4f} as delivered")
    correction = None if results.reconstruct is None else results.reconstruct.correction
    if correction is not None:
        before, after = correction.kl
        verdict = "" if correction.kept else "; weights stay as they were"
        told = f"{before:.5f}, with corrected weights {after:.5f}{verdict}"
        console.print(f"KL to the float model's answers on held-back sentences: {told}", soft_wrap=True)
    if results.integer is not None:
        _show_integer(console, results.integer)


def _show_integer(console: Console, found: AllInteger) -> None:
    if found.reached is None:
        console.print(f"not all in integers: {found.refused}", markup=False, soft_wrap=True)
        return
    if found.equal is not None:
        console.print(f"{100 * found.equal:.1f} % of its answers are those of the model as it was trained")
    console.print(
        f"all in integers: {100 * found.reached.against_float.value:+.2f} points, "
        f"{100 * found.agreement:.1f} % agreement with floats around HCCS, "
        f"{found.bytes / 2**20:.1f} MiB instead of {found.float32_bytes / 2**20:.1f} in float32",
        soft_wrap=True,
    )


def show_end(output: Output, found: Converted) -> None:
    """A run in one sentence, where its time went, where things are, and what to do next."""
    in_integers, out = "integer" in found.scores, found.folder
    lines = [
        found.summary,
        f"model in {found.model}" + (f", all in integers in {out / 'model.hccs'}" if in_integers else ""),
        f"report: {found.report}",
        stage_times(found.results.seconds),
    ]
    commands = ("predict", "bench", "export c", "export onnx") if in_integers else ("evaluate",)
    output.end("converted", lines, on_run(out, *commands))
