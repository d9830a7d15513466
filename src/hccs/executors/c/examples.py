"""Inputs with the reference's answers, as C: what an exported model checks itself on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError
from hccs.executors.c.literals import numbers_of
from hccs.executors.c.table import answer_of
from hccs.program import IntegerModel, Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNT, IMAGES = 12, 3
"""Sequences, or images, that are made up where none are given."""


@dataclass(frozen=True, eq=False)
class Example:
    """Token ids and types of one sequence, or an image, and its scores or its vector, flat."""

    tokens: NDArray[Any]
    types: NDArray[np.uint8]
    values: NDArray[Any]


def examples_of(model: IntegerModel, sequences: Sequence[Any] | None, kept: Any) -> list[Example]:
    """The given sequences of token ids, or images, or made-up ones, with their answers.

    Made-up ones have types at random, given ones the type 0. The answers are the reference's.
    """
    if sequences is None:
        inputs = list(_made_up(model.program, kept))
    else:
        inputs = [(array, np.zeros(array.size, np.uint8)) for array in map(np.asarray, sequences)]
    if not inputs:
        raise DataError("at least one sequence", "none", "Give one per line.")
    found = []
    for tokens, types in inputs:
        if model.program.embed.image is not None:
            answer = model(tokens[None], reference=True)
        else:
            answer = model(tokens[None], None, types[None], reference=True)
        found.append(Example(tokens.ravel(), types, answer.scores.ravel()))
    return found


def _made_up(
    program: Program, kept: NDArray[np.int32] | None
) -> Iterator[tuple[NDArray[Any], NDArray[np.uint8]]]:
    rng, longest, embed = np.random.default_rng(0), program.rows, program.embed
    if embed.image is not None:
        for _ in range(IMAGES):
            yield rng.integers(0, 256, embed.image).astype(np.uint8), np.zeros(0, np.uint8)
        return
    words = np.arange(embed.vocabulary) if kept is None else kept
    for number in range(COUNT):
        length = {0: 1, 1: longest}.get(number, int(rng.integers(1, longest + 1)))
        yield rng.choice(words, length), rng.integers(0, embed.type_count, length).astype(np.uint8)


def header(program: Program, found: Sequence[Example]) -> str:
    """`hccs_examples.h`."""
    answer = answer_of(program)
    return f"""/* Examples with the {answer.name} of the reference, written by `hccs export c`. */
#ifndef HCCS_EXAMPLES_H
#define HCCS_EXAMPLES_H

#include "hccs_model.h"

#define HCCS_EXAMPLES {len(found)}u
#define HCCS_EXAMPLE_MOST_VALUES {max(example.values.size for example in found)}

/* A number of the {answer.name}. */
typedef {answer.type} hccs_example_value;

/* Tokens of an example. */
uint32_t hccs_example_rows(uint32_t example);

/* The {answer.name} that it must have, and the number of values. */
const hccs_example_value* hccs_example_values(uint32_t example);
uint32_t hccs_example_value_count(uint32_t example);

hccs_model_status hccs_run_example(uint32_t example, hccs_example_value* values);

#endif
"""


def source(program: Program, found: Sequence[Example]) -> str:
    """`hccs_examples.c`."""
    image, answer = program.embed.image is not None, answer_of(program)
    tokens = _flat("uint8_t" if image else "int32_t", "tokens", [example.tokens for example in found])
    expected = _flat(answer.type, "expected", [example.values for example in found])
    function = f"hccs_model_{answer.name}"
    if image:
        rows = f"(void)example;\n  return {program.rows};"
        call = f"{function}(tokens + tokens_at[example], values)"
    else:
        tokens += _flat("uint8_t", "types", [example.types for example in found])
        rows = "return tokens_at[example + 1] - tokens_at[example];"
        call = (
            f"{function}(tokens + tokens_at[example], types + types_at[example],\n"
            f"         {' ' * len(function)} hccs_example_rows(example), values)"
        )
    return f"""#include "hccs_examples.h"

{tokens}{expected}
uint32_t hccs_example_rows(uint32_t example) {{
  {rows}
}}

const hccs_example_value* hccs_example_values(uint32_t example) {{ return expected + expected_at[example]; }}

uint32_t hccs_example_value_count(uint32_t example) {{
  return expected_at[example + 1] - expected_at[example];
}}

hccs_model_status hccs_run_example(uint32_t example, hccs_example_value* values) {{
  return {call};
}}
"""


def _flat(kind: str, name: str, arrays: Sequence[NDArray[Any]]) -> str:
    """Arrays one after the other, and where each begins."""
    values = np.concatenate(arrays)
    starts = np.cumsum([0, *(array.size for array in arrays)])
    return (
        f"static const {kind} {name}[{values.size}] = {{\n{numbers_of(values)}}};\n"
        f"static const uint32_t {name}_at[{starts.size}] = {{\n{numbers_of(starts)}}};\n"
    )
