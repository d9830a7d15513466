"""`hccs convert` and `hccs evaluate`: from a float model to a converted one, and its scores."""

from __future__ import annotations

import warnings
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hccs.cli.boundary import require_models
from hccs.cli.calibrate import Granularity, Scores
from hccs.cli.output import Json, Output, on_run, stage_times
from hccs.cli.tables import show
from hccs.errors import ParameterError
from hccs.numbers.modes import Mode

LONGEST = 64
"""Tokens of the longest sequence of data that brings no length of its own."""


class Backend(str, Enum):
    """Where attention's q, k and v are floats, where int8, and where everything is integers."""

    FLOAT = "float"
    INTEGER = "integer"
    WHOLE = "whole"


class Problem(str, Enum):
    """What a model is asked."""

    CLASSIFICATION = "classification"
    REGRESSION = "regression"
    TOKENS = "tokens"
    IMAGES = "images"


class Integer(str, Enum):
    """What of a model becomes integers."""

    WHOLE = "whole"
    ATTENTION = "attention"


def convert(
    model: Annotated[str, typer.Argument(help="A folder with a transformers model, or a Hub name.")],
    out: Annotated[Path, typer.Option(help="The run's folder; an interrupted run goes on.")],
    task: Annotated[
        str, typer.Option(help="sst2, mnli, snli, movies (built in), or hub:NAME[:CONFIG].")
    ] = "",
    data: Annotated[
        str, typer.Option(help="Folder with the task's TSV files; without it the Hub is asked.")
    ] = "",
    train: Annotated[
        str,
        typer.Option(help="A CSV, TSV or JSONL file, or folder of images, of your own, instead of --task."),
    ] = "",
    dev: Annotated[str, typer.Option(help="Its dev file; without one a tenth of --train is held out.")] = "",
    unlabelled: Annotated[
        str,
        typer.Option(
            help="Texts without labels, instead of --task or --train: CSV, TSV or JSONL with columns --text, "
            "or a .txt file, one a line (pairs: a tab between). Training follows the float model alone; "
            "scores are those on --dev or, without it, agreement with the float model."
        ),
    ] = "",
    text: Annotated[str, typer.Option(help="Its text column, or two separated by a comma.")] = "sentence",
    label: Annotated[str, typer.Option(help="Its column of labels or values.")] = "label",
    problem: Annotated[
        Problem,
        typer.Option(
            help="classification of texts or pairs; regression, one value each; tokens, a label per word "
            "(words and labels between blanks, or lists in JSON lines); or images, a folder by class."
        ),
    ] = Problem.CLASSIFICATION,
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
            help="The data's labels, separated by commas, in the order of the model's outputs: where its "
            "own names differ from the data's. For hub: data the names of the numbers."
        ),
    ] = "",
    new_head: Annotated[
        bool,
        typer.Option("--new-head", help="Replace the model's head and fine-tune it first."),
    ] = False,
    vocabulary: Annotated[str, typer.Option(help="A BERT vocab.txt, for weights without a tokenizer.")] = "",
    n: Annotated[
        int | None, typer.Option(help="Longest sequence in tokens; the task's own, or 64, by default.")
    ] = None,
    granularity: Annotated[Granularity, typer.Option(help="Heads that share a triple.")] = Granularity.HEAD,
    mode: Annotated[Mode, typer.Option(help="How rows are normalised.")] = Mode.I16_DIV,
    lines: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2,
            help="Lines of a score: 1 is the paper's, the default with retraining; 2 come so close to "
            "softmax that no training is needed, the default with --no-retrain.",
        ),
    ] = None,
    scores: Annotated[
        Scores | None,
        typer.Option(
            help="Of two lines: 'uint8', the default up to n = 128, is the fastest on CPUs; 'int16' is finer."
        ),
    ] = None,
    refine: Annotated[
        bool, typer.Option(help="Fit theta and scales to the model's answers after calibration.")
    ] = True,
    reconstruct: Annotated[
        bool,
        typer.Option(
            help="Without retraining: mend weights in closed form, so that layers follow the float model's."
        ),
    ] = True,
    integer: Annotated[
        Integer,
        typer.Option(
            help="'whole' trains the model as its integer program computes and lowers it; 'attention' "
            "retrains with HCCS alone and leaves floats around it."
        ),
    ] = Integer.WHOLE,
    retrain: Annotated[
        bool, typer.Option(help="Train; without it the calibrated model is delivered.")
    ] = True,
    epochs: Annotated[float | None, typer.Option(help="Epochs of retraining.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of retraining.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step and process.")] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    json: Json = False,
) -> None:
    """Collect, calibrate, evaluate, train in integers, lower to an integer model, evaluate and save."""
    require_models()
    from hccs.conversion import stages as pipeline
    from hccs.conversion.finishing import finish
    from hccs.conversion.report.write import NAME
    from hccs.conversion.runs.processes import state
    from hccs.conversion.settings import ConversionSettings
    from hccs.conversion.steps import RETRAINING

    names = tuple(name.strip() for name in labels.split(",") if name.strip())
    changes = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size}
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    if given and not retrain:
        raise ParameterError(
            "--no-retrain without a recipe for retraining",
            " and ".join(f"--{name.replace('_', '-')}" for name in given),
            "Leave one of them out.",
        )
    settings = ConversionSettings(
        model=model,
        task=_task(task, train, dev, text, label, names, n, problem.value, unlabelled),
        data=data or None,
        vocabulary=vocabulary or None,
        labels=names,
        new_head=new_head,
        granularity=granularity.value,
        mode=mode.value,
        refine=refine,
        reconstruct=reconstruct,
        seed=seed,
        retraining=replace(RETRAINING, **given) if retrain else None,
        integer=integer.value,
        metric=metric,
        lines=lines,
        scores=None if scores is None else scores.value,
    )
    output = Output(json, quiet=not state().is_main_process)
    if output.console.quiet:  # every process would give the same warnings
        warnings.simplefilter("ignore")
    results = pipeline.convert(settings, out, output.say)
    finish(out, output.say)
    show_summary(output.console, results)
    show_end(output, results, out)
    output.results({"folder": str(out), "report": str(out / NAME), **results})


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

    columns = ["image"] if problem == "images" and text == "sentence" else text.split(",")
    sources = {"--task": task, "--train": train, "--unlabelled": unlabelled}
    given = [option for option, value in sources.items() if value]
    if len(given) != 1:
        raise ParameterError(
            "either --task, --train or --unlabelled",
            " and ".join(given) or "none of them",
            "Name one source of data.",
        )
    longest = LONGEST if n is None else n
    if unlabelled:
        return tasks.custom_task(
            unlabelled, dev or None, columns, label, longest, names, problem, unlabelled=True
        )
    if train:
        return tasks.custom_task(train, dev or None, columns, label, longest, names, problem)
    if task.startswith("hub:"):
        return tasks.hub_task(task[4:], columns, label, names, longest, problem)
    if task not in tasks.TASKS:
        raise ParameterError(f"a task among {', '.join(tasks.TASKS)}", repr(task), "Or give --train FILE.")
    if problem != tasks.TASKS[task].problem:
        raise ParameterError(
            f"the problem of {task}, {tasks.TASKS[task].problem}", problem, "Leave --problem out."
        )
    return tasks.TASKS[task] if n is None else replace(tasks.TASKS[task], n=n)


