// AVX2: the loops in its vectors, and LayerNorm by hand in float64 that fuses multiplication and addition.
#include <immintrin.h>

#include "engine/row_loops.hpp"

namespace hccs {
namespace {

struct Avx2Norm : PlainNorm {
  static constexpr int64_t kLanes = 8;

  static HCCS_INLINE __m256i widened(const int16_t* from) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static HCCS_INLINE __m256i widened(const int32_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static HCCS_INLINE __m128i upper(__m256i x) { return _mm256_extracti128_si256(x, 1); }
  static HCCS_INLINE __m128i lower(__m256i x) { return _mm256_castsi256_si128(x); }
  static HCCS_INLINE double total(__m256d x) {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }

  // v_i to v_(i + 7)
  static HCCS_INLINE __m256i values(const Int32Of& of, int64_t i) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(of.a + i));
  }
  static HCCS_INLINE __m256i values(const Int16Of& of, int64_t i) { return widened(of.a + i); }
  template <class T>
  static HCCS_INLINE __m256i values(const SumOf<T>& of, int64_t i) {
    return _mm256_add_epi32(widened(of.a + i), widened(of.b + i));
  }
  static HCCS_INLINE __m256i values(const EmbeddingOf& of, int64_t i) {
    const __m256i word = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(of.word + i)));
    const __m256i others = _mm256_add_epi32(widened(of.position + i), widened(of.type + i));
    return _mm256_add_epi32(_mm256_sll_epi32(word, _mm_cvtsi32_si128(of.shift)), others);
  }
  template <class Source>
  static HCCS_INLINE __m256i values(const Clamped<Source>& of, int64_t i) {
    const __m256i limit = _mm256_set1_epi32(of.limit), least = _mm256_set1_epi32(-of.limit);
    return _mm256_min_epi32(_mm256_max_epi32(values(of.source, i), least), limit);
  }

  template <class Source>
  static HCCS_INLINE RowStatistics load(const Source& source, int64_t begin, int64_t channels, Kept* v) {
    __m256d sums[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()}, squares[2] = {sums[0], sums[0]};
    int64_t i = begin;
    for (; i + kLanes <= channels; i += kLanes) {
      const __m256i x = values(source, i);
      const __m256d low = _mm256_cvtepi32_pd(lower(x)), high = _mm256_cvtepi32_pd(upper(x));
      _mm256_storeu_pd(v + i, low);
      _mm256_storeu_pd(v + i + 4, high);
      sums[0] = _mm256_add_pd(sums[0], low);
      sums[1] = _mm256_add_pd(sums[1], high);
      squares[0] = _mm256_fmadd_pd(low, low, squares[0]);
      squares[1] = _mm256_fmadd_pd(high, high, squares[1]);
    }
    const RowStatistics row{static_cast<int32_t>(total(_mm256_add_pd(sums[0], sums[1]))),
                            total(_mm256_add_pd(squares[0], squares[1]))};
    if (i == channels) return row;
    const RowStatistics rest = PlainNorm::load(source, i, channels, v);
    return {row.sum + rest.sum, row.squares + rest.squares};
  }

  template <int kRows>
  static HCCS_INLINE void normalise(const NormConstants& norm, const NormRow* rows) {
    const __m256d rounder = _mm256_set1_pd(kRounder), most = _mm256_set1_pd(32767), least = _mm256_set1_pd(-32767);
    const __m256d times = _mm256_set1_pd(static_cast<double>(norm.times));
    const double *const gain = norm.real_gain, *const bias = norm.real_bias;
    const int64_t channels = norm.channels;
    __m256d sum[kRows], factor[kRows];
    for (int r = 0; r < kRows; ++r) {
      sum[r] = _mm256_set1_pd(rows[r].statistics.sum);
      factor[r] = _mm256_set1_pd(rows[r].by.factor());
    }
    int64_t i = 0;
    for (; i + kLanes <= channels; i += kLanes) {
      const __m256d gains[2] = {_mm256_loadu_pd(gain + i), _mm256_loadu_pd(gain + i + 4)};
      const __m256d biases[2] = {_mm256_loadu_pd(bias + i), _mm256_loadu_pd(bias + i + 4)};
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const auto rounded = [&](int half) HCCS_INLINE_LAMBDA {
          const __m256d d = _mm256_fmsub_pd(_mm256_loadu_pd(rows[r].v + i + 4 * half), times, sum[r]);
          const __m256d xhat = _mm256_sub_pd(_mm256_fmadd_pd(d, factor[r], rounder), rounder);
          const __m256d y = _mm256_fmadd_pd(xhat, gains[half], biases[half]);
          return _mm256_castpd_ps(_mm256_add_pd(_mm256_max_pd(_mm256_min_pd(y, most), least), rounder));
        };
        // The lower half of each float64, two of the first vector, two of the second, and so on.
        const __m256i y = _mm256_castps_si256(_mm256_shuffle_ps(rounded(0), rounded(1), 0x88));
        const __m128i words = _mm_packs_epi32(lower(y), upper(y));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(rows[r].out + i), _mm_shuffle_epi32(words, 0xd8));
      }
    }
    if (i < channels)
      for (int r = 0; r < kRows; ++r) PlainNorm::normalise(norm, rows[r], i);
  }
};

}  // namespace

const RowKernels rows_avx2 = kRowLoops<Avx2Norm>;

}  // namespace hccs
