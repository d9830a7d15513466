/* Instructions per element of one row of softmax: HCCS in its forms beside int8 softmax in fixed point. */
#include "hccs_operators.h"
#include "hccs_say.h"
#include "hccs_softmax.h"
#include "softmax_s8.h"

#ifndef COLUMNS
#define COLUMNS 64
#endif
#define ROWS 64

static int8_t x[ROWS][COLUMNS];

/* int8 logits of one sequence of pseudo-random numbers: sums of four, so that large ones are rare. */
static void fill(void) {
  uint32_t state = 2463534242u;
  int row, i, k;
  for (row = 0; row < ROWS; ++row) {
    for (i = 0; i < COLUMNS; ++i) {
      int32_t sum = 0;
      for (k = 0; k < 4; ++k) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        sum += (int32_t)(state >> 26) - 32;
      }
      x[row][i] = (int8_t)(sum > 127 ? 127 : sum);
    }
  }
}

static void report(const char* name, uint32_t before, const void* out, uint32_t bytes) {
  const uint32_t spent = hccs_instructions() - before;
  const uint8_t* byte = out;
  uint32_t sum = 0, i;
  for (i = 0; i < bytes; ++i) sum = sum * 31 + byte[i];
  hccs_say_number(spent);
  hccs_put(' ');
  hccs_say_number(sum); /* of the last row, so that a test may compare it */
  hccs_put(' ');
  hccs_say(name);
  hccs_put('\n');
}

int hccs_program(void) {
  static const hccs_head theta = {444, 11, 40};
  static const hccs_lines lines = {1023, 4, 50, 41, 20, 0};
  static const hccs_attention_head head = {444, 11, 40, 0, 1, 0, 1, 1, 1, 1};
  static const hccs_attention_head two_lines = {1023, 4, 50, 41, 20, 2, 1, 1, 1, 1};
  static int16_t wide[COLUMNS];
  static uint8_t narrow[COLUMNS];
  static int8_t fixed[COLUMNS];
  uint32_t before;
  int row, i;
  fill();
  hccs_say_number(ROWS * COLUMNS);
  hccs_say(" elements\n");

  before = hccs_instructions();
  for (row = 0; row < ROWS; ++row) {
    int32_t m = -128;
    for (i = 0; i < COLUMNS; ++i) m = x[row][i] > m ? x[row][i] : m;
    if (hccs_scores(&head, x[row], m, COLUMNS, wide) < 1) return 1;
  }
  report("HCCS, normalisation deferred", before, wide, sizeof wide);

  before = hccs_instructions();
  for (row = 0; row < ROWS; ++row) {
    int32_t m = -128;
    for (i = 0; i < COLUMNS; ++i) m = x[row][i] > m ? x[row][i] : m;
    if (hccs_scores(&two_lines, x[row], m, COLUMNS, wide) < 1) return 1;
  }
  report("HCCS, two lines, normalisation deferred", before, wide, sizeof wide);

  before = hccs_instructions();
  for (row = 0; row < ROWS; ++row) hccs_softmax_row_u8(&theta, HCCS_U8_CLB, x[row], COLUMNS, COLUMNS, NULL, narrow);
  report("HCCS u8_clb", before, narrow, sizeof narrow);

  before = hccs_instructions();
  for (row = 0; row < ROWS; ++row) hccs_softmax_row_u8(&theta, HCCS_U8_LIN, x[row], COLUMNS, COLUMNS, NULL, narrow);
  report("HCCS u8_lin", before, narrow, sizeof narrow);

  before = hccs_instructions();
  for (row = 0; row < ROWS; ++row) hccs_softmax_row_u8(&theta, HCCS_U8_DIV, x[row], COLUMNS, COLUMNS, NULL, narrow);
  report("HCCS u8_div", before, narrow, sizeof narrow);

  before = hccs_instructions();
  for (row = 0; row < ROWS; ++row) hccs_lines_row_u8(&lines, HCCS_U8_DIV, x[row], COLUMNS, COLUMNS, NULL, narrow);
  report("HCCS u8_div, two lines", before, narrow, sizeof narrow);

  before = hccs_instructions();
  for (row = 0; row < ROWS; ++row) hccs_softmax_row_i16(&theta, HCCS_I16_DIV, x[row], COLUMNS, COLUMNS, NULL, wide);
  report("HCCS i16_div", before, wide, sizeof wide);

  /* One step of a logit is worth 0.05 = 2^22 * (1717986918 / 2^31) / 2^26. */
  before = hccs_instructions();
  for (row = 0; row < ROWS; ++row) softmax_s8(x[row], COLUMNS, 1717986918, 22, -255, fixed);
  report("int8 softmax in fixed point", before, fixed, sizeof fixed);
  return 0;
}
