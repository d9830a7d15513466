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

    read = None if sentences is None else read_sentences(sentences, found.program, model)
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
    mode: Annotated[str, typer.Option(help="One of the modes; the run's own by default.")] = "",
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
