// What a row kernel is given. The arithmetic is docs/spec.md; reference.py is its readable form.
#pragma once

#include <cstdint>

namespace hccs {

enum class Mode { kI16Div, kI16Clb, kU8Div, kU8Clb };

constexpr bool is_u8(Mode mode) { return mode == Mode::kU8Div || mode == Mode::kU8Clb; }
constexpr bool is_clb(Mode mode) { return mode == Mode::kI16Clb || mode == Mode::kU8Clb; }

// Numerator of the reciprocal: T for int16, T * 2^15 for uint8 (eq. 6 and 8).
constexpr int32_t numerator(Mode mode) { return is_u8(mode) ? 255 << 15 : 32767; }

template <Mode kMode>
struct Output {
  using type = int16_t;
};
template <>
struct Output<Mode::kU8Div> {
  using type = uint8_t;
};
template <>
struct Output<Mode::kU8Clb> {
  using type = uint8_t;
};

struct Head {
  int32_t B, S, D;
};

// Which columns of a row take part: all, the first `length`, or those a boolean mask names.
enum class Masking { kNone, kLengths, kMask };

// One pointer per row over an array whose leading dimensions may be broadcast (stride 0).
struct StridedRows {
  static constexpr int kMaxDims = 64;
  const char* base = nullptr;
  int ndim = 0;
  int64_t shape[kMaxDims];
  int64_t stride[kMaxDims];
};

struct SoftmaxJob {
  const int8_t* x;  // rows x columns, contiguous
  void* out;        // same shape, uint8 or int16
  int64_t rows;
  int64_t columns;
  Mode mode;
  const Head* heads;
  const int32_t* head_of_group;  // null: heads[0] serves every row
  int64_t rows_per_group;
  bool past_caches;  // the output is too large to stay in them
  Masking masking;
  StridedRows valid;  // per row: int32 length, or `columns` booleans
};

// Computes rows begin..end-1. No allocation, no exceptions, safe to run on several threads at once.
using SoftmaxRows = void (*)(const SoftmaxJob&, int64_t begin, int64_t end);

void softmax_rows_scalar(const SoftmaxJob&, int64_t begin, int64_t end);
void softmax_rows_avx2(const SoftmaxJob&, int64_t begin, int64_t end);
void softmax_rows_avx512(const SoftmaxJob&, int64_t begin, int64_t end);
void softmax_rows_neon(const SoftmaxJob&, int64_t begin, int64_t end);

}  // namespace hccs
