// AVX2. The byte product would saturate, and the product of pairs of int16 keeps two of four units busy that could all
// add. Winograd's inner product trades half of the products for sums: with four inputs a, b, c, d and their weights,
//   a*wa + c*wc = (a + wc) * (c + wa) - a*c - wa*wc, and the same for b and d.
// What depends on the row alone is taken off its sums, what depends on the weights alone off the bias.
#include <immintrin.h>

#include "linear/blocks.hpp"

namespace hccs {
namespace {

struct Avx2 {
  using Element = int16_t;
  typedef int32_t Sums __attribute__((vector_size(32)));  // named so for the reason given in avx512.cpp
  static constexpr Bytes kBytes = Bytes::kPlain;
  static constexpr int kLanes = 8, kStep = 4, kRows = 4, kPanels = 2;
  static constexpr int kTail = 4;  // of a staged row: its sum of a*c + b*d as int32, and room up to the next 8 bytes

  // [steps][kPanels][2][kLanes][2]: the weights of a and b, then those of c and d.
  static constexpr int64_t place(int64_t output, int64_t input, int64_t) {
    const int64_t vector = (input / 4 * kPanels + output / kLanes) * 2 + input % 4 / 2;
    return (vector * kLanes + output % kLanes) * 2 + input % 2;
  }
  static int64_t excess(const int8_t* weights, int64_t inputs) {
    int64_t sum = 0;
    for (int64_t i = 2; i < inputs; ++i)
      if (i % 4 >= 2) sum += weights[i] * weights[i - 2];
    return sum;
  }
  static void stage(const uint8_t* from, int turn, int64_t inputs, int16_t* to) {
    const __m128i turned = _mm_set1_epi8(static_cast<char>(turn));
    const __m256i first = _mm256_set1_epi64x(0xFFFFFFFF);
    __m256i sums = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 16 <= inputs; i += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      const __m256i x = _mm256_cvtepi8_epi16(_mm_xor_si128(bytes, turned));
      const __m256i beside = _mm256_and_si256(_mm256_srli_epi64(x, 32), first);
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(x, beside));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), x);
    }
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
    uint32_t sum = 0;
    for (const int32_t lane : lanes) sum += static_cast<uint32_t>(lane);
    const int64_t padded = whole(inputs, kStep);
    for (int64_t j = i; j < padded; ++j) {
      to[j] = j < inputs ? static_cast<int8_t>(from[j] ^ turn) : int8_t{0};
      if (j % 4 >= 2) sum += static_cast<uint32_t>(to[j] * to[j - 2]);
    }
    std::memcpy(to + padded, &sum, sizeof sum);
  }

  static HCCS_INLINE __m256i loaded(const void* from) { return _mm256_load_si256(static_cast<const __m256i*>(from)); }
  static HCCS_INLINE __m256i pair(const int16_t* from) {
    int32_t two;
    std::memcpy(&two, from, sizeof two);
    return _mm256_set1_epi32(two);
  }
  template <int kTileRows, class Bias, class Prefetch>
  static HCCS_INLINE void products(Sums (&sums)[kTileRows][kPanels], const Bias& bias, const int16_t* weights,
                                   const int16_t* x, int64_t stride, int64_t padded, Ahead, const Prefetch& prefetch) {
#pragma GCC unroll 4
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 2
      for (int c = 0; c < kPanels; ++c)
        sums[r][c] =
            reinterpret_cast<Sums>(_mm256_sub_epi32(loaded(bias(r) + c * kLanes), pair(x + r * stride + padded)));
    prefetch();
    add_products(sums, weights, x, stride, padded);
  }
  template <int kTileRows>
  static HCCS_INLINE void add_products(Sums (&sums)[kTileRows][kPanels], const int16_t* weights, const int16_t* x,
                                       int64_t stride, int64_t inputs) {
#pragma GCC unroll 2
    for (int64_t i = 0; i < inputs; i += kStep, weights += kStep * kPanels * kLanes, x += kStep) {
      __m256i of_ab[kPanels], of_cd[kPanels];
#pragma GCC unroll 2
      for (int c = 0; c < kPanels; ++c) {
        of_ab[c] = loaded(weights + 32 * c);
        of_cd[c] = loaded(weights + 32 * c + 16);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kTileRows; ++r) {
        const __m256i ab = pair(x + r * stride), cd = pair(x + r * stride + 2);
#pragma GCC unroll 2
        for (int c = 0; c < kPanels; ++c) {
          const __m256i products = _mm256_madd_epi16(_mm256_add_epi16(ab, of_cd[c]), _mm256_add_epi16(cd, of_ab[c]));
          sums[r][c] = reinterpret_cast<Sums>(_mm256_add_epi32(reinterpret_cast<__m256i>(sums[r][c]), products));
        }
      }
    }
  }

  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  // clamp(rhe(acc * M / 2^16), -127, 127) of 8 outputs. Below 2^8 the product has 24 bits and is exact in float32;
  // where acc or the product is rounded, it is clipped, and stays so however it is rounded.
  static HCCS_INLINE __m256i to_int8(Sums acc, const float* factor) {
    const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(reinterpret_cast<__m256i>(acc)), _mm256_load_ps(factor));
    const __m256 clamped = _mm256_min_ps(_mm256_max_ps(product, _mm256_set1_ps(-127)), _mm256_set1_ps(127));
    return _mm256_cvttps_epi32(_mm256_round_ps(clamped, kNearest));
  }
  // clamp(rhe(acc * M / 2^16), -limit, limit), the same in float64.
  static HCCS_INLINE __m256i to_int32(Sums acc, const float* factor, int32_t limit) {
    const __m256i sums = reinterpret_cast<__m256i>(acc);
    const __m128i low = to_int32(_mm256_castsi256_si128(sums), _mm_load_ps(factor), limit);
    const __m128i high = to_int32(_mm256_extracti128_si256(sums, 1), _mm_load_ps(factor + 4), limit);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
  static HCCS_INLINE __m128i to_int32(__m128i acc, __m128 factor, int32_t limit) {
    const __m256d product = _mm256_mul_pd(_mm256_cvtepi32_pd(acc), _mm256_cvtps_pd(factor));
    const __m256d clamped = _mm256_min_pd(_mm256_max_pd(product, _mm256_set1_pd(-limit)), _mm256_set1_pd(limit));
    return _mm256_cvttpd_epi32(_mm256_round_pd(clamped, kNearest));
  }
  static HCCS_INLINE __m256i to_int16(Sums acc, const float* factor) { return to_int32(acc, factor, 32767); }
  // 16 integers as words, in order.
  static HCCS_INLINE __m256i words(__m256i first, __m256i second) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0b11011000);
  }
  static HCCS_INLINE __m128i bytes(const Sums (&acc)[2], const float* factor) {
    const __m256i both = words(to_int8(acc[0], factor), to_int8(acc[1], factor + 8));
    return _mm_packs_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  }

  template <LinearOutput kOutput, bool, int kTileRows>
  static HCCS_INLINE void finish(const Sums (&sums)[kTileRows][2], const Channels<16>& channels,
                                 const Target<kOutput>& to) {
    const float* const factor = channels.factor;
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      auto* const out = to.out + r * to.stride;
      const auto store = [](void* at, __m256i y) { _mm256_storeu_si256(static_cast<__m256i*>(at), y); };
      const int16_t* const stream = adds_stream(kOutput) ? to.stream + r * to.stream_stride : nullptr;
      if constexpr (kOutput == LinearOutput::kInt32) {
        for (int c = 0; c < 2; ++c) store(out + 8 * c, reinterpret_cast<__m256i>(sums[r][c]));
      } else if constexpr (kOutput == LinearOutput::kLong) {
        for (int c = 0; c < 2; ++c) store(out + 8 * c, to_int32(sums[r][c], factor + 8 * c, to.limit));
      } else if constexpr (kOutput == LinearOutput::kInt8) {
        const __m128i turn = _mm_set1_epi8(static_cast<char>(to.offset));  // 0 or 0x80
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_xor_si128(bytes(sums[r], factor), turn));
      } else if constexpr (kOutput == LinearOutput::kInt8Table) {
        if (r % 2) continue;  // two rows fill a vector
        const int s = r + 1 < kTileRows ? r + 1 : r;
        const __m128i first = bytes(sums[r], factor), second = s == r ? first : bytes(sums[s], factor);
        const __m256i y = looked_up(to.table, _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1));
        const __m256i turned = _mm256_xor_si256(y, _mm256_set1_epi8(static_cast<char>(to.offset)));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(turned));
        if (s != r) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + to.stride), _mm256_extracti128_si256(turned, 1));
      } else if constexpr (kOutput == LinearOutput::kSumInt32) {
        for (int c = 0; c < 2; ++c) {
          const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(stream + 8 * c));
          store(out + 8 * c, _mm256_add_epi32(to_int16(sums[r][c], factor + 8 * c), _mm256_cvtepi16_epi32(half)));
        }
      } else {
        __m256i y = words(to_int16(sums[r][0], factor), to_int16(sums[r][1], factor + 8));
        if constexpr (kOutput == LinearOutput::kSumInt16) {
          y = _mm256_adds_epi16(y, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(stream)));
          y = _mm256_max_epi16(y, _mm256_set1_epi16(-32767));
        }
        store(out, y);
      }
    }
  }

  // entries[index + 128]: the low four bits pick from each sixteenth of the table, the others between those picked, a
  // bit at a time. A blend looks at the highest bit of a byte.
  static HCCS_INLINE __m256i looked_up(const int8_t* entries, __m256i index) {
    const __m256i low = _mm256_and_si256(index, _mm256_set1_epi8(15));
    const __m256i bit[4] = {_mm256_slli_epi16(index, 3), _mm256_slli_epi16(index, 2), _mm256_slli_epi16(index, 1),
                            index};
    const auto picked = [&](int i) HCCS_INLINE_LAMBDA {
      const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries + 16 * i));
      return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(part), low);
    };
    const auto pair = [&](int i) HCCS_INLINE_LAMBDA { return _mm256_blendv_epi8(picked(i), picked(i + 1), bit[0]); };
    const auto four = [&](int i) HCCS_INLINE_LAMBDA { return _mm256_blendv_epi8(pair(i), pair(i + 2), bit[1]); };
    const auto eight = [&](int i) HCCS_INLINE_LAMBDA { return _mm256_blendv_epi8(four(i), four(i + 4), bit[2]); };
    return _mm256_blendv_epi8(eight(8), eight(0), bit[3]);  // a negative index comes first
  }
};

}  // namespace

constinit const LinearKernel linear_avx2 = LinearRows<Avx2>::kernel();

}  // namespace hccs
