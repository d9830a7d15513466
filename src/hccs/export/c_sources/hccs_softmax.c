#include "hccs_softmax.h"

#define INT16_LIMIT 32767
#define RECIPROCAL_SHIFT 15 /* fraction bits of the u8 reciprocal, eq. 8 of the paper */

/* All a row needs besides its logits: the maximum, the reciprocal, and how far scores are shifted. */
typedef struct {
  int32_t max;
  uint32_t rho;
  unsigned up;   /* short rows of u8 modes: scores are scaled by 2^up so that Z >= 256 */
  unsigned down; /* fraction bits of s * rho */
  uint32_t one;  /* outputs saturate here */
} row;

static int attended(size_t i, size_t length, const uint8_t* valid) {
  return i < length && (valid == NULL || valid[i] != 0);
}

static uint32_t score(const hccs_head* theta, int32_t max, int8_t x) {
  int32_t distance = max - x;                        /* eq. 1 */
  if (distance > theta->D) distance = theta->D;      /* eq. 2 */
  return (uint32_t)(theta->B - theta->S * distance); /* eq. 3, not negative by eq. 4 */
}

static unsigned leading_bit(uint32_t Z) {
  unsigned k = 0;
  while (Z >>= 1) ++k;
  return k;
}

static hccs_status check(const hccs_head* theta, size_t columns, size_t length) {
  if (theta->D < 1 || theta->D > 127 || theta->S < 0 || theta->S > 127 || theta->B < 1 ||
      (int32_t)theta->S * theta->D > theta->B) {
    return HCCS_BAD_HEAD;
  }
  if (length > columns) return HCCS_BAD_LENGTH;
  if (columns > (size_t)(INT16_LIMIT / theta->B)) return HCCS_ROW_TOO_LONG;
  return HCCS_OK;
}

/* Maximum, sum and reciprocal of a row; 0 when no column takes part. */
static int prepare(const hccs_head* theta, hccs_mode mode, const int8_t* x, size_t length, const uint8_t* valid,
                   row* r) {
  const int is_u8 = mode == HCCS_U8_DIV || mode == HCCS_U8_CLB;
  const int is_clb = mode == HCCS_I16_CLB || mode == HCCS_U8_CLB;
  uint32_t Z = 0, numerator;
  int found = 0;
  size_t i;
  r->max = INT8_MIN;
  for (i = 0; i < length; ++i) {
    if (attended(i, length, valid)) {
      found = 1;
      if (x[i] > r->max) r->max = x[i];
    }
  }
  if (!found) return 0;
  for (i = 0; i < length; ++i) {
    if (attended(i, length, valid)) Z += score(theta, r->max, x[i]); /* eq. 5 */
  }
  r->up = is_u8 && leading_bit(Z) < 8 ? 8 - leading_bit(Z) : 0;
  r->down = is_u8 ? RECIPROCAL_SHIFT : 0;
  r->one = is_u8 ? HCCS_U8_ONE : HCCS_I16_ONE;
  Z <<= r->up;
  numerator = r->one << r->down;
  r->rho = is_clb ? numerator >> leading_bit(Z) : numerator / Z; /* eq. 6, 8, 9 */
  return 1;
}

static uint32_t probability(const hccs_head* theta, const row* r, int8_t x) {
  const uint32_t p = ((score(theta, r->max, x) << r->up) * r->rho) >> r->down; /* eq. 7 */
  return p < r->one ? p : r->one;
}

hccs_status hccs_softmax_row_i16(const hccs_head* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                                 const uint8_t* valid, int16_t* p) {
  const hccs_status status = check(theta, columns, length);
  row r;
  int any;
  size_t i;
  if (status != HCCS_OK) return status;
  if (mode != HCCS_I16_DIV && mode != HCCS_I16_CLB) return HCCS_BAD_MODE;
  any = prepare(theta, mode, x, length, valid, &r);
  for (i = 0; i < columns; ++i) {
    p[i] = any && attended(i, length, valid) ? (int16_t)probability(theta, &r, x[i]) : (int16_t)0;
  }
  return HCCS_OK;
}

hccs_status hccs_softmax_row_u8(const hccs_head* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                                const uint8_t* valid, uint8_t* p) {
  const hccs_status status = check(theta, columns, length);
  row r;
  int any;
  size_t i;
  if (status != HCCS_OK) return status;
  if (mode != HCCS_U8_DIV && mode != HCCS_U8_CLB) return HCCS_BAD_MODE;
  any = prepare(theta, mode, x, length, valid, &r);
  for (i = 0; i < columns; ++i) {
    p[i] = any && attended(i, length, valid) ? (uint8_t)probability(theta, &r, x[i]) : (uint8_t)0;
  }
  return HCCS_OK;
}
