/* Operators of hccs_operators.h for WebAssembly, over weights that are packed for its SIMD128: the same bits.
 *
 * Weights [outputs][inputs] lie in panels of 8 outputs: for each pair of inputs 16 bytes, two of each output
 * (packed_weight of hccs.executors.wasm). Without SIMD128 the same panels are read one by one. Only instructions whose
 * results are fixed are used: no relaxed SIMD, and of floats only products, sums and comparisons that are exact. */
#ifndef HCCS_SIMD_H
#define HCCS_SIMD_H

#include "hccs_operators.h"

#define HCCS_PANEL 8
#define HCCS_PANEL_BYTES 16 /* of a pair of inputs */
#define HCCS_ROWS 4         /* that go through a panel together */
#define HCCS_EXPONENTS 17   /* 0 to 16 */

/* ---- without SIMD128 ---- */

/* Adds the products of one row with a panel. */
static inline void hccs_panel_sums(const int8_t* x, const int8_t* w, uint32_t inputs, int32_t* sums) {
  uint32_t k, o;
  for (k = 0; k < inputs; k += 2, w += HCCS_PANEL_BYTES) {
    const int32_t even = x[k], odd = k + 1 < inputs ? x[k + 1] : 0;
    for (o = 0; o < HCCS_PANEL; ++o) sums[o] += even * w[2 * o] + odd * w[2 * o + 1];
  }
}

static inline void hccs_packed_rows(const hccs_linear* l, uint32_t first, const int8_t* x, uint32_t rows, int exponents,
                                    int8_t* y8, int16_t* y16, int32_t* y32) {
  const uint32_t columns = l->inputs + (exponents ? 1 : 0), panel_bytes = (l->inputs + 1) / 2 * HCCS_PANEL_BYTES;
  uint32_t row, panel, o;
  for (row = 0; row < rows; ++row, x += columns) {
    const int32_t e = exponents ? x[l->inputs] : 0;
    for (panel = first / HCCS_PANEL; panel * HCCS_PANEL < l->outputs; ++panel) {
      int32_t sums[HCCS_PANEL] = {0};
      hccs_panel_sums(x, l->weight + (size_t)panel * panel_bytes, l->inputs, sums);
      for (o = panel * HCCS_PANEL; o < l->outputs && o < (panel + 1) * HCCS_PANEL; ++o) {
        const int32_t sum = sums[o % HCCS_PANEL] + (int32_t)hccs_shift_half_even(l->bias[o], (uint32_t)e);
        if (exponents) {
          hccs_finish_row(l, o, sum, e, (size_t)row * l->outputs + o, y8, y16, y32);
        } else {
          hccs_finish(l, o, sum, (size_t)row * l->outputs + o, y8, y16, y32);
        }
      }
    }
  }
}

#ifdef __wasm_simd128__
#include <wasm_simd128.h>

/* Rows of int16 pairs, HCCS_ROWS of them interleaved: room for a tile of rows of the widest layer, or of queries. */
static int16_t hccs_wide[HCCS_WIDE] __attribute__((aligned(16)));

/* Rows of int8, `columns` apart, as int16, `side` of them interleaved: [rows / side][inputs / 2][side][2]. */
static inline void hccs_widen(const int8_t* x, uint32_t columns, uint32_t inputs, uint32_t rows, const uint32_t side,
                              int16_t* y) {
  const uint32_t pairs = (inputs + 1) / 2, step = 2 * side;
  uint32_t row, k;
  for (row = 0; row < rows; ++row) {
    const int8_t* from = x + (size_t)row * columns;
    int16_t* to = y + (size_t)(row / side) * pairs * step + 2 * (row % side);
    for (k = 0; k + 8 <= inputs; k += 8, to += 4 * step) {
      const v128_t eight = wasm_i16x8_load8x8(from + k);
      wasm_v128_store32_lane(to, eight, 0);
      wasm_v128_store32_lane(to + step, eight, 1);
      wasm_v128_store32_lane(to + 2 * step, eight, 2);
      wasm_v128_store32_lane(to + 3 * step, eight, 3);
    }
    for (; k < inputs; k += 2, to += step) to[0] = from[k], to[1] = k + 1 < inputs ? from[k + 1] : 0;
  }
}

