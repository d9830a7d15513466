// AVX-512 with VNNI. One instruction adds four products of an unsigned and a signed byte to each of 16 sums: keys go in
// as k + 128, which costs 128 times the sum of q, the same for all keys.
#include <immintrin.h>

#include <cstring>

#include "common/inline.hpp"
#include "decode/scoring.hpp"
#include "softmax/reductions_avx512.hpp"

namespace hccs {
namespace {

constexpr int kKeys = 16;  // whose logits are made together

HCCS_INLINE __mmask64 first(int64_t count) {
  return count >= 64 ? ~__mmask64{0} : count <= 0 ? 0 : _bzhi_u64(~uint64_t{0}, static_cast<unsigned>(count));
}
HCCS_INLINE __m512i dot(__m512i sums, __m512i of_unsigned, __m512i of_signed) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(of_unsigned), "v"(of_signed));
  return sums;
}
// Lane r of the result is the sum of all lanes of v[r].
HCCS_INLINE __m512i sum_each(const __m512i (&v)[kKeys]) {
  const auto op = [](__m512i a, __m512i b) HCCS_INLINE_LAMBDA { return _mm512_add_epi32(a, b); };
  __m512i quads[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    quads[i] = fold_dwords(fold_qwords(v[4 * i], v[4 * i + 1], op), fold_qwords(v[4 * i + 2], v[4 * i + 3], op), op);
  return fold_quarters(quads, op);
}

// float32 holds the sum and M * 2^-r exactly, and the floor of a value rounded down is the floor of the value.
HCCS_INLINE __m128i rounded(__m512i sums, __m512 factor) {
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __m512 real = _mm512_fmadd_round_ps(_mm512_cvtepi32_ps(sums), factor, _mm512_set1_ps(0.5f), kDown);
  return _mm512_cvtsepi32_epi8(_mm512_cvt_roundps_epi32(_mm512_min_ps(real, _mm512_set1_ps(127)), kDown));
}

// What the logits of a row are made with.
struct Query {
  __m512 factor;
  int32_t bias;
};
HCCS_INLINE Query query_of(const DecodeRow& row, int64_t dim) {
  int32_t sum = 0;
  for (int64_t i = 0; i < dim; ++i) sum += row.q[i];
  return {_mm512_set1_ps(static_cast<float>(row.requant->multiplier) /
                         static_cast<float>(int64_t{1} << row.requant->shift)),
          -128 * sum};
}

void logits(const DecodeJob& job, const DecodeGroup& group, int64_t begin, int64_t end, int8_t* x, int64_t stride) {
  const __m512i turn = _mm512_set1_epi8(-128);
  for (int64_t r = 0; r < job.rows; ++r) {
    const DecodeRow& row = group.rows[r];
    const Query query = query_of(row, job.dim);
    const bool one = job.dim == 64;
    const __m512i only = _mm512_maskz_loadu_epi8(first(job.dim), row.q);
    for (int64_t j = begin; j < end; j += kKeys) {
      // Behind the last key it is read again: nobody looks at its logits.
      const int64_t left = end - j;
      const int8_t* const keys = group.k + j * job.k_stride;
      __m512i sums[kKeys];
      if (one && left >= kKeys) {
#pragma GCC unroll 16
        for (int i = 0; i < kKeys; ++i)
          sums[i] =
              dot(_mm512_setzero_si512(), _mm512_xor_si512(_mm512_loadu_si512(keys + i * job.k_stride), turn), only);
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < kKeys; ++i) {
          const int8_t* const key = keys + (i < left ? i : left - 1) * job.k_stride;
          __m512i sum = _mm512_setzero_si512();
          for (int64_t c = 0; c < job.dim; c += 64) {
            const __mmask64 columns = first(job.dim - c);
            sum = dot(sum, _mm512_xor_si512(_mm512_maskz_loadu_epi8(columns, key + c), turn),
                      _mm512_maskz_loadu_epi8(columns, row.q + c));
          }
          sums[i] = sum;
        }
      }
      const __m512i total = _mm512_add_epi32(sum_each(sums), _mm512_set1_epi32(query.bias));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(x + r * stride + j), rounded(total, query.factor));
    }
  }
}

