// AVX-512 with VNNI (Ice Lake, Zen 4 and later): one instruction adds four byte products to each of 16 sums. It takes
// an unsigned and a signed byte: queries are staged as q + 128, and distances and probabilities are unsigned.
//
// In a group of P panels (4, 2 or 1) lane 4 L + i of panel p is column 4 P L + 4 p + i: packing the panels' words to
// bytes, which works on quarters of vectors, then leaves the columns in order.
#pragma once

#include <immintrin.h>

#include "attention/blocks.hpp"
#include "softmax/reductions_avx512.hpp"

namespace hccs {
namespace {

struct Bytes64 {
  alignas(64) uint8_t at[64];
};
// Interleaves four rows of 16 bytes: byte 4 * i + r of the result is byte i of row r.
constexpr Bytes64 interleave_16() {
  Bytes64 from{};
  for (int i = 0; i < 16; ++i)
    for (int r = 0; r < 4; ++r) from.at[4 * i + r] = static_cast<uint8_t>(16 * r + i);
  return from;
}
// The same of four rows of 32, two to a vector, for panel p of two.
constexpr Bytes64 interleave_32(int p) {
  Bytes64 from{};
  for (int lane = 0; lane < 16; ++lane)
    for (int r = 0; r < 4; ++r) from.at[4 * lane + r] = static_cast<uint8_t>(32 * r + lane / 4 * 8 + 4 * p + lane % 4);
  return from;
}
constexpr Bytes64 kInterleave16 = interleave_16(), kInterleave32[2] = {interleave_32(0), interleave_32(1)};

struct Avx512 : PlainSteps<uint8_t, 16, 4> {
  static constexpr int kRows = 4, kPanels = 4;
  static constexpr int kQueryOffset = 128;
  static constexpr int32_t kLargestSum = 1 << 17;  // |N| <= 128 Z is exact in float32
  static constexpr bool kPairsOfScores = true;
  using Sums = __m512i;
  using Ints = __m512i;
  using Panel = __m512i;

  static HCCS_INLINE Sums splat(int32_t value) { return _mm512_set1_epi32(value); }
  static HCCS_INLINE Sums sums(const int32_t* from) { return load(from); }
  static HCCS_INLINE Panel panel(const uint8_t* from) { return _mm512_loadu_si512(from); }
  static HCCS_INLINE Panel broadcast(const uint8_t* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
  }
  // _mm512_dpbusd_epi32(sums, row, panel), for which GCC copies every sum before it is added to, and runs out of
  // registers.
  static HCCS_INLINE Sums dot(Sums sums, Panel panel, Panel row) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(row), "v"(panel));
    return sums;
  }

  static HCCS_INLINE Ints whole(Sums sums) { return sums; }
  static HCCS_INLINE Ints ints(int32_t value) { return _mm512_set1_epi32(value); }
  static HCCS_INLINE Ints load(const int32_t* from) { return _mm512_loadu_si512(from); }
  static HCCS_INLINE void store(int32_t* to, Ints values) { _mm512_storeu_si512(to, values); }
  static HCCS_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static HCCS_INLINE Ints combine(Ints values, Ints slope, Ints base) {
    return _mm512_add_epi32(base, _mm512_mullo_epi32(values, slope));
  }