/* Keeps the compiler from computing the products of several steps first, whose number would exceed the registers, and
 * from replacing a pointer and offsets by sums, each of which would be an instruction. */
#define HCCS_IN_ORDER(x) __asm__ volatile("" : "+r"(x)::"memory")

/* Adds the products of a pair of inputs of 1 to 4 rows with a panel: acc[2 * row] has the outputs 0 to 3, the next one
 * 4 to 7. Weights come from their bytes, and are left widened in `w`, or from there. */
static inline __attribute__((always_inline)) void hccs_multiply_pair(const int rows, const int16_t* x,
                                                                     const int8_t* bytes, int16_t* w, v128_t* acc) {
  v128_t low, high;
  int r;
  if (bytes != NULL) {
    low = wasm_i16x8_load8x8(bytes), high = wasm_i16x8_load8x8(bytes + 8);
    wasm_v128_store(w, low), wasm_v128_store(w + 8, high);
  } else {
    low = wasm_v128_load(w), high = wasm_v128_load(w + 8);
  }
#pragma clang loop unroll(full)
  for (r = 0; r < rows; ++r) {
    const v128_t pair = wasm_v128_load32_splat(x + 2 * r);
    acc[2 * r] = wasm_i32x4_add(acc[2 * r], wasm_i32x4_dot_i16x8(pair, low));
    acc[2 * r + 1] = wasm_i32x4_add(acc[2 * r + 1], wasm_i32x4_dot_i16x8(pair, high));
    HCCS_IN_ORDER(acc[2 * r]);
    HCCS_IN_ORDER(acc[2 * r + 1]);
  }
}

/* The sums over all pairs. Engines put all loads between two branches first, and those of two pairs exceed the
 * registers: hence a branch after each pair. */
static inline __attribute__((always_inline)) void hccs_multiply(const int rows, const int16_t* x, const int8_t* bytes,
                                                                int16_t* w, uint32_t pairs, v128_t* sums) {
  const int16_t* const end = w + 2 * HCCS_PANEL * pairs;
  v128_t acc[2 * HCCS_ROWS];
  int r;
  for (r = 0; r < 2 * rows; ++r) acc[r] = wasm_i32x4_splat(0);
#define HCCS_PAIR(n)                                                                                                   \
  hccs_multiply_pair(rows, x + 2 * HCCS_ROWS * n, bytes ? bytes + HCCS_PANEL_BYTES * n : NULL, w + 2 * HCCS_PANEL * n, \
                     acc);                                                                                             \
  if (w + 2 * HCCS_PANEL * (n + 1) == end) break
#pragma clang loop unroll(disable)
  for (;;) {
    HCCS_IN_ORDER(x);
    HCCS_IN_ORDER(w);
    HCCS_PAIR(0);
    HCCS_PAIR(1);
    HCCS_PAIR(2);
    HCCS_PAIR(3);
    x += 8 * HCCS_ROWS, w += 8 * HCCS_PANEL;
    if (bytes != NULL) bytes += 4 * HCCS_PANEL_BYTES;
  }
#undef HCCS_PAIR
  for (r = 0; r < 2 * rows; ++r) sums[r] = acc[r];
}

/* The same; the first rows read a panel from its bytes, while these arrive from memory. */
static inline void hccs_multiply_rows(uint32_t rows, const int16_t* x, const int8_t* bytes, int16_t* w, uint32_t pairs,
                                      v128_t* sums) {
#define HCCS_CASE(n)                            \
  if (bytes != NULL) {                          \
    hccs_multiply(n, x, bytes, w, pairs, sums); \
  } else {                                      \
    hccs_multiply(n, x, NULL, w, pairs, sums);  \
  }                                             \
  break
  switch (rows) {
    case 1: HCCS_CASE(1);
    case 2: HCCS_CASE(2);
    case 3: HCCS_CASE(3);
    default: HCCS_CASE(4);
  }
#undef HCCS_CASE
}

/* 1.5 * 2^52 leaves a sum no bits below one: what is added to it is rounded, half to even, into its low bits. */
#define HCCS_ROUNDER 6755399441055744.0

/* 2^bits */
static inline double hccs_power(int32_t bits) {
  union {
    int64_t whole;
    double real;
  } power = {(int64_t)(1023 + bits) << 52};
  return power.real;
}

