// The steps of attention between the products, in plain C++: for instruction sets that gain nothing from their own.
#pragma once

#include "attention/job.hpp"
#include "common/inline.hpp"

namespace hccs {
namespace {

// Attended keys of a row and the sum of their distances.
struct RowSums {
  int32_t count, distances;
};

template <class Of, int kLaneCount, int kStepSize>
struct PlainSteps {
  using Element = Of;
  static constexpr int kLanes = kLaneCount, kStep = kStepSize;
  static constexpr int kKeyOffset = 0;     // packed keys are k + kKeyOffset
  static constexpr int kWeightOffset = 0;  // of probabilities as elements

  // Copies a row of q, zeros up to `padded`; returns the sum of its elements.
  static int32_t stage_query(const int8_t* from, int64_t dim, int64_t padded, Element* to) {
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < dim; ++i) {
      to[i] = static_cast<Element>(from[i]);
      sum += from[i];
    }
    for (int64_t i = dim; i < padded; ++i) to[i] = Element{0};
    return sum;
  }

  // kLanes rows of steps * kStep bytes -> [steps][kLanes][kStep]
  static void pack_keys(const int8_t* rows, int64_t stride, int64_t steps, Element* out) {
    for (int64_t step = 0; step < steps; ++step)
      for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < kStep; ++i) *out++ = static_cast<Element>(rows[lane * stride + step * kStep + i]);
  }
  // kStep rows of kLanes bytes -> [kLanes][kStep]
  static void pack_values(const int8_t* rows, int64_t stride, Element* out) {
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < kStep; ++i) *out++ = static_cast<Element>(rows[i * stride + lane]);
  }

  // delta = min(m - x, D) over the attended keys (eq. 2), 0 elsewhere. Keys come in blocks of 64: all keys of the first
  // `full` are attended, and those of the others up to `blocks` that `on` names.
  static RowSums distances(const int8_t* x, const uint8_t* on, int64_t full, int64_t blocks, int D, uint8_t* delta) {
    int m = -128, count = static_cast<int>(64 * full), sum = 0;
#pragma omp simd reduction(max : m)
    for (int64_t j = 0; j < 64 * full; ++j) m = x[j] > m ? x[j] : m;
#pragma omp simd reduction(max : m) reduction(+ : count)
    for (int64_t j = 64 * full; j < 64 * blocks; ++j) {
      const int attended = on[j] ? x[j] : -128;
      m = attended > m ? attended : m;
      count += on[j];
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < 64 * full; ++j) {
      const int distance = m - x[j] < D ? m - x[j] : D;
      delta[j] = static_cast<uint8_t>(distance);
      sum += distance;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 64 * full; j < 64 * blocks; ++j) {
      const int distance = (m - x[j] < D ? m - x[j] : D) & -on[j];
      delta[j] = static_cast<uint8_t>(distance);
      sum += distance;
    }
    return {count, sum};
  }
};

}  // namespace
}  // namespace hccs