def show_summary(console: Console, results: dict[str, Any]) -> None:
    """What a run delivers: the score of every mode before and after training, and its KL."""
    stages = results["stages"]
    name = stages["float"].get("metric", "accuracy")
    base = stages["float"][name]
    done = {"without retraining": "without retraining", "retrain": "retrained"}
    done = {stage: label for stage, label in done.items() if stage in stages}
    header = [f"dev {name}", *(cell for label in done.values() for cell in (label, "points"))]
    rows = [["float", f"{base:.4f}", *[""] * (len(header) - 2)]]
    for mode in stages["without retraining"]["modes"]:
        rows.append([f"HCCS {mode}{', delivered' if mode == stages['save']['mode'] else ''}"])
        for stage in done:
            score = stages[stage]["modes"][mode]
            rows[-1] += [f"{score:.4f}", f"{100 * (score - base):+.2f}"]
    score = stages["integer"].get(name)
    if score is not None:
        blank = [""] * (len(header) - 3)
        rows.append(["delivered, int8 q, k, v", *blank, f"{score:.4f}", f"{100 * (score - base):+.2f}"])
    reached = [stages.get(stage, {}).get(name) for stage in ("whole without training", "whole")]
    if reached[1] is not None:
        shown = [["", ""] if s is None else [f"{s:.4f}", f"{100 * (s - base):+.2f}"] for s in reached]
        rows.append(["all in integers", *(cell for pair in shown[2 - len(done) :] for cell in pair)])
    show(console, f"points are against the float model{_form(stages['calibrate'])}", header, rows)
    calibrated, delivered = stages["calibrate"]["kl"], stages["save"]["kl"]
    console.print(f"mean KL over heads: {calibrated:.4f} as calibrated, {delivered:.4f} as delivered")
    for stage, label in done.items():
        if "against_float" in stages[stage]:  # runs of earlier versions have no errors
            points, error = (100 * value for value in stages[stage]["against_float"])
            console.print(
                f"{label}: {points:+.2f} ± {error:.2f} points, the standard error of the difference"
            )
    console.print(_mended(stages.get("reconstruct", {})), end="", soft_wrap=True)
    whole = stages.get("whole")
    if whole is None:
        return
    if "refused" in whole:
        console.print(f"not all in integers: {whole['refused']}", markup=False, soft_wrap=True)
        return
    if "equal" in whole:
        console.print(f"{100 * whole['equal']:.1f} % of its answers are those of the model as it was trained")
    console.print(
        f"all in integers: {100 * (whole[name] - base):+.2f} points, "
        f"{100 * whole['agreement']:.1f} % agreement with floats around HCCS, "
        f"{whole['bytes'] / 2**20:.1f} MiB instead of {whole['float32_bytes'] / 2**20:.1f} in float32",
        soft_wrap=True,
    )


