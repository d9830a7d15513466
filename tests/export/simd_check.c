/* Operators of hccs_simd.h against those of hccs_operators.h on random and extreme rows: values that differ. */
#define HCCS_INPUTS 1024
#define HCCS_TILE 64
#define HCCS_WIDE 65536
#define HCCS_KEYS 64
#define HCCS_PACKED 4096
#include "hccs_operators.h"

static void plain_norm(const hccs_norm* p, const int32_t* v, uint32_t rows, int16_t* y) {
  hccs_layer_norm_32(p, v, rows, y);
}
static void plain_narrow(const hccs_scales* p, const int16_t* x, uint32_t width, int8_t* y) {
  hccs_narrow_rows(p, x, width, 1, y);
}
static void plain_ramp(const hccs_ramp_pieces* p, const int16_t* x, uint32_t count, int16_t* y) {
  hccs_ramp(p, x, count, y);
}
static void plain_attend(const hccs_attention_heads* a, const int8_t* qkv, uint32_t length, int8_t* x, int16_t* s,
                         int8_t* y) {
  hccs_attend(a, qkv, length, length, x, s, y);
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

#define INPUTS 70
#define OUTPUTS 44
#define ROWS 37

static int8_t weights[OUTPUTS][INPUTS], packed[48 * (32 + 4 * INPUTS)], rows_in[ROWS * (INPUTS + 1)];
static int32_t y32[2][ROWS * OUTPUTS];
static int16_t y16[2][ROWS * OUTPUTS];
static int8_t y8[2][ROWS * OUTPUTS];

/* As packed_weight of hccs.executors.wasm. */
static void pack(const int8_t* w, uint32_t inputs, uint32_t outputs) {
  const uint32_t quads = (inputs + 3) / 4;
  uint32_t o, k;
  int8_t* to = packed;
  for (o = 0; o < outputs; o += 8, to += 32 + 32 * quads) {
    for (k = 0; k < 8 + 32 * quads; ++k) ((int32_t*)to)[k % 8] = 0;
    for (k = 0; k < 32 * quads; ++k) {
      const uint32_t output = o + k % 16 / 2, input = k / 16 * 2 + k % 2;
      to[32 + k] = output < outputs && input < inputs ? w[output * inputs + input] : 0;
      if (k % 32 >= 16) ((int32_t*)to)[k % 16 / 2] += to[32 + k] * to[32 + k - 16];
    }
  }
}

/* Layers of any size, from random to extreme, whose results exceed their width or not, with and without exponents. */
EXPORT("layers") uint32_t layers(uint32_t count) {
  static int32_t multiplier[48];
  uint32_t n, i, wrong = 0;
  for (n = 0; n < count; ++n) {
    const uint32_t inputs = 1 + (uint32_t)(random_within(34) + 34), outputs = 1 + n % OUTPUTS;
    const uint32_t rows = 1 + n % 7 * (n % 6), first = n % 3 == 0 && outputs > 8 ? 8 : 0, exponents = n / 2 % 2;
    const int32_t limit = n % 5 == 0 ? 128 : 1 << n % 7, factor = 1 << n % 31;
    const uint32_t columns = inputs + exponents;
    hccs_linear plain = {weights[0], bias, multiplier, inputs, outputs, 0x7fffffff}, simd = plain;
    simd.weight = packed;
    for (i = 0; i < inputs * outputs; ++i) weights[0][i] = (int8_t)(limit == 128 ? -128 : random_within(limit));
    for (i = 0; i < rows * columns; ++i) {
      rows_in[i] = (int8_t)(limit == 128 ? (i % 9 ? -127 : 127) : random_within(127));
      if (exponents && i % columns == inputs) rows_in[i] = (int8_t)(n % 4 == 3 ? i % 17 : i % 3);
    }
    for (i = 0; i < 48; ++i)
      bias[i] = random_within(n % 11 == 0 ? 0x3fffffff : 1 << 14), multiplier[i] = random_within(factor - 1);
    pack(weights[0], inputs, outputs);
    for (i = 0; i < ROWS * OUTPUTS; ++i) y32[0][i] = y32[1][i] = y16[0][i] = y16[1][i] = y8[0][i] = y8[1][i] = 0;
    for (i = 0; i < 2; ++i) {
      const uint32_t kind = n % 3;
      int8_t* to8 = kind == 0 ? y8[i] : NULL;
      int16_t* to16 = kind == 1 ? y16[i] : NULL;
      int32_t* to32 = kind == 2 ? y32[i] : NULL;
      if (i == 1) {
        hccs_packed_rows(&simd, first, rows_in, rows, (int)exponents, to8, to16, to32);
      } else if (exponents) {
        hccs_linear_of_exponents(&plain, first, rows_in, rows, to8, to16, to32);
      } else {
        hccs_linear_rows(&plain, first, rows_in, rows, to8, to16, to32);
      }
    }
    for (i = 0; i < ROWS * OUTPUTS; ++i) {
      wrong += i % outputs >= first && (y32[0][i] != y32[1][i] || y16[0][i] != y16[1][i] || y8[0][i] != y8[1][i]);
    }
  }
  return wrong;
}

/* Texts of any length, by lines and by tables. */
EXPORT("attended") uint32_t attended(uint32_t count) {
  static int8_t qkv[40 * 3 * 16], logits[64], y[2][40 * 16];
  static int16_t table[128], s[64];
  uint32_t n, i, wrong = 0;
  for (n = 0; n < count; ++n) {
    const uint32_t length = 1 + n % 40;
    const hccs_attention_head head = {20000,
                                      n % 150,
                                      127,
                                      n % 40,
                                      30,
                                      n % 3,
                                      1 + (int32_t)(n * 7919 % 4000000),
                                      20 + n % 12,
                                      1 + (int32_t)(n * 104729 % 16000000),
                                      12 + n % 14,
                                      n % 2 ? table : NULL};
    const hccs_attention_heads heads = {&head, 1, 1, 16, 0x7fffffff, 0x7fffffff};
    for (i = 0; i < 128; ++i) table[i] = (int16_t)(1 + (127 - i) * (n % 200));
    for (i = 0; i < length * 48; ++i) qkv[i] = (int8_t)random_within(n % 7 ? 127 : 1 + n % 9);
    plain_attend(&heads, qkv, length, logits, s, y[0]);
    hccs_attend(&heads, qkv, length, length, logits, s, y[1]);
    for (i = 0; i < length * 16; ++i) wrong += y[0][i] != y[1][i];
  }
  return wrong;
}

/* Every int16 through ramps. */
EXPORT("ramps") uint32_t ramps(uint32_t count) {
  static int16_t knot[64], slope[64], from[1 << 12], to[2][1 << 12];
  uint32_t n, i, k, wrong = 0;
  for (n = 0; n < count; ++n) {
    const hccs_ramp_pieces p = {knot, slope, n % 10};
    for (i = 0; i < 64; ++i) knot[i] = (int16_t)random_within(16000), slope[i] = (int16_t)random_within(16000);
    for (k = 0; k < 16; ++k) {
      for (i = 0; i < 1 << 12; ++i)
        from[i] = (int16_t)((int32_t)(k << 12 | i) - 32767 + (k == 15 && i == 4095 ? -1 : 0));
      plain_ramp(&p, from, 1 << 12, to[0]);
      hccs_ramp(&p, from, (1 << 12) - n % 8, to[1]);
      for (i = 0; i < (1 << 12) - n % 8; ++i) wrong += to[0][i] != to[1][i];
    }
  }
  return wrong;
}
