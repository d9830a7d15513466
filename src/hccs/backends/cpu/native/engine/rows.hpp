// The operators between the products, row by row: what they are given. The arithmetic is docs/spec.md, "A whole
// encoder"; hccs.reference is its readable form.
#pragma once

#include <cstdint>

namespace hccs {

// The constants of a LayerNorm or RMSNorm, in both forms in which kernels take them.
struct NormConstants {
  int64_t channels;
  int64_t times;  // d = times * v, less the sum where it is centred: LayerNorm's channels, RMSNorm's 2^8
  bool centred;
  uint64_t root;  // sqrt(channels) * 2^root_shift, in [2^61, 2^62)
  int root_shift;
  uint64_t epsilon;
  int gain_bits;
  const int32_t *gain, *bias;
  const double *real_gain, *real_bias;  // gain / 2^(20 + gain_bits), bias / 2^gain_bits
};

// v = (words[token] << shift) + positions[position] + types[type], clamped to +-limit unless that is 0.
struct EmbeddingConstants {
  const int8_t* words;
  const int16_t *positions, *types;
  int64_t position_stride, type_stride;  // 0 where a model has none: a row of zeros
  int shift;
  int32_t limit;
};
struct EmbeddedTokens {
  const int32_t *token, *position, *type;  // of the first row
};

// Where LayerNorm takes v from.
enum class NormSource { kInt32, kInt16, kSum, kEmbedding };

// f(x) = max(x, 0) - r(|x|) of int16: GELU, SiLU. r is linear on 64 pieces of 2^bits steps and 0 beyond them.
struct RampConstants {
  int16_t knot[64], slope[64];  // r at the start of a piece, and by how much it rises over it
  int bits;                     // 0 to 9
};

// Rows from the first on; strides count bytes.
struct NormJob {
  const NormConstants* norm;
  NormSource source;
  const void *a, *b;  // int32 or int16 rows; kSum: v = a + b, both int16, or int32 with a limit beyond
  int64_t a_stride, b_stride;
  int32_t limit;  // kSum: clamps v to +-limit unless it is 0
  const EmbeddingConstants* embedding;
  EmbeddedTokens tokens;
  void* clamped;      // receives v, the stream that goes on; null: not wanted
  bool clamped_long;  // as int32
  int64_t clamped_stride;
  int16_t* out;  // null: not wanted
  int64_t out_stride;
  int8_t* narrowed;  // clamp(rhe(out / 2^bits), -127, 127) ^ turn; null: not wanted
  int64_t narrowed_stride;
  int bits;              // kRowExponent: those of each row, which one more byte of `narrowed` receives
  const int16_t* scale;  // kRowExponent: of every channel, in Q15, before it is narrowed; null: 1
  uint8_t turn;
};
constexpr int kRowExponent = -1;

// Heads of q, then of k, then of v, `dim` channels each; the first 2 * pairs of those of q and k turn.
struct RotateConstants {
  int64_t heads, turned, dim, pairs;  // of q, k and v; of q and k
  const int16_t *cosine, *sine;       // [positions][pairs], 32767 stands for 1
  const int32_t* multiplier;          // of each head, 1 to 2^24 - 1
  const double* factor;               // the same over 2^38
};
constexpr int kRotateShift = 38;
constexpr int64_t kRmsTimes = 1 << 8;
constexpr int64_t kMostActive = 8192;  // channels of a row that is narrowed with an exponent

// What becomes of the tokens of a sequence.
enum class Pooling { kMean, kFirst, kLast, kMax };
constexpr const char* kPoolingNames[] = {"mean", "first", "last", "max"};

// No allocation, no exceptions, safe on several threads.
struct RowKernels {
  void (*norm)(const NormJob&, int64_t rows);
  // One row: int16 where constants.limit is not 0, int32 otherwise.
  void (*embed)(const EmbeddingConstants&, int32_t token, int32_t position, int32_t type, int64_t channels, void* out);
  void (*narrow)(const int16_t* x, int64_t count, int bits, uint8_t turn, int8_t* out);
  // out[count] receives the row's exponent e, max(0, bits of the largest |f(x)| - 7); out = narrow(f(x), e). f is the
  // ramp, or x itself where there is none, times the scale of its channel in Q15, where there are scales.
  void (*narrow_row)(const RampConstants* ramp, const int16_t* scale, const int16_t* x, int64_t count, uint8_t turn,
                     int8_t* out);
  // The largest |f(x)|.
  int32_t (*ramp)(const RampConstants& ramp, const int16_t* x, int64_t count, int16_t* out);
  // One sequence of int16 tokens, `stride` bytes apart: the sum of them, one of them, or their maxima.
  void (*pool)(Pooling pooling, const int16_t* x, int64_t stride, int64_t tokens, int64_t channels, int32_t* out);
  // Unit vectors in Q15 of int32 rows.
  void (*unit)(const int32_t* x, int64_t channels, int16_t* out);
  // clamp(rhe(a * M / 2^38), -127, 127) ^ turn of one row, with a the row turned by cosine and sine [pairs].
  void (*rotate)(const RotateConstants& constants, const int16_t* cosine, const int16_t* sine, const int16_t* x,
                 uint8_t turn, int8_t* out);
  // clamp(rhe(a * b / 2^bits), -limit, limit) as int16, or as int32 with a limit above 32767; returns the largest
  // magnitude.
  int32_t (*multiply)(const int16_t* a, const int16_t* b, int64_t count, int bits, int32_t limit, void* out);
  // narrow_row of int32 within 2^23, whose largest magnitude is known.
  void (*narrow_long_row)(const int32_t* x, int64_t count, int32_t largest, uint8_t turn, int8_t* out);
  int32_t (*largest)(const int32_t* x, int64_t count);
  // int16 clamped to +-limit, or int32 where limit is 0.
  void (*add)(const int16_t* a, const int16_t* b, int64_t count, int32_t limit, void* out);
  // Of int32, clamped to +-limit.
  void (*add_long)(const int32_t* a, const int32_t* b, int64_t count, int32_t limit, int32_t* out);
};

extern const RowKernels rows_scalar, rows_avx2, rows_avx512, rows_neon;

}  // namespace hccs
