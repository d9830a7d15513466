// From the sums of a block's rows to the factors of their output, for all rows at once.
#pragma once

#include <cstring>

#include "attention/job.hpp"

namespace hccs {
namespace {

constexpr int kBlockRows = 16;  // query rows that are worked on together

constexpr int32_t kMostShift = 62;

// The wide form of every head.
inline WideHead wide_form(const AttentionGroup& group) {
  return group.wide_head ? *group.wide_head : WideHead{group.head->B, group.head->S, group.head->D, 0, 1, 0};
}

inline void tabulate_scores(const WideHead& wide, ScoreTables& tables) {
#pragma omp simd
  for (int d = 0; d < 256; ++d) {
    const int32_t first = d < wide.D ? d : wide.D, second = d < wide.D2 ? d : wide.D2;
    const int32_t score = (wide.B - wide.S * first - wide.S2 * second) >> wide.f;
    tables.low[d] = static_cast<uint8_t>(score);
    tables.high[d] = static_cast<uint8_t>(score >> 8);
  }
}

// Attended keys of a block's rows and the sums of their weights: distances, or scores.
struct RowSums {
  alignas(64) int32_t count[kBlockRows];
  alignas(64) int32_t weights[kBlockRows];
};

// The output of row r is clamp(floor(N * multiplier[r] / 2^shift[r] + 1/2)).
struct RowScaling {
  alignas(64) int32_t Z[kBlockRows];
  alignas(64) int32_t multiplier[kBlockRows];
  alignas(64) int32_t shift[kBlockRows];
  alignas(64) float real[kBlockRows];  // multiplier / 2^shift: 24 bits, so exact

  void set_sums(int32_t common) {
    for (int32_t& sum : Z) sum = common;
  }
  // `each` for every attended key, and the sum of the weights so many times.
  void add_sums(int32_t each, int32_t times, const RowSums& sums) {
#pragma omp simd
    for (int r = 0; r < kBlockRows; ++r) Z[r] += each * sums.count[r] + times * sums.weights[r];  // eq. 5
  }
  int32_t largest() const {
    int32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int r = 0; r < kBlockRows; ++r) most = Z[r] > most ? Z[r] : most;
    return most;
  }

  // multiplier = floor(M 2^k / Z), 2^k the leading bit of Z. The division may be float64's: the quotient is below 2^24
  // and so is Z, so that a quotient which is no integer is further from one than half its last bit. N * multiplier
  // stays below 2^55: a shift beyond kMostShift leaves 0 as kMostShift does.
  void solve(const Requant& requant) {
    const double M = requant.out_multiplier;
    const int32_t out_shift = requant.out_shift;
#pragma omp simd
    for (int r = 0; r < kBlockRows; ++r) {
      const int32_t sum = Z[r] > 1 ? Z[r] : 1;  // nothing attended: N is 0
      const float exact = static_cast<float>(sum);
      int32_t bits;
      std::memcpy(&bits, &exact, sizeof bits);
      const int32_t k = (bits >> 23) - 127;
      const double power = static_cast<double>(1 << k);
      multiplier[r] = static_cast<int32_t>(M * power / static_cast<double>(sum));
      shift[r] = out_shift + k < kMostShift ? out_shift + k : kMostShift;
      const int32_t inverse_bits = (127 - shift[r]) << 23;
      float inverse;
      std::memcpy(&inverse, &inverse_bits, sizeof inverse);
      real[r] = static_cast<float>(multiplier[r]) * inverse;
    }
  }
};

}  // namespace
}  // namespace hccs
