"""`hccs export`: a converted model for other runtimes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from hccs.cli.output import Output
from hccs.errors import ParameterError
from hccs.program.files import find

app = typer.Typer(
    help="Write a converted model for other runtimes: C, WebAssembly, ONNX.", no_args_is_help=True
)


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
        Literal["all", "used"],
        typer.Option(help="'used' keeps the words of --sentences alone; others are refused."),
    ] = "all",
) -> None:
    """A whole integer model in freestanding C99 that checks itself; of a table, the row functions."""
    from hccs.export import export_c, export_c_model, model_or_table
    from hccs.numbers.table import ParamTable

    found = model_or_table(model)
    output = Output()
    if isinstance(found, ParamTable):
        if sentences is not None or vocabulary != "all":
            raise ParameterError(
                "--sentences and --vocabulary with a whole integer model",
                f"{model}, which holds a table of parameters alone",
                "Leave them out, or name a model.hccs.",
            )
        folder = export_c(found, out)
        layers, heads = found.shape
        output.say(
            f"wrote {layers} layers of {heads} heads to {folder}; "
            f"check them with: make -C {shlex.quote(str(folder))}"
        )
        return
    from hccs.cli.sentences import read_sentences

    read = None if sentences is None else read_sentences(sentences, found.program)
    written = export_c_model(found, out, sequences=read, only_used_words=vocabulary == "used")
    output.say(
        f"wrote {written.folder}: {written.constant_bytes:,} bytes of constants, of them "
        f"{written.word_bytes:,} of words; {written.arena_bytes:,} bytes of RAM; "
        f"{written.examples} examples; check them with: make -C {shlex.quote(str(written.folder))} check"
    )
    if written.without_text:
        output.say(f"it takes token ids alone: {written.without_text}")


@app.command()
def wasm(
    model: Annotated[Path, typer.Argument(help="A finished run, or an integer model (model.hccs).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")] = Path("hccs_wasm"),
    demo: Annotated[bool, typer.Option("--demo", help="A page that searches passages, too.")] = False,
) -> None:
    """A model of texts for browsers, workers, node and Deno: WebAssembly, and an npm package around it."""
    from hccs.export import export_wasm
    from hccs.program import IntegerModel
    from hccs.program.files import find

    file = find(model)
    written = export_wasm(IntegerModel.load(file), out, name=file.stem, demo=demo)
    folder = shlex.quote(str(written.folder))
    output = Output()
    output.say(
        f"wrote {written.folder}: modules of {written.module_bytes:,} bytes (SIMD128) and "
        f"{written.plain_bytes:,}, {written.weight_bytes:,} bytes of weights; "
        f"check them with: npm test, in {folder}"
    )
    if demo:
        output.say(f"the page: python -m http.server -d {folder}")


@app.command()
def onnx(
    model: Annotated[Path, typer.Argument(help="A finished run, or an integer model (model.hccs).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("model.onnx"),
) -> None:
    """A whole integer model, with the same scores in every bit."""
    from hccs.executors.onnx.model import COUNT, PRECISION, write_checked
    from hccs.program import IntegerModel

    found = IntegerModel.load(find(model))
    path, precise = write_checked(found, out)
    answers = "scores" if found.labels else "vectors"
    output = Output()
    output.say(f"wrote {path}: {path.stat().st_size:,} bytes")
    output.say(f"ONNX Runtime: {COUNT} of {COUNT} random inputs get the same {answers} in every bit")
    if precise:
        output.say(f"This x86 CPU has no VNNI: set the session's option {PRECISION} to 1.")
