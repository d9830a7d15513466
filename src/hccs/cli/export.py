"""`hccs export`: a converted model for other runtimes."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hccs.cli.boundary import require_models
from hccs.errors import ParameterError
from hccs.numbers.modes import Mode
from hccs.program.files import IN_RUN

app = typer.Typer(help="Write a converted model for other runtimes: C, ONNX.", no_args_is_help=True)


class Vocabulary(str, Enum):
    """Which words a model in C keeps."""

    ALL = "all"
    USED = "used"


@app.command()
def c(
    model: Annotated[
        Path, typer.Argument(help="A finished run, an integer model (model.hccs), or a parameter table.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")] = Path("hccs_c"),
    sentences: Annotated[
        Path | None,
        typer.Option(
            help="Examples that the C code checks itself on: a sentence per line, token ids or text."
        ),
    ] = None,
    vocabulary: Annotated[
        Vocabulary, typer.Option(help="'used' keeps the words of --sentences alone; others are refused.")
    ] = Vocabulary.ALL,
) -> None:
    """A whole integer model in freestanding C99 that checks itself; of a table, the row functions."""
    from hccs.export import export_c
    from hccs.export.source import model_or_table
    from hccs.numbers.table import ParamTable

    found = model_or_table(model)
    console = Console()
    if isinstance(found, ParamTable):
        if sentences is not None or vocabulary is not Vocabulary.ALL:
            raise ParameterError(
                "--sentences and --vocabulary with a whole integer model",
                f"{model}, which holds a table of parameters alone",
                "Leave them out, or name a model.hccs.",
            )
        folder = export_c(found, out)
        layers, heads = found.shape
        console.print(
            f"wrote {layers} layers of {heads} heads to {folder}; "
            f"check them with: make -C {shlex.quote(str(folder))}",
            markup=False,
        )
        return
    from hccs.cli.sentences import read_sentences
    from hccs.export import export_c_model

    read = None if sentences is None else read_sentences(sentences, found.program)
    written = export_c_model(found, out, sequences=read, only_used_words=vocabulary is Vocabulary.USED)
    console.print(
        f"wrote {written.folder}: {written.constant_bytes:,} bytes of constants, of them "
        f"{written.word_bytes:,} of words; {written.arena_bytes:,} bytes of RAM; "
        f"{written.examples} examples; check them with: make -C {shlex.quote(str(written.folder))} check",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def onnx(
    model: Annotated[Path, typer.Argument(help="A finished run, or an integer model (model.hccs).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("model.onnx"),
    float_layers: Annotated[
        bool, typer.Option("--float-layers", help="A run's model with float layers around HCCS instead.")
    ] = False,
    mode: Annotated[
        Mode | None, typer.Option(help="With --float-layers: another mode than the run's own.")
    ] = None,
    attentions: Annotated[
        bool, typer.Option("--attentions", help="With --float-layers: probabilities as outputs too.")
    ] = False,
) -> None:
    """A whole integer model, with the same scores; of a run without one, float layers around HCCS."""
    whole = model / IN_RUN if model.is_dir() else model
    if float_layers and model.is_file():
        raise ParameterError(
            "a run with --float-layers", f"{model}, an integer model", "Name the run's folder."
        )
    if not float_layers and whole.is_file():
        if mode or attentions:
            raise ParameterError(
                "--mode and --attentions with --float-layers",
                "an integer model, whose arithmetic is fixed",
                "Add --float-layers, or leave them out.",
            )
        _whole_onnx(whole, out)
        return
    require_models()
    from hccs.conversion.export_onnx import export_run

    path, found = export_run(model, out, mode=mode.value if mode else "", attentions=attentions)
    console = Console()
    console.print(f"wrote {path}", markup=False)
    console.print(
        f"ONNX Runtime: {found.same_predictions} of {found.examples} predictions as PyTorch's, "
        f"accuracy {found.accuracy:.4f}, logits differ by at most {found.largest_difference:.1e}"
    )


def _whole_onnx(file: Path, out: Path) -> None:
    from hccs.executors.onnx.check import COUNT, PRECISION, write_checked
    from hccs.program import IntegerModel

    model = IntegerModel.load(file)
    path, precise = write_checked(model, out)
    answers = "scores" if model.labels else "vectors"
    console = Console()
    console.print(f"wrote {path}: {path.stat().st_size:,} bytes", markup=False)
    console.print(f"ONNX Runtime: {COUNT} of {COUNT} random inputs get the same {answers} in every bit")
    if precise:
        console.print(f"This x86 CPU has no VNNI: set the session's option {PRECISION} to 1.", markup=False)