/* rhe(b / 2^e) */
static inline v128_t hccs_bias(v128_t b, uint32_t e) {
  const v128_t odd = wasm_v128_and(wasm_i32x4_shr(b, e), wasm_i32x4_splat(1));
  if (e == 0) return b;
  return wasm_i32x4_shr(wasm_i32x4_add(wasm_i32x4_add(b, wasm_i32x4_splat((1 << (e - 1)) - 1)), odd), e);
}

/* What all rows of one exponent share: limits and the rounder, in units of 2^-bits, and the biases of a panel. */
typedef struct {
  v128_t least;
  v128_t most;
  v128_t rounder;
  v128_t bias[2];
} hccs_by_exponent;

/* clamp(rhe(x * multiplier / 2^bits)) of two numbers, as the low halves of two words. Where the product is not exact it
 * is beyond every limit. */
static inline v128_t hccs_rounded(v128_t x, v128_t multiplier, const hccs_by_exponent* by) {
  const v128_t y = wasm_f64x2_mul(wasm_f64x2_convert_low_i32x4(x), multiplier);
  return wasm_f64x2_add(wasm_f64x2_pmax(by->least, wasm_f64x2_pmin(by->most, y)), by->rounder);
}

/* Four sums, requantised by four multipliers. */
static inline v128_t hccs_requantised(v128_t sums, const v128_t* multipliers, const hccs_by_exponent* by) {
  const v128_t low = hccs_rounded(sums, multipliers[0], by);
  const v128_t high = hccs_rounded(wasm_i32x4_shuffle(sums, sums, 2, 3, 2, 3), multipliers[1], by);
  return wasm_i32x4_shuffle(low, high, 0, 2, 4, 6);
}

/* Eight values of a row, in the width of whichever output there is; the last panel may have fewer. */
static inline void hccs_store(v128_t low, v128_t high, uint32_t count, size_t at, int8_t* y8, int16_t* y16,
                              int32_t* y32) {
  const v128_t words = wasm_i16x8_narrow_i32x4(low, high), bytes = wasm_i8x16_narrow_i16x8(words, words);
  uint32_t i;
  if (count == HCCS_PANEL && y32 == NULL) {
    if (y16 != NULL) {
      wasm_v128_store(y16 + at, words);
    } else {
      wasm_v128_store64_lane(y8 + at, bytes, 0);
    }
    return;
  }
  for (i = 0; i < count; ++i) {
    int32_t values[HCCS_PANEL];
    wasm_v128_store(values, low);
    wasm_v128_store(values + 4, high);
    if (y32 != NULL) {
      y32[at + i] = values[i];
    } else if (y16 != NULL) {
      y16[at + i] = (int16_t)values[i];
    } else {
      y8[at + i] = (int8_t)values[i];
    }
  }
}

