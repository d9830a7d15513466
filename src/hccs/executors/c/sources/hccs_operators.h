/* The operators of an integer model: portable C99, no library, no allocation, no floating point.
 *
 * Each function is one rule of docs/spec.md (its section is named), for `rows` rows that lie one behind the other.
 * The same bits as every other backend. Constants come from hccs_weights.c, the calls are in hccs_model.c. */
#ifndef HCCS_OPERATORS_H
#define HCCS_OPERATORS_H

#include <stddef.h>
#include <stdint.h>

/* Right shifts of negative numbers round down, as on every compiler in use; C99 leaves it to them. */
typedef char hccs_shifts_round_down[(-3 >> 1) == -2 ? 1 : -1];

/* One copy of a function that many call: it would grow the code by kilobytes and save nothing. */
#ifdef __GNUC__
#define HCCS_ONCE __attribute__((noinline))
#else
#define HCCS_ONCE
#endif

/* words[token] << shift, positions, types, each NULL where a model has none; `kept` are the ids of the words in
 * ascending order, or all where NULL. */
typedef struct {
  const int8_t* words;
  const int16_t* positions;
  const int16_t* types;
  const int32_t* kept;
  uint32_t count;
  uint32_t width;
  uint32_t shift;
} hccs_embedding;

/* weight [outputs][inputs]; no multipliers where the sums themselves are the result. `limit` is that of int32. */
typedef struct {
  const int8_t* weight;
  const int32_t* bias;
  const int32_t* multiplier;
  uint32_t inputs;
  uint32_t outputs;
  int32_t limit;
} hccs_linear;

/* A linear layer of patches of side `patch`, behind `specials` rows of their own. */
typedef struct {
  hccs_linear projection;
  const int16_t* special;
  const int16_t* positions;
  uint32_t specials;
  uint32_t patch;
  uint32_t channels;
  uint32_t height;
  uint32_t width;
} hccs_patches;

/* `root` is sqrt(channels) * 2^root_shift, rounded down. Without a bias it is RMSNorm. */
typedef struct {
  const int32_t* gain;
  const int32_t* bias;
  uint64_t epsilon;
  uint64_t root;
  uint32_t root_shift;
  uint32_t gain_bits;
  uint32_t channels;
} hccs_norm;

/* Cosines and sines [positions][pairs], 32767 stands for 1; multipliers of the heads of q, k and v, of which the first
 * `turned` turn. */
typedef struct {
  const int16_t* cosine;
  const int16_t* sine;
  const int32_t* multiplier;
  uint32_t heads;
  uint32_t turned;
  uint32_t width; /* of one head */
  uint32_t pairs;
} hccs_rotation;

/* max(x, 0) - r(|x|): r where each of 64 pieces of 2^bits steps starts, and its rise over the piece. */
typedef struct {
  const int16_t* knot;
  const int16_t* slope;
  uint32_t bits;
} hccs_ramp_pieces;

/* Of every channel, in Q15, before rows are narrowed; NULL: 1. */
typedef struct {
  const int16_t* scale;
} hccs_scales;

typedef enum { HCCS_POOL_MEAN, HCCS_POOL_LAST, HCCS_POOL_MAX } hccs_pooling;

/* theta of one head (without a second line S2 = 0, D2 = 1, f = 0), the factor of its logits and that of its output.
 * Scores by distance, 128 of them, take the place of theta unless they are NULL. */
typedef struct {
  int32_t B;
  int32_t S;
  int32_t D;
  int32_t S2;
  int32_t D2;
  uint32_t f;
  int32_t logit_multiplier;
  uint32_t logit_shift;
  int32_t out_multiplier;
  uint32_t out_shift;
  const int16_t* scores;
} hccs_attention_head;

/* `count` heads of q, `shared` of k and v. A query sees keys so far before and after itself, at most. */
typedef struct {
  const hccs_attention_head* heads;
  uint32_t count;
  uint32_t shared;
  uint32_t width; /* of one head */
  uint32_t before;
  uint32_t after;
} hccs_attention_heads;

/* Cores with Arm's DSP instructions (Cortex-M4, M7, M33, ...) multiply two pairs of 16 bits at once: the same sums. */
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP && defined(__ARM_FEATURE_UNALIGNED)
#include <arm_acle.h>
#define HCCS_DSP

/* Four bytes as two pairs of 16 bits. */
typedef struct {
  int16x2_t even;
  int16x2_t odd;
} hccs_bytes;

static inline hccs_bytes hccs_bytes_at(const int8_t* x) {
  hccs_bytes pairs;
  uint32_t word;
  __builtin_memcpy(&word, x, 4); /* one load */
  pairs.even = __sxtb16((int8x4_t)word);
  pairs.odd = __sxtb16((int8x4_t)(word >> 8 | word << 24));
  return pairs;
}
#endif

/* ---- numbers ---- */

static inline int32_t hccs_clamp(int64_t x, int32_t low, int32_t high) {
  return x < low ? low : x > high ? high : (int32_t)x;
}

/* rhe(x / 2^bits): the nearest integer, ties to the even one. */
static inline int64_t hccs_shift_half_even(int64_t x, uint32_t bits) {
  if (bits == 0) return x;
  return (x + (((int64_t)1 << (bits - 1)) - 1) + ((x >> bits) & 1)) >> bits;
}

