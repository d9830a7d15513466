/* Operators of hccs_operators.h for WebAssembly, over weights that are packed for its SIMD128: the same bits.
 *
 * Weights [outputs][inputs] lie in panels of 8 outputs: 8 int32, what each output's weights add to its sums below;
 * then for each pair of inputs 16 bytes, two of each output, of an even number of pairs (packed_weight of
 * hccs.executors.wasm). Without SIMD128 the same panels are read one by one. Only instructions whose results are fixed
 * are used: no relaxed SIMD, and of floats only products, sums and comparisons that are exact. */
#ifndef HCCS_SIMD_H
#define HCCS_SIMD_H

#include "hccs_operators.h"

#define HCCS_PANEL 8
#define HCCS_PANEL_BYTES 16 /* of a pair of inputs */
#define HCCS_PANEL_OWN 32   /* before them */
#define HCCS_ROWS 4         /* of attention that go through a panel together */
#define HCCS_EXPONENTS 17   /* 0 to 16 */

/* Pairs of inputs, two at a time. */
static inline uint32_t hccs_quads(const hccs_linear* l) { return (l->inputs + 3) / 4; }

static inline const int8_t* hccs_panel(const hccs_linear* l, uint32_t panel) {
  return l->weight + (size_t)panel * (HCCS_PANEL_OWN + hccs_quads(l) * 2 * HCCS_PANEL_BYTES) + HCCS_PANEL_OWN;
}

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
  const uint32_t columns = l->inputs + (exponents ? 1 : 0);
  uint32_t row, panel, o;
  for (row = 0; row < rows; ++row, x += columns) {
    const int32_t e = exponents ? x[l->inputs] : 0;
    for (panel = first / HCCS_PANEL; panel * HCCS_PANEL < l->outputs; ++panel) {
      int32_t sums[HCCS_PANEL] = {0};
      hccs_panel_sums(x, hccs_panel(l, panel), l->inputs, sums);
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
 * 4 to 7. */
static inline __attribute__((always_inline)) void hccs_multiply_pair(const int rows, const int16_t* x, const int16_t* w,
                                                                     v128_t* acc) {
  const v128_t low = wasm_v128_load(w), high = wasm_v128_load(w + 8);
  int r;
#pragma clang loop unroll(full)
  for (r = 0; r < rows; ++r) {
    const v128_t pair = wasm_v128_load32_splat(x + 2 * r);
    acc[2 * r] = wasm_i32x4_add(acc[2 * r], wasm_i32x4_dot_i16x8(pair, low));
    acc[2 * r + 1] = wasm_i32x4_add(acc[2 * r + 1], wasm_i32x4_dot_i16x8(pair, high));
    HCCS_IN_ORDER(acc[2 * r]);
    HCCS_IN_ORDER(acc[2 * r + 1]);
  }
}

/* The same of two pairs of 1 or 2 rows, by half of the products: (a + wc) * (c + wa) = a * wa + c * wc + a * c + wa *
 * wc (Winograd's inner product). */
static inline __attribute__((always_inline)) void hccs_multiply_quad(const int rows, const int16_t* x, const int16_t* w,
                                                                     v128_t* acc) {
  const v128_t low0 = wasm_v128_load(w), high0 = wasm_v128_load(w + 8);
  const v128_t low1 = wasm_v128_load(w + 16), high1 = wasm_v128_load(w + 24);
  int r;
#pragma clang loop unroll(full)
  for (r = 0; r < rows; ++r) {
    const v128_t a = wasm_v128_load32_splat(x + 4 * r), c = wasm_v128_load32_splat(x + 4 * r + 2);
    acc[2 * r] = wasm_i32x4_add(acc[2 * r], wasm_i32x4_dot_i16x8(wasm_i16x8_add(a, low1), wasm_i16x8_add(c, low0)));
    acc[2 * r + 1] =
        wasm_i32x4_add(acc[2 * r + 1], wasm_i32x4_dot_i16x8(wasm_i16x8_add(a, high1), wasm_i16x8_add(c, high0)));
    HCCS_IN_ORDER(acc[2 * r]);
    HCCS_IN_ORDER(acc[2 * r + 1]);
  }
}

/* Runs `step` over `count` pairs or quads, `side` numbers of x and `width` of w at a time. Engines put all loads
 * between two branches first, and those of two steps exceed the registers: hence a branch after each. Addresses of
 * loads that splat have no constant part there: x moves on by steps. */
#define HCCS_MULTIPLY(step, count, side, width)              \
  do {                                                       \
    const int16_t* const end = x + (size_t)(side) * (count); \
    _Pragma("clang loop unroll(disable)") for (;;) {         \
      HCCS_IN_ORDER(w);                                      \
      HCCS_STEP_OF(step, side, w);                           \
      HCCS_STEP_OF(step, side, w + (width));                 \
      HCCS_STEP_OF(step, side, w + 2 * (width));             \
      HCCS_STEP_OF(step, side, w + 3 * (width));             \
      w += 4 * (width);                                      \
    }                                                        \
  } while (0)
#define HCCS_STEP_OF(step, side, w) \
  HCCS_IN_ORDER(x);                 \
  step(rows, x, w, acc);            \
  x += (side);                      \
  if (x == end) break

/* The products of 1 to 4 rows of attention with panels, to rows of sums that are `step` apart. */
static inline __attribute__((always_inline)) void hccs_multiply(const int rows, const int16_t* start, const int16_t* w,
                                                                uint32_t pairs, uint32_t panels, int32_t* sums,
                                                                uint32_t step) {
  const int16_t* next = w;
  int r;
  for (; panels > 0; --panels, sums += HCCS_PANEL) {
    const int16_t* x = start;
    v128_t acc[2 * HCCS_ROWS];
    for (r = 0; r < 2 * rows; ++r) acc[r] = wasm_i32x4_splat(0);
    w = next, next += (size_t)pairs * 2 * HCCS_PANEL;
    HCCS_MULTIPLY(hccs_multiply_pair, pairs, 2 * HCCS_ROWS, 2 * HCCS_PANEL);
    for (r = 0; r < 2 * rows; ++r) wasm_v128_store(sums + (size_t)(r / 2) * step + r % 2 * 4, acc[r]);
  }
}

static void hccs_multiply_rows(uint32_t rows, const int16_t* x, const int16_t* w, uint32_t pairs, uint32_t panels,
                               int32_t* sums, uint32_t step) {
  switch (rows) {
    case 1: hccs_multiply(1, x, w, pairs, panels, sums, step); break;
    case 2: hccs_multiply(2, x, w, pairs, panels, sums, step); break;
    case 3: hccs_multiply(3, x, w, pairs, panels, sums, step); break;
    default: hccs_multiply(4, x, w, pairs, panels, sums, step);
  }
}

/* Those of tiles of 1 or 2 rows of a linear layer with a panel, to sums of 8 of each; `own` is what the rows add to
 * them. */
static inline __attribute__((always_inline)) void hccs_multiply_quads(const int rows, const int16_t* x,
                                                                      const int16_t* panel, uint32_t quads,
                                                                      uint32_t tiles, const int32_t* own,
                                                                      int32_t* sums) {
  int r;
  for (; tiles > 0; --tiles, own += rows, sums += rows * HCCS_PANEL) {
    const int16_t* w = panel;
    v128_t acc[4];
    for (r = 0; r < 2 * rows; ++r) acc[r] = wasm_v128_load32_splat(own + r / 2);
    HCCS_MULTIPLY(hccs_multiply_quad, quads, 8, 4 * HCCS_PANEL);
    for (r = 0; r < 2 * rows; ++r) wasm_v128_store(sums + 4 * r, acc[r]);
  }
}
static __attribute__((noinline)) void hccs_one_row(const int16_t* x, const int16_t* w, uint32_t quads,
                                                   const int32_t* own, int32_t* sums) {
  hccs_multiply_quads(1, x, w, quads, 1, own, sums);
}
static __attribute__((noinline)) void hccs_two_rows(const int16_t* x, const int16_t* w, uint32_t quads, uint32_t tiles,
                                                    const int32_t* own, int32_t* sums) {
  hccs_multiply_quads(2, x, w, quads, tiles, own, sums);
}

/* Rows of int8 as int16, two of them interleaved, [rows / 2][quads][2][4], and what each adds to its sums, negated. */
static inline void hccs_widen_rows(const int8_t* x, uint32_t columns, uint32_t inputs, uint32_t rows, int16_t* y,
                                   int32_t* own) {
  const uint32_t quads = (inputs + 3) / 4;
  uint32_t row, k;
  for (row = 0; row < rows; ++row, x += columns) {
    int16_t* to = y + (size_t)(row / 2) * quads * 8 + 4 * (row % 2);
    v128_t sum = wasm_i32x4_splat(0);
    for (k = 0; k < inputs; k += 8, to += 16) {
      v128_t eight;
      if (k + 8 <= inputs) {
        eight = wasm_i16x8_load8x8(x + k);
      } else {
        int16_t rest[8] = {0};
        uint32_t i;
        for (i = k; i < inputs; ++i) rest[i - k] = x[i];
        eight = wasm_v128_load(rest);
      }
      wasm_v128_store64_lane(to, eight, 0);
      if (k + 4 < inputs) wasm_v128_store64_lane(to + 8, eight, 1);
      sum = wasm_i32x4_sub(sum, wasm_i32x4_dot_i16x8(eight, wasm_i32x4_shuffle(eight, eight, 1, 0, 3, 2)));
    }
    own[row] = wasm_i32x4_extract_lane(sum, 0) + wasm_i32x4_extract_lane(sum, 2); /* the others are their copies */
  }
}

/* Quads of a panel of weights. */
static inline void hccs_widen_panel(const int8_t* w, uint32_t from, uint32_t to, int16_t* y) {
  for (w += (size_t)from * 32, y += (size_t)from * 32; from < to; ++from, w += 32, y += 32) {
    wasm_v128_store(y, wasm_i16x8_load8x8(w));
    wasm_v128_store(y + 8, wasm_i16x8_load8x8(w + 8));
    wasm_v128_store(y + 16, wasm_i16x8_load8x8(w + 16));
    wasm_v128_store(y + 24, wasm_i16x8_load8x8(w + 24));
  }
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
 * is beyond every limit. Of a result that fits int32 the clamp may be left to those who narrow it. */
static inline v128_t hccs_rounded(v128_t x, v128_t multiplier, const hccs_by_exponent* by, const int fits) {
  const v128_t y = wasm_f64x2_mul(wasm_f64x2_convert_low_i32x4(x), multiplier);
  if (fits) return wasm_f64x2_add(y, by->rounder);
  return wasm_f64x2_add(wasm_f64x2_pmax(by->least, wasm_f64x2_pmin(by->most, y)), by->rounder);
}

/* Four sums, requantised by four multipliers. */
static inline v128_t hccs_requantised(v128_t sums, const v128_t* multipliers, const hccs_by_exponent* by,
                                      const int fits) {
  const v128_t low = hccs_rounded(sums, multipliers[0], by, fits);
  const v128_t high = hccs_rounded(wasm_i32x4_shuffle(sums, sums, 2, 3, 2, 3), multipliers[1], by, fits);
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

/* Where results are to go, in whichever width is not NULL. */
typedef struct {
  int8_t* y8;
  int16_t* y16;
  int32_t* y32;
} hccs_results;

/* A panel's sums of all rows to results; `exponents` are a row's `columns` apart, or NULL. */
static inline __attribute__((always_inline)) void hccs_finish_panel(const hccs_linear* l, uint32_t o,
                                                                    const int32_t* sums, uint32_t rows,
                                                                    const int8_t* exponents, uint32_t columns,
                                                                    const hccs_by_exponent* of, const int fits,
                                                                    hccs_results to) {
  const uint32_t count = l->outputs - o < HCCS_PANEL ? l->outputs - o : HCCS_PANEL;
  v128_t multipliers[4];
  uint32_t row, r;
  for (r = 0; r < 4; ++r) {
    const int32_t* two = l->multiplier != NULL ? l->multiplier + o + 2 * r : l->bias; /* unused */
    multipliers[r] = wasm_f64x2_convert_low_i32x4(wasm_v128_load64_zero(two));
  }
  for (row = 0; row < rows; ++row, sums += HCCS_PANEL) {
    const hccs_by_exponent* by = exponents == NULL ? of : of + exponents[(size_t)row * columns];
    v128_t low = wasm_i32x4_add(wasm_v128_load(sums), by->bias[0]);
    v128_t high = wasm_i32x4_add(wasm_v128_load(sums + 4), by->bias[1]);
    if (fits || l->multiplier != NULL) {
      low = hccs_requantised(low, multipliers, by, fits);
      high = hccs_requantised(high, multipliers + 2, by, fits);
    }
    if (fits) {
      v128_t words = wasm_i16x8_narrow_i32x4(low, high);
      if (to.y16 != NULL) {
        wasm_v128_store(to.y16 + (size_t)row * l->outputs + o, wasm_i16x8_max(words, wasm_i16x8_splat(-32767)));
      } else {
        words = wasm_i16x8_max(words, wasm_i16x8_splat(-127));
        wasm_v128_store64_lane(to.y8 + (size_t)row * l->outputs + o, wasm_i8x16_narrow_i16x8(words, words), 0);
      }
    } else {
      hccs_store(low, high, count, (size_t)row * l->outputs + o, to.y8, to.y16, to.y32);
    }
  }
}

/* Whether sums of a panel, times their multipliers and over 2^bits, stay within int32. */
static inline int hccs_fits(const hccs_linear* l, uint32_t o, int32_t bits) {
  v128_t most[2], both;
  int i;
  for (i = 0; i < 2; ++i) {
    const int32_t* from = (i == 0 ? l->bias : l->multiplier) + o;
    const v128_t eight = wasm_u32x4_max(wasm_i32x4_abs(wasm_v128_load(from)), wasm_i32x4_abs(wasm_v128_load(from + 4)));
    const v128_t four = wasm_u32x4_max(eight, wasm_i32x4_shuffle(eight, eight, 2, 3, 0, 1));
    most[i] = wasm_f64x2_convert_low_u32x4(wasm_u32x4_max(four, wasm_i32x4_shuffle(four, four, 1, 0, 3, 2)));
  }
  both = wasm_f64x2_mul(wasm_f64x2_add(most[0], wasm_f64x2_splat(16384.0 * l->inputs)), most[1]);
  return wasm_f64x2_extract_lane(both, 0) < 2147483000.0 * hccs_power(bits);
}

static void hccs_simd_rows(const hccs_linear* l, uint32_t first, const int8_t* x, uint32_t rows, int exponents,
                           int8_t* y8, int16_t* y16, int32_t* y32) {
  static int16_t wide[2][HCCS_PANEL * (HCCS_INPUTS + 3)] __attribute__((aligned(64))); /* two panels of weights */
  static int32_t own[HCCS_TILE], sums[HCCS_TILE * HCCS_PANEL] __attribute__((aligned(16)));
  const uint32_t columns = l->inputs + (exponents ? 1 : 0), quads = hccs_quads(l);
  const uint32_t most = 16 * rows / quads / 2 * 2, chunk = most < 2 ? 2 : most; /* so that a slice has about 16 quads */
  const uint32_t chunks = (rows + chunk - 1) / chunk, slice = (quads + chunks - 1) / chunks;
  const int8_t* const by_row = exponents ? x + l->inputs : NULL;
  const hccs_results to = {y8, y16, y32};
  hccs_by_exponent of[HCCS_EXPONENTS];
  uint32_t panel, row, e, used = exponents ? 0 : 1;
  for (e = 0; e < HCCS_EXPONENTS; ++e) {
    const double one = hccs_power(exponents ? 23 - (int32_t)e : 16);
    const double limit = (y32 != NULL ? (double)l->limit : y16 != NULL ? 32767.0 : 127.0) * one;
    of[e].least = wasm_f64x2_splat(-limit), of[e].most = wasm_f64x2_splat(limit);
    of[e].rounder = wasm_f64x2_splat(HCCS_ROUNDER * one);
  }
  for (row = 0; exponents && row < rows; ++row) used |= 1u << by_row[(size_t)row * columns];
  hccs_widen_rows(x, columns, l->inputs, rows, hccs_wide, own);
  hccs_widen_panel(hccs_panel(l, first / HCCS_PANEL), 0, quads, wide[first / HCCS_PANEL % 2]);
  for (panel = first / HCCS_PANEL; panel * HCCS_PANEL < l->outputs; ++panel) {
    const uint32_t o = panel * HCCS_PANEL, last = o + HCCS_PANEL >= l->outputs;
    const int8_t* const next = hccs_panel(l, panel + 1);
    const int32_t* const of_weights = (const int32_t*)(hccs_panel(l, panel) - HCCS_PANEL_OWN);
    uint32_t done = last ? quads : 0;
    for (row = 0; row < rows; row += chunk) { /* the next panel arrives from memory meanwhile */
      const uint32_t some = rows - row < chunk ? rows - row : chunk;
      const uint32_t until = quads - done < slice ? quads : done + slice;
      const int16_t* const from = hccs_wide + (size_t)row * quads * 4;
      hccs_two_rows(from, wide[panel % 2], quads, some / 2, own + row, sums + row * HCCS_PANEL);
      if (some % 2 != 0) {
        hccs_one_row(from + (size_t)(some - 1) * quads * 4, wide[panel % 2], quads, own + row + some - 1,
                     sums + (row + some - 1) * HCCS_PANEL);
      }
      hccs_widen_panel(next, done, until, wide[(panel + 1) % 2]);
      done = until;
    }
    for (e = 0; e < HCCS_EXPONENTS; ++e) {
      if ((used >> e & 1) == 0) continue;
      of[e].bias[0] = wasm_i32x4_sub(hccs_bias(wasm_v128_load(l->bias + o), e), wasm_v128_load(of_weights));
      of[e].bias[1] = wasm_i32x4_sub(hccs_bias(wasm_v128_load(l->bias + o + 4), e), wasm_v128_load(of_weights + 4));
    }
    if (y32 == NULL && o + HCCS_PANEL <= l->outputs &&
        hccs_fits(l, o, exponents ? 23 - (int32_t)hccs_leading_bit(used) : 16)) {
      hccs_finish_panel(l, o, sums, rows, by_row, columns, of, 1, to);
    } else {
      hccs_finish_panel(l, o, sums, rows, by_row, columns, of, 0, to);
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

/* clamp(rhe(xhat * gain + bias)), as the low halves of two words. All is exact. */
static inline v128_t hccs_gained(v128_t xhat, const double* gain, const double* bias) {
  const v128_t limit = wasm_f64x2_splat(32767.0);
  const v128_t y = wasm_f64x2_add(wasm_f64x2_mul(xhat, wasm_v128_load(gain)), wasm_v128_load(bias));
  return wasm_f64x2_add(wasm_f64x2_pmax(wasm_f64x2_neg(limit), wasm_f64x2_pmin(limit, y)),
                        wasm_f64x2_splat(HCCS_ROUNDER));
}

/* The square root rounded down, of at least 2^62: that of float64 is at most one off. */
static inline uint32_t hccs_simd_root(uint64_t x) {
  const v128_t quarter = wasm_f64x2_splat((double)(int64_t)(x >> 2));
  uint64_t root = (uint64_t)(int64_t)(2 * wasm_f64x2_extract_lane(wasm_f64x2_sqrt(quarter), 0));
  if (root > UINT32_MAX) root = UINT32_MAX;
  if (root * root > x) --root;
  if (root < UINT32_MAX && (root + 1) * (root + 1) <= x) ++root;
  return (uint32_t)root;
}

static inline void hccs_simd_layer_norm(const hccs_norm* p, const int32_t* v32, const int16_t* v16, uint32_t rows,
                                        int16_t* y) {
  static double gain[HCCS_INPUTS], bias[HCCS_INPUTS]; /* in units of the output, the gain of those of xhat */
  const uint32_t h = p->channels;
  const double unit = hccs_power(-20 - (int32_t)p->gain_bits), one = hccs_power(-(int32_t)p->gain_bits);
  size_t at;
  uint32_t row, i;
  if (h % 4 != 0 || h > HCCS_INPUTS) {
    hccs_layer_norm(p, v32, v16, rows, y);
    return;
  }
  for (i = 0; i < h; ++i) gain[i] = p->gain[i] * unit, bias[i] = p->bias[i] * one;
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
    r = (uint32_t)(p->root / hccs_simd_root(Q << (2 * t)));
    power = hccs_power((int32_t)(t + 20) - (int32_t)p->root_shift);
    high = wasm_f64x2_splat((r & 0xffff8000u) * power), low = wasm_f64x2_splat((r & 0x7fff) * power);
    for (i = 0; i < h; i += 4) {
      const v128_t v = hccs_four(v32, v16, at + i);
      const v128_t d = wasm_i32x4_sub(wasm_i32x4_mul(v, wasm_i32x4_splat((int32_t)h)), wasm_i32x4_splat(sum));
      const v128_t first = hccs_rounded_product(d, high, low);
      const v128_t second = hccs_rounded_product(wasm_i32x4_shuffle(d, d, 2, 3, 2, 3), high, low);
      const v128_t four = wasm_i32x4_shuffle(hccs_gained(first, gain + i, bias + i),
                                             hccs_gained(second, gain + i + 2, bias + i + 2), 0, 2, 4, 6);
      wasm_v128_store64_lane(y + at + i, wasm_i16x8_narrow_i32x4(four, four), 0);
    }
  }
}
#define hccs_layer_norm_32(p, v, rows, y) hccs_simd_layer_norm(p, v, NULL, rows, y)
#define hccs_layer_norm_16(p, v, rows, y) hccs_simd_layer_norm(p, NULL, v, rows, y)

/* ---- "Ramps" ---- */

/* Entries of a table at four of the places. */
static inline v128_t hccs_gathered(const int32_t* table, const uint16_t* places) {
  v128_t found = wasm_v128_load32_zero(table + places[0]);
  found = wasm_v128_load32_lane(table + places[1], found, 1);
  found = wasm_v128_load32_lane(table + places[2], found, 2);
  return wasm_v128_load32_lane(table + places[3], found, 3);
}

/* Of each piece knot and slope lie in one word, which is multiplied by those of 2^15 and the rest: all negated, as 2^15
 * is beyond int16. */
static inline void hccs_simd_ramp(const hccs_ramp_pieces* p, const int16_t* x, uint32_t count, int16_t* y) {
  const v128_t last = wasm_i16x8_splat((int16_t)(((int32_t)64 << p->bits) - 1)), one = wasm_i16x8_splat(-32768);
  const v128_t within = wasm_i16x8_splat((int16_t)((1 << p->bits) - 1)), half = wasm_i32x4_splat(1 << 14);
  int32_t table[64];
  uint32_t i;
  for (i = 0; i < 64; ++i) table[i] = (int32_t)((uint32_t)(uint16_t)p->knot[i] | (uint32_t)p->slope[i] << 16);
  for (i = 0; i + 8 <= count; i += 8) {
    const v128_t v = wasm_v128_load(x + i), distance = wasm_i16x8_min(wasm_i16x8_abs(v), last);
    const v128_t rest = wasm_i16x8_neg(wasm_i16x8_shl(wasm_v128_and(distance, within), 15 - p->bits));
    uint16_t places[8];
    v128_t low, high;
    wasm_v128_store(places, wasm_i16x8_shr(distance, p->bits));
    low = wasm_i32x4_dot_i16x8(hccs_gathered(table, places), wasm_i16x8_shuffle(one, rest, 0, 8, 1, 9, 2, 10, 3, 11));
    high = wasm_i32x4_dot_i16x8(hccs_gathered(table, places + 4),
                                wasm_i16x8_shuffle(one, rest, 4, 12, 5, 13, 6, 14, 7, 15));
    low = wasm_i32x4_shr(wasm_i32x4_sub(half, low), 15), high = wasm_i32x4_shr(wasm_i32x4_sub(half, high), 15);
    wasm_v128_store(y + i, wasm_i16x8_sub(wasm_i16x8_max(v, wasm_i16x8_splat(0)), wasm_i16x8_narrow_i32x4(low, high)));
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

/* Four scores by lines. */
static inline v128_t hccs_four_scores(const hccs_attention_head* head, v128_t distance) {
  const v128_t one = wasm_i32x4_mul(wasm_i32x4_splat(head->S), wasm_i32x4_min(distance, wasm_i32x4_splat(head->D)));
  const v128_t two = wasm_i32x4_mul(wasm_i32x4_splat(head->S2), wasm_i32x4_min(distance, wasm_i32x4_splat(head->D2)));
  return wasm_i32x4_shr(wasm_i32x4_sub(wasm_i32x4_sub(wasm_i32x4_splat(head->B), one), two), head->f);
}

/* Eight scores by distances. */
static inline v128_t hccs_eight_scores(const hccs_attention_head* head, v128_t distance) {
  uint16_t at[8];
  v128_t found = wasm_i16x8_splat(0);
  if (head->scores == NULL) {
    return wasm_i16x8_narrow_i32x4(hccs_four_scores(head, wasm_u32x4_extend_low_u16x8(distance)),
                                   hccs_four_scores(head, wasm_u32x4_extend_high_u16x8(distance)));
  }
  wasm_v128_store(at, wasm_i16x8_min(distance, wasm_i16x8_splat(127)));
#define HCCS_GATHER(n) found = wasm_v128_load16_lane(head->scores + at[n], found, n)
  HCCS_GATHER(0), HCCS_GATHER(1), HCCS_GATHER(2), HCCS_GATHER(3);
  HCCS_GATHER(4), HCCS_GATHER(5), HCCS_GATHER(6), HCCS_GATHER(7);
#undef HCCS_GATHER
  return found;
}

/* floor(x * factor + 1/2) of four sums, which fit int32. */
static inline v128_t hccs_logits_of_four(v128_t sums, v128_t factor) {
  const v128_t half = wasm_f64x2_splat(0.5), rounder = wasm_f64x2_splat(HCCS_ROUNDER);
  const v128_t first = wasm_f64x2_mul(wasm_f64x2_convert_low_i32x4(sums), factor);
  const v128_t second =
      wasm_f64x2_mul(wasm_f64x2_convert_low_i32x4(wasm_i32x4_shuffle(sums, sums, 2, 3, 2, 3)), factor);
  return wasm_i32x4_shuffle(wasm_f64x2_add(wasm_f64x2_floor(wasm_f64x2_add(first, half)), rounder),
                            wasm_f64x2_add(wasm_f64x2_floor(wasm_f64x2_add(second, half)), rounder), 0, 2, 4, 6);
}

/* Scores of one query from its sums over the keys, interleaved for the next product; returns their sum Z. Beyond the
 * keys they are 0. */
static inline int32_t hccs_simd_scores(const hccs_attention_head* head, const int32_t* sums, uint32_t keys, int16_t* x,
                                       int16_t* s) {
  const v128_t factor = wasm_f64x2_splat(head->logit_multiplier * hccs_power(-(int32_t)head->logit_shift));
  const v128_t places = wasm_i16x8_make(0, 1, 2, 3, 4, 5, 6, 7), least = wasm_i16x8_splat(-128);
  v128_t most = least, total = wasm_i32x4_splat(0);
  uint32_t j;
  for (j = 0; j < keys; j += 8) {
    v128_t eight = wasm_i16x8_narrow_i32x4(hccs_logits_of_four(wasm_v128_load(sums + j), factor),
                                           hccs_logits_of_four(wasm_v128_load(sums + j + 4), factor));
    eight = wasm_i16x8_max(wasm_i16x8_min(eight, wasm_i16x8_splat(127)), least);
    if (keys - j < 8) {
      eight = wasm_v128_bitselect(eight, least, wasm_i16x8_lt(places, wasm_i16x8_splat((int16_t)(keys - j))));
    }
    most = wasm_i16x8_max(most, eight);
    wasm_v128_store(x + j, eight);
  }
  most = wasm_i16x8_max(most, wasm_i32x4_shuffle(most, most, 2, 3, 0, 1));
  most = wasm_i16x8_max(most, wasm_i32x4_shuffle(most, most, 1, 0, 3, 2));
  most = wasm_i16x8_max(most, wasm_i16x8_shuffle(most, most, 1, 0, 3, 2, 5, 4, 7, 6));
  for (j = 0; j < keys; j += 8) {
    v128_t score = hccs_eight_scores(head, wasm_i16x8_sub(most, wasm_v128_load(x + j)));
    if (keys - j < 8) {
      score = wasm_v128_and(score, wasm_i16x8_lt(places, wasm_i16x8_splat((int16_t)(keys - j))));
    }
    total = wasm_i32x4_add(total, wasm_i32x4_extadd_pairwise_i16x8(score));
    wasm_v128_store32_lane(s + (size_t)j * HCCS_ROWS, score, 0);
    wasm_v128_store32_lane(s + (size_t)(j + 2) * HCCS_ROWS, score, 1);
    wasm_v128_store32_lane(s + (size_t)(j + 4) * HCCS_ROWS, score, 2);
    wasm_v128_store32_lane(s + (size_t)(j + 6) * HCCS_ROWS, score, 3);
  }
  total = wasm_i32x4_add(total, wasm_i32x4_shuffle(total, total, 2, 3, 0, 1));
  return wasm_i32x4_extract_lane(total, 0) + wasm_i32x4_extract_lane(total, 1);
}

/* hccs_round_half_up of eight values; those of more than 32 bits are shifted by 32 without an instruction. */
static inline void hccs_weighted_8(const int32_t* N, int32_t R, uint32_t shift, int8_t* y) {
  uint32_t i;
  v128_t words[2];
  if (shift < 32) {
    for (i = 0; i < HCCS_PANEL; ++i) y[i] = hccs_round_half_up(N[i], R, shift);
    return;
  }
  for (i = 0; i < 2; ++i) {
    const v128_t four = wasm_v128_load(N + 4 * i), half = wasm_i64x2_splat((int64_t)1 << (shift - 1));
    const v128_t low = wasm_i64x2_add(wasm_i64x2_extmul_low_i32x4(four, wasm_i32x4_splat(R)), half);
    const v128_t high = wasm_i64x2_add(wasm_i64x2_extmul_high_i32x4(four, wasm_i32x4_splat(R)), half);
    words[i] = wasm_i32x4_shr(wasm_i32x4_shuffle(low, high, 1, 3, 5, 7), shift - 32);
  }
  words[0] = wasm_i16x8_narrow_i32x4(words[0], words[1]);
  wasm_v128_store64_lane(y, wasm_i8x16_narrow_i16x8(words[0], words[0]), 0);
}

/* As hccs_attend; four queries at a time go over packed keys, then over packed values. */
static void hccs_simd_attend(const hccs_attention_heads* a, const int8_t* qkv, uint32_t length, uint32_t queries,
                             int8_t* x, int16_t* s, int8_t* y) {
  static int16_t keys[HCCS_PACKED] __attribute__((aligned(16))), values[HCCS_PACKED] __attribute__((aligned(16)));
  static int32_t sums[HCCS_ROWS][HCCS_KEYS] __attribute__((aligned(16)));
  static int16_t logits[HCCS_KEYS] __attribute__((aligned(16)));
  static int16_t scores[HCCS_ROWS * HCCS_KEYS] __attribute__((aligned(16)));
  const uint32_t all = a->count * a->width, step = 3 * all, pairs = a->width / 2, key_pairs = (length + 1) / 2;
  const int partly = a->before < length || a->after < length || a->shared != a->count;
  uint32_t head, i, r, j, c;
  for (head = 0; head < a->count; ++head) {
    const hccs_attention_head* theta = a->heads + head;
    const int8_t* columns = qkv + (size_t)head * a->width;
    if (partly || a->width % HCCS_PANEL != 0 || theta->logit_shift > 40 ||
        (uint64_t)theta->logit_multiplier * a->width >> theta->logit_shift >= 1u << 16) {
      hccs_attend(a, qkv, length, queries, x, s, y);
      return;
    }
    hccs_widen(columns + all, step, a->width, length, HCCS_PANEL, keys);
    hccs_pack_values(columns + 2 * (size_t)all, step, a->width, length, values);
    hccs_widen(columns, step, a->width, queries, HCCS_ROWS, hccs_wide);
    for (i = 0; i < queries; i += HCCS_ROWS) {
      const uint32_t some = queries - i < HCCS_ROWS ? queries - i : HCCS_ROWS;
      int32_t found[HCCS_ROWS * HCCS_PANEL] __attribute__((aligned(16)));
      uint32_t shift[HCCS_ROWS];
      int32_t R[HCCS_ROWS];
      hccs_multiply_rows(some, hccs_wide + (size_t)i * pairs * 2, keys, pairs, (length + HCCS_PANEL - 1) / HCCS_PANEL,
                         sums[0], HCCS_KEYS);
      for (r = 0; r < some; ++r) {
        const int32_t Z = hccs_simd_scores(theta, sums[r], length, logits, scores + 2 * r);
        const uint32_t k = hccs_leading_bit((uint64_t)Z);
        shift[r] = theta->out_shift + k < 62 ? theta->out_shift + k : 62;
        R[r] = (int32_t)(((uint64_t)theta->out_multiplier << k) / (uint32_t)Z);
      }
      for (c = 0; c < a->width; c += HCCS_PANEL) {
        hccs_multiply_rows(some, scores, values + (size_t)c * key_pairs * 2, key_pairs, 1, found, HCCS_PANEL);
        for (r = 0; r < some; ++r) {
          hccs_weighted_8(found + HCCS_PANEL * r, R[r], shift[r],
                          y + (size_t)(i + r) * all + (size_t)head * a->width + c);
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
