// A(D) = sum_i min(delta_i, D) of many rows, for every D in turn.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "statistics.hpp"

namespace hccs::calibration {

// Rows taken at once: their counts per distance, distance-major, stay in the second-level cache.
constexpr int kRowBlock = 512;

// Calls visit(D, first, count, A) for D = 1..127 and each block of rows, A[r] belonging to row first + r.
// A(D) = A(D-1) + (number of distances >= D): elementwise work on arrays of rows, whatever their length.
template <class Visit>
void for_each_clamped_sum(const uint8_t* rows, int64_t count, int length, Visit visit) {
  // Kept between calls: fresh pages would cost more than the work of a short bucket.
  thread_local std::vector<uint16_t> at_distance(size_t(kMaxD + 1) * kRowBlock);
  std::array<uint16_t, kRowBlock> farther;
  std::array<uint32_t, kRowBlock> A;
  for (int64_t first = 0; first < count; first += kRowBlock) {
    const int block = static_cast<int>(std::min<int64_t>(kRowBlock, count - first));
    std::fill(at_distance.begin(), at_distance.end(), uint16_t(0));
    for (int r = 0; r < block; ++r) {
      const uint8_t* delta = rows + (first + r) * length;
      for (int i = 0; i < length; ++i) ++at_distance[std::min<int>(delta[i], kMaxD) * kRowBlock + r];
    }
    farther.fill(static_cast<uint16_t>(length));
    A.fill(0);
    const int whole = (block + 31) / 32 * 32;  // full vectors; the lanes past the block are never read
    for (int D = 1; D <= kMaxD; ++D) {
      const uint16_t* nearer = &at_distance[size_t(D - 1) * kRowBlock];
      for (int r = 0; r < whole; ++r) {
        farther[r] = static_cast<uint16_t>(farther[r] - nearer[r]);
        A[r] += farther[r];
      }
      visit(D, first, block, A.data());
    }
  }
}

}  // namespace hccs::calibration
