// AVX-512 with VNNI: four products of unsigned by signed bytes to each of 16 sums. x is the unsigned side, so it is
// turned.
#pragma once

#include <immintrin.h>

#include "linear/blocks.hpp"

namespace hccs {
namespace {

struct Avx512 : DotProducts<Avx512> {
  using Element = uint8_t;
  // 16 integers in name too: as eight of 64 bits, what the loop leaves and what it goes on with would be two variables
  // to GCC, which it keeps both.
  typedef int32_t Sums __attribute__((vector_size(64)));
  using Panel = __m512i;
  static constexpr Bytes kBytes = Bytes::kTurned;
  static constexpr int kLanes = 16, kStep = 4, kRows = 12, kPanels = 2;

  static HCCS_INLINE Sums add(Sums sums, const int32_t* from) {
    return reinterpret_cast<Sums>(_mm512_add_epi32(reinterpret_cast<__m512i>(sums), _mm512_load_si512(from)));
  }
  static HCCS_INLINE Panel panel(const uint8_t* from) { return _mm512_load_si512(from); }
  static HCCS_INLINE Panel broadcast(const uint8_t* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static HCCS_INLINE Sums dot(Sums sums, Panel weights, Panel x) {
    return reinterpret_cast<Sums>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), x, weights));
  }

  // Between 2^23 and 2^24 the floats are the integers: a sum with 1.5 * 2^23 is rounded to the nearest, ties to even,
  // and its low bits are those of the other summand. The product that fma adds to it is exact, so there is no second
  // rounding. The rounding is that of the instruction, whatever the caller has set.
  static constexpr float kMiddle = 12582912.0f;
  static constexpr int32_t kMiddleBits = 0x4B400000;
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  // What the sums of a block pass.
  struct Rounding {
    __m512 factor[2], middle, lowest, highest;
    HCCS_INLINE Rounding(const float* of, int offset, float limit)
        : factor{_mm512_load_ps(of), _mm512_load_ps(of + 16)},
          middle(_mm512_set1_ps(kMiddle + static_cast<float>(offset))),
          lowest(_mm512_set1_ps(kMiddle + static_cast<float>(offset) - limit)),
          highest(_mm512_set1_ps(kMiddle + static_cast<float>(offset) + limit)) {}
  };

  // middle + clamp(rhe(acc * M / 2^16), -limit, limit) of 16 outputs. float32 holds acc below 2^24; beyond, |y| > 127
  // whatever M is, and rounding does not change that; what is not clipped to int8 goes through `wide`.
  static HCCS_INLINE __m512 rounded(Sums acc, const Rounding& by, int panel) {
    const __m512 y = _mm512_fmadd_round_ps(_mm512_cvt_roundepi32_ps(reinterpret_cast<__m512i>(acc), kNearest),
                                           by.factor[panel], by.middle, kNearest);
    return _mm512_min_ps(_mm512_max_ps(y, by.lowest), by.highest);
  }
  // The same for any int32 in float64: a product below 2^53 is exact, and a larger one is clipped.
  static HCCS_INLINE __m512 wide(Sums sums, const Rounding& by, int panel) {
    const __m512i acc = reinterpret_cast<__m512i>(sums);
    const __m256 low = wide(_mm512_castsi512_si256(acc), _mm512_castps512_ps256(by.factor[panel]));
    const __m256 high = wide(_mm512_extracti64x4_epi64(acc, 1), _mm512_extractf32x8_ps(by.factor[panel], 1));
    const __m512 y = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
    return _mm512_add_round_ps(y, _mm512_set1_ps(kMiddle), kNearest);
  }
  static HCCS_INLINE __m256 wide(__m256i acc, __m256 factor) {
    const __m512d product = _mm512_mul_round_pd(_mm512_cvtepi32_pd(acc), _mm512_cvtps_pd(factor), kNearest);
    const __m512d clamped = _mm512_min_pd(_mm512_max_pd(product, _mm512_set1_pd(-32767)), _mm512_set1_pd(32767));
    return _mm512_cvtpd_ps(_mm512_roundscale_pd(clamped, kNearest));
  }

