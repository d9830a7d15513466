// AVX-512: the loops in its vectors, and LayerNorm by hand.
#include <immintrin.h>

#include "engine/row_loops.hpp"

namespace hccs {
namespace {

struct Avx512Row {
  static int32_t ramp(const RampConstants& ramp, const int16_t* x, int64_t count, int16_t* out) {
    const auto part = [](const int16_t* table, int half) { return _mm512_loadu_si512(table + 32 * half); };
    const __m512i knots[2] = {part(ramp.knot, 0), part(ramp.knot, 1)};
    const __m512i slopes[2] = {part(ramp.slope, 0), part(ramp.slope, 1)};
    const __m512i most = _mm512_set1_epi16(static_cast<int16_t>((64 << ramp.bits) - 1));
    const __m512i below = _mm512_set1_epi16(static_cast<int16_t>((1 << ramp.bits) - 1));
    const __m128i bits = _mm_cvtsi32_si128(ramp.bits), up = _mm_cvtsi32_si128(15 - ramp.bits);
    __m512i largest = _mm512_setzero_si512();
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
      const __m512i given = _mm512_loadu_si512(x + i);
      const __m512i t = _mm512_min_epu16(_mm512_abs_epi16(given), most);
      const __m512i piece = _mm512_srl_epi16(t, bits), rest = _mm512_sll_epi16(_mm512_and_si512(t, below), up);
      const __m512i knot = _mm512_permutex2var_epi16(knots[0], piece, knots[1]);
      const __m512i slope = _mm512_permutex2var_epi16(slopes[0], piece, slopes[1]);
      const __m512i r = _mm512_add_epi16(knot, _mm512_mulhrs_epi16(slope, rest));
      const __m512i y = _mm512_sub_epi16(_mm512_max_epi16(given, _mm512_setzero_si512()), r);
      _mm512_storeu_si512(out + i, y);
      largest = _mm512_max_epi16(largest, _mm512_abs_epi16(y));
    }
    const int32_t rest = i < count ? PlainRow::ramp(ramp, x + i, count - i, out + i) : 0;
    return larger(largest_of(largest), rest);
  }
  static int32_t largest(const int16_t* x, int64_t count) {
    __m512i most = _mm512_setzero_si512();
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) most = _mm512_max_epi16(most, _mm512_abs_epi16(_mm512_loadu_si512(x + i)));
    return larger(largest_of(most), PlainRow::largest(x + i, count - i));
  }
  // A block of channels of all heads, then the next: they share sines.
  static void rotate(const RotateConstants& constants, const int16_t* cosine, const int16_t* sine, const int16_t* x,
                     uint8_t turn, int8_t* out) {
    const int64_t dim = constants.dim, pairs = constants.pairs;
    for (int64_t i = 0; i < pairs; i += 32) {
      const __mmask32 lanes = first(pairs - i);
      const __m512i c = _mm512_maskz_loadu_epi16(lanes, cosine + i), s = _mm512_maskz_loadu_epi16(lanes, sine + i);
      const __m512i minus = _mm512_sub_epi16(_mm512_setzero_si512(), s);
      const __m512i by[2] = {_mm512_unpacklo_epi16(c, minus), _mm512_unpackhi_epi16(c, minus)};
      const __m512i by_second[2] = {_mm512_unpacklo_epi16(s, c), _mm512_unpackhi_epi16(s, c)};
      for (int64_t head = 0; head < constants.turned; ++head) {
        const int64_t at = head * dim + i;
        const __m512i a = _mm512_maskz_loadu_epi16(lanes, x + at), b = _mm512_maskz_loadu_epi16(lanes, x + at + pairs);
        const __m512i ab[2] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
        const __m512d factor = _mm512_set1_pd(constants.factor[head]);
        const auto turned = [&](const __m512i(&rows)[2]) HCCS_INLINE_LAMBDA {
          return narrowed(_mm512_madd_epi16(ab[0], rows[0]), _mm512_madd_epi16(ab[1], rows[1]), factor, turn);
        };
        _mm256_mask_storeu_epi8(out + at, lanes, turned(by));
        _mm256_mask_storeu_epi8(out + at + pairs, lanes, turned(by_second));
      }
    }
    for (int64_t head = 0; head < constants.heads; ++head) {
      const __m512d factor = _mm512_set1_pd(32767 * constants.factor[head]);
      for (int64_t i = head < constants.turned ? 2 * pairs : 0; i < dim; i += 32) {
        const __mmask32 lanes = first(dim - i);
        const int64_t at = head * dim + i;
        const __m512i a = _mm512_maskz_loadu_epi16(lanes, x + at), sign = _mm512_srai_epi16(a, 15);
        _mm256_mask_storeu_epi8(out + at, lanes,
                                narrowed(_mm512_unpacklo_epi16(a, sign), _mm512_unpackhi_epi16(a, sign), factor, turn));
      }
    }
  }
  // clamp(rhe(a * factor), -127, 127) ^ turn of the integers that unpacking words leaves; |a * factor| < 2^17.
  static HCCS_INLINE __m256i narrowed(__m512i low, __m512i high, __m512d factor, uint8_t turn) {
    const auto rounded = [&](__m512i a) HCCS_INLINE_LAMBDA {
      alignas(64) static constexpr int32_t kEven[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
      const __m512d rounder = _mm512_set1_pd(kRounder);
      const __m512d lower = _mm512_fmadd_pd(_mm512_cvtepi32_pd(_mm512_castsi512_si256(a)), factor, rounder);
      const __m512d upper = _mm512_fmadd_pd(_mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(a, 1)), factor, rounder);
      return _mm512_permutex2var_epi32(_mm512_castpd_si512(lower), _mm512_load_si512(kEven),
                                       _mm512_castpd_si512(upper));
    };
    const __m256i bytes = _mm512_cvtsepi16_epi8(_mm512_packs_epi32(rounded(low), rounded(high)));
    return _mm256_xor_si256(_mm256_max_epi8(bytes, _mm256_set1_epi8(-127)), _mm256_set1_epi8(static_cast<char>(turn)));
  }
  static HCCS_INLINE __mmask32 first(int64_t count) {
    return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
  }
  static HCCS_INLINE int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
  static HCCS_INLINE int32_t largest_of(__m512i words) {
    const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(words, 16), 16), odd = _mm512_srai_epi32(words, 16);
    return _mm512_reduce_max_epi32(_mm512_max_epi32(even, odd));
  }
};

