#include "hccs_softmax.h"

#define INT16_LIMIT 32767
#define WIDE_LIMIT 16777215
#define RECIPROCAL_SHIFT 15 /* fraction bits of the u8 reciprocal, eq. 8 of the paper */
#define LINEAR_TOP 47976    /* 1.4641 * 2^15: 1/z is nearly 1.4641 - z/2 for z from 1 to 2 */

/* A head of either form. */
typedef struct {
  hccs_lines of;
  int wide;
} form;

/* All a row needs besides its logits: the maximum, the reciprocal, and how far scores are shifted. */
typedef struct {
  int32_t max;
  uint32_t rho;
  unsigned up;   /* short rows of u8 modes, not of the wide form: scores are scaled by 2^up so that Z >= 256 */
  unsigned down; /* fraction bits of s * rho */
  uint32_t one;  /* outputs saturate here */
} row;

static int attended(size_t i, size_t length, const uint8_t* valid) {
  return i < length && (valid == NULL || valid[i] != 0);
}

static int32_t at_most(int32_t distance, int16_t bound) { return distance < bound ? distance : bound; }

/* `two` is a constant in every loop, which then does for one line what one line needs. */
static inline uint32_t score(const hccs_lines* theta, int two, int32_t max, int8_t x) {
  const int32_t distance = max - x;                                       /* eq. 1 */
  const int32_t line = theta->B - theta->S * at_most(distance, theta->D); /* eq. 2, 3, not negative by eq. 4 */
  return two ? (uint32_t)(line - theta->S2 * at_most(distance, theta->D2)) >> theta->f : (uint32_t)line;
}

static unsigned leading_bit(uint32_t Z) {
  unsigned k = 0;
  while (Z >>= 1) ++k;
  return k;
}

static int is_u8(hccs_mode mode) { return mode == HCCS_U8_DIV || mode == HCCS_U8_CLB || mode == HCCS_U8_LIN; }

static int is_clb(hccs_mode mode) { return mode == HCCS_I16_CLB || mode == HCCS_U8_CLB; }

/* 255 * 2^k / Z by a line, in eight bits; k is Z's leading bit. */
static uint32_t linear_reciprocal(uint32_t Z, unsigned k) {
  const uint32_t M = k > 15 ? Z >> (k - 15) : Z << (15 - k);
  return (HCCS_U8_ONE * (LINEAR_TOP - (M >> 1))) >> 15;
}

static hccs_status check(const form* head, size_t columns, size_t length) {
  const hccs_lines* theta = &head->of;
  if (theta->D < 1 || theta->D > 127 || theta->S < 0 || theta->S > 127 || theta->B < 1 || theta->S2 < 0 ||
      theta->S2 > 127 || theta->D2 < 1 || theta->D2 > theta->D || theta->f < 0 || theta->f > 7 ||
      (int32_t)theta->S * theta->D + (int32_t)theta->S2 * theta->D2 > theta->B ||
      (theta->f > 0 && (theta->B >> theta->f < 1 || theta->B >> theta->f > 255))) {
    return HCCS_BAD_HEAD;
  }
  if (length > columns) return HCCS_BAD_LENGTH;
  if (columns > (size_t)((head->wide ? WIDE_LIMIT : INT16_LIMIT) / (theta->B >> theta->f))) return HCCS_ROW_TOO_LONG;
  return HCCS_OK;
}

/* The reciprocal of the paper's form. */
static void divide(uint32_t Z, hccs_mode mode, row* r) {
  const unsigned k = leading_bit(Z);
  uint32_t numerator;
  r->up = is_u8(mode) && k < 8 ? 8 - k : 0;
  r->down = is_u8(mode) ? RECIPROCAL_SHIFT : 0;
  numerator = r->one << r->down;
  r->rho = is_clb(mode) ? numerator >> (k + r->up) : numerator / (Z << r->up); /* eq. 6, 8, 9 */
}

/* That of the wide form: 15 bits of it, for every Z. */
static void divide_wide(uint32_t Z, hccs_mode mode, row* r) {
  const unsigned k = leading_bit(Z), spare = is_u8(mode) ? 7 : 0;
  const uint32_t M = k > 15 ? (Z + (1u << (k - 15)) - 1) >> (k - 15) : Z << (15 - k);
  r->up = 0;
  r->down = k + spare;
  r->rho = is_clb(mode) ? r->one << spare : (r->one << (15 + spare)) / M;
}

/* That of a line, the same in both forms. */
static void divide_by_line(uint32_t Z, row* r) {
  r->up = 0;
  r->down = leading_bit(Z);
  r->rho = linear_reciprocal(Z, r->down);
}

