// What a row kernel is given. The arithmetic is docs/spec.md; reference.py is its readable form.
#pragma once

#include <cstdint>

#include "common/reciprocal.hpp"
#include "common/valid.hpp"

namespace hccs {

class Interruption;

enum class Mode { kI16Div, kI16Clb, kU8Div, kU8Clb, kU8Lin };
constexpr const char* kModeNames[] = {"i16_div", "i16_clb", "u8_div", "u8_clb", "u8_lin"};

constexpr bool is_u8(Mode mode) { return mode >= Mode::kU8Div; }
constexpr bool is_clb(Mode mode) { return mode == Mode::kI16Clb || mode == Mode::kU8Clb; }

// What kernels are compiled for. The reciprocal is a matter of one branch per row, or per block of rows.
enum class Width { kI16, kU8 };

// Numerator of the reciprocal: T for int16, T * 2^15 for uint8 (eq. 6 and 8).
constexpr int32_t numerator(Mode mode) { return is_u8(mode) ? 255 << 15 : 32767; }

template <Width kWidth>
struct Output {
  using type = int16_t;
};
template <>
struct Output<Width::kU8> {
  using type = uint8_t;
};

struct Head {
  int32_t B, S, D;
};

// The wide form: s = (B - S min(d, D) - S2 min(d, D2)) >> f, sums of 24 bits and a scaled reciprocal.
struct WideHead {
  int32_t B, S, D, S2, D2, f;
};

struct SoftmaxJob {
  const int8_t* x;  // rows x columns, contiguous
  void* out;        // same shape, uint8 or int16
  int64_t rows;
  int64_t columns;
  Mode mode;
  const Head* heads;
  const WideHead* wide_heads;    // in place of `heads`, or null
  const int32_t* head_of_group;  // null: the first head serves every row
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

// The wide form with VNNI, which the other kernels of AVX-512 do without.
void wide_rows_avx512(const SoftmaxJob&, int64_t begin, int64_t end);

// Runs the kernel over all rows of the job, on up to `threads` threads.
void run_softmax(SoftmaxJob& job, SoftmaxRows kernel, int threads, Interruption& interruption);

}  // namespace hccs