  // float32 holds the sum and M * 2^-r exactly, and the floor of a value rounded down is the floor of the value.
  struct Factor {
    Factor(int32_t multiplier, int shift)
        : factor(_mm512_set1_ps(static_cast<float>(multiplier) / static_cast<float>(int64_t{1} << shift))) {}
    HCCS_INLINE Factor(const RowScaling& rows, int64_t r) : factor(_mm512_set1_ps(rows.real[r])) {}
    // Not yet clamped from below, which packing does.
    HCCS_INLINE __m512i rounded(Ints sums) const {
      constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
      const __m512 real = _mm512_fmadd_round_ps(_mm512_cvtepi32_ps(sums), factor, _mm512_set1_ps(0.5f), kDown);
      // Too large a value would convert to the least int32; too small a one may, and saturates as it should.
      return _mm512_cvt_roundps_epi32(_mm512_min_ps(real, _mm512_set1_ps(127)), kDown);
    }
    __m512 factor;
  };
  // The same in float64, for any sum.
  struct WideFactor {
    HCCS_INLINE WideFactor(const RowScaling& rows, int64_t r) : factor(_mm512_set1_pd(rows.real[r])) {}
    HCCS_INLINE __m512i rounded(Ints sums) const {
      const __m256i low = rounded(_mm512_castsi512_si256(sums)), high = rounded(_mm512_extracti64x4_epi64(sums, 1));
      return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    HCCS_INLINE __m256i rounded(__m256i sums) const {
      constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
      const __m512d real = _mm512_fmadd_round_pd(_mm512_cvtepi32_pd(sums), factor, _mm512_set1_pd(0.5), kDown);
      return _mm512_cvt_roundpd_epi32(_mm512_min_pd(real, _mm512_set1_pd(127)), kDown);
    }
    __m512d factor;
  };
  template <int kGroup, class Scaling>
  static HCCS_INLINE void store_bytes(const Ints (&sums)[kGroup], const Scaling& factor, bool turned, int8_t* to) {
    const __m512i turn = _mm512_maskz_set1_epi8(turned ? ~__mmask64{0} : 0, -128);
    if constexpr (kGroup == 4) {
      const __m512i low = _mm512_packs_epi32(factor.rounded(sums[0]), factor.rounded(sums[1]));
      const __m512i high = _mm512_packs_epi32(factor.rounded(sums[2]), factor.rounded(sums[3]));
      _mm512_storeu_si512(to, _mm512_xor_si512(_mm512_packs_epi16(low, high), turn));
    } else if constexpr (kGroup == 2) {
      const __m512i words = _mm512_packs_epi32(factor.rounded(sums[0]), factor.rounded(sums[1]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                          _mm256_xor_si256(_mm512_cvtsepi16_epi8(words), _mm512_castsi512_si256(turn)));
    } else {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                       _mm_xor_si128(_mm512_cvtsepi32_epi8(factor.rounded(sums[0])), _mm512_castsi512_si128(turn)));
    }
  }
  template <int kGroup>
  static HCCS_INLINE void store_ints(const Ints (&sums)[kGroup], int32_t* to) {
    if constexpr (kGroup == 4) {
      const __m512i a = _mm512_shuffle_i32x4(sums[0], sums[1], 0x44), b = _mm512_shuffle_i32x4(sums[2], sums[3], 0x44);
      const __m512i c = _mm512_shuffle_i32x4(sums[0], sums[1], 0xee), d = _mm512_shuffle_i32x4(sums[2], sums[3], 0xee);
      store(to, _mm512_shuffle_i32x4(a, b, 0x88));
      store(to + 16, _mm512_shuffle_i32x4(a, b, 0xdd));
      store(to + 32, _mm512_shuffle_i32x4(c, d, 0x88));
      store(to + 48, _mm512_shuffle_i32x4(c, d, 0xdd));
    } else if constexpr (kGroup == 2) {
      const __m512i a = _mm512_shuffle_i32x4(sums[0], sums[1], 0x44), b = _mm512_shuffle_i32x4(sums[0], sums[1], 0xee);
      store(to, _mm512_shuffle_i32x4(a, a, 0xd8));
      store(to + 16, _mm512_shuffle_i32x4(b, b, 0xd8));
    } else {
      store(to, sums[0]);
    }
  }

  static HCCS_INLINE __mmask64 first(int64_t count) {
    return count >= 64 ? ~__mmask64{0} : _bzhi_u64(~uint64_t{0}, static_cast<unsigned>(count));
  }
  static HCCS_INLINE void stage_query(const int8_t* from, int64_t dim, int64_t padded, uint8_t* to) {
    for (int64_t i = 0; i < padded; i += 64)
      _mm512_mask_storeu_epi8(
          to + i, first(padded - i),
          _mm512_xor_si512(_mm512_maskz_loadu_epi8(first(dim - i), from + i), _mm512_set1_epi8(-128)));
  }