/* "Requantisation": rq(sum, M, limit) = clamp(rhe(sum * M / 2^16), -limit, limit). */
static inline int32_t hccs_requantise(int32_t sum, int32_t multiplier, int32_t limit) {
  return hccs_clamp(hccs_shift_half_even((int64_t)sum * multiplier, 16), -limit, limit);
}

/* "Integer attention": clamp(floor((x * M + 2^(shift - 1)) / 2^shift), -128, 127). */
static inline int8_t hccs_round_half_up(int32_t x, int32_t multiplier, uint32_t shift) {
  return (int8_t)hccs_clamp(((int64_t)x * multiplier + ((int64_t)1 << (shift - 1))) >> shift, -128, 127);
}

/* floor((2 * x + n) / (2 * n)): x / n rounded half up, n >= 1. */
static inline int64_t hccs_divide_half_up(int64_t x, int64_t n) {
  const int64_t quotient = (2 * x + n) / (2 * n);
  return (2 * x + n) % (2 * n) < 0 ? quotient - 1 : quotient;
}

/* floor(log2 x) of x >= 1. */
static inline uint32_t hccs_leading_bit(uint64_t x) {
  uint32_t bit = 0, step;
  for (step = 32; step > 0; step >>= 1) {
    if (x >> step != 0) {
      x >>= step;
      bit += step;
    }
  }
  return bit;
}

/* The square root rounded down, digit by digit. */
static inline uint32_t hccs_integer_root(uint64_t x) {
  uint64_t root = 0, digit = (uint64_t)1 << 62;
  while (digit != 0) {
    if (x >= root + digit) {
      x -= root + digit;
      root = (root >> 1) + digit;
    } else {
      root >>= 1;
    }
    digit >>= 2;
  }
  return (uint32_t)root;
}

/* ---- "embedding" ---- */