// The keys of 64 from j on that are attended to.
HCCS_INLINE __mmask64 attended(const uint8_t* on, int64_t j, int64_t end) {
  const __mmask64 present = first(end - j);
  if (!on) return present;
  const __m512i bytes = _mm512_maskz_loadu_epi8(present, on + j);
  return _mm512_test_epi8_mask(bytes, bytes);
}

int most(const int8_t* x, const uint8_t* on, int64_t begin, int64_t end) {
  __m512i top = _mm512_set1_epi8(-128);
  for (int64_t j = begin; j < end; j += 64)
    top = _mm512_mask_max_epi8(top, attended(on, j, end), top, _mm512_loadu_si512(x + j));
  const __m256i half = _mm256_max_epi8(_mm512_castsi512_si256(top), _mm512_extracti64x4_epi64(top, 1));
  __m128i least = _mm_max_epi8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // Turned to unsigned words, whose least is found at once: 127 - x.
  least = _mm_sub_epi8(_mm_set1_epi8(127), least);
  least = _mm_min_epu8(least, _mm_srli_epi16(least, 8));
  const __m128i words = _mm_and_si128(least, _mm_set1_epi16(0xff));
  return 127 - _mm_extract_epi16(_mm_minpos_epu16(words), 0);
}

template <bool kHigh>
HCCS_INLINE int32_t weights_of(const int8_t* x, const uint8_t* on, int64_t begin, int64_t end, int m,
                               const ScoreTable& table, uint8_t* low, uint8_t* high) {
  const __m512i low0 = _mm512_load_si512(table.low), low1 = _mm512_load_si512(table.low + 64);
  const __m512i high0 = _mm512_load_si512(table.high), high1 = _mm512_load_si512(table.high + 64);
  const __m512i top = _mm512_set1_epi8(static_cast<char>(m)), last = _mm512_set1_epi8(kDistances - 1);
  const __m512i zero = _mm512_setzero_si512();
  __m512i sum = zero, sum_high = zero;
  for (int64_t j = begin; j < end; j += 64) {
    const __mmask64 takes_part = attended(on, j, end);
    const __m512i distance = _mm512_min_epu8(_mm512_sub_epi8(top, _mm512_loadu_si512(x + j)), last);
    const __m512i least = _mm512_maskz_permutex2var_epi8(takes_part, low0, distance, low1);
    sum = _mm512_add_epi64(sum, _mm512_sad_epu8(least, zero));
    if (low) _mm512_storeu_si512(low + j, least);
    if constexpr (kHigh) {
      const __m512i rest = _mm512_maskz_permutex2var_epi8(takes_part, high0, distance, high1);
      sum_high = _mm512_add_epi64(sum_high, _mm512_sad_epu8(rest, zero));
      if (low) _mm512_storeu_si512(high + j, rest);
    }
  }
  return static_cast<int32_t>(_mm512_reduce_add_epi64(sum) + 256 * _mm512_reduce_add_epi64(sum_high));
}
int32_t weights(const int8_t* x, const uint8_t* on, int64_t begin, int64_t end, int m, const ScoreTable& table,
                uint8_t* low, uint8_t* high) {
  return table.has_high ? weights_of<true>(x, on, begin, end, m, table, low, high)
                        : weights_of<false>(x, on, begin, end, m, table, low, high);
}

// Four rows of up to 64 values -> four vectors that hold, of each column, all four: lane 4 L + i of vector p is column
// 16 L + 4 p + i.
struct Four {
  __m512i part[4];
};
HCCS_INLINE Four interleaved(const __m512i (&row)[4]) {
  const __m512i low = _mm512_unpacklo_epi8(row[0], row[1]), high = _mm512_unpackhi_epi8(row[0], row[1]);
  const __m512i low2 = _mm512_unpacklo_epi8(row[2], row[3]), high2 = _mm512_unpackhi_epi8(row[2], row[3]);
  return {{_mm512_unpacklo_epi16(low, low2), _mm512_unpackhi_epi16(low, low2), _mm512_unpacklo_epi16(high, high2),
           _mm512_unpackhi_epi16(high, high2)}};
}
// In the order of columns, the first `count` of 64.
HCCS_INLINE void store(const __m512i (&sums)[4], int32_t* to, int64_t count) {
  const __m512i a = _mm512_shuffle_i32x4(sums[0], sums[1], 0x44), b = _mm512_shuffle_i32x4(sums[2], sums[3], 0x44);
  const __m512i c = _mm512_shuffle_i32x4(sums[0], sums[1], 0xee), d = _mm512_shuffle_i32x4(sums[2], sums[3], 0xee);
  const __m512i parts[4] = {_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd),
                            _mm512_shuffle_i32x4(c, d, 0x88), _mm512_shuffle_i32x4(c, d, 0xdd)};
  for (int i = 0; i < 4; ++i)
    _mm512_mask_storeu_epi32(to + 16 * i, static_cast<__mmask16>(first(count - 16 * i)), parts[i]);
}
HCCS_INLINE __m512i four_weights(const uint8_t* at) {
  int32_t four;
  std::memcpy(&four, at, sizeof four);
  return _mm512_set1_epi32(four);
}