static void hccs_simd_rows(const hccs_linear* l, uint32_t first, const int8_t* x, uint32_t rows, int exponents,
                           int8_t* y8, int16_t* y16, int32_t* y32) {
  static int16_t wide[HCCS_PANEL * HCCS_INPUTS] __attribute__((aligned(16))); /* a panel's weights */
  const uint32_t inputs = l->inputs, pairs = (inputs + 1) / 2, columns = inputs + (exponents ? 1 : 0);
  hccs_by_exponent of[HCCS_EXPONENTS];
  uint32_t panel, row, r, e, used = exponents ? 0 : 1;
  for (e = 0; e < HCCS_EXPONENTS; ++e) {
    const double one = hccs_power(exponents ? 23 - (int32_t)e : 16);
    const double limit = (y32 != NULL ? (double)l->limit : y16 != NULL ? 32767.0 : 127.0) * one;
    of[e].least = wasm_f64x2_splat(-limit), of[e].most = wasm_f64x2_splat(limit);
    of[e].rounder = wasm_f64x2_splat(HCCS_ROUNDER * one);
  }
  for (row = 0; exponents && row < rows; ++row) used |= 1u << x[(size_t)row * columns + inputs];
  hccs_widen(x, columns, inputs, rows, HCCS_ROWS, hccs_wide);
  for (panel = first / HCCS_PANEL; panel * HCCS_PANEL < l->outputs; ++panel) {
    const uint32_t o = panel * HCCS_PANEL, count = l->outputs - o < HCCS_PANEL ? l->outputs - o : HCCS_PANEL;
    const int8_t* w = l->weight + (size_t)panel * pairs * HCCS_PANEL_BYTES;
    v128_t multipliers[4];
    for (e = 0; e < HCCS_EXPONENTS; ++e) {
      if ((used >> e & 1) == 0) continue;
      of[e].bias[0] = hccs_bias(wasm_v128_load(l->bias + o), e);
      of[e].bias[1] = hccs_bias(wasm_v128_load(l->bias + o + 4), e);
    }
    for (r = 0; r < 4; ++r) {
      const int32_t* two = l->multiplier != NULL ? l->multiplier + o + 2 * r : l->bias; /* unused */
      multipliers[r] = wasm_f64x2_convert_low_i32x4(wasm_v128_load64_zero(two));
    }
    for (row = 0; row < rows; row += HCCS_ROWS) {
      const uint32_t some = rows - row < HCCS_ROWS ? rows - row : HCCS_ROWS;
      v128_t sums[2 * HCCS_ROWS];
      hccs_multiply_rows(some, hccs_wide + (size_t)row * pairs * 2, row == 0 ? w : NULL, wide, pairs, sums);
      for (r = 0; r < some; ++r) {
        const hccs_by_exponent* by = of + (exponents ? x[(size_t)(row + r) * columns + inputs] : 0);
        v128_t low = wasm_i32x4_add(sums[2 * r], by->bias[0]), high = wasm_i32x4_add(sums[2 * r + 1], by->bias[1]);
        if (l->multiplier != NULL) {
          low = hccs_requantised(low, multipliers, by);
          high = hccs_requantised(high, multipliers + 2, by);
        }
        hccs_store(low, high, count, (size_t)(row + r) * l->outputs + o, y8, y16, y32);
      }
    }
  }
}
#define hccs_packed_rows hccs_simd_rows

/* ---- "Row exponents" ---- */

/* Eight values of a row, scaled: Q15 products round as scales do. */
static inline v128_t hccs_scaled_8(const hccs_scales* p, const int16_t* x, uint32_t i) {
  const v128_t v = wasm_v128_load(x + i);
  return p->scale == NULL ? v : wasm_i16x8_q15mulr_sat(v, wasm_v128_load(p->scale + i));
}

static inline void hccs_simd_narrow_rows(const hccs_scales* p, const int16_t* x, uint32_t width, uint32_t rows,
                                         int8_t* y) {
  uint32_t row, i;
  if (width % 8 != 0) {
    hccs_narrow_rows(p, x, width, rows, y);
    return;
  }
  for (row = 0; row < rows; ++row, x += width, y += width + 1) {
    v128_t largest = wasm_i16x8_splat(127), factor, rest, half;
    uint32_t e;
    for (i = 0; i < width; i += 8) largest = wasm_u16x8_max(largest, wasm_i16x8_abs(hccs_scaled_8(p, x, i)));
    largest = wasm_u16x8_max(largest, wasm_i16x8_shuffle(largest, largest, 4, 5, 6, 7, 0, 1, 2, 3));
    largest = wasm_u16x8_max(largest, wasm_i16x8_shuffle(largest, largest, 2, 3, 0, 1, 2, 3, 0, 1));
    largest = wasm_u16x8_max(largest, wasm_i16x8_shuffle(largest, largest, 1, 0, 1, 0, 1, 0, 1, 0));
    e = hccs_leading_bit(wasm_u16x8_extract_lane(largest, 0)) - 6;
    factor = wasm_i16x8_splat((int16_t)(1 << (15 - e))); /* not read where e is 0 */
    rest = wasm_i16x8_splat((int16_t)((1 << e) - 1));
    half = wasm_i16x8_splat((int16_t)((1 << e) >> 1));
    for (i = 0; i < width; i += 8) { /* rounded half up; then halves above an even number go down again */
      v128_t v = hccs_scaled_8(p, x, i);
      if (e != 0) {
        const v128_t tie = wasm_i16x8_eq(wasm_v128_and(v, rest), half);
        v = wasm_i16x8_q15mulr_sat(v, factor);
        v = wasm_i16x8_sub(v, wasm_v128_and(wasm_v128_and(tie, wasm_i16x8_splat(1)), v));
      }
      v = wasm_i16x8_max(v, wasm_i16x8_splat(-127));
      wasm_v128_store64_lane(y + i, wasm_i8x16_narrow_i16x8(v, v), 0);
    }
    y[width] = (int8_t)e;
  }
}
#define hccs_narrow_rows hccs_simd_narrow_rows