struct Avx512Norm {
  using Row = Avx512Row;
  static constexpr int64_t kLanes = 16;

  static HCCS_INLINE __m512i widened(const int16_t* from) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static HCCS_INLINE __m512i widened(const int32_t* from) { return _mm512_loadu_si512(from); }
  static HCCS_INLINE __m256i upper(__m512i x) { return _mm512_extracti64x4_epi64(x, 1); }
  static HCCS_INLINE __m256i lower(__m512i x) { return _mm512_castsi512_si256(x); }

  // v_i to v_(i + 15)
  static HCCS_INLINE __m512i values(const Int32Of& of, int64_t i) { return _mm512_loadu_si512(of.a + i); }
  static HCCS_INLINE __m512i values(const Int16Of& of, int64_t i) { return widened(of.a + i); }
  template <class T>
  static HCCS_INLINE __m512i values(const SumOf<T>& of, int64_t i) {
    return _mm512_add_epi32(widened(of.a + i), widened(of.b + i));
  }
  static HCCS_INLINE __m512i values(const EmbeddingOf& of, int64_t i) {
    const __m512i word = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of.word + i)));
    const __m512i others = _mm512_add_epi32(widened(of.position + i), widened(of.type + i));
    return _mm512_add_epi32(_mm512_sll_epi32(word, _mm_cvtsi32_si128(of.shift)), others);
  }
  template <class Source>
  static HCCS_INLINE __m512i values(const Clamped<Source>& of, int64_t i) {
    const __m512i limit = _mm512_set1_epi32(of.limit), least = _mm512_set1_epi32(-of.limit);
    return _mm512_min_epi32(_mm512_max_epi32(values(of.source, i), least), limit);
  }

  template <class Source>
  static HCCS_INLINE RowStatistics load(const Source& source, int64_t begin, int64_t channels, Kept* v) {
    __m512i sum = _mm512_setzero_si512();
    __m512d squares[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    int64_t i = begin;
    for (; i + kLanes <= channels; i += kLanes) {
      const __m512i x = values(source, i);
      sum = _mm512_add_epi32(sum, x);
      const __m512d low = _mm512_cvtepi32_pd(lower(x)), high = _mm512_cvtepi32_pd(upper(x));
      _mm512_storeu_pd(v + i, low);
      _mm512_storeu_pd(v + i + 8, high);
      squares[0] = _mm512_fmadd_pd(low, low, squares[0]);
      squares[1] = _mm512_fmadd_pd(high, high, squares[1]);
    }
    const RowStatistics row{_mm512_reduce_add_epi32(sum), _mm512_reduce_add_pd(_mm512_add_pd(squares[0], squares[1]))};
    if (i == channels) return row;
    const RowStatistics rest = PlainNorm::load(source, i, channels, v);
    return {row.sum + rest.sum, row.squares + rest.squares};
  }

  template <int kRows>
  static HCCS_INLINE void normalise(const NormConstants& norm, const NormRow* rows) {
    alignas(64) static constexpr uint16_t kLowest[32] = {0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60};
    const __m512i lowest = _mm512_load_si512(kLowest);  // words of two vectors' float64
    const __m512d rounder = _mm512_set1_pd(kRounder), most = _mm512_set1_pd(32767), least = _mm512_set1_pd(-32767);
    const __m512d times = _mm512_set1_pd(static_cast<double>(norm.times));
    const double *const gain = norm.real_gain, *const bias = norm.real_bias;
    const int64_t channels = norm.channels;
    __m512d sum[kRows], factor[kRows];
    for (int r = 0; r < kRows; ++r) {
      sum[r] = _mm512_set1_pd(rows[r].statistics.sum);
      factor[r] = _mm512_set1_pd(rows[r].by.factor());
    }
    int64_t i = 0;
    for (; i + kLanes <= channels; i += kLanes) {
      const __m512d gains[2] = {_mm512_loadu_pd(gain + i), _mm512_loadu_pd(gain + i + 8)};
      const __m512d biases[2] = {_mm512_loadu_pd(bias + i), _mm512_loadu_pd(bias + i + 8)};
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const auto rounded = [&](int half) HCCS_INLINE_LAMBDA {
          const __m512d d = _mm512_fmsub_pd(_mm512_loadu_pd(rows[r].v + i + 8 * half), times, sum[r]);
          const __m512d xhat = _mm512_sub_pd(_mm512_fmadd_pd(d, factor[r], rounder), rounder);
          const __m512d y = _mm512_fmadd_pd(xhat, gains[half], biases[half]);
          return _mm512_castpd_si512(_mm512_add_pd(_mm512_max_pd(_mm512_min_pd(y, most), least), rounder));
        };
        const __m512i words = _mm512_permutex2var_epi16(rounded(0), lowest, rounded(1));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows[r].out + i), lower(words));
      }
    }
    if (i < channels)
      for (int r = 0; r < kRows; ++r) PlainNorm::normalise(norm, rows[r], i);
  }

  static HCCS_INLINE void narrow(const int16_t* x, int64_t count, int bits, uint8_t turn, int8_t* out) {
    int64_t i = 0;
    if (bits <= 14) {  // what is counted here fits int16
      const __m512i one = _mm512_set1_epi16(1),
                    half = _mm512_set1_epi16(static_cast<int16_t>(bits ? 1 << (bits - 1) : 1));
      const __m512i below = _mm512_set1_epi16(static_cast<int16_t>((1 << bits) - 1));
      const __m128i by = _mm_cvtsi32_si128(bits);
      const __m256i turned = _mm256_set1_epi8(static_cast<char>(turn));
      for (; i + 32 <= count; i += 32) {
        const __m512i from = _mm512_loadu_si512(x + i), floor = _mm512_sra_epi16(from, by);
        const __m512i rest = _mm512_add_epi16(_mm512_and_si512(from, below), _mm512_and_si512(floor, one));
        const __m512i y = _mm512_mask_add_epi16(floor, _mm512_cmpgt_epi16_mask(rest, half), floor, one);
        const __m256i bytes = _mm256_max_epi8(_mm512_cvtsepi16_epi8(y), _mm256_set1_epi8(-127));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_xor_si256(bytes, turned));
      }
    }
    if (i < count) PlainNorm::narrow(x + i, count - i, bits, turn, out + i);
  }
};

}  // namespace

const RowKernels rows_avx512 = kRowLoops<Avx512Norm>;

}  // namespace hccs