// kRows rows of weights times 64 columns from `column` on.
template <int kRows, bool kHigh>
void columns_of(const DecodeJob& job, const DecodeGroup& group, int64_t begin, int64_t end, const uint8_t* low,
                const uint8_t* high, int64_t stride, int64_t column, int32_t* products) {
  const __mmask64 present = first(job.dim - column);
  __m512i sums[kRows][4], rest[kHigh ? kRows : 1][4];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      sums[r][p] = _mm512_setzero_si512();
      if constexpr (kHigh) rest[r][p] = _mm512_setzero_si512();
    }
  const auto add = [&](int64_t j, const Four& values) HCCS_INLINE_LAMBDA {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512i weight = four_weights(low + r * stride + j);
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) sums[r][p] = dot(sums[r][p], weight, values.part[p]);
      if constexpr (kHigh) {
        const __m512i weight2 = four_weights(high + r * stride + j);
#pragma GCC unroll 4
        for (int p = 0; p < 4; ++p) rest[r][p] = dot(rest[r][p], weight2, values.part[p]);
      }
    }
  };
  int64_t j = begin;
  const int8_t* at = group.v + begin * job.v_stride + column;
  for (; j + 4 <= end; j += 4, at += 4 * job.v_stride) {
    __m512i row[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) row[i] = _mm512_maskz_loadu_epi8(present, at + i * job.v_stride);
    add(j, interleaved(row));
  }
  if (j < end) {  // the weights behind the last key are 0
    __m512i row[4];
    for (int i = 0; i < 4; ++i) row[i] = _mm512_maskz_loadu_epi8(present, at + (j + i < end ? i : 0) * job.v_stride);
    add(j, interleaved(row));
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kHigh)
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) sums[r][p] = _mm512_add_epi32(sums[r][p], _mm512_slli_epi32(rest[r][p], 8));
    store(sums[r], products + r * job.dim + column, job.dim - column);
  }
}

template <bool kHigh>
void products_of(const DecodeJob& job, const DecodeGroup& group, int64_t begin, int64_t end, const uint8_t* low,
                 const uint8_t* high, int64_t stride, int64_t rows, int32_t* products) {
  constexpr int kMost = kHigh ? 2 : 4;
  for (int64_t column = 0; column < job.dim; column += 64)
    for (int64_t r = 0; r < rows;) {
      const auto run = [&]<int kRows>() {
        columns_of<kRows, kHigh>(job, group, begin, end, low + r * stride, high + (kHigh ? r * stride : 0), stride,
                                 column, products + r * job.dim);
        r += kRows;
      };
      const int64_t left = rows - r;
      if (left >= kMost)
        run.template operator()<kMost>();
      else if (left == 3)
        run.template operator()<3>();
      else if (left == 2)
        run.template operator()<2>();
      else
        run.template operator()<1>();
    }
}
void products(const DecodeJob& job, const DecodeGroup& group, int64_t begin, int64_t end, const uint8_t* low,
              const uint8_t* high, int64_t stride, int64_t rows, int32_t* products) {
  if (high)
    products_of<true>(job, group, begin, end, low, high, stride, rows, products);
  else
    products_of<false>(job, group, begin, end, low, low, stride, rows, products);
}

}  // namespace

const DecodeKernel decode_avx512{scores_by_distance, probabilities_by_distance, logits, most, weights, products,
                                 write_row};

}  // namespace hccs