/* ---- "LayerNorm" ---- */

/* Four values of a row of whichever input there is. */
static inline v128_t hccs_four(const int32_t* v32, const int16_t* v16, size_t at) {
  return v32 != NULL ? wasm_v128_load(v32 + at) : wasm_i32x4_load16x4(v16 + at);
}

/* rhe(d * (high + low)) of two numbers, as float64. A product with all 31 bits of a factor would be rounded: what one
 * with the high bits leaves beyond an integer is exact, and so is its sum with the other one. */
static inline v128_t hccs_rounded_product(v128_t d, v128_t high, v128_t low) {
  const v128_t rounder = wasm_f64x2_splat(HCCS_ROUNDER), real = wasm_f64x2_convert_low_i32x4(d);
  const v128_t product = wasm_f64x2_mul(real, high), whole = wasm_f64x2_add(product, rounder);
  const v128_t rest = wasm_f64x2_sub(product, wasm_f64x2_sub(whole, rounder));
  return wasm_f64x2_sub(wasm_f64x2_add(whole, wasm_f64x2_add(rest, wasm_f64x2_mul(real, low))), rounder);
}

/* clamp(rhe(xhat * gain + bias * 2^20)), in units of 2^(20 + k), as the low halves of two words. All is exact. */
static inline v128_t hccs_gained(v128_t xhat, const int32_t* gain, const int32_t* bias, v128_t one, v128_t unit) {
  const v128_t y = wasm_f64x2_add(wasm_f64x2_mul(xhat, wasm_f64x2_convert_low_i32x4(wasm_v128_load64_zero(gain))),
                                  wasm_f64x2_mul(wasm_f64x2_convert_low_i32x4(wasm_v128_load64_zero(bias)), one));
  const v128_t limit = wasm_f64x2_splat(32767.0), scaled = wasm_f64x2_mul(y, unit);
  return wasm_f64x2_add(wasm_f64x2_pmax(wasm_f64x2_neg(limit), wasm_f64x2_pmin(limit, scaled)),
                        wasm_f64x2_splat(HCCS_ROUNDER));
}

static inline void hccs_simd_layer_norm(const hccs_norm* p, const int32_t* v32, const int16_t* v16, uint32_t rows,
                                        int16_t* y) {
  const uint32_t h = p->channels;
  const v128_t one = wasm_f64x2_splat(1048576.0), unit = wasm_f64x2_splat(hccs_power(-20 - (int32_t)p->gain_bits));
  size_t at;
  uint32_t row, i;
  if (h % 4 != 0) {
    hccs_layer_norm(p, v32, v16, rows, y);
    return;
  }
  for (row = 0, at = 0; row < rows; ++row, at += h) {
    v128_t sums = wasm_i32x4_splat(0), squares = wasm_i64x2_splat(0), high, low;
    uint64_t Q;
    uint32_t t, r;
    int32_t sum;
    double power;
    for (i = 0; i < h; i += 4) {
      const v128_t v = hccs_four(v32, v16, at + i);
      sums = wasm_i32x4_add(sums, v);
      squares = wasm_i64x2_add(squares,
                               wasm_i64x2_add(wasm_i64x2_extmul_low_i32x4(v, v), wasm_i64x2_extmul_high_i32x4(v, v)));
    }
    sums = wasm_i32x4_add(sums, wasm_i32x4_shuffle(sums, sums, 2, 3, 0, 1));
    sum = wasm_i32x4_extract_lane(sums, 0) + wasm_i32x4_extract_lane(sums, 1);
    Q = (uint64_t)(wasm_i64x2_extract_lane(squares, 0) + wasm_i64x2_extract_lane(squares, 1));
    Q = h * (h * Q - (uint64_t)((int64_t)sum * sum)) + p->epsilon; /* the sum of (h * v - sum)^2 */
    t = (63 - hccs_leading_bit(Q)) / 2;
    r = (uint32_t)(p->root / hccs_integer_root(Q << (2 * t)));
    power = hccs_power((int32_t)(t + 20) - (int32_t)p->root_shift);
    high = wasm_f64x2_splat((r & 0xffff8000u) * power), low = wasm_f64x2_splat((r & 0x7fff) * power);
    for (i = 0; i < h; i += 4) {
      const v128_t v = hccs_four(v32, v16, at + i);
      const v128_t d = wasm_i32x4_sub(wasm_i32x4_mul(v, wasm_i32x4_splat((int32_t)h)), wasm_i32x4_splat(sum));
      const v128_t first = hccs_rounded_product(d, high, low);
      const v128_t second = hccs_rounded_product(wasm_i32x4_shuffle(d, d, 2, 3, 2, 3), high, low);
      const v128_t four =
          wasm_i32x4_shuffle(hccs_gained(first, p->gain + i, p->bias + i, one, unit),
                             hccs_gained(second, p->gain + i + 2, p->bias + i + 2, one, unit), 0, 2, 4, 6);
      wasm_v128_store64_lane(y + at + i, wasm_i16x8_narrow_i32x4(four, four), 0);
    }
  }
}
#define hccs_layer_norm_32(p, v, rows, y) hccs_simd_layer_norm(p, v, NULL, rows, y)
#define hccs_layer_norm_16(p, v, rows, y) hccs_simd_layer_norm(p, NULL, v, rows, y)