  // clamp(rhe(acc * M / 2^16), -limit, limit) of 16 outputs as int32, as `wide` has it.
  static HCCS_INLINE __m512i as_long(Sums sums, const Rounding& by, int panel, int32_t limit) {
    const __m512i acc = reinterpret_cast<__m512i>(sums);
    const __m256i low = as_long(_mm512_castsi512_si256(acc), _mm512_castps512_ps256(by.factor[panel]), limit);
    const __m256i high = as_long(_mm512_extracti64x4_epi64(acc, 1), _mm512_extractf32x8_ps(by.factor[panel], 1), limit);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  static HCCS_INLINE __m256i as_long(__m256i acc, __m256 factor, int32_t limit) {
    const __m512d product = _mm512_mul_round_pd(_mm512_cvtepi32_pd(acc), _mm512_cvtps_pd(factor), kNearest);
    const __m512d clamped = _mm512_min_pd(_mm512_max_pd(product, _mm512_set1_pd(-limit)), _mm512_set1_pd(limit));
    return _mm512_cvt_roundpd_epi32(clamped, kNearest);
  }

  // The low bytes, and the low words, of 32 integers.
  static HCCS_INLINE __m256i low_bytes(__m512 first, __m512 second) {
    alignas(64) static constexpr auto kEvery4th = [] {
      struct {
        uint8_t at[64];
      } index{};
      for (int i = 0; i < 32; ++i) index.at[i] = static_cast<uint8_t>(4 * i);
      return index;
    }();
    return _mm512_castsi512_si256(_mm512_permutex2var_epi8(_mm512_castps_si512(first), _mm512_load_si512(kEvery4th.at),
                                                           _mm512_castps_si512(second)));
  }
  static HCCS_INLINE __m512i low_words(__m512 first, __m512 second) {
    alignas(64) static constexpr auto kEvery2nd = [] {
      struct {
        uint16_t at[32];
      } index{};
      for (int i = 0; i < 32; ++i) index.at[i] = static_cast<uint16_t>(2 * i);
      return index;
    }();
    return _mm512_permutex2var_epi16(_mm512_castps_si512(first), _mm512_load_si512(kEvery2nd.at),
                                     _mm512_castps_si512(second));
  }

  template <LinearOutput kOutput, bool kCareful, int kTileRows>
  static HCCS_INLINE void finish(const Sums (&sums)[kTileRows][2], const Channels<32>& channels,
                                 const Target<kOutput>& to) {
    constexpr int kTogether = kOutput == LinearOutput::kInt8Table ? 2 : 1;  // rows of bytes that fill a vector
    const Rounding by(channels.factor, kTogether == 2 ? 128 : to.offset, is_int8(kOutput) ? 127.0f : 32767.0f);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; r += kTogether) {
      auto* const out = to.out + r * to.stride;
      if constexpr (kOutput == LinearOutput::kInt32) {
        for (int c = 0; c < 2; ++c) _mm512_storeu_si512(out + 16 * c, reinterpret_cast<__m512i>(sums[r][c]));
      } else if constexpr (kOutput == LinearOutput::kLong) {
        for (int c = 0; c < 2; ++c) _mm512_storeu_si512(out + 16 * c, as_long(sums[r][c], by, c, to.limit));
      } else if constexpr (kOutput == LinearOutput::kInt8) {
        const __m256i y = low_bytes(rounded(sums[r][0], by, 0), rounded(sums[r][1], by, 1));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), y);
      } else if constexpr (kOutput == LinearOutput::kInt8Table) {
        const __m256i first = low_bytes(rounded(sums[r][0], by, 0), rounded(sums[r][1], by, 1));
        const int s = r + 1 < kTileRows ? r + 1 : r;
        const __m256i second = s == r ? first : low_bytes(rounded(sums[s][0], by, 0), rounded(sums[s][1], by, 1));
        const __m512i y = looked_up(to.table, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1), to.offset);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_castsi512_si256(y));
        if (s != r) _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + to.stride), _mm512_extracti64x4_epi64(y, 1));
      } else {
        __m512 y[2];
#pragma GCC unroll 2
        for (int c = 0; c < 2; ++c) y[c] = kCareful ? wide(sums[r][c], by, c) : rounded(sums[r][c], by, c);
        const int16_t* const stream = adds_stream(kOutput) ? to.stream + r * to.stream_stride : nullptr;
        if constexpr (kOutput == LinearOutput::kInt16) {
          _mm512_storeu_si512(out, low_words(y[0], y[1]));
        } else if constexpr (kOutput == LinearOutput::kSumInt16) {
          const __m512i sum = _mm512_adds_epi16(low_words(y[0], y[1]), _mm512_loadu_si512(stream));
          _mm512_storeu_si512(out, _mm512_max_epi16(sum, _mm512_set1_epi16(-32767)));
        } else {
#pragma GCC unroll 2
          for (int c = 0; c < 2; ++c) {
            const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(stream + 16 * c));
            const __m512i integer = _mm512_sub_epi32(_mm512_castps_si512(y[c]), _mm512_set1_epi32(kMiddleBits));
            _mm512_storeu_si512(out + 16 * c, _mm512_add_epi32(integer, _mm512_cvtepi16_epi32(half)));
          }
        }
      }
    }
  }

  // entries[index], 256 of them; turned by 0x80 on the way out, or not at all.
  static HCCS_INLINE __m512i looked_up(const int8_t* entries, __m512i index, int turn) {
    const auto part = [&](int i) { return _mm512_loadu_si512(entries + 64 * i); };
    const __m512i low = _mm512_permutex2var_epi8(part(0), index, part(1));
    const __m512i high = _mm512_permutex2var_epi8(part(2), index, part(3));
    return _mm512_xor_si512(_mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high),
                            _mm512_set1_epi8(static_cast<char>(turn)));
  }
};

}  // namespace
}  // namespace hccs
