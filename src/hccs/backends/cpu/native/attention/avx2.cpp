// AVX2: pairs of int16. The byte product would saturate, so k, v and their partners are widened when packed.
#include <immintrin.h>

#include "attention/blocks.hpp"

namespace hccs {
namespace {

struct Avx2 : PlainSteps<int16_t, 8, 2> {
  static constexpr int kRows = 4, kPanels = 2;
  static constexpr bool kWordScores = true;
  static constexpr int32_t kLargestSum = 1 << 20;  // see Factor
  using Sums = __m256i;
  using Ints = __m256i;
  using Panel = __m256i;

  static HCCS_INLINE Sums splat(int32_t value) { return _mm256_set1_epi32(value); }
  static HCCS_INLINE Sums sums(const int32_t* from) { return load(from); }
  static HCCS_INLINE Panel panel(const int16_t* from) {
    Panel loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    asm("" : "+x"(loaded));  // once: GCC would load it anew for every row
    return loaded;
  }
  static HCCS_INLINE Panel broadcast(const int16_t* from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return _mm256_set1_epi32(pair);
  }
  static HCCS_INLINE Sums dot(Sums sums, Panel panel, Panel row) {
    const __m256i products = _mm256_madd_epi16(panel, row);
    asm("vpaddd %1, %0, %0" : "+x"(sums) : "x"(products));  // GCC would copy every sum before it is added to
    return sums;
  }

  static HCCS_INLINE Ints whole(Sums sums) { return sums; }
  static HCCS_INLINE Ints ints(int32_t value) { return _mm256_set1_epi32(value); }
  static HCCS_INLINE Ints load(const int32_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static HCCS_INLINE void store(int32_t* to, Ints values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), values);
  }
  static HCCS_INLINE Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  static HCCS_INLINE Ints combine(Ints values, Ints slope, Ints base) {
    return _mm256_add_epi32(base, _mm256_mullo_epi32(values, slope));
  }