/* The row of a token's word, or `count` for a token that the model does not hold. */
static inline uint32_t hccs_word_of(const hccs_embedding* e, int32_t token) {
  uint32_t low = 0, high = e->count;
  if (e->kept == NULL) return token >= 0 && (uint32_t)token < e->count ? (uint32_t)token : e->count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (e->kept[middle] < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < e->count && e->kept[low] == token ? low : e->count;
}

/* v = (words[token] << shift) + positions[position] + types[type] of `rows` tokens, the first of which is the one at
 * the position `first` of the text: int32, or clamped to +-limit as int16. `types` may be NULL: all zero. */
static inline void hccs_embed(const hccs_embedding* e, const int32_t* tokens, const uint8_t* types, uint32_t first,
                              uint32_t rows, int32_t* y32, int16_t* y16, int32_t limit) {
  const uint32_t width = e->width;
  uint32_t row, i;
  for (row = 0; row < rows; ++row) {
    const int8_t* word = e->words + (size_t)hccs_word_of(e, tokens[row]) * width;
    const int16_t* position = e->positions == NULL ? NULL : e->positions + (size_t)(first + row) * width;
    const int16_t* type = e->types == NULL ? NULL : e->types + (size_t)(types == NULL ? 0 : types[row]) * width;
    for (i = 0; i < width; ++i) {
      int32_t sum = word[i] * ((int32_t)1 << e->shift);
      if (position != NULL) sum += position[i];
      if (type != NULL) sum += type[i];
      if (y32 != NULL) {
        *y32++ = sum;
      } else {
        *y16++ = (int16_t)hccs_clamp(sum, -limit, limit);
      }
    }
  }
}

static inline void hccs_embed_32(const hccs_embedding* e, const int32_t* tokens, const uint8_t* types, uint32_t first,
                                 uint32_t rows, int32_t* y) {
  hccs_embed(e, tokens, types, first, rows, y, NULL, 0);
}

static inline void hccs_embed_16(const hccs_embedding* e, const int32_t* tokens, const uint8_t* types, uint32_t first,
                                 uint32_t rows, int32_t limit, int16_t* y) {
  hccs_embed(e, tokens, types, first, rows, NULL, y, limit);
}

/* ---- "linear" ---- */

/* One value of a linear layer, in the width of whichever output there is. */
static inline void hccs_finish(const hccs_linear* l, uint32_t output, int32_t sum, size_t at, int8_t* y8, int16_t* y16,
                               int32_t* y32) {
  if (y32 != NULL) {
    y32[at] = l->multiplier == NULL ? sum : hccs_requantise(sum, l->multiplier[output], l->limit);
  } else if (y16 != NULL) {
    y16[at] = (int16_t)hccs_requantise(sum, l->multiplier[output], 32767);
  } else {
    y8[at] = (int8_t)hccs_requantise(sum, l->multiplier[output], 127);
  }
}

/* Adds the products of two rows with the weights of two outputs: four sums for four loads. */
static inline void hccs_products(const int8_t* x0, const int8_t* x1, const int8_t* w0, const int8_t* w1, uint32_t count,
                                 int32_t* sums) {
  int32_t a = sums[0], b = sums[1], c = sums[2], d = sums[3];
  uint32_t i;
#define HCCS_FOUR_PRODUCTS(k) a += x0[k] * w0[k], b += x0[k] * w1[k], c += x1[k] * w0[k], d += x1[k] * w1[k]
#ifdef HCCS_DSP
  for (i = count / 4; i > 0; --i) {
    const hccs_bytes p0 = hccs_bytes_at(x0), p1 = hccs_bytes_at(x1), q0 = hccs_bytes_at(w0), q1 = hccs_bytes_at(w1);
    a = __smlad(p0.odd, q0.odd, __smlad(p0.even, q0.even, a));
    b = __smlad(p0.odd, q1.odd, __smlad(p0.even, q1.even, b));
    c = __smlad(p1.odd, q0.odd, __smlad(p1.even, q0.even, c));
    d = __smlad(p1.odd, q1.odd, __smlad(p1.even, q1.even, d));
    x0 += 4, x1 += 4, w0 += 4, w1 += 4;
  }
#else
  for (i = count / 4; i > 0; --i) {
    HCCS_FOUR_PRODUCTS(0);
    HCCS_FOUR_PRODUCTS(1);
    HCCS_FOUR_PRODUCTS(2);
    HCCS_FOUR_PRODUCTS(3);
    x0 += 4, x1 += 4, w0 += 4, w1 += 4;
  }
#endif
  for (i = 0; i < count % 4; ++i) HCCS_FOUR_PRODUCTS(i);
#undef HCCS_FOUR_PRODUCTS
  sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;
}

/* rq(W x + b) of the outputs from `first` on. Where a row or an output has no second one beside it, it is taken twice.
 * Sums fit int32 for every input: the program was refused otherwise. */
HCCS_ONCE static void hccs_linear_rows(const hccs_linear* l, uint32_t first, const int8_t* x, uint32_t rows, int8_t* y8,
                                       int16_t* y16, int32_t* y32) {
  const uint32_t inputs = l->inputs, outputs = l->outputs;
  uint32_t row, o;
  for (row = 0; row < rows; row += 2) {
    const uint32_t next_row = row + 1 < rows ? row + 1 : row;
    const int8_t *x0 = x + (size_t)row * inputs, *x1 = x + (size_t)next_row * inputs;
    for (o = first; o < outputs; o += 2) {
      const uint32_t next = o + 1 < outputs ? o + 1 : o;
      const int8_t *w0 = l->weight + (size_t)o * inputs, *w1 = l->weight + (size_t)next * inputs;
      int32_t sums[4];
      sums[0] = sums[2] = l->bias[o];
      sums[1] = sums[3] = l->bias[next];
      hccs_products(x0, x1, w0, w1, inputs, sums);
      hccs_finish(l, o, sums[0], (size_t)row * outputs + o, y8, y16, y32);
      hccs_finish(l, next, sums[1], (size_t)row * outputs + next, y8, y16, y32);
      hccs_finish(l, o, sums[2], (size_t)next_row * outputs + o, y8, y16, y32);
      hccs_finish(l, next, sums[3], (size_t)next_row * outputs + next, y8, y16, y32);
    }
  }
}

static inline void hccs_linear_8(const hccs_linear* l, const int8_t* x, uint32_t rows, int8_t* y) {
  hccs_linear_rows(l, 0, x, rows, y, NULL, NULL);
}

/* The same where nobody reads the outputs before `first`. */
static inline void hccs_linear_8_from(const hccs_linear* l, uint32_t first, const int8_t* x, uint32_t rows, int8_t* y) {
  hccs_linear_rows(l, first, x, rows, y, NULL, NULL);
}

static inline void hccs_linear_16(const hccs_linear* l, const int8_t* x, uint32_t rows, int16_t* y) {
  hccs_linear_rows(l, 0, x, rows, NULL, y, NULL);
}

static inline void hccs_linear_32(const hccs_linear* l, const int8_t* x, uint32_t rows, int32_t* y) {
  hccs_linear_rows(l, 0, x, rows, NULL, NULL, y);
}

/* ---- "Row exponents" ---- */

/* Bits beyond 7 of a row's largest magnitude, which counts as 127 or more. */
static inline uint32_t hccs_exponent(uint32_t largest) { return hccs_leading_bit(largest) - 6; }

static inline int32_t hccs_scaled(const hccs_scales* p, const int16_t* x, uint32_t i) {
  return p->scale == NULL ? x[i] : (x[i] * p->scale[i] + (1 << 14)) >> 15;
}

/* int16 rows, scaled, to int8 rows of width + 1: clamp(rhe(x / 2^e), -127, 127), then e, the bits of the largest |x|
 * beyond 7. */
static inline void hccs_narrow_rows(const hccs_scales* p, const int16_t* x, uint32_t width, uint32_t rows, int8_t* y) {
  uint32_t row, i;
  for (row = 0; row < rows; ++row) {
    uint32_t largest = 127, e;
    for (i = 0; i < width; ++i) {
      const int32_t v = hccs_scaled(p, x, i);
      const uint32_t magnitude = (uint32_t)(v < 0 ? -v : v);
      if (magnitude > largest) largest = magnitude;
    }
    e = hccs_exponent(largest);
    for (i = 0; i < width; ++i) y[i] = (int8_t)hccs_clamp(hccs_shift_half_even(hccs_scaled(p, x, i), e), -127, 127);
    y[width] = (int8_t)e;
    x += width, y += width + 1;
  }
}

/* The same of int32 rows. */
static inline void hccs_narrow_long_rows(const int32_t* x, uint32_t width, uint32_t rows, int8_t* y) {
  uint32_t row, i;
  for (row = 0; row < rows; ++row) {
    uint32_t largest = 127, e;
    for (i = 0; i < width; ++i) {
      const uint32_t magnitude = (uint32_t)(x[i] < 0 ? -x[i] : x[i]);
      if (magnitude > largest) largest = magnitude;
    }
    e = hccs_exponent(largest);
    for (i = 0; i < width; ++i) y[i] = (int8_t)hccs_clamp(hccs_shift_half_even(x[i], e), -127, 127);
    y[width] = (int8_t)e;
    x += width, y += width + 1;
  }
}

/* clamp(rhe(sum * M / 2^(23 - e)), -limit, limit), in the width of whichever output there is. */
static inline void hccs_finish_row(const hccs_linear* l, uint32_t output, int32_t sum, int32_t e, size_t at, int8_t* y8,
                                   int16_t* y16, int32_t* y32) {
  const int64_t nearest = hccs_shift_half_even((int64_t)sum * l->multiplier[output], (uint32_t)(23 - e));
  if (y32 != NULL) {
    y32[at] = hccs_clamp(nearest, -l->limit, l->limit);
  } else if (y16 != NULL) {
    y16[at] = (int16_t)hccs_clamp(nearest, -32767, 32767);
  } else {
    y8[at] = (int8_t)hccs_clamp(nearest, -127, 127);
  }
}

/* A linear layer of rows with exponents, its outputs from `first` on, two rows and two outputs at a time:
 * sum = W x + rhe(b / 2^e). */
HCCS_ONCE static void hccs_linear_of_exponents(const hccs_linear* l, uint32_t first, const int8_t* x, uint32_t rows,
                                               int8_t* y8, int16_t* y16, int32_t* y32) {
  const uint32_t inputs = l->inputs, outputs = l->outputs;
  uint32_t row, o;
  for (row = 0; row < rows; row += 2) {
    const uint32_t next_row = row + 1 < rows ? row + 1 : row;
    const int8_t *x0 = x + (size_t)row * (inputs + 1), *x1 = x + (size_t)next_row * (inputs + 1);
    const int32_t e0 = x0[inputs], e1 = x1[inputs];
    for (o = first; o < outputs; o += 2) {
      const uint32_t next = o + 1 < outputs ? o + 1 : o;
      const int8_t *w0 = l->weight + (size_t)o * inputs, *w1 = l->weight + (size_t)next * inputs;
      int32_t sums[4];
      sums[0] = (int32_t)hccs_shift_half_even(l->bias[o], (uint32_t)e0);
      sums[1] = (int32_t)hccs_shift_half_even(l->bias[next], (uint32_t)e0);
      sums[2] = (int32_t)hccs_shift_half_even(l->bias[o], (uint32_t)e1);
      sums[3] = (int32_t)hccs_shift_half_even(l->bias[next], (uint32_t)e1);
      hccs_products(x0, x1, w0, w1, inputs, sums);
      hccs_finish_row(l, o, sums[0], e0, (size_t)row * outputs + o, y8, y16, y32);
      hccs_finish_row(l, next, sums[1], e0, (size_t)row * outputs + next, y8, y16, y32);
      hccs_finish_row(l, o, sums[2], e1, (size_t)next_row * outputs + o, y8, y16, y32);
      hccs_finish_row(l, next, sums[3], e1, (size_t)next_row * outputs + next, y8, y16, y32);
    }
  }
}

static inline void hccs_linear_of_exponents_8(const hccs_linear* l, const int8_t* x, uint32_t rows, int8_t* y) {
  hccs_linear_of_exponents(l, 0, x, rows, y, NULL, NULL);
}

/* The same where nobody reads the outputs before `first`. */
static inline void hccs_linear_of_exponents_8_from(const hccs_linear* l, uint32_t first, const int8_t* x, uint32_t rows,
                                                   int8_t* y) {
  hccs_linear_of_exponents(l, first, x, rows, y, NULL, NULL);
}

static inline void hccs_linear_of_exponents_16(const hccs_linear* l, const int8_t* x, uint32_t rows, int16_t* y) {
  hccs_linear_of_exponents(l, 0, x, rows, NULL, y, NULL);
}

static inline void hccs_linear_of_exponents_32(const hccs_linear* l, const int8_t* x, uint32_t rows, int32_t* y) {
  hccs_linear_of_exponents(l, 0, x, rows, NULL, NULL, y);
}

/* ---- "patches" ---- */

/* Rows first, first + 1, ... of an image [channels][height][width]: special rows, then pixels - 128 of each patch
 * through the linear layer; positions added, clamped. `pixels` has room for as many patches. */
static inline void hccs_embed_patches(const hccs_patches* p, const uint8_t* image, uint32_t first, uint32_t rows,
                                      int8_t* pixels, int16_t* y) {
  const uint32_t across = p->width / p->patch, outputs = p->projection.outputs;
  const uint32_t specials = first < p->specials ? (p->specials - first < rows ? p->specials - first : rows) : 0;
  uint32_t row, c, i, j;
  int8_t* pixel = pixels;
  for (row = first + specials; row < first + rows; ++row) {
    const uint32_t number = row - p->specials, top = number / across * p->patch, left = number % across * p->patch;
    for (c = 0; c < p->channels; ++c) {
      for (i = 0; i < p->patch; ++i) {
        const uint8_t* line = image + ((size_t)c * p->height + top + i) * p->width + left;
        for (j = 0; j < p->patch; ++j) *pixel++ = (int8_t)(line[j] - 128);
      }
    }
  }
  for (i = 0; i < specials * outputs; ++i) y[i] = p->special[(size_t)first * outputs + i];
  hccs_linear_16(&p->projection, pixels, rows - specials, y + (size_t)specials * outputs);
  for (i = 0; i < rows * outputs; ++i) {
    y[i] = (int16_t)hccs_clamp((int32_t)y[i] + p->positions[(size_t)first * outputs + i], -32767, 32767);
  }
}

/* ---- "LayerNorm", "RMSNorm" ---- */

/* Of int32 sums, or of the int16 stream itself: whichever is not NULL. Exact mean and variance, one square root and
 * one division per row. */
static inline void hccs_layer_norm(const hccs_norm* p, const int32_t* v32, const int16_t* v16, uint32_t rows,
                                   int16_t* y) {
  const uint32_t h = p->channels;
  const int32_t times = p->bias == NULL ? 256 : (int32_t)h;
  uint32_t row, i;
  for (row = 0; row < rows; ++row) {
    int32_t sum = 0;
    uint64_t Q = p->epsilon;
    uint32_t t, shift;
    int32_t r;
    for (i = 0; i < h && p->bias != NULL; ++i) sum += v32 != NULL ? v32[i] : v16[i];
    for (i = 0; i < h; ++i) {
      const int32_t d = times * (v32 != NULL ? v32[i] : v16[i]) - sum;
      Q += (uint64_t)((int64_t)d * d);
    }
    t = (63 - hccs_leading_bit(Q)) / 2;
    r = (int32_t)(p->root / hccs_integer_root(Q << (2 * t)));
    shift = p->root_shift - t - 20;
    for (i = 0; i < h; ++i) {
      const int32_t d = times * (v32 != NULL ? v32[i] : v16[i]) - sum;
      const int64_t xhat = hccs_shift_half_even((int64_t)d * r, shift);
      const int64_t bias = p->bias == NULL ? 0 : p->bias[i] * ((int64_t)1 << 20), scaled = xhat * p->gain[i] + bias;
      y[i] = (int16_t)hccs_clamp(hccs_shift_half_even(scaled, 20 + p->gain_bits), -32767, 32767);
    }
    y += h;
    if (v32 != NULL) {
      v32 += h;
    } else {
      v16 += h;
    }
  }
}

static inline void hccs_layer_norm_32(const hccs_norm* p, const int32_t* v, uint32_t rows, int16_t* y) {
  hccs_layer_norm(p, v, NULL, rows, y);
}

static inline void hccs_layer_norm_16(const hccs_norm* p, const int16_t* v, uint32_t rows, int16_t* y) {
  hccs_layer_norm(p, NULL, v, rows, y);
}

/* Each of `heads` heads of int16 rows by its own norm; the other of `width` channels stay. */
static inline void hccs_norm_heads(const hccs_norm* p, uint32_t heads, uint32_t width, const int16_t* x, uint32_t rows,
                                   int16_t* y) {
  const uint32_t dim = p->channels;
  uint32_t row, i;
  for (row = 0; row < rows; ++row, x += width, y += width) {
    for (i = 0; i < heads; ++i) hccs_layer_norm_16(p + i, x + i * dim, 1, y + i * dim);
    for (i = heads * dim; i < width; ++i) y[i] = x[i];
  }
}

/* ---- "narrow", "table", "residual" ---- */

/* The int16 stream to int8: clamp(rhe(x / 2^bits), -127, 127). */
static inline void hccs_narrow(const int16_t* x, uint32_t count, uint32_t bits, int8_t* y) {
  uint32_t i;
  for (i = 0; i < count; ++i) {
    const int32_t floor = x[i] >> bits, half = bits == 0 ? 0 : ((int32_t)1 << (bits - 1)) - 1 + (floor & 1);
    y[i] = (int8_t)hccs_clamp((x[i] + half) >> bits, -127, 127);
  }
}

/* Any function of one int8 value; x and y may be the same. */
static inline void hccs_table(const int8_t* entries, const int8_t* x, uint32_t count, int8_t* y) {
  uint32_t i;
  for (i = 0; i < count; ++i) y[i] = entries[x[i] + 128];
}

/* The sum of two int16 streams in int32. */
static inline void hccs_add_32(const int16_t* x, const int16_t* z, uint32_t count, int32_t* y) {
  uint32_t i;
  for (i = 0; i < count; ++i) y[i] = (int32_t)x[i] + z[i];
}

/* The sum of two int16 streams where the stream itself goes on: clamped to +-limit. */
static inline void hccs_add_16(const int16_t* x, const int16_t* z, uint32_t count, int32_t limit, int16_t* y) {
  uint32_t i;
  for (i = 0; i < count; ++i) y[i] = (int16_t)hccs_clamp((int32_t)x[i] + z[i], -limit, limit);
}

/* An int32 stream, which RMSNorm reads. */
static inline void hccs_add_long(const int32_t* x, const int32_t* z, uint32_t count, int32_t limit, int32_t* y) {
  uint32_t i;
  for (i = 0; i < count; ++i) y[i] = hccs_clamp(x[i] + z[i], -limit, limit);
}

/* ---- "product", "last" ---- */

/* clamp(rhe(x * z / 2^bits), -limit, limit) */
static inline int32_t hccs_product(int16_t x, int16_t z, uint32_t bits, int32_t limit) {
  return hccs_clamp(hccs_shift_half_even((int32_t)x * z, bits), -limit, limit);
}

static inline void hccs_multiply_16(const int16_t* x, const int16_t* z, uint32_t count, uint32_t bits, int32_t limit,
                                    int16_t* y) {
  uint32_t i;
  for (i = 0; i < count; ++i) y[i] = (int16_t)hccs_product(x[i], z[i], bits, limit);
}

static inline void hccs_multiply_32(const int16_t* x, const int16_t* z, uint32_t count, uint32_t bits, int32_t limit,
                                    int32_t* y) {
  uint32_t i;
  for (i = 0; i < count; ++i) y[i] = hccs_product(x[i], z[i], bits, limit);
}

/* The last of `length` rows. */
static inline void hccs_last_8(const int8_t* x, uint32_t length, uint32_t columns, int8_t* y) {
  uint32_t i;
  for (i = 0; i < columns; ++i) y[i] = x[(size_t)(length - 1) * columns + i];
}

static inline void hccs_last_16(const int16_t* x, uint32_t length, uint32_t columns, int16_t* y) {
  uint32_t i;
  for (i = 0; i < columns; ++i) y[i] = x[(size_t)(length - 1) * columns + i];
}

/* ---- "Rotary positions" ---- */

static inline int8_t hccs_rotated(int32_t a, int32_t multiplier) {
  return (int8_t)hccs_clamp(hccs_shift_half_even((int64_t)a * multiplier, 38), -127, 127);
}

/* int16 rows of q, k and v at the positions first, first + 1, ... to int8. */
static inline void hccs_rotate(const hccs_rotation* p, const int16_t* x, uint32_t first, uint32_t rows, int8_t* y) {
  uint32_t row, head, i;
  for (row = first; row < first + rows; ++row) {
    const int16_t *cosine = p->cosine + (size_t)row * p->pairs, *sine = p->sine + (size_t)row * p->pairs;
    for (head = 0; head < p->heads; ++head, x += p->width, y += p->width) {
      const uint32_t pairs = head < p->turned ? p->pairs : 0;
      const int32_t M = p->multiplier[head];
      for (i = 0; i < pairs; ++i) {
        const int32_t x1 = x[i], x2 = x[i + pairs], c = cosine[i], s = sine[i];
        y[i] = hccs_rotated(x1 * c - x2 * s, M);
        y[i + pairs] = hccs_rotated(x2 * c + x1 * s, M);
      }
      for (i = 2 * pairs; i < p->width; ++i) y[i] = hccs_rotated((int32_t)x[i] * 32767, M);
    }
  }
}

/* ---- "Ramps" ---- */

/* max(x, 0) - (knot + floor((slope * rest + 2^14) / 2^15)) of the piece that |x| lies in; x and y may be the same. */
static inline void hccs_ramp(const hccs_ramp_pieces* p, const int16_t* x, uint32_t count, int16_t* y) {
  const int32_t last = ((int32_t)64 << p->bits) - 1;
  uint32_t i;
  for (i = 0; i < count; ++i) {
    const int32_t magnitude = x[i] < 0 ? -x[i] : x[i], distance = magnitude < last ? magnitude : last;
    const int32_t piece = distance >> p->bits, rest = (distance - (piece << p->bits)) << (15 - p->bits);
    const int32_t residue = p->knot[piece] + ((p->slope[piece] * rest + (1 << 14)) >> 15);
    y[i] = (int16_t)((x[i] > 0 ? x[i] : 0) - residue);
  }
}

/* ---- "Pooling and unit vectors" ---- */

/* One row of `length` rows: their sums, the last one or their maxima as int32; or as int16, where a mean is rounded. */
static inline void hccs_pool(hccs_pooling kind, const int16_t* x, uint32_t length, uint32_t width, int16_t* y16,
                             int32_t* y32) {
  const int16_t* last = x + (size_t)(length - 1) * width;
  uint32_t row, i;
  for (i = 0; i < width; ++i) {
    int32_t pooled = last[i];
    for (row = 0; kind != HCCS_POOL_LAST && row + 1 < length; ++row) {
      const int32_t value = x[(size_t)row * width + i];
      if (kind == HCCS_POOL_MEAN) {
        pooled += value;
      } else if (value > pooled) {
        pooled = value;
      }
    }
    if (y32 != NULL) {
      y32[i] = pooled;
    } else {
      y16[i] = (int16_t)(kind == HCCS_POOL_MEAN ? hccs_divide_half_up(pooled, length) : pooled);
    }
  }
}

static inline void hccs_pool_16(hccs_pooling kind, const int16_t* x, uint32_t length, uint32_t width, int16_t* y) {
  hccs_pool(kind, x, length, width, y, NULL);
}

static inline void hccs_pool_32(hccs_pooling kind, const int16_t* x, uint32_t length, uint32_t width, int32_t* y) {
  hccs_pool(kind, x, length, width, NULL, y);
}

/* The first `dims` of `width` channels as unit vectors in Q15, from whichever input is not NULL. Values of more than 25
 * bits are shifted down to them: 4,096 squares then add up below 2^63. */
static inline void hccs_unit(const int8_t* x8, const int16_t* x16, const int32_t* x32, uint32_t width, uint32_t dims,
                             uint32_t rows, int16_t* y) {
  size_t at = 0;
  uint32_t row, i;
#define HCCS_CHANNEL(i) ((int64_t)(x32 != NULL ? x32[at + i] : x16 != NULL ? x16[at + i] : x8[at + i]))
  for (row = 0; row < rows; ++row) {
    int64_t largest = 1;
    uint64_t squares = 0;
    uint32_t bits, norm;
    for (i = 0; i < dims; ++i) {
      const int64_t e = HCCS_CHANNEL(i), magnitude = e < 0 ? -e : e;
      if (magnitude > largest) largest = magnitude;
    }
    bits = hccs_leading_bit((uint64_t)largest) + 1;
    bits = bits > 25 ? bits - 25 : 0;
    for (i = 0; i < dims; ++i) {
      const int64_t e = hccs_shift_half_even(HCCS_CHANNEL(i), bits);
      squares += (uint64_t)(e * e);
    }
    norm = hccs_integer_root(squares);
    for (i = 0; i < dims; ++i) {
      const int64_t e = hccs_shift_half_even(HCCS_CHANNEL(i), bits);
      y[i] = norm == 0 ? 0 : (int16_t)hccs_clamp(hccs_divide_half_up(e * 32767, norm), -32767, 32767);
    }
    at += width, y += dims;
  }
#undef HCCS_CHANNEL
}

static inline void hccs_unit_8(const int8_t* x, uint32_t width, uint32_t dims, uint32_t rows, int16_t* y) {
  hccs_unit(x, NULL, NULL, width, dims, rows, y);
}

static inline void hccs_unit_16(const int16_t* x, uint32_t width, uint32_t dims, uint32_t rows, int16_t* y) {
  hccs_unit(NULL, x, NULL, width, dims, rows, y);
}

static inline void hccs_unit_32(const int32_t* x, uint32_t width, uint32_t dims, uint32_t rows, int16_t* y) {
  hccs_unit(NULL, NULL, x, width, dims, rows, y);
}

/* ---- "Integer attention" ---- */

/* x = requantised q.k of one query over `keys` keys that lie `step` apart; returns their maximum m. */
static inline int32_t hccs_logits(const hccs_attention_head* head, const int8_t* q, const int8_t* k, uint32_t step,
                                  uint32_t width, uint32_t keys, int8_t* x) {
  int32_t m = -128;
  uint32_t j, c;
  for (j = 0; j < keys; j += 2) {
    const uint32_t next = j + 1 < keys ? j + 1 : j;
    const int8_t *k0 = k + (size_t)j * step, *k1 = k + (size_t)next * step;
    int32_t a = 0, b = 0;
    for (c = 0; c < width; ++c) {
      a += q[c] * k0[c];
      b += q[c] * k1[c];
    }
    x[j] = hccs_round_half_up(a, head->logit_multiplier, head->logit_shift);
    x[next] = hccs_round_half_up(b, head->logit_multiplier, head->logit_shift);
    if (x[j] > m) m = x[j];
    if (x[next] > m) m = x[next];
  }
  return m;
}

/* "One row": s = B - S * min(m - x, D), and their sum Z. "Two lines": s = (B - S * min(m - x, D) - S2 * min(m - x, D2))
 * >> f, and Z < 2^24. */
static inline int32_t hccs_scores(const hccs_attention_head* head, const int8_t* x, int32_t m, uint32_t keys,
                                  int16_t* s) {
  const int32_t B = head->B, S = head->S, D = head->D;
  const int32_t S2 = head->S2, D2 = head->D2;
  const uint32_t f = head->f;
  int32_t Z = 0;
  uint32_t j;
  if (head->scores != NULL) {
    for (j = 0; j < keys; ++j) {
      const int32_t score = head->scores[m - x[j] < 127 ? m - x[j] : 127];
      s[j] = (int16_t)score;
      Z += score;
    }
    return Z;
  }
  if (S2 == 0 && f == 0) { /* of wide sums, too: one loop is shorter */
    for (j = 0; j < keys; ++j) {
      const int32_t distance = m - x[j] < D ? m - x[j] : D;
      const int32_t score = B - S * distance;
      s[j] = (int16_t)score;
      Z += score;
    }
    return Z;
  }
  for (j = 0; j < keys; ++j) {
    const int32_t distance = m - x[j];
    const int32_t score = (B - S * (distance < D ? distance : D) - S2 * (distance < D2 ? distance : D2)) >> f;
    s[j] = (int16_t)score;
    Z += score;
  }
  return Z;
}

/* N = sum of s * v, four channels at a time, and the output from N and Z: one division per row gives its multiplier.
 * |N| <= 128 * Z fits int32, |N * R| < 2^55: all is 0 beyond a shift of 62. */
static inline void hccs_weighted(const hccs_attention_head* head, const int16_t* s, int32_t Z, const int8_t* v,
                                 uint32_t step, uint32_t width, uint32_t keys, int8_t* y) {
  const uint32_t k = hccs_leading_bit((uint64_t)Z), shift = head->out_shift + k < 62 ? head->out_shift + k : 62;
  const int32_t R = (int32_t)(((uint64_t)head->out_multiplier << k) / (uint32_t)Z);
  uint32_t c = 0, j;
  for (; c + 4 <= width; c += 4) {
    const int8_t* value = v + c;
    int32_t N0 = 0, N1 = 0, N2 = 0, N3 = 0;
    for (j = 0; j < keys; ++j) {
      const int32_t score = s[j];
      N0 += score * value[0];
      N1 += score * value[1];
      N2 += score * value[2];
      N3 += score * value[3];
      value += step;
    }
    y[c] = hccs_round_half_up(N0, R, shift);
    y[c + 1] = hccs_round_half_up(N1, R, shift);
    y[c + 2] = hccs_round_half_up(N2, R, shift);
    y[c + 3] = hccs_round_half_up(N3, R, shift);
  }
  for (; c < width; ++c) {
    int32_t N = 0;
    for (j = 0; j < keys; ++j) N += (int32_t)s[j] * v[(size_t)j * step + c];
    y[c] = hccs_round_half_up(N, R, shift);
  }
}

/* Rows of all heads of q, of k and of v side by side, [length][heads + 2 * shared][width], to the heads' outputs
 * [queries][heads][width]; normalisation is deferred to the output. `x` and `s` have room for one row of logits and of
 * scores. */
static inline void hccs_attend(const hccs_attention_heads* a, const int8_t* qkv, uint32_t length, uint32_t queries,
                               int8_t* x, int16_t* s, int8_t* y) {
  const uint32_t all = a->count * a->width, of_keys = a->shared * a->width, step = all + 2 * of_keys;
  uint32_t i, head;
  for (i = 0; i < queries; ++i) {
    const uint32_t first = i > a->before ? i - a->before : 0;
    const uint32_t keys = (length - 1 - i > a->after ? i + a->after + 1 : length) - first;
    for (head = 0; head < a->count; ++head) {
      const hccs_attention_head* theta = a->heads + head;
      const int8_t* q = qkv + (size_t)i * step + (size_t)head * a->width;
      const int8_t* k = qkv + (size_t)first * step + all + (size_t)(head / (a->count / a->shared)) * a->width;
      const int32_t m = hccs_logits(theta, q, k, step, a->width, keys, x);
      const int32_t Z = hccs_scores(theta, x, m, keys, s);
      hccs_weighted(theta, s, Z, k + of_keys, step, a->width, keys, y + (size_t)i * all + (size_t)head * a->width);
    }
  }
}

/* The same of `rows` new rows of a causal model, the first at `position` of its text: their keys and values are
 * appended to the cache [2][heads][capacity][width], and read there. */
static inline void hccs_attend_cached(const hccs_attention_heads* a, const int8_t* qkv, uint32_t rows,
                                      uint32_t position, int8_t* cache, uint32_t capacity, int8_t* x, int16_t* s,
                                      int8_t* y) {
  const uint32_t group = a->count / a->shared, width = a->width;
  const size_t step = (size_t)(a->count + 2 * a->shared) * width, head_bytes = (size_t)capacity * width;
  uint32_t i, head, c;
  for (i = 0; i < rows; ++i) {
    const uint32_t last = position + i, first = last < a->before ? 0 : last - a->before, keys = last - first + 1;
    const int8_t* row = qkv + i * step;
    for (head = 0; head < a->shared; ++head) {
      const int8_t *k = row + (size_t)(a->count + head) * width, *v = k + (size_t)a->shared * width;
      int8_t *to = cache + head * head_bytes + (size_t)last * width, *v_to = to + a->shared * head_bytes;
      for (c = 0; c < width; ++c) to[c] = k[c], v_to[c] = v[c];
    }
    for (head = 0; head < a->count; ++head) {
      const hccs_attention_head* theta = a->heads + head;
      const int8_t* k = cache + head / group * head_bytes + (size_t)first * width;
      const int32_t m = hccs_logits(theta, row + (size_t)head * width, k, width, width, keys, x);
      const int32_t Z = hccs_scores(theta, x, m, keys, s);
      hccs_weighted(theta, s, Z, k + a->shared * head_bytes, width, width, keys,
                    y + (size_t)i * a->count * width + (size_t)head * width);
    }
  }
}

#endif
