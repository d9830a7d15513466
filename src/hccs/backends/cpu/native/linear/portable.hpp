// What becomes of a sum, in plain C++.
#pragma once

#include "linear/channels.hpp"

namespace hccs {
namespace {

// clamp(rhe(acc * M / 2^shift), -limit, limit)
HCCS_INLINE int32_t requantised(int32_t acc, int32_t multiplier, int shift, int32_t limit) {
  const int64_t nearest = shifted_half_even(static_cast<int64_t>(acc) * multiplier, shift);
  return static_cast<int32_t>(nearest < -limit ? -limit : nearest > limit ? limit : nearest);
}

// Output `c` of the tile's row `r`.
template <LinearOutput kOutput, int kWidth>
HCCS_INLINE void finish_one(int32_t acc, const Channels<kWidth>& channels, int r, int c, const Target<kOutput>& to) {
  const int32_t limit = is_int8(kOutput) ? 127 : kOutput == LinearOutput::kLong ? to.limit : 32767;
  int32_t y = acc;
  if constexpr (kOutput != LinearOutput::kInt32) y = requantised(acc, channels.multiplier[c], channels.shift, limit);
  if constexpr (kOutput == LinearOutput::kInt8Table) y = to.table[y + 128];
  if constexpr (is_int8(kOutput)) y += to.offset;
  if constexpr (adds_stream(kOutput)) y += to.stream[r * to.stream_stride + c];
  if constexpr (kOutput == LinearOutput::kSumInt16) y = y < -32767 ? -32767 : y > 32767 ? 32767 : y;
  to.out[r * to.stride + c] = static_cast<typename Target<kOutput>::Out>(y);
}

}  // namespace
}  // namespace hccs