  // In float64 nothing is rounded that could matter: the product has at most 51 bits, and where 1/2 lies more than 53
  // above the last of them the product is below 1/4.
  struct Factor {
    Factor(int32_t multiplier, int shift)
        : factor(_mm256_set1_pd(multiplier / static_cast<double>(int64_t{1} << shift))) {}
    HCCS_INLINE Factor(const RowScaling& rows, int64_t r) : factor(_mm256_set1_pd(rows.real[r])) {}
    HCCS_INLINE __m128i words(Ints sums) const {
      return _mm_packs_epi32(rounded(_mm256_castsi256_si128(sums)), rounded(_mm256_extracti128_si256(sums, 1)));
    }
    HCCS_INLINE __m128i rounded(__m128i sums) const {
      const __m256d real = _mm256_add_pd(_mm256_mul_pd(_mm256_cvtepi32_pd(sums), factor), _mm256_set1_pd(0.5));
      const __m256d clamped = _mm256_max_pd(_mm256_min_pd(real, _mm256_set1_pd(127)), _mm256_set1_pd(-128));
      return _mm256_cvttpd_epi32(_mm256_floor_pd(clamped));
    }
    __m256d factor;
  };
  template <int kGroup>
  static HCCS_INLINE void store_bytes(const Ints (&sums)[kGroup], const Factor& factor, bool turned, int8_t* to) {
    const __m128i turn = _mm_set1_epi8(turned ? -128 : 0);
    const __m128i bytes = _mm_packs_epi16(factor.words(sums[0]), factor.words(sums[kGroup - 1]));
    if constexpr (kGroup == 2)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_xor_si128(bytes, turn));
    else
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_xor_si128(bytes, turn));
  }
  template <int kGroup>
  static HCCS_INLINE void store_ints(const Ints (&sums)[kGroup], int32_t* to) {
    for (int c = 0; c < kGroup; ++c) store(to + c * kLanes, sums[c]);
  }

  static HCCS_INLINE __m256i words(const int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static HCCS_INLINE void keep(int16_t* to, __m256i values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), values);
  }
  template <int kGroup>
  static void pack_keys(const int8_t* const* rows, int64_t dim, int64_t steps, int16_t* out) {
    for (int panel = 0; panel < kGroup; ++panel, rows += 8, out += 16 * steps) {
      int64_t step = 0;
      for (; 2 * step + 16 <= dim; step += 8) transpose(rows, 2 * step, out + 16 * step);
      for (; step < steps; ++step)
        for (int lane = 0; lane < 8; ++lane)
          for (int64_t i = 0; i < 2; ++i)
            out[16 * step + 2 * lane + i] = 2 * step + i < dim ? rows[lane][2 * step + i] : int16_t{0};
    }
  }
  // The 8 pairs of each of 8 rows become 8 columns of them.
  static HCCS_INLINE void transpose(const int8_t* const* rows, int64_t at, int16_t* out) {
    __m256i a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = words(rows[i] + at);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      keep(out + 16 * i, _mm256_permute2x128_si256(a[i], a[i + 4], 0x20));
      keep(out + 16 * (i + 4), _mm256_permute2x128_si256(a[i], a[i + 4], 0x31));
    }
  }
  template <int kGroup>
  static HCCS_INLINE void pack_values(const int8_t* const* rows, int64_t columns, int16_t* out, int64_t panel_stride) {
    if (kGroup < 2 || columns < 16) return PlainSteps::pack_values<kGroup>(rows, columns, out, panel_stride);
    const __m256i even = words(rows[0]), odd = words(rows[1]);
    const __m256i low = _mm256_unpacklo_epi16(even, odd), high = _mm256_unpackhi_epi16(even, odd);
    keep(out, _mm256_permute2x128_si256(low, high, 0x20));
    keep(out + panel_stride, _mm256_permute2x128_si256(low, high, 0x31));
  }

  static HCCS_INLINE __m256i bytes(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  static void distances(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended, int D,
                        int16_t* weights, RowSums& sums) {
    const __m256i most = _mm256_set1_epi8(static_cast<char>(D));
    const auto words = [](__m128i bytes) HCCS_INLINE_LAMBDA { return _mm256_cvtepu8_epi16(bytes); };
    weigh(x, on, columns, rows, attended, sums, weights,
          [&](__m256i distance, __m256i attends, int16_t* to) HCCS_INLINE_LAMBDA {
            const __m256i delta = _mm256_and_si256(_mm256_min_epu8(distance, most), attends);
            keep(to, words(_mm256_castsi256_si128(delta)));
            keep(to + 16, words(_mm256_extracti128_si256(delta, 1)));
            return _mm256_sad_epu8(delta, _mm256_setzero_si256());
          });
  }
  // Scores of two lines, up to 16 bits.
  static void scores(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended,
                     const WideHead& head, int16_t* weights, RowSums& sums) {
    const auto splat16 = [](int value) { return _mm256_set1_epi16(static_cast<short>(value)); };
    const __m256i most = _mm256_set1_epi8(static_cast<char>(head.D)),
                  most2 = _mm256_set1_epi8(static_cast<char>(head.D2));
    const __m256i B = splat16(head.B), S = splat16(head.S), S2 = splat16(head.S2), one = splat16(1);
    const __m128i f = _mm_cvtsi32_si128(head.f);
    const auto half = [&](__m128i delta, __m128i delta2, __m128i attends) HCCS_INLINE_LAMBDA {
      const __m256i s = _mm256_sub_epi16(B, _mm256_mullo_epi16(S, _mm256_cvtepu8_epi16(delta)));
      return _mm256_and_si256(
          _mm256_srl_epi16(_mm256_sub_epi16(s, _mm256_mullo_epi16(S2, _mm256_cvtepu8_epi16(delta2))), f),
          _mm256_cvtepi8_epi16(attends));
    };
    weigh(x, on, columns, rows, attended, sums, weights,
          [&](__m256i distance, __m256i attends, int16_t* to) HCCS_INLINE_LAMBDA {
            const __m256i delta = _mm256_min_epu8(distance, most), delta2 = _mm256_min_epu8(distance, most2);
            const __m256i low =
                half(_mm256_castsi256_si128(delta), _mm256_castsi256_si128(delta2), _mm256_castsi256_si128(attends));
            const __m256i high = half(_mm256_extracti128_si256(delta, 1), _mm256_extracti128_si256(delta2, 1),
                                      _mm256_extracti128_si256(attends, 1));
            keep(to, low);
            keep(to + 16, high);
            return _mm256_add_epi32(_mm256_madd_epi16(low, one), _mm256_madd_epi16(high, one));
          });
  }
  // Scores by distance, of two bytes: 16 entries at a time, whose look-up is 0 for distances outside them.
  static void scores(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended,
                     const ScoreTables& tables, int16_t* weights, RowSums& sums) {
    const __m256i most = _mm256_set1_epi8(127), one = _mm256_set1_epi16(1);
    const auto entries = [](const uint8_t* from) HCCS_INLINE_LAMBDA {
      return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    };
    const auto half = [](__m128i low, __m128i high, __m128i attends) HCCS_INLINE_LAMBDA {
      const __m256i upper = _mm256_slli_epi16(_mm256_cvtepu8_epi16(high), 8);
      return _mm256_and_si256(_mm256_or_si256(_mm256_cvtepu8_epi16(low), upper), _mm256_cvtepi8_epi16(attends));
    };
    weigh(x, on, columns, rows, attended, sums, weights,
          [&](__m256i distance, __m256i attends, int16_t* to) HCCS_INLINE_LAMBDA {
            const __m256i near = _mm256_min_epu8(distance, most);
            __m256i lower = _mm256_setzero_si256(), upper = lower;
            for (int from = 0; from < 128; from += 16) {
              const __m256i at = _mm256_adds_epu8(_mm256_sub_epi8(near, _mm256_set1_epi8(static_cast<char>(from))),
                                                  _mm256_set1_epi8(0x70));
              lower = _mm256_or_si256(lower, _mm256_shuffle_epi8(entries(tables.low + from), at));
              upper = _mm256_or_si256(upper, _mm256_shuffle_epi8(entries(tables.high + from), at));
            }
            const __m256i first =
                half(_mm256_castsi256_si128(lower), _mm256_castsi256_si128(upper), _mm256_castsi256_si128(attends));
            const __m256i second = half(_mm256_extracti128_si256(lower, 1), _mm256_extracti128_si256(upper, 1),
                                        _mm256_extracti128_si256(attends, 1));
            keep(to, first);
            keep(to + 16, second);
            return _mm256_add_epi32(_mm256_madd_epi16(first, one), _mm256_madd_epi16(second, one));
          });
  }
  // Stores the weights of the attended keys, by weight(m - x, attends, to), which returns parts of their sum.
  template <class Weight>
  static HCCS_INLINE void weigh(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended,
                                RowSums& sums, int16_t* weights, const Weight& weight) {
    alignas(32) static constexpr int8_t kFirst[64] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                                      -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    const int64_t whole = attended.alike ? attended.keys / 32 * 32 : attended.full * kKeyBlock;
    const int64_t end = round_up(attended.keys, kKeyBlock);
    const __m256i lowest = _mm256_set1_epi8(-128);
    for (int r = 0; r < rows; ++r, x += columns, on += columns, weights += columns) {
      // Of the keys behind `whole`: those up to the common end, or those named.
      const auto lanes = [&](int64_t j) HCCS_INLINE_LAMBDA {
        const int64_t left = attended.keys - j;
        return attended.alike ? bytes(kFirst + 32 - (left > 0 ? left : 0))
                              : _mm256_cmpgt_epi8(bytes(on + j), _mm256_setzero_si256());
      };
      __m256i top = lowest, sum = _mm256_setzero_si256(), others = _mm256_setzero_si256();
      for (int64_t j = 0; j < whole; j += 32) top = _mm256_max_epi8(top, bytes(x + j));
      for (int64_t j = whole; j < end; j += 32) {
        const __m256i attends = lanes(j);
        top = _mm256_max_epi8(top, _mm256_blendv_epi8(lowest, bytes(x + j), attends));
        others = _mm256_sub_epi32(others, _mm256_sad_epu8(_mm256_abs_epi8(attends), _mm256_setzero_si256()));
      }
      const __m256i m = largest(top);
      const auto add = [&](int64_t j, __m256i attends) HCCS_INLINE_LAMBDA {
        sum = _mm256_add_epi32(sum, weight(_mm256_sub_epi8(m, bytes(x + j)), attends, weights + j));
      };
      for (int64_t j = 0; j < whole; j += 32) add(j, _mm256_set1_epi8(-1));
      for (int64_t j = whole; j < end; j += 32) add(j, lanes(j));
      sums.count[r] = static_cast<int32_t>(whole) - total(others);
      sums.weights[r] = total(sum);
    }
  }
  static HCCS_INLINE int32_t total(__m256i sums) {
    const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const __m128i pair = _mm_add_epi32(half, _mm_unpackhi_epi64(half, half));
    return _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32(pair, 1)));
  }
  // The largest byte everywhere. x ^ 127 turns the order into that of unsigned bytes, whose minimum over words is one
  // instruction.
  static HCCS_INLINE __m256i largest(__m256i v) {
    const __m128i turned =
        _mm_xor_si128(_mm_max_epi8(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)), _mm_set1_epi8(127));
    const __m128i least = _mm_minpos_epu16(_mm_min_epu8(turned, _mm_srli_epi16(turned, 8)));
    return _mm256_broadcastb_epi8(_mm_xor_si128(least, _mm_set1_epi8(127)));
  }
};

}  // namespace

const AttentionKernel attention_avx2{AttentionRows<Avx2>::workspace, AttentionRows<Avx2>::run};

}  // namespace hccs
