// AVX-512 with VNNI: four products of unsigned by signed bytes to each of 16 sums. x is the unsigned side, so it is
// turned.
#include <immintrin.h>

#include "linear/blocks.hpp"

namespace hccs {
namespace {

struct Avx512 : VectorProducts<Avx512> {
  using Element = uint8_t;
  using Input = uint8_t;
  using Sums = __m512i;
  using Panel = __m512i;
  static constexpr Bytes kBytes = Bytes::kTurned;
  static constexpr int kLanes = 16, kStep = 4, kRows = 12, kPanels = 2;

  static HCCS_INLINE Sums load(const int32_t* from) { return _mm512_load_si512(from); }
  static HCCS_INLINE Panel panel(const uint8_t* from) { return _mm512_load_si512(from); }
  static HCCS_INLINE Panel broadcast(const uint8_t* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static HCCS_INLINE Sums dot(Sums sums, Panel weights, Panel x) { return _mm512_dpbusd_epi32(sums, x, weights); }

  // Between 2^23 and 2^24 the floats are the integers: a sum with 1.5 * 2^23 is rounded to the nearest, ties to even,
  // and its low bits are those of the other summand. The product that fma adds to it is exact, so there is no second
  // rounding. The rounding is that of the instruction, whatever the caller has set.
  static constexpr float kMagic = 12582912.0f;
  static constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  // kMagic + offset + clamp(rhe(acc * M / 2^16), -limit, limit). float32 holds acc below 2^24; beyond, |y| > limit for
  // int8 whatever M is, and rounding does not change that; for the others see `wide`.
  static HCCS_INLINE __m512 rounded(__m512i acc, __m512 factor, float offset, float limit) {
    const __m512 y = _mm512_fmadd_round_ps(_mm512_cvt_roundepi32_ps(acc, kRounding), factor,
                                           _mm512_set1_ps(kMagic + offset), kRounding);
    return _mm512_min_ps(_mm512_max_ps(y, _mm512_set1_ps(kMagic + offset - limit)),
                         _mm512_set1_ps(kMagic + offset + limit));
  }
  // The same for any int32 in float64: a product below 2^53 is exact, and a larger one is clipped.
  static HCCS_INLINE __m512 wide(__m512i acc, __m512 factor, float limit) {
    const __m256 low = wide(_mm512_castsi512_si256(acc), _mm512_castps512_ps256(factor), limit);
    const __m256 high = wide(_mm512_extracti64x4_epi64(acc, 1), _mm512_extractf32x8_ps(factor, 1), limit);
    const __m512 y = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
    return _mm512_add_round_ps(y, _mm512_set1_ps(kMagic), kRounding);
  }
  static HCCS_INLINE __m256 wide(__m256i acc, __m256 factor, double limit) {
    const __m512d product = _mm512_mul_round_pd(_mm512_cvtepi32_pd(acc), _mm512_cvtps_pd(factor), kRounding);
    const __m512d clamped =
        _mm512_min_pd(_mm512_max_pd(product, _mm512_set1_pd(-limit)), _mm512_set1_pd(limit));
    return _mm512_cvtpd_ps(_mm512_roundscale_pd(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  // The low bytes, and the low words, of 32 integers.
  static HCCS_INLINE __m256i low_bytes(__m512 first, __m512 second) {
    alignas(64) static constexpr auto kEvery4th = [] {
      struct { uint8_t at[64]; } index{};
      for (int i = 0; i < 32; ++i) index.at[i] = static_cast<uint8_t>(4 * i);
      return index;
    }();
    return _mm512_castsi512_si256(_mm512_permutex2var_epi8(
        _mm512_castps_si512(first), _mm512_load_si512(kEvery4th.at), _mm512_castps_si512(second)));
  }
  static HCCS_INLINE __m512i low_words(__m512 first, __m512 second) {
    alignas(64) static constexpr auto kEvery2nd = [] {
      struct { uint16_t at[32]; } index{};
      for (int i = 0; i < 32; ++i) index.at[i] = static_cast<uint16_t>(2 * i);
      return index;
    }();
    return _mm512_permutex2var_epi16(_mm512_castps_si512(first), _mm512_load_si512(kEvery2nd.at),
                                     _mm512_castps_si512(second));
  }

  template <LinearOutput kOutput, bool kWide, int kTileRows>
  static HCCS_INLINE void finish(const Sums (&sums)[kTileRows][2], const Channels<32>& channels,
                                 const Target<kOutput>& to) {
    if constexpr (kOutput == LinearOutput::kInt32) {
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r)
        for (int c = 0; c < 2; ++c) _mm512_storeu_si512(to.out + r * to.stride + 16 * c, sums[r][c]);
      return;
    }
    const __m512 factor[2] = {_mm512_load_ps(channels.factor), _mm512_load_ps(channels.factor + 16)};
    if constexpr (kOutput == LinearOutput::kInt8) {
      const float offset = static_cast<float>(to.offset);
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.out + r * to.stride),
                            low_bytes(rounded(sums[r][0], factor[0], offset, 127.0f),
                                      rounded(sums[r][1], factor[1], offset, 127.0f)));
    } else if constexpr (kOutput == LinearOutput::kInt8Table) {
      const Table table(to.table, to.offset);
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; r += 2) {
        const int s = r + 1 < kTileRows ? r + 1 : r;  // two rows fill a vector
        const __m256i first = low_bytes(rounded(sums[r][0], factor[0], 128.0f, 127.0f),
                                        rounded(sums[r][1], factor[1], 128.0f, 127.0f));
        const __m256i second = low_bytes(rounded(sums[s][0], factor[0], 128.0f, 127.0f),
                                         rounded(sums[s][1], factor[1], 128.0f, 127.0f));
        const __m512i y = table[_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1)];
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.out + r * to.stride), _mm512_castsi512_si256(y));
        if (s != r)
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.out + s * to.stride), _mm512_extracti64x4_epi64(y, 1));
      }
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) {
        __m512 y[2];
#pragma GCC unroll 2
        for (int c = 0; c < 2; ++c)
          y[c] = kWide ? wide(sums[r][c], factor[c], 32767.0f) : rounded(sums[r][c], factor[c], 0.0f, 32767.0f);
        int16_t const* const stream = to.stream + (adds_stream(kOutput) ? r * to.stream_stride : 0);
        auto* const out = to.out + r * to.stride;
        if constexpr (kOutput == LinearOutput::kInt16) {
          _mm512_storeu_si512(out, low_words(y[0], y[1]));
        } else if constexpr (kOutput == LinearOutput::kSumInt16) {
          const __m512i sum = _mm512_adds_epi16(low_words(y[0], y[1]), _mm512_loadu_si512(stream));
          _mm512_storeu_si512(out, _mm512_max_epi16(sum, _mm512_set1_epi16(-32767)));
        } else {
#pragma GCC unroll 2
          for (int c = 0; c < 2; ++c) {
            const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(stream + 16 * c));
            const __m512i integer = _mm512_sub_epi32(_mm512_castps_si512(y[c]), _mm512_set1_epi32(0x4B400000));
            _mm512_storeu_si512(out + 16 * c, _mm512_add_epi32(integer, _mm512_cvtepi16_epi32(half)));
          }
        }
      }
    }
  }

  // 256 entries by unsigned index, in four registers.
  struct Table {
    HCCS_INLINE Table(const int8_t* entries, int offset) {
      const __m512i turn = _mm512_set1_epi8(static_cast<char>(offset));  // 0 or 0x80
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) part[i] = _mm512_xor_si512(_mm512_loadu_si512(entries + 64 * i), turn);
    }
    HCCS_INLINE __m512i operator[](__m512i index) const {
      const __m512i low = _mm512_permutex2var_epi8(part[0], index, part[1]);
      const __m512i high = _mm512_permutex2var_epi8(part[2], index, part[3]);
      return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
    }
    __m512i part[4];
  };
};

}  // namespace

const LinearKernel linear_avx512 = LinearRows<Avx512>::kernel();

}  // namespace hccs
