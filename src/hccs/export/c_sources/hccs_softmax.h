/* HCCS: head-calibrated clipped-linear softmax on int8 logits, in integers. Portable C99, no library needed. */
#ifndef HCCS_SOFTMAX_H
#define HCCS_SOFTMAX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Parameters of one head: score of the row's maximum, score lost per step of distance, largest distance. */
typedef struct {
  int16_t B;
  int16_t S;
  int16_t D;
} hccs_head;

/* The wide form: s = (B - S min(d, D) - S2 min(d, D2)) >> f at distance d, and row sums of up to 24 bits. */
typedef struct {
  int16_t B;
  int16_t S;
  int16_t D;
  int16_t S2;
  int16_t D2;
  int16_t f;
} hccs_lines;

/* Width of the output, and how the reciprocal of the row sum is found: by division, from its leading bit, or by a
 * straight line between two powers of two, which needs no division and is off by 8 % at most. */
typedef enum { HCCS_I16_DIV, HCCS_I16_CLB, HCCS_U8_DIV, HCCS_U8_CLB, HCCS_U8_LIN } hccs_mode;

/* What stands for probability one. */
#define HCCS_I16_ONE 32767
#define HCCS_U8_ONE 255

/* What was wrong with a call; the output is then untouched. */
typedef enum {
  HCCS_OK,
  HCCS_BAD_HEAD,    /* not 1 <= D <= 127, 0 <= S <= 127, S*D <= B, 1 <= B; of lines, not 1 <= D2 <= D, 0 <= S2 <= 127,
                       S*D + S2*D2 <= B, 0 <= f <= 7, and 1 <= B >> f <= 255 where f > 0 */
  HCCS_BAD_MODE,    /* a mode of the other output width */
  HCCS_BAD_LENGTH,  /* length > columns */
  HCCS_ROW_TOO_LONG /* columns * B > 32767: the row sum could leave int16; of lines, columns * (B >> f) >= 2^24 */
} hccs_status;

/* Probabilities of one row. Column i takes part if i < length and, where `valid` is given, valid[i] is not 0;
 * other columns get 0. `valid` may be NULL. `x` and `p` hold `columns` values. */
hccs_status hccs_softmax_row_i16(const hccs_head* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                                 const uint8_t* valid, int16_t* p);
hccs_status hccs_softmax_row_u8(const hccs_head* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                                const uint8_t* valid, uint8_t* p);

hccs_status hccs_lines_row_i16(const hccs_lines* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                               const uint8_t* valid, int16_t* p);
hccs_status hccs_lines_row_u8(const hccs_lines* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
                              const uint8_t* valid, uint8_t* p);

#ifdef __cplusplus
}
#endif

#endif
