"""A program as C: its interface, `hccs_model.h`, and the list of its calls, `hccs_model.c`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hccs.executors.c.table import POOLS, Call, Writing, arena_bytes, code_of
from hccs.program.plan import Step
from hccs.program.program import Program

TEXT_STATUS = {"HCCS_TEXT_NOT_UTF8": "HCCS_MODEL_BAD_TEXT", "HCCS_TEXT_LONG_WORD": "HCCS_MODEL_LONG_WORD"}
"""What a model answers where its text cannot be read."""

LABEL = """
/* The name of a score. */
const char* hccs_model_label(uint32_t index);
"""


def header(writing: Writing) -> str:
    """`hccs_model.h`."""
    program, answer = writing.program, writing.answer
    counts = {
        answer.count: program.values[program.operators[-1].output].width,
        "LONGEST": program.rows,
        "ARENA_BYTES": arena_bytes(writing.plan),
    }
    verb = "are" if answer.name == "scores" else "is"
    macros = "\n".join(f"#define HCCS_MODEL_{name} {value}" for name, value in counts.items())
    return f"""/* A whole model in integers, written by `hccs export c`: {_kinds(program)}
 * The arena is static: one call at a time. */
#ifndef HCCS_MODEL_H
#define HCCS_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{macros} /* of RAM, beside less than a kilobyte of stack */

/* What was wrong with a call; the {answer.name} {verb} then untouched. */
typedef enum {{
  HCCS_MODEL_OK,
  HCCS_MODEL_BAD_LENGTH,
  HCCS_MODEL_BAD_TOKEN,
  HCCS_MODEL_BAD_TYPE{_text_statuses(writing)}
}} hccs_model_status;

{_promises(writing)}{_text_promise(writing)}{LABEL if program.labels else ""}
#ifdef __cplusplus
}}
#endif

#endif
"""


def _kinds(program: Program) -> str:
    """What goes in and what comes out."""
    given = "token ids" if program.embed.image is None else "an image"
    if program.values[program.operators[-1].output].bits != 32:
        return f"{given} in, a unit vector out.\n *\n * The number 32767 stands for 1."
    step = f"One step of a score is worth {program.score_scale:.9g} of the float model's logits."
    return f"{given} in, scores out.\n *\n * {step}"


def _promises(writing: Writing) -> str:
    """The functions of the interface, with what they take."""
    program, answer = writing.program, writing.answer
    named, count = (
        ("Scores" if answer.name == "scores" else "The unit vector"),
        f"[HCCS_MODEL_{answer.count}]",
    )
    per = f" [length]{count}" if program.per_token else f" {count}"
    if program.embed.image is not None:
        channels, height, width = program.embed.image
        size = f"uint8 [{channels}][{height}][{width}], 0 to 255"
        per = per.replace("length", "HCCS_MODEL_LONGEST")
        return f"""/* {named}{per} of an image, {size}: no normalisation before. */
{signature(writing)};
"""
    return f"""/* {named}{per} of 1 to HCCS_MODEL_LONGEST token ids, special ones among them,
 * without padding. `types` are the segments of a pair of texts, 0 to {program.embed.type_count - 1}, or NULL
 * for all zero. */
{signature(writing)};

/* Whether the model holds a token's word: where not, the tokenizer's unknown token may take its place. */
int hccs_model_knows(int32_t token);
"""


def signature(writing: Writing) -> str:
    """The signature of the function that answers."""
    answer = writing.answer
    name, out = f"hccs_model_status hccs_model_{answer.name}", f"{answer.type}* {answer.name}"
    if writing.program.embed.image is not None:
        return f"{name}(const uint8_t* image, {out})"
    first = f"{name}(const int32_t* tokens, const uint8_t* types, uint32_t length,"
    return f"{first}\n{' ' * (len(name) + 1)}{out})"


def _text_statuses(writing: Writing) -> str:
    if writing.text is None:
        return ""
    return """,
  HCCS_MODEL_BAD_TEXT,  /* no UTF-8 */
  HCCS_MODEL_LONG_WORD, /* of more than HCCS_LONGEST_WORD bytes, see hccs_tokenizer.h */
  HCCS_MODEL_TEXT_CUT   /* the answer is there: that of the first tokens of a text that has more of them */"""


def text_signature(writing: Writing) -> str:
    """The signature of the function that reads texts."""
    answer = writing.answer
    if writing.program.labels:
        return f"""hccs_model_status hccs_classify_text(const char* first, uint32_t first_bytes,
                                     const char* second, uint32_t second_bytes,
                                     {answer.type}* {answer.name})"""
    return f"""hccs_model_status hccs_embed_text(const char* first, uint32_t first_bytes,
                                  {answer.type}* {answer.name})"""


def _text_promise(writing: Writing) -> str:
    if writing.text is None:
        return ""
    texts = "a text in UTF-8, or of a pair of texts; `second` is NULL for one text"
    settings = writing.program.text
    prompt = settings.prompts.get(settings.default_prompt or "", "") if settings else ""
    before = f" Texts need the prefix {_escaped(prompt)}" if prompt else ""
    what = texts if writing.program.labels else "a text in UTF-8"
    return f"""
