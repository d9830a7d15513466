"""A program as C: its interface, `hccs_model.h`, and the list of its calls, `hccs_model.c`."""

from __future__ import annotations

from collections.abc import Iterator

from hccs.export.freestanding.constants import name_of
from hccs.export.freestanding.plan import Group, Plan, longest_rows
from hccs.program import operators as op

POOL_NAMES = {32: "i32", 16: "i16", 8: "i8"}


def header(program: op.Program, plan: Plan) -> str:
    """`hccs_model.h`."""
    counts = {
        "LABELS": len(program.labels),
        "LONGEST": longest_rows(program),
        "ARENA_BYTES": plan.arena_bytes,
    }
    macros = "\n".join(f"#define HCCS_MODEL_{name} {value}" for name, value in counts.items())
    return f"""/* A whole model in integers, written by `hccs export c`: {_input(program)} in, scores out.
 *
 * One step of a score is worth {program.score_scale:.9g} of the float model's logits.
 * The arena is static: one call at a time. */
#ifndef HCCS_MODEL_H
#define HCCS_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{macros} /* of RAM, beside less than a kilobyte of stack */

/* What was wrong with a call; the scores are then untouched. */
typedef enum {{
  HCCS_MODEL_OK,
  HCCS_MODEL_BAD_LENGTH,
  HCCS_MODEL_BAD_TOKEN,
  HCCS_MODEL_BAD_TYPE
}} hccs_model_status;

{_promises(program)}
/* The name of a score. */
const char* hccs_model_label(uint32_t index);

#ifdef __cplusplus
}}
#endif

#endif
"""


def _input(program: op.Program) -> str:
    return "an image" if isinstance(program.embed, op.EmbedPatches) else "token ids"


def _promises(program: op.Program) -> str:
    """The functions of the interface, with what they take."""
    per = " [length][HCCS_MODEL_LABELS]" if program.per_token else " [HCCS_MODEL_LABELS]"
    embed = program.embed
    if isinstance(embed, op.EmbedPatches):
        channels, height, width = embed.params.image
        size = f"uint8 [{channels}][{height}][{width}], 0 to 255"
        per = per.replace("length", "HCCS_MODEL_LONGEST")
        return f"""/* Scores{per} of an image, {size}: no normalisation before. */
{signature(program)};
"""
    return f"""/* Scores{per} of 1 to HCCS_MODEL_LONGEST token ids, special ones among them,
 * without padding. `types` are the segments of a pair of texts, 0 to {len(embed.params.types) - 1}, or NULL
 * for all zero. */
{signature(program)};

/* Whether the model holds a token's word: where not, the tokenizer's unknown token may take its place. */
int hccs_model_knows(int32_t token);
"""


def signature(program: op.Program) -> str:
    """Of the function that answers."""
    if isinstance(program.embed, op.EmbedPatches):
        return "hccs_model_status hccs_model_scores(const uint8_t* image, int32_t* scores)"
    return (
        "hccs_model_status hccs_model_scores(const int32_t* tokens, const uint8_t* types, uint32_t length,\n"
        "                                    int32_t* scores)"
    )


def source(program: op.Program, plan: Plan) -> str:
    """`hccs_model.c`: the arena, the checks and the calls."""
    labels = ", ".join(f'"{_escaped(label)}"' for label in program.labels)
    body = "\n".join(line for group in plan.groups for line in _group(program, plan, group))
    pools = " ".join(
        f"int{bits}_t {POOL_NAMES[bits]}[{max(count, 1)}];" for bits, count in plan.pools.items()
    )
    return f"""/* The calls of a whole model, written by `hccs export c`, a few rows at a time. */
#include "hccs_model.h"
#include "hccs_operators.h"
#include "hccs_weights.h"

/* A build that measures notes here that an operator has run. */
#ifndef HCCS_STEP
#define HCCS_STEP(number, name)
#endif

/* All values, one array for each width of integers; what no longer is read makes room. */
static struct {{ {pools} }} arena;

static const char* const labels[HCCS_MODEL_LABELS] = {{{labels}}};

const char* hccs_model_label(uint32_t index) {{ return index < HCCS_MODEL_LABELS ? labels[index] : ""; }}

{_checks(program)}
{body}
  return HCCS_MODEL_OK;
}}
"""


