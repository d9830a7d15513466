"""`hccs export`: a converted model for other runtimes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hccs.cli.boundary import require_models
from hccs.errors import ParameterError

app = typer.Typer(help="Write a converted model for other runtimes: C, ONNX.", no_args_is_help=True)


@app.command()
def c(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run, or a parameter table.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")] = Path("hccs_c"),
) -> None:
    """Parameters and row functions in portable C99, with test vectors and a program that checks itself."""
    from hccs.export import export_c, run_table

    table = run_table(run)
    folder = export_c(table, out)
    layers, heads = table.shape
    Console().print(
        f"wrote {layers} layers of {heads} heads to {folder}; "
        f"check them with: make -C {shlex.quote(str(folder))}",
        markup=False,
    )


@app.command()
def onnx(
    model: Annotated[Path, typer.Argument(help="A finished run, or an integer model (model.hccs).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("model.onnx"),
    mode: Annotated[str, typer.Option(help="One of the four modes; the run's own by default.")] = "",
    attentions: Annotated[bool, typer.Option(help="Every layer's probabilities as outputs too.")] = False,
) -> None:
    """A run's converted model, float layers around HCCS; or a whole integer model, with the same scores."""
    if model.is_file():
        if mode or attentions:
            raise ParameterError(
                "--mode and --attentions with a run",
                f"{model}, an integer model",
                "Its arithmetic is fixed: leave them out.",
            )
        _whole_onnx(model, out)
        return
    require_models()
    from hccs.pipeline.convert.export_onnx import export_run

    path, found = export_run(model, out, mode=mode, attentions=attentions)
    console = Console()
    console.print(f"wrote {path}", markup=False)
    console.print(
        f"ONNX Runtime: {found.same_predictions} of {found.examples} predictions as PyTorch's, "
        f"accuracy {found.accuracy:.4f}, logits differ by at most {found.largest_difference:.1e}"
    )


def _whole_onnx(file: Path, out: Path) -> None:
    from hccs.export.onnx_program import equal_scores, write_onnx
    from hccs.program import IntegerModel

    model = IntegerModel.load(file)
    path, count = write_onnx(model.program, out), 32
    console = Console()
    console.print(f"wrote {path}: {path.stat().st_size:,} bytes", markup=False)
    same = equal_scores(path, model, count)
    console.print(f"ONNX Runtime: {same} of {count} random inputs get the same scores in every bit")
    if same < count:
        console.print(
            "The others differ: on an x86 CPU without VNNI set its option session.x64quantprecision to 1."
        )
        raise typer.Exit(1)
