// What the linear kernels of all instruction sets are made of, beside instructions.
//
// Everything here has internal linkage, for the reason given in softmax/rows.hpp.
#pragma once

#include <cstring>
#include <type_traits>

#include "common/inline.hpp"
#include "common/rounding.hpp"
#include "linear/job.hpp"

namespace hccs {
namespace {

constexpr int64_t whole(int64_t value, int64_t of) { return (value + of - 1) / of * of; }

// Of one block of outputs: what each channel adds to its products, and what its sum is multiplied by.
template <int kWidth>
struct alignas(64) Channels {
  int32_t bias[kWidth];
  int32_t multiplier[kWidth];
  float factor[kWidth];  // multiplier / 2^shift
  int32_t shift;         // 16, or less what a row's exponent makes up for
  int32_t small;         // every sum stays below 2^24, whatever x is: float32 holds it
};

constexpr bool is_int8(LinearOutput output) {
  return output == LinearOutput::kInt8 || output == LinearOutput::kInt8Table;
}
constexpr bool adds_stream(LinearOutput output) {
  return output == LinearOutput::kSumInt32 || output == LinearOutput::kSumInt16;
}
constexpr bool may_have_exponents(LinearOutput output) {
  return output == LinearOutput::kInt32 || output == LinearOutput::kInt8 || output == LinearOutput::kInt16 ||
         output == LinearOutput::kLong;
}
constexpr bool is_int32(LinearOutput output) {
  return output == LinearOutput::kInt32 || output == LinearOutput::kSumInt32 || output == LinearOutput::kLong;
}

// Where a tile's outputs go, and what they pass on the way.
template <LinearOutput kOutput>
struct Target {
  using Out = std::conditional_t<is_int32(kOutput), int32_t, std::conditional_t<is_int8(kOutput), uint8_t, int16_t>>;
  Out* out;
  int64_t stride;
  const int16_t* stream;
  int64_t stream_stride;
  const int8_t* table;
  int offset;     // 128 for turned bytes, otherwise 0
  int32_t limit;  // of kLong
};

}  // namespace
}  // namespace hccs
