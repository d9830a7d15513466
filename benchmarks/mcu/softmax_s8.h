/* int8 softmax in fixed point, as runtimes for microcontrollers compute it: gemmlowp's exponential of 31 bits by a
 * polynomial and seven conditional products, once for the sum and once more for the output, and Newton's reciprocal.
 * Written after the published method, as a peer to measure against. */
#ifndef SOFTMAX_S8_H
#define SOFTMAX_S8_H

#include <stdint.h>

#define INTEGER_BITS 5 /* of an exponent's argument: Q5.26 */
#define SUM_BITS 12    /* integer bits of the sum of exponentials */

/* round(a * b / 2^31), saturated. */
static inline int32_t product(int32_t a, int32_t b) {
  const int64_t exact = (int64_t)a * b;
  const int64_t rounded = (exact + ((int64_t)1 << 30)) >> 31;
  return rounded > INT32_MAX ? INT32_MAX : (int32_t)rounded;
}

/* round(x / 2^bits), ties away from zero. */
static inline int32_t halved(int32_t x, int bits) {
  const int32_t mask = (int32_t)((1u << bits) - 1), rest = x & mask;
  return (x >> bits) + (rest > (mask >> 1) + (x < 0));
}

/* exp(x) of x <= 0 in Q5.26, as Q0.31. */
static inline int32_t exponential(int32_t x) {
  const int32_t quarter = (int32_t)1 << 24;
  const int32_t below = (x & (quarter - 1)) - quarter; /* -1/4 <= below < 0 */
  const int32_t remainder = below - x;
  const int32_t y = below * (1 << INTEGER_BITS) + ((int32_t)1 << 28); /* around -1/8, Q0.31 */
  const int32_t y2 = product(y, y), y3 = product(y2, y), y4 = product(y2, y2);
  const int32_t high = halved(product(halved(y4, 2) + y3, 715827883) + y2, 1); /* y^4/24 + y^3/6 + y^2/2 */
  int32_t result = 1895147668 + product(1895147668, y + high);                 /* exp(-1/8) */
  if (remainder & (1 << 24)) result = product(result, 1672461947);             /* exp(-1/4) */
  if (remainder & (1 << 25)) result = product(result, 1302514674);             /* exp(-1/2) */
  if (remainder & (1 << 26)) result = product(result, 790015084);              /* exp(-1) */
  if (remainder & (1 << 27)) result = product(result, 290630308);              /* exp(-2) */
  if (remainder & (1 << 28)) result = product(result, 39332535);               /* exp(-4) */
  if (remainder & (1 << 29)) result = product(result, 720401);                 /* exp(-8) */
  if (remainder & (1 << 30)) result = product(result, 242);                    /* exp(-16) */
  return x == 0 ? INT32_MAX : result;
}

/* 1 / (1 + x) of 0 <= x <= 1 in Q0.31: three steps of Newton's. */
static inline int32_t one_over_one_plus(int32_t x) {
  const int32_t half = (int32_t)(((int64_t)x + INT32_MAX + 1) / 2);
  int32_t guess = 1515870810 + product(half, -1010580540); /* 48/17 - 32/17 * half, Q2.29 */
  int step;
  for (step = 0; step < 3; ++step) guess += 4 * product(guess, ((int32_t)1 << 29) - product(half, guess));
  return guess >= (int32_t)1 << 30 ? INT32_MAX : 2 * guess;
}

/* Probabilities * 256 - 128 of one row; the argument of the exponential is (x - max) * 2^shift * multiplier / 2^31. */
static inline void softmax_s8(const int8_t* x, int columns, int32_t multiplier, int shift, int32_t least, int8_t* y) {
  int32_t max = x[0], sum = 0, scale;
  int i, headroom = 0;
  for (i = 1; i < columns; ++i) max = x[i] > max ? x[i] : max;
  for (i = 0; i < columns; ++i) {
    const int32_t difference = x[i] - max;
    if (difference >= least) sum += halved(exponential(product(difference * (1 << shift), multiplier)), SUM_BITS);
  }
  while (((uint32_t)sum << headroom & 0x80000000u) == 0) ++headroom;
  scale = one_over_one_plus((int32_t)(((uint32_t)sum << headroom) - 0x80000000u));
  for (i = 0; i < columns; ++i) {
    const int32_t difference = x[i] - max;
    int32_t p = 0;
    if (difference >= least) {
      p = halved(product(scale, exponential(product(difference * (1 << shift), multiplier))), SUM_BITS - headroom + 23);
    }
    p -= 128;
    y[i] = (int8_t)(p > 127 ? 127 : p);
  }
}

#endif
