"""Inputs with the reference's scores, as C: what an exported model checks itself on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError
from hccs.export.freestanding.constants import numbers_of
from hccs.export.freestanding.plan import longest_rows
from hccs.program import IntegerModel
from hccs.program import operators as op

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNT = 12
"""Sequences that are made where none are given."""


@dataclass(frozen=True, eq=False)
class Example:
    """Token ids and types of one sequence, or an image, and its scores, flat."""

    tokens: NDArray[Any]
    types: NDArray[np.uint8]
    scores: NDArray[np.int32]


def examples_of(model: IntegerModel, sequences: Sequence[Any] | None, kept: Any) -> list[Example]:
    """The given sequences of token ids, or some made up, with their scores.

    Made-up ones have types at random, given ones the type 0. The scores are the reference's.
    """
    embed = model.program.embed
    if sequences is None:
        sequences = list(_made_up(model.program, kept))
    found = []
    for given in sequences:
        pair = given if isinstance(given, tuple) else (given, None)
        tokens = np.asarray(pair[0])
        image = isinstance(embed, op.EmbedPatches)
        types = np.zeros(0 if image else tokens.size, np.uint8) if pair[1] is None else np.asarray(pair[1])
        arguments = [tokens[None]] if image else [tokens[None], None, types[None]]
        scores = model(*arguments, reference=True).scores.ravel()
        found.append(Example(tokens.ravel(), types.astype(np.uint8), scores))
    if not found:
        raise DataError("at least one sequence", "none", "Give one per line.")
    return found


def _made_up(program: op.Program, kept: NDArray[np.int32] | None) -> Any:
    rng, longest, embed = np.random.default_rng(0), longest_rows(program), program.embed
    if isinstance(embed, op.EmbedPatches):
        yield from rng.integers(0, 256, (3, *embed.params.image)).astype(np.uint8)
        return
    words = np.arange(len(embed.params.words)) if kept is None else kept
    for number in range(COUNT):
        length = {0: 1, 1: longest}.get(number, int(rng.integers(1, longest + 1)))
        yield rng.choice(words, length), rng.integers(0, len(embed.params.types), length)


def header(found: Sequence[Example]) -> str:
    """`hccs_examples.h`."""
    return f"""/* Examples with the scores of the reference, written by `hccs export c`. */
#ifndef HCCS_EXAMPLES_H
#define HCCS_EXAMPLES_H

#include "hccs_model.h"

#define HCCS_EXAMPLES {len(found)}u
#define HCCS_EXAMPLE_MOST_SCORES {max(example.scores.size for example in found)}

/* Tokens of an example. */
uint32_t hccs_example_rows(uint32_t example);

/* The scores that it must have, and their number. */
const int32_t* hccs_example_scores(uint32_t example);
uint32_t hccs_example_score_count(uint32_t example);

hccs_model_status hccs_run_example(uint32_t example, int32_t* scores);

#endif
"""


def source(program: op.Program, found: Sequence[Example]) -> str:
    """`hccs_examples.c`."""
    image = isinstance(program.embed, op.EmbedPatches)
    tokens = _flat("uint8_t" if image else "int32_t", "tokens", [example.tokens for example in found])
    scores = _flat("int32_t", "scores", [example.scores for example in found])
    if image:
        rows = f"(void)example;\n  return {longest_rows(program)};"
        call = "hccs_model_scores(tokens + tokens_at[example], scores)"
    else:
        tokens += _flat("uint8_t", "types", [example.types for example in found])
        rows = "return tokens_at[example + 1] - tokens_at[example];"
        call = (
            "hccs_model_scores(tokens + tokens_at[example], types + types_at[example],\n"
            "                           hccs_example_rows(example), scores)"
        )
    return f"""#include "hccs_examples.h"

{tokens}{scores.replace(" scores[", " expected[")}
uint32_t hccs_example_rows(uint32_t example) {{
  {rows}
}}

const int32_t* hccs_example_scores(uint32_t example) {{ return expected + scores_at[example]; }}

uint32_t hccs_example_score_count(uint32_t example) {{ return scores_at[example + 1] - scores_at[example]; }}

hccs_model_status hccs_run_example(uint32_t example, int32_t* scores) {{
  return {call};
}}
"""


def _flat(kind: str, name: str, arrays: Sequence[NDArray[Any]]) -> str:
    """Arrays one behind the other, and where each begins."""
    values = np.concatenate(arrays)
    starts = np.cumsum([0, *(array.size for array in arrays)])
    return (
        f"static const {kind} {name}[{values.size}] = {{\n{numbers_of(values)}}};\n"
        f"static const uint32_t {name}_at[{starts.size}] = {{\n{numbers_of(starts)}}};\n"
    )
