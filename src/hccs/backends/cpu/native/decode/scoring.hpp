// Between the products: scores and probabilities by distance, and from N and Z to output. Plain C++, compiled once for
// every instruction set; internal linkage keeps their copies apart.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "decode/job.hpp"

namespace hccs {
namespace {

// s = (B - S min(d, D) - S2 min(d, D2)) >> f
inline void scores_by_distance(const int32_t* head, bool wide, ScoreTable& table) {
  const int32_t B = head[0], S = head[1], D = head[2];
  const int32_t S2 = wide ? head[3] : 0, D2 = wide ? head[4] : 1, f = wide ? head[5] : 0;
#pragma omp simd
  for (int32_t d = 0; d < kDistances; ++d) {
    const int32_t score = (B - S * (d < D ? d : D) - S2 * (d < D2 ? d : D2)) >> f;
    table.low[d] = static_cast<uint8_t>(score);
    table.high[d] = static_cast<uint8_t>(score >> 8);
  }
  table.has_high = B >> f > 255;
}

// p = min((s rho) >> shift, 255), the reciprocal rho as docs/spec.md has it for each form and mode.
inline void probabilities_by_distance(const ScoreTable& scores, int32_t Z, bool wide, Mode mode, ScoreTable& table) {
  constexpr int32_t kT = 255, kSpare = 7;
  if (Z < 1) {  // nothing attended: no score is looked up, and products with a reciprocal of 0 would overflow
    table = ScoreTable{};
    return;
  }
  int k = std::bit_width(static_cast<uint32_t>(Z)) - 1;
  int up = 0, shift = 15;
  int32_t rho;
  if (wide) {
    shift = k + kSpare;
    const int64_t M = ((static_cast<int64_t>(Z) << 15) + (int64_t{1} << k) - 1) >> k;
    rho = is_clb(mode)           ? kT << kSpare
          : mode == Mode::kU8Lin ? linear_reciprocal(Z, k) << kSpare
                                 : static_cast<int32_t>((int64_t{kT} << (15 + kSpare)) / M);
  } else {
    up = k < 8 ? 8 - k : 0;  // the short-row rule
    Z <<= up;
    k += up;
    rho = is_clb(mode)           ? numerator(mode) >> k
          : mode == Mode::kU8Lin ? linear_reciprocal(Z, k) << (15 - k)
                                 : numerator(mode) / Z;
  }
#pragma omp simd
  for (int d = 0; d < kDistances; ++d) {
    const int32_t score = ((scores.low[d] + 256 * scores.high[d]) << up) * rho >> shift;
    table.low[d] = static_cast<uint8_t>(score < kT ? score : kT);
    table.high[d] = 0;
  }
  table.has_high = false;
}

inline void write_row(const DecodeJob& job, const DecodeRow& row, const int32_t* N, int32_t Z) {
  if (job.output == AttentionOutput::kPair) {
    std::memcpy(row.out, N, job.dim * sizeof(int32_t));
    *row.sum = Z;
    return;
  }
  if (Z < 1) Z = 1;  // nothing attended: N is 0
  if (job.output == AttentionOutput::kFloat32) {
    float* const out = static_cast<float*>(row.out);
    const float divisor = static_cast<float>(Z), v_scale = row.requant->v_scale;
#pragma omp simd
    for (int64_t c = 0; c < job.dim; ++c) out[c] = (static_cast<float>(N[c]) / divisor) * v_scale;
    return;
  }
  const int k = std::bit_width(static_cast<uint32_t>(Z)) - 1;
  const int64_t multiplier = (static_cast<int64_t>(row.requant->out_multiplier) << k) / Z;
  const int shift = std::min(row.requant->out_shift + k, 62);  // beyond, everything rounds to 0
  const int64_t half = int64_t{1} << (shift - 1);
  int8_t* const out = static_cast<int8_t*>(row.out);
#pragma omp simd
  for (int64_t c = 0; c < job.dim; ++c) {
    const int64_t value = (N[c] * multiplier + half) >> shift;
    out[c] = static_cast<int8_t>(value < -128 ? -128 : value > 127 ? 127 : value);
  }
}

}  // namespace
}  // namespace hccs