/* Maximum, sum and reciprocal of a row; 0 when no column takes part. */
static int prepare(const form* head, hccs_mode mode, const int8_t* x, size_t length, const uint8_t* valid, row* r) {
  const hccs_lines theta = head->of;
  uint32_t Z = 0;
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
  if (head->wide) {
    for (i = 0; i < length; ++i) {
      if (attended(i, length, valid)) Z += score(&theta, 1, r->max, x[i]); /* eq. 5 */
    }
  } else {
    for (i = 0; i < length; ++i) {
      if (attended(i, length, valid)) Z += score(&theta, 0, r->max, x[i]);
    }
  }
  r->one = is_u8(mode) ? HCCS_U8_ONE : HCCS_I16_ONE;
  if (mode == HCCS_U8_LIN) {
    divide_by_line(Z, r);
  } else if (head->wide) {
    divide_wide(Z, mode, r);
  } else {
    divide(Z, mode, r);
  }
  return 1;
}

static inline uint32_t probability(const hccs_lines* theta, int two, const row* r, int8_t x) {
  const uint32_t p = ((score(theta, two, r->max, x) << r->up) * r->rho) >> r->down; /* eq. 7 */
  return p < r->one ? p : r->one;
}

static hccs_status row_i16(const form* head, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                           const uint8_t* valid, int16_t* p) {
  const hccs_status status = check(head, columns, length);
  hccs_lines theta;
  row found = {0, 0, 0, 0, 0}, r;
  int any;
  size_t i;
  if (status != HCCS_OK) return status;
  if (mode != HCCS_I16_DIV && mode != HCCS_I16_CLB) return HCCS_BAD_MODE;
  any = prepare(head, mode, x, length, valid, &found);
  theta = head->of, r = found; /* copies that p cannot overlap: they stay in registers */
  if (head->wide) {
    for (i = 0; i < columns; ++i) {
      p[i] = any && attended(i, length, valid) ? (int16_t)probability(&theta, 1, &r, x[i]) : (int16_t)0;
    }
  } else {
    for (i = 0; i < columns; ++i) {
      p[i] = any && attended(i, length, valid) ? (int16_t)probability(&theta, 0, &r, x[i]) : (int16_t)0;
    }
  }
  return HCCS_OK;
}

static hccs_status row_u8(const form* head, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                          const uint8_t* valid, uint8_t* p) {
  const hccs_status status = check(head, columns, length);
  hccs_lines theta;
  row found = {0, 0, 0, 0, 0}, r;
  int any;
  size_t i;
  if (status != HCCS_OK) return status;
  if (!is_u8(mode)) return HCCS_BAD_MODE;
  any = prepare(head, mode, x, length, valid, &found);
  theta = head->of, r = found; /* copies that p cannot overlap: they stay in registers */
  if (head->wide) {
    for (i = 0; i < columns; ++i) {
      p[i] = any && attended(i, length, valid) ? (uint8_t)probability(&theta, 1, &r, x[i]) : (uint8_t)0;
    }
  } else {
    for (i = 0; i < columns; ++i) {
      p[i] = any && attended(i, length, valid) ? (uint8_t)probability(&theta, 0, &r, x[i]) : (uint8_t)0;
    }
  }
  return HCCS_OK;
}

static form one_line(const hccs_head* theta) {
  form head = {{0, 0, 0, 0, 1, 0}, 0};
  head.of.B = theta->B;
  head.of.S = theta->S;
  head.of.D = theta->D;
  return head;
}

static form lines(const hccs_lines* theta) {
  form head = {{0, 0, 0, 0, 1, 0}, 1};
  head.of = *theta;
  return head;
}

hccs_status hccs_softmax_row_i16(const hccs_head* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                                 const uint8_t* valid, int16_t* p) {
  const form head = one_line(theta);
  return row_i16(&head, mode, x, columns, length, valid, p);
}

hccs_status hccs_softmax_row_u8(const hccs_head* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                                const uint8_t* valid, uint8_t* p) {
  const form head = one_line(theta);
  return row_u8(&head, mode, x, columns, length, valid, p);
}

hccs_status hccs_lines_row_i16(const hccs_lines* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                               const uint8_t* valid, int16_t* p) {
  const form head = lines(theta);
  return row_i16(&head, mode, x, columns, length, valid, p);
}

hccs_status hccs_lines_row_u8(const hccs_lines* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                              const uint8_t* valid, uint8_t* p) {
  const form head = lines(theta);
  return row_u8(&head, mode, x, columns, length, valid, p);
}
