// AVX2: pairs of int16. The byte product would saturate, so k, v and their partners are widened when packed.
#include <immintrin.h>

#include "attention/blocks.hpp"

namespace hccs {
namespace {

struct Avx2 : PlainSteps<int16_t, 8, 2> {
  static constexpr int kRows = 4, kPanels = 2;
  using Sums = __m256i;
  using Ints = __m256i;
  using Panel = __m256i;

  static HCCS_INLINE Sums splat(int32_t value) { return _mm256_set1_epi32(value); }
  static HCCS_INLINE Sums sums(const int32_t* from) { return load(from); }
  static HCCS_INLINE Panel panel(const int16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static HCCS_INLINE Panel broadcast(const int16_t* from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return _mm256_set1_epi32(pair);
  }
  static HCCS_INLINE Sums dot(Sums sums, Panel panel, Panel row) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(panel, row));
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

  // In float64 nothing is rounded that could matter: the product has at most 48 bits, and where 1/2 lies more than 53
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
};

}  // namespace

const AttentionKernel attention_avx2{AttentionRows<Avx2>::workspace, AttentionRows<Avx2>::run};

}  // namespace hccs