/* ---- "Ramps" ---- */

/* Q15 products round as ramps do. */
static inline void hccs_simd_ramp(const hccs_ramp_pieces* p, const int16_t* x, uint32_t count, int16_t* y) {
  const v128_t last = wasm_i16x8_splat((int16_t)(((int32_t)64 << p->bits) - 1));
  const v128_t within = wasm_i16x8_splat((int16_t)((1 << p->bits) - 1)), zero = wasm_i16x8_splat(0);
  uint32_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const v128_t v = wasm_v128_load(x + i), distance = wasm_i16x8_min(wasm_i16x8_abs(v), last);
    const v128_t piece = wasm_i16x8_shr(distance, p->bits);
    const v128_t rest = wasm_i16x8_shl(wasm_v128_and(distance, within), 15 - p->bits);
    v128_t knot = zero, slope = zero;
#define HCCS_GATHER(n)                                                                \
  knot = wasm_v128_load16_lane(p->knot + wasm_i16x8_extract_lane(piece, n), knot, n), \
  slope = wasm_v128_load16_lane(p->slope + wasm_i16x8_extract_lane(piece, n), slope, n)
    HCCS_GATHER(0), HCCS_GATHER(1), HCCS_GATHER(2), HCCS_GATHER(3);
    HCCS_GATHER(4), HCCS_GATHER(5), HCCS_GATHER(6), HCCS_GATHER(7);
#undef HCCS_GATHER
    wasm_v128_store(y + i,
                    wasm_i16x8_sub(wasm_i16x8_sub(wasm_i16x8_max(v, zero), knot), wasm_i16x8_q15mulr_sat(slope, rest)));
  }
  hccs_ramp(p, x + i, count - i, y + i);
}
#define hccs_ramp hccs_simd_ramp

/* ---- "Integer attention" ---- */

/* Rows of values, `columns` apart, as panels of 8 columns, whose inputs are scores: two rows of each column. Beyond an
 * odd number of rows scores are 0. */
static inline void hccs_pack_values(const int8_t* v, uint32_t columns, uint32_t width, uint32_t rows, int16_t* y) {
  uint32_t c, j;
  for (c = 0; c < width; c += HCCS_PANEL) {
    for (j = 0; j < rows; j += 2, y += 2 * HCCS_PANEL) {
      const int8_t* row = v + (size_t)j * columns + c;
      const v128_t even = wasm_i16x8_load8x8(row), odd = wasm_i16x8_load8x8(j + 1 < rows ? row + columns : row);
      wasm_v128_store(y, wasm_i16x8_shuffle(even, odd, 0, 8, 1, 9, 2, 10, 3, 11));
      wasm_v128_store(y + 8, wasm_i16x8_shuffle(even, odd, 4, 12, 5, 13, 6, 14, 7, 15));
    }
  }
}

/* Scores of one query from its sums over the keys, interleaved for the next product; returns their sum Z. Beyond the
 * keys they are 0. */
