"""A tokenizer as C: its interface, `hccs_text.h`, its tables, `hccs_text.c`, and `hccs_vocabulary.c`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.executors.c.literals import array
from hccs.executors.c.tokenizer import FIRST, KINDS, SECOND, Tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAMES = {FIRST: "HCCS_FIRST_TEXT", SECOND: "HCCS_SECOND_TEXT"}


def header(tables: Tables) -> str:
    """`hccs_text.h`."""
    return f"""/* Texts to token ids, written from a tokenizer.json: the ids of the package `tokenizers`.
 * The arrays are static: one call at a time. */
#ifndef HCCS_TEXT_H
#define HCCS_TEXT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define HCCS_TEXT_LONGEST {tables.longest} /* tokens, special ones among them */

/* HCCS_TEXT_CUT is no error: the text has more than HCCS_TEXT_LONGEST tokens, and the first ones count. */
typedef enum {{ HCCS_TEXT_OK, HCCS_TEXT_CUT, HCCS_TEXT_NOT_UTF8, HCCS_TEXT_LONG_WORD }} hccs_text_status;

typedef struct {{
  const int32_t* tokens;
  const uint8_t* types;
  uint32_t length;
}} hccs_text;

/* The tokens of a text in UTF-8, or of a pair of texts; `second` is NULL for one text. */
hccs_text_status hccs_read_text(const char* first, uint32_t first_bytes, const char* second,
                                uint32_t second_bytes, hccs_text* text);

#ifdef __cplusplus
}}
#endif

#endif
"""


def source(tables: Tables) -> str:
    """`hccs_text.c`: what code points become, special tokens, what stands around texts, and the reading."""
    values = sorted({value for _, _, value in tables.runs})
    number = {value: i for i, value in enumerate(values)}
    starts = np.array([KINDS.index(kind) << 21 | code for code, kind, _ in tables.runs], np.uint32)
    which = np.array([number[value] for _, _, value in tables.runs], np.uint16)
    specials = ",\n".join(
        f"    {{{_literal(s.content)}, {len(s.content)}, {s.id}, {s.left:d}, {s.right:d}, {s.late:d}}}"
        for s in tables.specials
    )
    model = ("hccs_vocabulary, NULL", "const hccs_words hccs_vocabulary[2]")
    if not tables.wordpiece:
        model = ("NULL, &hccs_vocabulary", "const hccs_merges hccs_vocabulary")
    listed = "specials" if tables.specials else "NULL"
    numbers = f"{len(tables.specials)}, {tables.unknown}, {tables.prefix_space:d}"
    return f"""/* Texts to token ids: the tables of a tokenizer.json, written by `hccs export c`. */
#include "hccs_text.h"

#define HCCS_MOST_CHARACTERS {tables.most_characters}
#include "hccs_tokenizer.h"

extern {model[1]};

{array("starts", starts)}
{array("which", which)}
{array("values", np.array(values, np.int32))}
{array("sequences", np.array(tables.sequences or (0,), np.int32))}
{_list("hccs_special", "specials", specials)}{_parts("single", tables.single)}{_parts("pair", tables.pair)}
static const hccs_tokenizer tokenizer = {{
    {{starts, which, values, sequences, {len(tables.runs)}}},
    {model[0]}, {listed}, {numbers},
    {{single, pair}}, {{{len(tables.single)}, {len(tables.pair)}}}, HCCS_TEXT_LONGEST}};

hccs_text_status hccs_read_text(const char* first, uint32_t first_bytes, const char* second,
                                uint32_t second_bytes, hccs_text* text) {{
  static int32_t ids[HCCS_TEXT_LONGEST], others[HCCS_TEXT_LONGEST];
  static uint8_t types[HCCS_TEXT_LONGEST];
  text->tokens = ids, text->types = types, text->length = 0;
  return hccs_read(&tokenizer, first, first_bytes, second, second_bytes, ids, others, types, &text->length);
}}
"""


def vocabulary(tables: Tables, define: Callable[[str, NDArray[Any]], str] = array) -> str:
    """`hccs_vocabulary.c`, whose arrays `define` writes."""
    arrays = "\n".join(define(f"vocabulary_{name}", values) for name, values in tables.vocabulary.items())
    if tables.wordpiece:
        entries = ",\n".join(
            f"    {{vocabulary_{name}_letters, vocabulary_{name}_starts, vocabulary_{name}_ids, "
            f"{len(tables.vocabulary[f'{name}_ids'])}}}"
            for name in ("words", "pieces")
        )
        defined = f"const hccs_words hccs_vocabulary[2] = {{\n{entries}}};"
    else:
        names = ", ".join(f"vocabulary_{name}" for name in tables.vocabulary)
        defined = f"const hccs_merges hccs_vocabulary = {{{names}, {len(tables.vocabulary['pairs'])}}};"
    return f"""/* The vocabulary of a tokenizer. */
#include "hccs_tokenizer.h"

{arrays}
{defined}
"""


def _parts(name: str, parts: Sequence[tuple[int, int]]) -> str:
    listed = ", ".join(f"{{{NAMES.get(number, number)}, {kind}}}" for number, kind in parts)
    return f"static const hccs_part {name}[{len(parts)}] = {{{listed}}};\n"


def _list(kind: str, name: str, entries: str) -> str:
    return f"static const {kind} {name}[] = {{\n{entries}}};\n" if entries else ""


def _literal(content: bytes) -> str:
    return '"' + "".join(f"\\{byte:03o}" for byte in content) + '"'
