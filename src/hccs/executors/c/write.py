"""`export_c_model`: an integer program as a folder of C that checks itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs._files import folder as _folder
from hccs.errors import DataError, HccsError
from hccs.executors.c import examples, generate_source, model_source, text_source
from hccs.executors.c.table import TARGET, Writing, arena_bytes, code_of
from hccs.executors.c.tokenizer import Tables, tables_of
from hccs.program import IntegerModel, Program
from hccs.program.plan import plan
from hccs.program.program import GENERATE, TAG

SOURCES = (
    "hccs_operators.h",
    "hccs_check.c",
    "hccs_cost.c",
    "hccs_say.h",
    "hccs_nofloat.sh",
    "Makefile",
    "README.md",
    "boards/board.h",
    "boards/host.c",
    "boards/bare.c",
    "boards/bare.h",
    "boards/cortex_m.c",
    "boards/cortex_m.ld",
    "boards/riscv.c",
    "boards/riscv.ld",
)
PRODUCTS = ("build",)
"""What `make` leaves in the folder."""

# Rows of bytes fill their literals to the last one: nobody reads the zero that C would append.
_QUIET = """#if defined(__clang__) ? __clang_major__ >= 21 : defined(__GNUC__) && __GNUC__ >= 15
#pragma GCC diagnostic ignored "-Wunterminated-string-initialization"
#endif
"""


@dataclass(frozen=True)
class Exported:
    """The folder, the bytes of its constants and of the words among them, and the bytes of its arena.

    `without_text` says why the model takes token ids alone; it is empty for one that reads texts.
    """

    folder: Path
    constant_bytes: int
    word_bytes: int
    arena_bytes: int
    examples: int
    without_text: str


def export_c_model(
    model: IntegerModel,
    out: str | os.PathLike[str],
    *,
    sequences: Sequence[Any] | None = None,
    only_used_words: bool = False,
) -> Exported:
    """Write a model as freestanding C99 into the folder `out`; an earlier export there is replaced.

    `sequences` of token ids (images for a model of images) become the examples that `make check` compares;
    without them, random ones do. With `only_used_words` the C model keeps the words of these sequences alone
    and refuses every other token.
    """
    _folder.require_free(out, products=PRODUCTS)
    program = model.program
    for step in program.operators:  # C would not notice
        step.require_rows(program.rows)
    kept = _kept(program, sequences) if only_used_words else None
    tables, without_text = _tables(program)
    writing = Writing(program, plan(program, TARGET), kept, tables)
    found = examples.examples_of(model, sequences, kept, tables is not None)
    sources = resources.files("hccs.executors.c") / "sources"
    contents: dict[str, str | bytes] = {
        name: sources.joinpath(name).read_text(encoding="utf-8") for name in SOURCES
    }
    contents["hccs_model.h"] = model_source.header(writing)
    contents["hccs_model.c"] = model_source.source(writing)
    contents["hccs_weights.h"] = weights_header(writing)
    contents["hccs_weights.c"] = weights_source(writing)
    contents["hccs_examples.h"] = examples.header(program, found)
    contents["hccs_examples.c"] = examples.source(program, found)
    if generate_source.generates(program):
        contents["hccs_sample.h"] = sources.joinpath("hccs_sample.h").read_text(encoding="utf-8")
        contents["hccs_generate.h"] = generate_source.header(writing)
        contents["hccs_generate.c"] = generate_source.source(writing)
    if tables is not None:
        contents["hccs_tokenizer.h"] = sources.joinpath("hccs_tokenizer.h").read_text(encoding="utf-8")
        contents["hccs_text.h"] = text_source.header(tables)
        contents["hccs_text.c"] = text_source.source(tables) + model_source.text_function(writing)
        contents["hccs_vocabulary.c"] = text_source.vocabulary(tables)
    folder = _folder.replace(out, contents, products=PRODUCTS)
    sizes = [code_of(step).size(writing, step) for step in program.operators]
    words, others = (sum(part) for part in zip(*sizes, strict=True))
    return Exported(folder, words + others, words, arena_bytes(writing.plan), len(found), without_text)


def _tables(program: Program) -> tuple[Tables | None, str]:
    """The tables of the program's tokenizer, or why there are none."""
    if program.text is None or not program.tokenizer:
        return None, "the model has no tokenizer"
    if program.text.kind == GENERATE:
        return None, "a language model takes and gives token ids in C"
    if program.text.kind == TAG:
        return None, "the labels of a tagger belong to words, which C does not keep"
    try:
        return tables_of(program.tokenizer, program.text), ""
    except HccsError as error:
        return None, str(error)


def weights_header(writing: Writing) -> str:
    """`hccs_weights.h`."""
    declared = [
        f"extern const {code_of(step).declared.format(writing.name(step))};"
        for step in writing.program.operators
        if code_of(step).declared
    ]
    return f"""/* The constants of every operator, by its number and the value that it writes. */
#ifndef HCCS_WEIGHTS_H
#define HCCS_WEIGHTS_H

#include "hccs_operators.h"

{chr(10).join(declared)}

#endif
"""


def weights_source(writing: Writing) -> str:
    """`hccs_weights.c`."""
    steps = writing.program.operators
    definitions = [text for step in steps for text in code_of(step).constants(writing, step)]
    title = '/* The constants of every operator. */\n#include "hccs_weights.h"\n'
    return "\n".join([title, _QUIET, *definitions])


def _kept(program: Program, sequences: Sequence[Any] | None) -> NDArray[np.int32]:
    """The tokens of all sequences, in ascending order."""
    if sequences is None or program.embed.image is not None:
        raise DataError(
            "sequences of token ids whose words to keep",
            "a model of images" if sequences is not None else "none",
            "Give --sentences, or keep all words.",
        )
    return np.unique(np.concatenate([np.asarray(sequence).ravel() for sequence in sequences])).astype(
        np.int32
    )