def _checks(program: op.Program) -> str:
    embed = program.embed
    if isinstance(embed, op.EmbedPatches):
        return f"""{signature(program)} {{
  const uint32_t length = HCCS_MODEL_LONGEST;
  uint32_t row, rows;"""
    words = name_of(0, embed)
    return f"""int hccs_model_knows(int32_t token) {{ return hccs_word_of(&{words}, token) < {words}.count; }}

{signature(program)} {{
  uint32_t row, rows;
  if (length < 1 || length > HCCS_MODEL_LONGEST) return HCCS_MODEL_BAD_LENGTH;
  for (row = 0; row < length; ++row) {{
    if (!hccs_model_knows(tokens[row])) return HCCS_MODEL_BAD_TOKEN;
    if (types != NULL && types[row] > {len(embed.params.types) - 1}) return HCCS_MODEL_BAD_TYPE;
  }}"""


def _group(program: op.Program, plan: Plan, group: Group) -> Iterator[str]:
    """The calls of one group: in a loop over tiles, over the first row, or attention over all."""
    steps = [number for number in group.steps if number not in plan.skipped]
    calls = [(number, call(program, plan, number, group.all_rows)) for number in steps]
    alone = len(steps) == 1 and isinstance(program.operators[steps[0]], op.Attention)
    looped = group.all_rows and not alone
    if looped:
        yield "  for (row = 0; row < length; row += rows) {"
        yield f"    rows = length - row < {plan.tile} ? length - row : {plan.tile};"
    elif not alone and steps:
        yield "  row = 0, rows = 1;"
    indent = "    " if looped else "  "
    for number, text in calls:
        yield f"{indent}{text};"
        yield f'{indent}HCCS_STEP({number}, "{_step_name(program.operators[number])}")'
    if looped:
        yield "  }"


def _step_name(step: op.Operator) -> str:
    return f"{type(step).__name__} {_escaped(step.output)}"


def call(program: op.Program, plan: Plan, number: int, all_rows: bool) -> str:
    """The call of one operator over `rows` rows from `row` on."""
    step = program.operators[number]
    name, value = name_of(number, step), program.values[step.output]

    def place(of: str, width: int = 0) -> str:
        at = plan.places[of]
        text = f"arena.{POOL_NAMES[at.bits]} + {at.offset}"
        return text if at.tiled or not width or not all_rows else f"{text} + row * {width}"

    def read(index: int) -> str:
        of = step.inputs[index]
        return place(of, program.values[of].width)

    last = number == len(program.operators) - 1
    out = (
        ("scores" + f" + row * {value.width}" * program.per_token)
        if last
        else place(step.output, value.width)
    )
    count = f"rows * {value.width}"
    match step:
        case op.Embed(limit=None):
            return f"hccs_embed_32(&{name}, tokens, types, row, rows, {out})"
        case op.Embed(limit=limit):
            return f"hccs_embed_16(&{name}, tokens, types, row, rows, {limit}, {out})"
        case op.EmbedPatches():
            pixels = place(f"{step.output}.pixels")
            return f"hccs_embed_patches(&{name}, image, row, rows, {pixels}, {out})"
        case op.LayerNorm():
            bits = program.values[step.inputs[0]].bits
            return f"hccs_layer_norm_{bits}(&{name}, {read(0)}, rows, {out})"
        case op.Linear() if number in plan.without_queries:
            behind = f"row == 0 ? 0 : {value.width // 3}"
            return f"hccs_linear_8_from(&{name}, {behind}, {read(0)}, rows, {out})"
        case op.Linear():
            return f"hccs_linear_{value.bits}(&{name}, {read(0)}, rows, {out})"
        case op.Narrow(bits=bits):
            return f"hccs_narrow({read(0)}, {count}, {bits}, {out})"
        case op.Table():
            return f"hccs_table({name}, {read(0)}, {count}, {out})"
        case op.Add(limit=None):
            return f"hccs_add_32({read(0)}, {read(1)}, {count}, {out})"
        case op.Add(limit=limit):
            return f"hccs_add_16({read(0)}, {read(1)}, {count}, {limit}, {out})"
        case op.Attention():
            room = ", ".join(place(f"{step.output}.{part}") for part in ("logits", "scores"))
            queries = "length" if all_rows else "1"
            whole = f"{place(step.inputs[0])}, length, {queries}, {room}, {place(step.output)}"
            return f"hccs_attend(&{name}, {whole})"
    raise AssertionError(step)


def _escaped(text: str) -> str:
    """Text for a C string: letters, digits and spaces as they are, all other bytes in octal.

    >>> _escaped('not "good"?')
    'not \\\\042good\\\\042\\\\077'
    """
    plain = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_ "
    return "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode())
