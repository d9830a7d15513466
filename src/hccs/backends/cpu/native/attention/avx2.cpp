// AVX2: pairs of int16. The byte product would saturate, so k, v and their partners are widened when packed.
#include <immintrin.h>

#include "attention/blocks.hpp"

namespace hccs {
namespace {

struct Avx2 : PlainSteps<int16_t, 8, 2> {
  static constexpr int kRows = 4, kPanels = 2;
  using Sums = __m256i;
  using Panel = __m256i;

  static HCCS_INLINE Sums splat(int32_t value) { return _mm256_set1_epi32(value); }
  static HCCS_INLINE Sums load(const int32_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static HCCS_INLINE void add_to(int32_t* to, Sums sums) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_add_epi32(load(to), sums));
  }
  static HCCS_INLINE Panel panel(const int16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static HCCS_INLINE Panel broadcast(const int16_t* from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return _mm256_set1_epi32(pair);
  }
  static HCCS_INLINE Sums dot_keys(Sums sums, Panel keys, Panel query) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(keys, query));
  }
  static HCCS_INLINE Sums dot_values(Sums sums, Panel values, Panel weights) { return dot_keys(sums, values, weights); }

  // In float64 nothing is rounded that could matter: the product has at most 48 bits, and where 1/2 lies more than 53
  // above the last of them the product is below 1/4.
  struct Factor {
    Factor(int32_t multiplier, int shift)
        : factor(_mm256_set1_pd(multiplier / static_cast<double>(int64_t{1} << shift))) {}
    HCCS_INLINE void store(Sums sums, int8_t* x) const {
      const __m128i words =
          _mm_packs_epi32(rounded(_mm256_castsi256_si128(sums)), rounded(_mm256_extracti128_si256(sums, 1)));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(x), _mm_packs_epi16(words, words));
    }
    HCCS_INLINE __m128i rounded(__m128i sums) const {
      const __m256d real = _mm256_add_pd(_mm256_mul_pd(_mm256_cvtepi32_pd(sums), factor), _mm256_set1_pd(0.5));
      const __m256d clamped = _mm256_max_pd(_mm256_min_pd(real, _mm256_set1_pd(127)), _mm256_set1_pd(-128));
      return _mm256_cvttpd_epi32(_mm256_floor_pd(clamped));
    }
    __m256d factor;
  };
};

}  // namespace

const AttentionKernel attention_avx2{AttentionRows<Avx2>::workspace, AttentionRows<Avx2>::run};

}  // namespace hccs