static inline int32_t hccs_simd_scores(const hccs_attention_head* head, const int32_t* sums, uint32_t keys, int32_t* x,
                                       int16_t* s) {
  const v128_t factor = wasm_f64x2_splat(head->logit_multiplier * hccs_power(-(int32_t)head->logit_shift));
  const v128_t half = wasm_f64x2_splat(0.5), low = wasm_f64x2_splat(-128.0), high = wasm_f64x2_splat(127.0);
  const v128_t B = wasm_i32x4_splat(head->B), S = wasm_i32x4_splat(head->S), D = wasm_i32x4_splat(head->D);
  const v128_t S2 = wasm_i32x4_splat(head->S2), D2 = wasm_i32x4_splat(head->D2);
  v128_t most = wasm_i32x4_splat(-128), total = wasm_i32x4_splat(0), m;
  uint32_t j;
  for (j = 0; j < keys; j += 4) {
    const v128_t four = wasm_v128_load(sums + j);
    v128_t first = wasm_f64x2_mul(wasm_f64x2_convert_low_i32x4(four), factor);
    v128_t second = wasm_f64x2_mul(wasm_f64x2_convert_low_i32x4(wasm_i32x4_shuffle(four, four, 2, 3, 2, 3)), factor);
    first = wasm_f64x2_floor(wasm_f64x2_add(wasm_f64x2_pmax(low, wasm_f64x2_pmin(high, first)), half));
    second = wasm_f64x2_floor(wasm_f64x2_add(wasm_f64x2_pmax(low, wasm_f64x2_pmin(high, second)), half));
    first = wasm_f64x2_add(first, wasm_f64x2_splat(HCCS_ROUNDER));
    second = wasm_f64x2_add(second, wasm_f64x2_splat(HCCS_ROUNDER));
    wasm_v128_store(x + j, wasm_i32x4_shuffle(first, second, 0, 2, 4, 6));
  }
  for (j = keys; j % 4 != 0; ++j) x[j] = -128;
  for (j = 0; j < keys; j += 4) most = wasm_i32x4_max(most, wasm_v128_load(x + j));
  most = wasm_i32x4_max(most, wasm_i32x4_shuffle(most, most, 2, 3, 0, 1));
  m = wasm_i32x4_max(most, wasm_i32x4_shuffle(most, most, 1, 0, 3, 2));
  for (j = 0; j < keys; j += 4) {
    const v128_t distance = wasm_i32x4_sub(m, wasm_v128_load(x + j));
    const v128_t one = wasm_i32x4_mul(S, wasm_i32x4_min(distance, D));
    const v128_t two = wasm_i32x4_mul(S2, wasm_i32x4_min(distance, D2));
    v128_t score = wasm_i32x4_shr(wasm_i32x4_sub(wasm_i32x4_sub(B, one), two), head->f);
    if (head->scores != NULL) {
      const v128_t at = wasm_i32x4_min(distance, wasm_i32x4_splat(127));
      score =
          wasm_i32x4_make(head->scores[wasm_i32x4_extract_lane(at, 0)], head->scores[wasm_i32x4_extract_lane(at, 1)],
                          head->scores[wasm_i32x4_extract_lane(at, 2)], head->scores[wasm_i32x4_extract_lane(at, 3)]);
    }
    if (keys - j < 4) {
      const v128_t places = wasm_i32x4_make(0, 1, 2, 3);
      score = wasm_v128_and(score, wasm_i32x4_lt(places, wasm_i32x4_splat((int32_t)(keys - j))));
    }
    total = wasm_i32x4_add(total, score);
    score = wasm_i16x8_narrow_i32x4(score, score);
    wasm_v128_store32_lane(s + (size_t)j * HCCS_ROWS, score, 0);
    wasm_v128_store32_lane(s + (size_t)(j + 2) * HCCS_ROWS, score, 1);
  }
  total = wasm_i32x4_add(total, wasm_i32x4_shuffle(total, total, 2, 3, 0, 1));
  return wasm_i32x4_extract_lane(total, 0) + wasm_i32x4_extract_lane(total, 1);
}

