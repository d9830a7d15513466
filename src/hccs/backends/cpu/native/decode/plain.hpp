// The steps of decoding in plain C++, compiled once for every instruction set.
#pragma once

#include <cstring>

#include "common/inline.hpp"
#include "decode/scoring.hpp"

namespace hccs {
namespace {

struct PlainDecode {
  static void logits(const DecodeJob& job, const DecodeGroup& group, int64_t begin, int64_t end, int8_t* x,
                     int64_t stride) {
    for (int64_t j = begin; j < end; ++j) {
      const int8_t* const key = group.k + j * job.k_stride;
      for (int64_t r = 0; r < job.rows; ++r) {
        const int8_t* const q = group.rows[r].q;
        int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < job.dim; ++i) sum += static_cast<int16_t>(q[i]) * static_cast<int16_t>(key[i]);
        x[r * stride + j] = rounded(sum, *group.rows[r].requant);
      }
    }
  }
  // clamp(floor((sum * multiplier + 2^(shift - 1)) / 2^shift), -128, 127)
  static HCCS_INLINE int8_t rounded(int32_t sum, const Requant& requant) {
    const int64_t half = int64_t{1} << (requant.shift - 1);
    const int64_t value = (static_cast<int64_t>(sum) * requant.multiplier + half) >> requant.shift;
    return static_cast<int8_t>(value < -128 ? -128 : value > 127 ? 127 : value);
  }

  static int most(const int8_t* x, const uint8_t* on, int64_t begin, int64_t end) {
    int m = -128;
    if (on) {
#pragma omp simd reduction(max : m)
      for (int64_t j = begin; j < end; ++j) {
        const int attended = on[j] ? x[j] : -128;
        m = attended > m ? attended : m;
      }
    } else {
#pragma omp simd reduction(max : m)
      for (int64_t j = begin; j < end; ++j) m = x[j] > m ? x[j] : m;
    }
    return m;
  }

  static int32_t weights(const int8_t* x, const uint8_t* on, int64_t begin, int64_t end, int m, const ScoreTable& table,
                         uint8_t* low, uint8_t* high) {
    int32_t sum = 0;
    int64_t j = begin;
    for (; j < end; ++j) {
      const int distance = m - x[j] < kDistances - 1 ? m - x[j] : kDistances - 1;
      const bool attended = !on || on[j];
      const int least = attended ? table.low[distance] : 0, rest = attended ? table.high[distance] : 0;
      sum += least + 256 * rest;
      if (!low) continue;
      low[j] = static_cast<uint8_t>(least);
      if (high) high[j] = static_cast<uint8_t>(rest);
    }
    if (low)
      for (; (j - begin) % 4; ++j) {
        low[j] = 0;
        if (high) high[j] = 0;
      }
    return sum;
  }

  static void products(const DecodeJob& job, const DecodeGroup& group, int64_t begin, int64_t end, const uint8_t* low,
                       const uint8_t* high, int64_t stride, int64_t rows, int32_t* products) {
    std::memset(products, 0, rows * job.dim * sizeof(int32_t));
    for (int64_t j = begin; j < end; ++j) {
      const int8_t* const value = group.v + j * job.v_stride;
      for (int64_t r = 0; r < rows; ++r) {
        const int32_t weight = low[r * stride + j] + (high ? 256 * high[r * stride + j] : 0);
        int32_t* const to = products + r * job.dim;
        // Modulo 2^32: the whole sum fits, parts of it may not.
#pragma omp simd
        for (int64_t c = 0; c < job.dim; ++c)
          to[c] = static_cast<int32_t>(static_cast<uint32_t>(to[c]) + static_cast<uint32_t>(weight * value[c]));
      }
    }
  }
};

constexpr DecodeKernel kPlainDecode{scores_by_distance, probabilities_by_distance, PlainDecode::logits,
                                    PlainDecode::most,  PlainDecode::weights,      PlainDecode::products,
                                    write_row};

}  // namespace
}  // namespace hccs
