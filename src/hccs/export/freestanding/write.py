"""`export_c_model`: a whole integer program as a folder of C that checks itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._files import folder as _folder
from hccs.errors import DataError
from hccs.export.freestanding import calls, constants, examples
from hccs.export.freestanding.plan import longest_rows, plan
from hccs.program import IntegerModel
from hccs.program import operators as op

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

# Rows of bytes fill their literals to the last one: nobody reads the zero that C would put behind.
_QUIET = """#if defined(__clang__) ? __clang_major__ >= 21 : defined(__GNUC__) && __GNUC__ >= 15
#pragma GCC diagnostic ignored "-Wunterminated-string-initialization"
#endif
"""


@dataclass(frozen=True)
class Exported:
    """The folder, the bytes of its constants, of them those of the words, and the bytes of its arena."""

    folder: Path
    constant_bytes: int
    word_bytes: int
    arena_bytes: int
    examples: int


def export_c_model(
    model: IntegerModel,
    out: str | os.PathLike[str],
    *,
    sequences: Sequence[Any] | None = None,
    only_used_words: bool = False,
) -> Exported:
    """Write a whole model as freestanding C99 into the folder `out`; an earlier export there is replaced.

    `sequences` of token ids (images for a model of images) become the examples that `make check` compares;
    without them some are made up. With `only_used_words` the C model keeps the words of these sequences alone
    and refuses every other token.
    """
    _folder.require_free(out, products=PRODUCTS)
    program = model.program
    _require_runnable(program)
    kept = _kept(program, sequences) if only_used_words else None
    placed = plan(program)
    found = examples.examples_of(model, sequences, kept)
    sources = resources.files("hccs.export.freestanding") / "sources"
    contents: dict[str, str | bytes] = {
        name: sources.joinpath(name).read_text(encoding="utf-8") for name in SOURCES
    }
    contents["hccs_model.h"] = calls.header(program, placed)
    contents["hccs_model.c"] = calls.source(program, placed)
    contents["hccs_weights.h"] = _weights_header(program)
    definitions = constants.definitions(program, longest_rows(program), kept)
    contents["hccs_weights.c"] = "\n".join(
        ['/* The constants of every operator. */\n#include "hccs_weights.h"\n', _QUIET, *definitions]
    )
    contents["hccs_examples.h"] = examples.header(found)
    contents["hccs_examples.c"] = examples.source(program, found)
    folder = _folder.replace(out, contents, products=PRODUCTS)
    words, others = constants.bytes_of(program, longest_rows(program), kept)
    return Exported(folder, words + others, words, placed.arena_bytes, len(found))


def _require_runnable(program: op.Program) -> None:
    """Refuse what C would not notice: sequences with more rows than positions, or than a head's sums hold."""
    longest, embed = longest_rows(program), program.embed
    if isinstance(embed, op.Embed) and embed.first_position + longest > len(embed.params.positions):
        raise DataError(
            f"positions for {longest} tokens from {embed.first_position} on",
            str(len(embed.params.positions)),
            "Lower the model anew.",
        )
    for step in program.operators:
        if isinstance(step, op.Attention):
            step.theta.require_columns(longest)


def _weights_header(program: op.Program) -> str:
    return f"""/* The constants of every operator, by its number and the value that it writes. */
#ifndef HCCS_WEIGHTS_H
#define HCCS_WEIGHTS_H

#include "hccs_operators.h"

{constants.declarations(program)}

#endif
"""


def _kept(program: op.Program, sequences: Sequence[Any] | None) -> NDArray[np.int32]:
    """The tokens of all sequences, in ascending order."""
    if sequences is None or isinstance(program.embed, op.EmbedPatches):
        raise DataError(
            "sequences of token ids whose words to keep",
            "a model of images" if sequences is not None else "none",
            "Give --sentences, or keep all words.",
        )
    return np.unique(np.concatenate([np.asarray(sequence).ravel() for sequence in sequences])).astype(
        np.int32
    )
