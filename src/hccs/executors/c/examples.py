"""Inputs with the reference's answers, as C: what an exported model checks itself on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError
from hccs.executors.c.literals import numbers_of
from hccs.executors.c.table import answer_of
from hccs.program import IntegerModel, Program
from hccs.text.text_model import Reader

COUNT, IMAGES = 12, 3
"""Sequences, or images, that are made up where none are given."""

TEXTS = (
    "A quiet film, well played.",
    "Naïve façades: 42 % off!",
    "don't STOP\tÜNÏCÖDÉ 各国 한국어 😀",
    "[MASK] <mask> \u200b\0 x" * 3,
)
"""Examples from text, where a model reads texts."""


@dataclass(frozen=True, eq=False)
class Example:
    """Token ids and types of one sequence, or an image, and its scores or its vector, flat.

    Where there are texts, one or two, the ids are those of `tokenizers`, and C has to find them.
    """

    tokens: NDArray[Any]
    types: NDArray[np.uint8]
    values: NDArray[Any]
    texts: tuple[str, ...] = ()


def examples_of(
    model: IntegerModel, sequences: Sequence[Any] | None, kept: Any, from_text: bool = False
) -> list[Example]:
    """The given sequences of token ids, or images, or made-up ones, with their answers; then texts.

    Made-up ones have types at random, given ones the type 0. The answers are the reference's.
    """
    inputs: list[tuple[Any, ...]]
    if sequences is None:
        inputs = list(_made_up(model.program, kept))
    else:
        inputs = [(array, np.zeros(array.size, np.uint8)) for array in map(np.asarray, sequences)]
    if not inputs:
        raise DataError("at least one sequence", "none", "Give one per line.")
    if from_text:
        inputs += _from_text(model.program, kept)
    found = []
    for tokens, types, *texts in inputs:
        if model.program.embed.image is not None:
            answer = model(tokens[None], reference=True)
        else:
            answer = model(tokens[None], None, types[None], reference=True)
        found.append(Example(tokens.ravel(), types, answer.scores.ravel(), tuple(texts)))
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


def _from_text(program: Program, kept: Any) -> Iterator[tuple[Any, ...]]:
    """Tokens, types and texts of `TEXTS`, and of a pair for a model with labels; none that would be cut."""
    assert program.text is not None
    texts: list[Any] = [*TEXTS, *([TEXTS[:2]] if program.labels else [])]
    for given, encoding in zip(texts, Reader(program, program.text.max_length).read(texts), strict=True):
        ids, types = np.array(encoding.ids), np.array(encoding.type_ids, np.uint8)
        if not encoding.overflowing and (kept is None or np.isin(ids, kept).all()):
            typed = types if program.embed.type_count > 1 else np.zeros_like(types)
            yield ids, typed, *([given] if isinstance(given, str) else given)


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
    texts, from_text = _texts(program, found)
    return f"""#include "hccs_examples.h"

{tokens}{expected}{texts}
uint32_t hccs_example_rows(uint32_t example) {{
  {rows}
}}

const hccs_example_value* hccs_example_values(uint32_t example) {{ return expected + expected_at[example]; }}

uint32_t hccs_example_value_count(uint32_t example) {{
  return expected_at[example + 1] - expected_at[example];
}}

hccs_model_status hccs_run_example(uint32_t example, hccs_example_value* values) {{
{from_text}  return {call};
}}
"""


def _texts(program: Program, found: Sequence[Example]) -> tuple[str, str]:
    """Texts as C, and the lines that run them."""
    read = [example for example in found if example.texts]
    if not read:
        return "", ""
    halves = [[*example.texts, ""][:2] for example in read]
    letters = [np.frombuffer(half.encode() or b"\0", np.uint8) for pair in halves for half in pair]
    sizes = ", ".join(str(len(half.encode())) for pair in halves for half in pair)
    first, half = len(found) - len(read), "texts + texts_at[2 * number]"
    call = f"hccs_embed_text((const char*){half}, sizes[2 * number], values)"
    if program.labels:
        second = "texts + texts_at[2 * number + 1]"
        call = (
            f"hccs_classify_text((const char*){half}, sizes[2 * number],\n"
            f"                              sizes[2 * number + 1] == 0 ? NULL : (const char*){second},\n"
            "                              sizes[2 * number + 1], values)"
        )
    return (
        f"\n#include <stddef.h>\n\n{_flat('uint8_t', 'texts', letters)}"
        f"static const uint32_t sizes[{2 * len(read)}] = {{{sizes}}};\n",
        f"  if (example >= {first}) {{\n    const uint32_t number = example - {first};\n"
        f"    return {call};\n  }}\n",
    )


def _flat(kind: str, name: str, arrays: Sequence[NDArray[Any]]) -> str:
    """Arrays one after the other, and where each begins."""
    values = np.concatenate(arrays)
    starts = np.cumsum([0, *(array.size for array in arrays)])
    return (
        f"static const {kind} {name}[{values.size}] = {{\n{numbers_of(values)}}};\n"
        f"static const uint32_t {name}_at[{starts.size}] = {{\n{numbers_of(starts)}}};\n"
    )