/* The same of {what}.{before} */
{text_signature(writing)};
"""


def text_function(writing: Writing) -> str:
    """`hccs_embed_text` or `hccs_classify_text`, in `hccs_text.c`: token ids need no tokenizer."""
    second = "second, second_bytes" if writing.program.labels else "NULL, 0"
    refused = "\n".join(f"  if (read == {a}) return {b};" for a, b in TEXT_STATUS.items())
    types = "text.types" if writing.program.embed.type_count > 1 else "NULL"
    return f"""
#include "hccs_model.h"

{text_signature(writing)} {{
  hccs_text text;
  const hccs_text_status read = hccs_read_text(first, first_bytes, {second}, &text);
  hccs_model_status status;
{refused}
  status = hccs_model_{writing.answer.name}(text.tokens, {types}, text.length, {writing.answer.name});
  return status == HCCS_MODEL_OK && read == HCCS_TEXT_CUT ? HCCS_MODEL_TEXT_CUT : status;
}}
"""


def source(writing: Writing) -> str:
    """`hccs_model.c`: the arena, the checks and the calls."""
    plan = writing.plan
    body = "\n".join(line for group in plan.groups for line in _group(writing, group))
    pools = " ".join(f"int{bits}_t {name}[{max(plan.pools[bits], 1)}];" for bits, name in POOLS.items())
    return f"""/* The calls of a whole model, written by `hccs export c`, a few rows at a time. */
#include "hccs_model.h"
#include "{writing.operators}"
#include "hccs_weights.h"

/* A build that measures notes here that an operator has run. */
#ifndef HCCS_STEP
#define HCCS_STEP(number, name)
#endif

/* All values, one array for each width of integers; what no longer is read makes room. */
static struct {{ {pools} }} arena;

{_labels(writing.program)}{_checks(writing)}
{body}
  return HCCS_MODEL_OK;
}}
"""


def _labels(program: Program) -> str:
    if not program.labels:
        return ""
    labels = ", ".join(f'"{_escaped(label)}"' for label in program.labels)
    return f"""static const char* const labels[HCCS_MODEL_LABELS] = {{{labels}}};

const char* hccs_model_label(uint32_t index) {{ return index < HCCS_MODEL_LABELS ? labels[index] : ""; }}

"""


def _checks(writing: Writing) -> str:
    program = writing.program
    if program.embed.image is not None:
        return f"""{signature(writing)} {{
  const uint32_t length = HCCS_MODEL_LONGEST;
  uint32_t row, rows;"""
    words = writing.name(program.embed)
    return f"""int hccs_model_knows(int32_t token) {{ return hccs_word_of(&{words}, token) < {words}.count; }}

{signature(writing)} {{
  uint32_t row, rows;
  if (length < 1 || length > HCCS_MODEL_LONGEST) return HCCS_MODEL_BAD_LENGTH;
  for (row = 0; row < length; ++row) {{
    if (!hccs_model_knows(tokens[row])) return HCCS_MODEL_BAD_TOKEN;
    if (types != NULL && types[row] > {program.embed.type_count - 1}) return HCCS_MODEL_BAD_TYPE;
  }}"""


def _group(writing: Writing, steps: Sequence[Step]) -> Iterator[str]:
    """The calls of one group: in a loop over tiles, over the first row, or one call that mixes rows."""
    program, tile = writing.program, writing.plan.tile
    alone, looped = steps[0].main.mixes_rows, steps[0].all_rows and not steps[0].main.mixes_rows
    if looped:
        yield "  for (row = 0; row < length; row += rows) {"
        yield f"    rows = length - row < {tile} ? length - row : {tile};"
    elif not alone:
        yield "  row = 0, rows = 1;"
    indent = "    " if looped else "  "
    for step in steps:
        number, name = program.operators.index(step.main), f"{type(step.main).__name__} {step.main.output}"
        yield f"{indent}{code_of(step.main).call(Call(writing, step))};"
        yield f'{indent}HCCS_STEP({number}, "{_escaped(name)}")'
    if looped:
        yield "  }"


def _escaped(text: str) -> str:
    """Text for a C string: letters, digits and spaces as they are, all other bytes in octal.

    >>> _escaped('not "good"?')
    'not \\\\042good\\\\042\\\\077'
    """
    plain = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_ "
    return "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode())