def show_end(output: Output, results: dict[str, Any], out: Path) -> None:
    """A run in one sentence, where its time went, where things are, and what to do next."""
    from hccs.conversion.report.conversion import Conversion, sentence
    from hccs.conversion.report.write import NAME

    whole = "bytes" in results["stages"].get("whole", {})
    lines = [
        sentence(Conversion(out)),
        f"model in {out / 'model'}" + (f", all in integers in {out / 'model.hccs'}" if whole else ""),
        f"report: {out / NAME}",
        stage_times(results["seconds"]),
    ]
    output.end(
        "converted",
        lines,
        on_run(out, *(("bench", "where", "export c", "export onnx") if whole else ("evaluate",))),
    )


def _form(calibrated: dict[str, Any]) -> str:
    """What a run's HCCS has that the paper's has not; runs of earlier versions say nothing."""
    if calibrated.get("lines", 1) == 1 and calibrated.get("sum_bits", 15) == 15:
        return ""
    from hccs.conversion.forms import LineForm

    return f"; HCCS of {LineForm(*(calibrated[name] for name in ('lines', 'scores', 'sum_bits')))}"


def _mended(stage: dict[str, Any]) -> str:
    """What mending weights has brought, in a line, or nothing of a run without it."""
    if "kl" not in stage:
        return ""
    before, after = stage["kl"]
    verdict = "" if stage["kept"] else "; weights stay as they were"
    return f"KL to float's answers on held-back sentences: {before:.5f}, mended {after:.5f}{verdict}\n"


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    mode: Annotated[Mode | None, typer.Option(help="One mode; all of them by default.")] = None,
    file: Annotated[str, typer.Option(help="Another file with the task's columns.")] = "",
    metric: Annotated[str, typer.Option(help="Another metric than the run's, as in hccs convert.")] = "",
    backend: Annotated[
        Backend,
        typer.Option(
            help="'integer' also quantises q, k and v, and shows what that costs; 'whole' scores the model "
            "that is integers throughout."
        ),
    ] = Backend.FLOAT,
    json: Json = False,
) -> None:
    """Score a converted model again, in any mode, on any file."""
    require_models()
    from hccs.conversion.evaluate import evaluate as score

    output = Output(json)
    found = score(run, (mode.value,) if mode else (), file or None, backend.value, metric or None)
    output.results(found)
    by = found.pop("metric")
    title = f"{by} on {found.pop('examples')} examples"
    against = {Backend.INTEGER: ["against float q, k, v, points"], Backend.WHOLE: ["points"]}.get(backend, [])
    labels = {"float": "float", "whole": "all in integers"}
    rows = []
    for name, value in found.items():
        base = "float" if name == "whole" else name.removesuffix(" integer")
        difference = f"{100 * (value - found[base]):+.2f}" if base != name else ""
        rows.append([labels.get(name, f"HCCS {name}"), f"{value:.4f}", *[difference] * len(against)])
    show(output.console, title, ["model", by, *against], rows)
