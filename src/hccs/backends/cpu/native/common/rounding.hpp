// rhe, the rounding of docs/spec.md: to the nearest, ties to the even.
//
// Everything here has internal linkage, for the reason given in softmax/rows.hpp.
#pragma once

#include <cstdint>

namespace hccs {
namespace {

// rhe(a / 2^bits)
constexpr int64_t shifted_half_even(int64_t a, int bits) {
  const int64_t floor = a >> bits, rest = a - (floor << bits), half = bits > 0 ? int64_t{1} << (bits - 1) : 1;
  return floor + (rest + (floor & 1) > half);
}

}  // namespace
}  // namespace hccs
