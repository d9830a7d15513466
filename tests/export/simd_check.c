/* Operators of hccs_simd.h against those of hccs_operators.h on random and extreme rows: values that differ. */
#define HCCS_INPUTS 64
#define HCCS_TILE 64
#define HCCS_WIDE 4096
#define HCCS_KEYS 64
#define HCCS_PACKED 4096
#include "hccs_operators.h"

static void plain_norm(const hccs_norm* p, const int32_t* v, uint32_t rows, int16_t* y) {
  hccs_layer_norm_32(p, v, rows, y);
}
static void plain_narrow(const hccs_scales* p, const int16_t* x, uint32_t width, int8_t* y) {
  hccs_narrow_rows(p, x, width, 1, y);
}

#include "hccs_simd.h"

#define MOST 1024
#define EXPORT(name) __attribute__((export_name(name)))

static int32_t v[MOST], gain[MOST], bias[MOST];
static int16_t x[MOST], scale[MOST], wide[2][MOST];
static int8_t narrow[2][MOST + 1];
static uint32_t state = 1;

static int32_t random_within(int32_t limit) {
  state = state * 1664525u + 1013904223u;
  return (int32_t)((uint64_t)(state >> 1) * (2 * (uint32_t)limit + 1) >> 31) - limit;
}

/* Rows of any size, of few large values, or all alike; gains and biases up to their limits. */
EXPORT("norms") uint32_t norms(uint32_t rows, uint32_t channels, uint32_t root_shift, uint64_t root) {
  uint32_t row, i, wrong = 0;
  for (row = 0; row < rows; ++row) {
    const int32_t limit = 1 << (uint32_t)(row % 17), gains = 1 << (row / 17 % 24);
    const hccs_norm p = {gain, bias, 1 + row % 3 * (uint64_t)1000003, root, root_shift, row % 17, channels};
    for (i = 0; i < channels; ++i) {
      v[i] = row % 5 == 4 && i > row % 7 ? limit : random_within(limit);
      gain[i] = random_within(gains - 1);
      bias[i] = random_within(row % 2 ? 0x7fffffff : 1 << 20);
    }
    plain_norm(&p, v, 1, wide[0]);
    hccs_layer_norm_32(&p, v, 1, wide[1]);
    for (i = 0; i < channels; ++i) wrong += wide[0][i] != wide[1][i];
  }
  return wrong;
}

/* Rows of every exponent, with and without scales; halves among them. */
EXPORT("narrowed") uint32_t narrowed(uint32_t rows, uint32_t width) {
  uint32_t row, i, wrong = 0;
  for (row = 0; row < rows; ++row) {
    const hccs_scales p = {row % 2 ? scale : NULL};
    for (i = 0; i < width; ++i) {
      x[i] = (int16_t)random_within(row % 3 ? (1 << (row % 16)) - 1 : 32767);
      if (row % 4 == 0) x[i] = (int16_t)((x[i] & -256) | 128);
      scale[i] = (int16_t)(1 + (random_within(16383) & 0x7ffe));
    }
    plain_narrow(&p, x, width, narrow[0]);
    hccs_narrow_rows(&p, x, width, 1, narrow[1]);
    for (i = 0; i <= width; ++i) wrong += narrow[0][i] != narrow[1][i];
  }
  return wrong;
}
