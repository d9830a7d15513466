// Floats to int8 by a factor per head: what q, k and v go through before integer attention.
#pragma once

#include <cstdint>

namespace hccs {

// Rows of d contiguous floats in an array [batch, heads, n, d]; strides in elements.
struct QuantiseJob {
  const float* input;
  int8_t* output;
  const float* factors;  // one per head
  int64_t batch, heads, n, d;
  int64_t input_stride[3], output_stride[3];
};

// output = clamp(round_half_even(input * factor), -128, 127); false when an input is NaN.
using Quantise = bool (*)(const QuantiseJob&);

}  // namespace hccs
