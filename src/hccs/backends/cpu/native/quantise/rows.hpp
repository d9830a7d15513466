// The kernel of quantise.hpp, over vectors that compilers split as the instruction set asks: include once for each.
#pragma once

#include <cstring>

#include "quantise/job.hpp"

namespace hccs {
namespace {

constexpr int64_t kLanes = 16;
using Floats [[gnu::vector_size(4 * kLanes)]] = float;
using Words [[gnu::vector_size(4 * kLanes)]] = int32_t;
using Bytes [[gnu::vector_size(kLanes)]] = int8_t;

bool quantise_rows(const QuantiseJob& job) {
  // Adding and taking away 1.5 * 2^23 rounds half to even.
  constexpr float kRound = 12582912.0f;
  Words nan{};
  for (int64_t b = 0; b < job.batch; ++b)
    for (int64_t r = 0; r < job.n; ++r)
      // Heads innermost: projections leave the heads of a token next to each other.
      for (int64_t h = 0; h < job.heads; ++h) {
        const float* in = job.input + b * job.input_stride[0] + h * job.input_stride[1] + r * job.input_stride[2];
        int8_t* out = job.output + b * job.output_stride[0] + h * job.output_stride[1] + r * job.output_stride[2];
        const auto block = [&](int64_t i, int64_t count) {
          Floats x{};
          std::memcpy(&x, in + i, 4 * count);
          nan |= x != x;
          x *= job.factors[h];
          x = x < -128.0f ? Floats{} - 128.0f : x;
          x = x > 127.0f ? Floats{} + 127.0f : x;
          const Bytes rounded = __builtin_convertvector(__builtin_convertvector(x + kRound - kRound, Words), Bytes);
          std::memcpy(out + i, &rounded, count);
        };
        int64_t i = 0;
        for (; i + kLanes <= job.d; i += kLanes) block(i, kLanes);
        if (i < job.d) block(i, job.d - i);
      }
  int32_t any = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) any |= nan[lane];
  return any == 0;
}

}  // namespace
}  // namespace hccs