  template <int kGroup>
  static void pack_keys(const int8_t* const* rows, int64_t dim, int64_t steps, uint8_t* out) {
    for (int p = 0; p < kGroup; ++p, out += 64 * steps)
      for (int64_t step = 0; step < steps; step += 16)
        transpose<kGroup>(rows + 4 * p, 4 * step, dim - 4 * step, steps - step, out + 64 * step);
  }
  // The 16 words of each of a panel's 16 rows become `steps` columns of them, 16 at most.
  template <int kGroup>
  static HCCS_INLINE void transpose(const int8_t* const* rows, int64_t at, int64_t left, int64_t steps, uint8_t* out) {
    __m512i a[16], b[16];
    const __mmask64 present = first(left);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_maskz_loadu_epi8(present, rows[i / 4 * 4 * kGroup + i % 4] + at);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // a[i + 4 j]: words i, i + 4, i + 8, i + 12 of rows 4 j to 4 j + 3
      const __m512i low = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88), high = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
      const __m512i low2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
      const __m512i high2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
      if (i < steps) _mm512_storeu_si512(out + 64 * i, _mm512_shuffle_i32x4(low, low2, 0x88));
      if (i + 4 < steps) _mm512_storeu_si512(out + 64 * (i + 4), _mm512_shuffle_i32x4(high, high2, 0x88));
      if (i + 8 < steps) _mm512_storeu_si512(out + 64 * (i + 8), _mm512_shuffle_i32x4(low, low2, 0xdd));
      if (i + 12 < steps) _mm512_storeu_si512(out + 64 * (i + 12), _mm512_shuffle_i32x4(high, high2, 0xdd));
    }
  }

  template <int kGroup>
  static HCCS_INLINE void pack_values(const int8_t* const* rows, int64_t columns, uint8_t* out, int64_t panel_stride) {
    if constexpr (kGroup == 4) {
      const __mmask64 present = first(columns);
      __m512i row[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) row[i] = _mm512_maskz_loadu_epi8(present, rows[i]);
      const __m512i low = _mm512_unpacklo_epi8(row[0], row[1]), high = _mm512_unpackhi_epi8(row[0], row[1]);
      const __m512i low2 = _mm512_unpacklo_epi8(row[2], row[3]), high2 = _mm512_unpackhi_epi8(row[2], row[3]);
      _mm512_storeu_si512(out, _mm512_unpacklo_epi16(low, low2));
      _mm512_storeu_si512(out + panel_stride, _mm512_unpackhi_epi16(low, low2));
      _mm512_storeu_si512(out + 2 * panel_stride, _mm512_unpacklo_epi16(high, high2));
      _mm512_storeu_si512(out + 3 * panel_stride, _mm512_unpackhi_epi16(high, high2));
    } else if constexpr (kGroup == 2) {
      const auto present = static_cast<__mmask32>(first(columns));
      const auto two = [&](int i) HCCS_INLINE_LAMBDA {
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi8(present, rows[i])),
                                  _mm256_maskz_loadu_epi8(present, rows[i + 1]), 1);
      };
      const __m512i low = two(0), high = two(2);
      for (int p = 0; p < 2; ++p)
        _mm512_storeu_si512(out + p * panel_stride,
                            _mm512_permutex2var_epi8(low, _mm512_load_si512(kInterleave32[p].at), high));
    } else {
      const auto present = static_cast<__mmask16>(first(columns));
      const auto two = [&](int i) HCCS_INLINE_LAMBDA {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_maskz_loadu_epi8(present, rows[i])),
                                       _mm_maskz_loadu_epi8(present, rows[i + 1]), 1);
      };
      const __m512i four = _mm512_inserti64x4(_mm512_castsi256_si512(two(0)), two(2), 1);
      _mm512_storeu_si512(out, _mm512_permutexvar_epi8(_mm512_load_si512(kInterleave16.at), four));
    }
  }

  static void distances(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended, int D,
                        uint8_t* weights, RowSums& sums) {
    const __m512i most = _mm512_set1_epi8(static_cast<char>(D));
    weigh(
        x, on, columns, rows, attended, weights, sums,
        [&](__m512i distance) HCCS_INLINE_LAMBDA { return _mm512_min_epu8(distance, most); }, nullptr);
  }
  // Beyond distance 127 every score is the same.
  static void scores(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended,
                     const uint8_t* table, uint8_t* weights, RowSums& sums) {
    weigh(x, on, columns, rows, attended, weights, sums, LookUp(table), nullptr);
  }
  // Both bytes of scores, and the sums of each.
  static void scores(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended,
                     const ScoreTables& tables, uint8_t* low, RowSums& low_sums, uint8_t* high, RowSums& high_sums) {
    const LookUp upper(tables.high);
    const Second second{upper, high, high_sums};
    weigh(x, on, columns, rows, attended, low, low_sums, LookUp(tables.low), &second);
  }
  struct LookUp {
    HCCS_INLINE explicit LookUp(const uint8_t* table)
        : near(_mm512_loadu_si512(table)), far(_mm512_loadu_si512(table + 64)) {}
    HCCS_INLINE __m512i operator()(__m512i distance) const {
      return _mm512_permutex2var_epi8(near, _mm512_min_epu8(distance, _mm512_set1_epi8(127)), far);
    }
    __m512i near, far;
  };
  // What else is weighed by the same distances.
  struct Second {
    const LookUp& weight;
    uint8_t* weights;
    RowSums& sums;
  };
  // weight(m - x) of the attended keys.
  template <class Weight, class Other>
  static HCCS_INLINE void weigh(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended,
                                uint8_t* weights, RowSums& sums, const Weight& weight, const Other& second) {
    const int64_t full = attended.keys / 64, tail = attended.keys % 64;
    if (attended.alike) {
      const auto lanes = [&](int, int64_t) HCCS_INLINE_LAMBDA { return first(tail); };
      weigh_blocks(x, columns, rows, full, full + (tail > 0), weights, sums, weight, second, lanes);
      for (int r = 0; r < rows; ++r) sums.count[r] = static_cast<int32_t>(attended.keys);
      return;
    }
    const int64_t blocks = full + (tail > 0);
    const auto lanes = [&](int r, int64_t block) HCCS_INLINE_LAMBDA {
      const __m512i bytes = _mm512_loadu_si512(on + r * columns + 64 * block);
      return _mm512_test_epi8_mask(bytes, bytes);
    };
    weigh_blocks(x, columns, rows, attended.full, blocks, weights, sums, weight, second, lanes);
    for (int r = 0; r < rows; ++r) {
      int64_t count = 64 * attended.full;
      for (int64_t block = attended.full; block < blocks; ++block) count += _mm_popcnt_u64(lanes(r, block));
      sums.count[r] = static_cast<int32_t>(count);
    }
  }
  // All lanes of the first `full` blocks, and lanes(row, block) of the others. The rows' reductions have long latency
  // and little work, so they are done together.
  template <class Weight, class Other, class Lanes>
  static HCCS_INLINE void weigh_blocks(const int8_t* x, int64_t columns, int rows, int64_t full, int64_t blocks,
                                       uint8_t* weights, RowSums& sums, const Weight& weight, const Other& second,
                                       const Lanes& lanes) {
    constexpr bool kTwo = !std::is_same_v<Other, std::nullptr_t>;
    __m512i each[kBlockRows], others[kTwo ? kBlockRows : 1];
    alignas(64) uint32_t m[kBlockRows];
    for (int r = 0; r < rows; ++r) {
      const int8_t* const row = x + r * columns;
      __m512i top = _mm512_set1_epi8(-128);
      for (int64_t block = 0; block < full; ++block) top = _mm512_max_epi8(top, _mm512_loadu_si512(row + 64 * block));
      for (int64_t block = full; block < blocks; ++block)
        top = _mm512_mask_max_epi8(top, lanes(r, block), top, _mm512_loadu_si512(row + 64 * block));
      each[r] = top;
    }
    for (int r = rows; r < kBlockRows; ++r) each[r] = _mm512_setzero_si512();
    reduce_max_rows(each, m);
    for (int r = 0; r < rows; ++r) {
      const int8_t* const row = x + r * columns;
      const __m512i top = _mm512_set1_epi32(static_cast<int32_t>(m[r]));
      __m512i sum = _mm512_setzero_si512(), other = sum;
      const auto keep = [&](int64_t block, __m512i found, uint8_t* to, __m512i& total) HCCS_INLINE_LAMBDA {
        _mm512_storeu_si512(to + r * columns + 64 * block, found);
        total = _mm512_add_epi64(total, _mm512_sad_epu8(found, _mm512_setzero_si512()));
      };
      const auto weighed = [&](int64_t block, const auto& chosen) HCCS_INLINE_LAMBDA {
        const __m512i distance = _mm512_sub_epi8(top, _mm512_loadu_si512(row + 64 * block));
        keep(block, chosen(weight(distance)), weights, sum);
        if constexpr (kTwo) keep(block, chosen(second->weight(distance)), second->weights, other);
      };
      for (int64_t block = 0; block < full; ++block)
        weighed(block, [](__m512i found) HCCS_INLINE_LAMBDA { return found; });
      for (int64_t block = full; block < blocks; ++block) {
        const __mmask64 on = lanes(r, block);
        weighed(block, [&](__m512i found) HCCS_INLINE_LAMBDA { return _mm512_maskz_mov_epi8(on, found); });
      }
      each[r] = sum;
      if constexpr (kTwo) others[r] = other;
    }
    for (int r = rows; r < kBlockRows; ++r) each[r] = _mm512_setzero_si512();
    reduce_sum_rows(each, sums.weights);
    if constexpr (kTwo) {
      for (int r = rows; r < kBlockRows; ++r) others[r] = _mm512_setzero_si512();
      reduce_sum_rows(others, second->sums.weights);
    }
  }
};

}  // namespace
}  // namespace hccs
