"""Generation in C, for causal programs: `hccs_generate.h` and `hccs_generate.c`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hccs.executors.c.literals import numbers_of
from hccs.executors.c.table import POOLS, TARGET, TILE, Call, Writing, arena_bytes, code_of
from hccs.numbers.sampling import powers, score_factor
from hccs.program.cache import cached_heads, is_causal
from hccs.program.plan import plan
from hccs.program.program import Program


def generates(program: Program) -> bool:
    """Whether a program's scores are those of its own next tokens."""
    return is_causal(program) and program.scores <= program.embed.vocabulary and program.score_scale > 0


def writing_of(writing: Writing) -> Writing:
    """The same program over a few rows at a time, whose keys and values go to a cache."""
    program = writing.program
    short = replace(program, longest=min(TILE, program.longest), facts={}, tokenizer="")
    return replace(writing, program=short, plan=plan(short, TARGET), text=None, generates=True)


def header(writing: Writing) -> str:
    """`hccs_generate.h`."""
    program = writing.program
    heads = cached_heads(program)
    factor, shift = score_factor(program.score_scale)
    row_bytes = sum(2 * count * width for count, width in heads.values())
    arena = arena_bytes(writing_of(writing).plan) + 3 * program.rows
    return f"""/* Texts token by token, written by `hccs export c`: the same tokens on every machine.
 * The arena is static: one call at a time. */
#ifndef HCCS_GENERATE_H
#define HCCS_GENERATE_H

#include "hccs_model.h"
#include "hccs_sample.h"

#ifdef __cplusplus
extern "C" {{
#endif

#define HCCS_VOCABULARY {program.scores} /* scores of the next token */
#define HCCS_CACHE_ROW_BYTES {row_bytes} /* of the cache for each token of a text */
#define HCCS_GENERATE_ARENA_BYTES {arena} /* of RAM beside it */

/* The keys and values of a text: memory for `capacity` tokens, and how many there are: 0 to begin with. */
typedef struct {{
  int8_t* memory;
  uint32_t capacity, length;
}} hccs_cache;

/* Appends `count` token ids, from 1 on, to a text, and writes the scores [HCCS_VOCABULARY] of what comes
 * next. A text in one piece or in many has the same scores. HCCS_MODEL_BAD_LENGTH where there is no room: the
 * cache is as it was. */
hccs_model_status hccs_model_extend(hccs_cache* cache, const int32_t* tokens, uint32_t count,
                                    int32_t* scores);

/* How hccs_sample draws from these scores at a temperature in 65536ths, from 1 on: from the `top_k` likeliest
 * tokens, 0 for all, that have the `share` of the weights, top_p in 65536ths, 65536 for all. At temperature 0
 * hccs_sample takes NULL instead. */
hccs_sampling hccs_model_sampling(uint32_t temperature, uint32_t top_k, uint32_t share);

#define HCCS_SCORE_FACTOR {factor}u
#define HCCS_SCORE_SHIFT {shift}

#ifdef __cplusplus
}}
#endif

#endif
"""


def source(writing: Writing) -> str:
    """`hccs_generate.c`."""
    short = writing_of(writing)
    pools = " ".join(f"int{bits}_t {name}[{max(short.plan.pools[bits], 1)}];" for bits, name in POOLS.items())
    body = "\n".join(_steps(short))
    rows = short.program.rows
    return f"""/* The calls of a causal model over {rows} new tokens at a time, written by `hccs export c`. */
#include "hccs_generate.h"
#include "{writing.operators}"
#include "hccs_weights.h"

static struct {{ {pools} }} arena;
static int8_t logits[HCCS_MODEL_LONGEST];
static int16_t row_scores[HCCS_MODEL_LONGEST];

/* round(2^28 * 2^(-j / 1024)) */
static const uint32_t powers[1024] = {{
{numbers_of(powers())}}};

hccs_sampling hccs_model_sampling(uint32_t temperature, uint32_t top_k, uint32_t share) {{
  return hccs_sampling_at(powers, HCCS_SCORE_FACTOR, HCCS_SCORE_SHIFT, temperature, top_k, share);
}}

/* The next `rows` tokens of a text; scores of the last one, unless they are NULL. */
static void extend(const hccs_cache* cache, uint32_t position, const int32_t* tokens, uint32_t rows,
                   int32_t* scores) {{
  const uint8_t* const types = NULL;
  uint32_t row = 0;
{body}
}}

hccs_model_status hccs_model_extend(hccs_cache* cache, const int32_t* tokens, uint32_t count,
                                    int32_t* scores) {{
  const uint32_t most = cache->capacity < HCCS_MODEL_LONGEST ? cache->capacity : HCCS_MODEL_LONGEST;
  uint32_t i;
  if (count < 1 || cache->length > most || count > most - cache->length) return HCCS_MODEL_BAD_LENGTH;
  for (i = 0; i < count; ++i) {{
    if (!hccs_model_knows(tokens[i])) return HCCS_MODEL_BAD_TOKEN;
  }}
  for (i = 0; i < count; i += {rows}) {{
    const uint32_t rows = count - i < {rows} ? count - i : {rows};
    extend(cache, cache->length + i, tokens + i, rows, i + rows < count ? NULL : scores);
  }}
  cache->length += count;
  return HCCS_MODEL_OK;
}}
"""


def _steps(writing: Writing) -> Iterator[str]:
    """The calls over all rows up to the last attention, then over the last row."""
    groups = writing.plan.groups
    mixing = [number for number, group in enumerate(groups) if group[0].main.mixes_rows]
    before = 0  # bytes of the cache for a token, of the attentions so far
    heads = cached_heads(writing.program)
    for number, group in enumerate(groups):
        if number == max(mixing, default=-1) + 1:
            yield "  if (scores == NULL) return;"
            yield "  row = rows - 1, rows = 1;"
        for step in group:
            yield f"  {code_of(step.main).call(Call(writing, step, before))};"
            count, width = heads.get(step.main.output, (0, 0))
            before += 2 * count * width
