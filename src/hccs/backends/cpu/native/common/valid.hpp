// Which columns of a row take part, and where a row's lengths or mask lie.
#pragma once

#include <cstdint>

namespace hccs {

// All columns, the first `length`, or those a boolean mask names.
enum class Masking { kNone, kLengths, kMask };

// One pointer per row over an array whose leading dimensions may be broadcast (stride 0).
struct StridedRows {
  static constexpr int kMaxDims = 64;
  const char* base = nullptr;
  int ndim = 0;
  int64_t shape[kMaxDims];
  int64_t stride[kMaxDims];
};

}  // namespace hccs
