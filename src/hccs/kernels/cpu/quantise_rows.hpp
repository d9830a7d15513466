// The kernel of quantise.hpp, in a loop that compilers vectorise: include once per instruction set.
#pragma once

#include <algorithm>

#include "quantise.hpp"

namespace hccs {
namespace {

bool quantise_rows(const QuantiseJob& job) {
  // Adding and taking away 1.5 * 2^23 rounds half to even.
  constexpr float kRound = 12582912.0f;
  int32_t nan = 0;
  for (int64_t b = 0; b < job.batch; ++b)
    for (int64_t r = 0; r < job.n; ++r)
      // Heads innermost: projections leave the heads of a token next to each other.
      for (int64_t h = 0; h < job.heads; ++h) {
        const float* __restrict in =
            job.input + b * job.input_stride[0] + h * job.input_stride[1] + r * job.input_stride[2];
        int8_t* __restrict out =
            job.output + b * job.output_stride[0] + h * job.output_stride[1] + r * job.output_stride[2];
        const float factor = job.factors[h];
#pragma omp simd reduction(| : nan)
        for (int64_t i = 0; i < job.d; ++i) {
          const float scaled = std::min(std::max(in[i] * factor, -128.0f), 127.0f);
          nan |= in[i] != in[i];
          out[i] = static_cast<int8_t>(static_cast<int32_t>((scaled + kRound) - kRound));
        }
      }
  return nan == 0;
}

}  // namespace
}  // namespace hccs