/* As hccs_attend; four queries at a time go over packed keys, then over packed values. */
static void hccs_simd_attend(const hccs_attention_heads* a, const int8_t* qkv, uint32_t length, uint32_t queries,
                             int8_t* x, int16_t* s, int8_t* y) {
  static int16_t keys[HCCS_PACKED] __attribute__((aligned(16))), values[HCCS_PACKED] __attribute__((aligned(16)));
  static int32_t sums[HCCS_ROWS][HCCS_KEYS] __attribute__((aligned(16))), logits[HCCS_KEYS];
  static int16_t scores[HCCS_ROWS * HCCS_KEYS] __attribute__((aligned(16)));
  const uint32_t all = a->count * a->width, step = 3 * all, pairs = a->width / 2, key_pairs = (length + 1) / 2;
  const int partly = a->before < length || a->after < length || a->shared != a->count;
  uint32_t head, i, r, j, c;
  for (head = 0; head < a->count; ++head) {
    const hccs_attention_head* theta = a->heads + head;
    const int8_t* columns = qkv + (size_t)head * a->width;
    if (partly || a->width % HCCS_PANEL != 0 || theta->logit_shift > 40) {
      hccs_attend(a, qkv, length, queries, x, s, y);
      return;
    }
    hccs_widen(columns + all, step, a->width, length, HCCS_PANEL, keys);
    hccs_pack_values(columns + 2 * (size_t)all, step, a->width, length, values);
    hccs_widen(columns, step, a->width, queries, HCCS_ROWS, hccs_wide);
    for (i = 0; i < queries; i += HCCS_ROWS) {
      const uint32_t some = queries - i < HCCS_ROWS ? queries - i : HCCS_ROWS;
      v128_t found[2 * HCCS_ROWS];
      uint32_t shift[HCCS_ROWS];
      int32_t R[HCCS_ROWS];
      for (j = 0; j < length; j += HCCS_PANEL) {
        hccs_multiply_rows(some, hccs_wide + (size_t)i * pairs * 2, NULL, keys + (size_t)j * pairs * 2, pairs, found);
        for (r = 0; r < some; ++r) {
          wasm_v128_store(sums[r] + j, found[2 * r]);
          wasm_v128_store(sums[r] + j + 4, found[2 * r + 1]);
        }
      }
      for (r = 0; r < some; ++r) {
        const int32_t Z = hccs_simd_scores(theta, sums[r], length, logits, scores + 2 * r);
        const uint32_t k = hccs_leading_bit((uint64_t)Z);
        shift[r] = theta->out_shift + k < 62 ? theta->out_shift + k : 62;
        R[r] = (int32_t)(((uint64_t)theta->out_multiplier << k) / (uint32_t)Z);
      }
      for (c = 0; c < a->width; c += HCCS_PANEL) {
        hccs_multiply_rows(some, scores, NULL, values + (size_t)c * key_pairs * 2, key_pairs, found);
        for (r = 0; r < some; ++r) {
          int8_t* to = y + (size_t)(i + r) * all + (size_t)head * a->width + c;
          int32_t N[HCCS_PANEL];
          wasm_v128_store(N, found[2 * r]);
          wasm_v128_store(N + 4, found[2 * r + 1]);
          for (j = 0; j < HCCS_PANEL; ++j) to[j] = hccs_round_half_up(N[j], R[r], shift[r]);
        }
      }
    }
  }
}
#define hccs_attend hccs_simd_attend
#endif

/* ---- "linear" ---- */

#define hccs_linear_8(l, x, rows, y) hccs_packed_rows(l, 0, x, rows, 0, y, NULL, NULL)
#define hccs_linear_8_from(l, first, x, rows, y) hccs_packed_rows(l, first, x, rows, 0, y, NULL, NULL)
#define hccs_linear_16(l, x, rows, y) hccs_packed_rows(l, 0, x, rows, 0, NULL, y, NULL)
#define hccs_linear_32(l, x, rows, y) hccs_packed_rows(l, 0, x, rows, 0, NULL, NULL, y)
#define hccs_linear_of_exponents_8(l, x, rows, y) hccs_packed_rows(l, 0, x, rows, 1, y, NULL, NULL)
#define hccs_linear_of_exponents_8_from(l, first, x, rows, y) hccs_packed_rows(l, first, x, rows, 1, y, NULL, NULL)
#define hccs_linear_of_exponents_16(l, x, rows, y) hccs_packed_rows(l, 0, x, rows, 1, NULL, y, NULL)
#define hccs_linear_of_exponents_32(l, x, rows, y) hccs_packed_rows(l, 0, x, rows, 1, NULL, NULL, y)

#endif
