/* What JavaScript calls: a model over its own memory, with the weights where the compiler was told they will lie. */
#include "hccs_model.h"
#include "hccs_text.h"

#include <stddef.h>

#define EXPORT(name) __attribute__((export_name(name)))
#define PAGE 65536u

extern unsigned char __heap_base; /* the linker's: texts lie behind everything else */

#ifdef HCCS_MODEL_LABELS
#define COUNT HCCS_MODEL_LABELS
static int32_t answer[COUNT];
#else
#define COUNT HCCS_MODEL_DIMS
static int16_t answer[COUNT];
#endif

static int32_t tokens[HCCS_MODEL_LONGEST];
static uint8_t types[HCCS_MODEL_LONGEST];

EXPORT("weights") void* hccs_wasm_weights(void) { return (void*)HCCS_WEIGHTS_AT; }

/* 0 where the weights are damaged or those of another model, 1 where model.json names another sum, in two halves. */
EXPORT("check") int hccs_wasm_check(uint32_t low, uint32_t high) {
  const uint64_t* words = (const uint64_t*)HCCS_WEIGHTS_AT;
  uint64_t sum = HCCS_WEIGHTS_BYTES, i;
  for (i = 0; i < HCCS_WEIGHTS_BYTES / 8; ++i) sum += words[i] * (2 * i + 1);
  return sum != HCCS_CHECKSUM ? 0 : sum != ((uint64_t)high << 32 | low) ? 1 : 2;
}

/* Room for the bytes of texts, or NULL where memory cannot grow. */
EXPORT("room") void* hccs_wasm_room(uint32_t bytes) {
  const uint32_t start = (uint32_t)(uintptr_t)&__heap_base, has = (uint32_t)__builtin_wasm_memory_size(0) * PAGE;
  if (bytes > 0x7fff0000u - start) return 0;
  if (start + bytes > has && __builtin_wasm_memory_grow(0, (start + bytes - has + PAGE - 1) / PAGE) == (size_t)-1)
    return 0;
  return &__heap_base;
}

EXPORT("answer") void* hccs_wasm_answer(void) { return answer; }
EXPORT("tokens") void* hccs_wasm_tokens(void) { return tokens; }
EXPORT("types") void* hccs_wasm_types(void) { return types; }

EXPORT("run_tokens") int hccs_wasm_run_tokens(uint32_t length) {
#ifdef HCCS_MODEL_LABELS
  return hccs_model_scores(tokens, types, length, answer);
#else
  return hccs_model_vector(tokens, types, length, answer);
#endif
}

/* The first text lies at the start of the room, the second one, of -1 bytes where there is none, behind it. */
EXPORT("run_text") int hccs_wasm_run_text(uint32_t first_bytes, int32_t second_bytes) {
  const char* text = (const char*)&__heap_base;
#ifdef HCCS_MODEL_LABELS
  const char* second = second_bytes < 0 ? 0 : text + first_bytes;
  return hccs_classify_text(text, first_bytes, second, second == 0 ? 0 : (uint32_t)second_bytes, answer);
#else
  (void)second_bytes;
  return hccs_embed_text(text, first_bytes, answer);
#endif
}

/* The tokens of a text, or of a pair, to `tokens`; their number, or -1 where the text cannot be read. */
EXPORT("read") int hccs_wasm_read(uint32_t first_bytes, int32_t second_bytes) {
  const char *text = (const char*)&__heap_base, *second = second_bytes < 0 ? 0 : text + first_bytes;
  hccs_text read;
  uint32_t i;
  if (hccs_read_text(text, first_bytes, second, second == 0 ? 0 : (uint32_t)second_bytes, &read) > HCCS_TEXT_CUT)
    return -1;
  for (i = 0; i < read.length; ++i) tokens[i] = read.tokens[i];
  return (int)read.length;
}
