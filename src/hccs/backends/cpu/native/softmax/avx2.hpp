// AVX2: 32 columns per vector, 8 rows per block.
#pragma once

#include <immintrin.h>

#include "softmax/blocks.hpp"

namespace hccs {
namespace {

// Sliding over this gives a byte mask whose first lanes are on.
alignas(32) constexpr int8_t kFirstLanes[64] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                                -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

alignas(32) constexpr uint8_t kColumnNumbers[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

struct Avx2 {
  static constexpr int kRows = 8;
  static constexpr int kBytes = 32;
  static constexpr bool kStreams = true;
  static constexpr bool kUnrollsMasked = true;
  static constexpr bool kShifts = false;
  static constexpr int kKeptVectors = 0;
  template <Width>
  static constexpr bool kUnrolls = true;  // has loops of its own for common lengths
  using Bytes = __m256i;
  using Sums = __m256i;
  using HeadKind = Head;
  template <Width kWidth>
  using Normaliser = hccs::Normaliser<kWidth, kRows>;

  struct AllLanes {};
  using Lanes = __m256i;

  static AllLanes lanes(Full) { return {}; }
  static Lanes lanes(Tail tail) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFirstLanes + 32 - tail.count));
  }
  static Lanes lanes_below(uint32_t length_bytes, int first) {
    const Bytes column = _mm256_add_epi8(_mm256_load_si256(reinterpret_cast<const __m256i*>(kColumnNumbers)),
                                         splat(static_cast<int8_t>(first)));
    return _mm256_cmpgt_epi8(splat_word(length_bytes), column);
  }
  static Lanes lanes(const uint8_t* mask, Full part) { return nonzero(load(mask, part)); }
  static Lanes lanes(const uint8_t* mask, Tail part) { return nonzero(load(mask, part)); }
  static Lanes nonzero(Bytes v) { return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_min_epu8(v, splat(1))); }
  static int count(Lanes on) { return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(on))); }

  static Bytes load(const void* p, Full) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  // AVX2 has no masked byte load: a tail goes through the stack, so that nothing past the row is read.
  static Bytes load(const void* p, Tail tail) {
    alignas(32) char bytes[32] = {};
    std::memcpy(bytes, p, tail.count);
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
  }

  static void stream(void* out, Bytes v) { _mm256_stream_si256(static_cast<__m256i*>(out), v); }
  static void end_streaming() { _mm_sfence(); }

  static void store_zeros(void* out) { _mm256_storeu_si256(static_cast<__m256i*>(out), _mm256_setzero_si256()); }

  static Bytes splat(int8_t value) { return _mm256_set1_epi8(value); }
  static Bytes splat_word(uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
  static Bytes max(AllLanes, Bytes top, Bytes v) { return _mm256_max_epi8(top, v); }
  static Bytes max(Lanes on, Bytes top, Bytes v) {
    return _mm256_max_epi8(top, _mm256_blendv_epi8(splat(-128), v, on));
  }
  static Bytes keep(AllLanes, Bytes v) { return v; }
  static Bytes keep(Lanes on, Bytes v) { return _mm256_and_si256(on, v); }

  // m - x wraps to the right unsigned byte; eq. 2. Zero where off.
  template <class On>
  static Bytes distance(On on, Bytes m, Bytes x, Bytes D) {
    return keep(on, _mm256_min_epu8(_mm256_sub_epi8(m, x), D));
  }

  static Sums no_sums() { return _mm256_setzero_si256(); }
  template <class HeadVectors>
  static Sums add_lost(Sums sums, Bytes delta, const HeadVectors&) {
    return _mm256_add_epi64(sums, _mm256_sad_epu8(delta, _mm256_setzero_si256()));
  }

  // Reduces 8 vectors at once, interleaving them level by level: 32-bit lane r of the result is row r's.
  template <class Op>
  static HCCS_INLINE __m256i reduce_rows(const __m256i (&v)[kRows], Op op) {
    __m256i quad[2];
    for (int i = 0; i < 2; ++i) {
      const __m256i a =
          op(_mm256_unpacklo_epi32(v[4 * i], v[4 * i + 1]), _mm256_unpackhi_epi32(v[4 * i], v[4 * i + 1]));
      const __m256i b =
          op(_mm256_unpacklo_epi32(v[4 * i + 2], v[4 * i + 3]), _mm256_unpackhi_epi32(v[4 * i + 2], v[4 * i + 3]));
      quad[i] = op(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    }
    return op(_mm256_permute2x128_si256(quad[0], quad[1], 0x20), _mm256_permute2x128_si256(quad[0], quad[1], 0x31));
  }
  static HCCS_INLINE void reduce_max(const Bytes (&v)[kRows], uint32_t* m) {
    __m256i top = reduce_rows(v, [](__m256i a, __m256i b) { return _mm256_max_epi8(a, b); });
    top = _mm256_max_epi8(top, _mm256_srli_epi32(top, 16));
    top = _mm256_max_epi8(top, _mm256_srli_epi32(top, 8));
    const __m256i low_byte =
        _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    _mm256_store_si256(reinterpret_cast<__m256i*>(m), _mm256_shuffle_epi8(top, low_byte));
  }
  template <bool kOneHead, class HeadVectors>
  static HCCS_INLINE void reduce_sum(const Sums (&v)[kRows], int32_t* sum, const HeadVectors&) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(sum),
                       reduce_rows(v, [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }));
  }

  static bool any(const int32_t (&e)[kRows]) {
    const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(e));
    return !_mm256_testz_si256(v, v);
  }

  static void store(void* out, Bytes v) { _mm256_storeu_si256(static_cast<__m256i*>(out), v); }

  using HeadTable = Head;

  template <Width kWidth>
  struct HeadVectors {
    HCCS_INLINE explicit HeadVectors(const HeadTable& head)
        : D(splat(static_cast<int8_t>(head.D))),
          B2(_mm256_set1_epi16(static_cast<short>(2 * head.B))),
          S2(_mm256_set1_epi16(static_cast<short>(2 * head.S))) {}
    Bytes D, B2, S2;
  };

  template <Width kWidth, bool kU8 = kWidth == Width::kU8>
  class Emitter;
};

// uint8: (s * rho) >> 15 = (2s * rho) >> 16 is one multiply-high; packing saturates at 255 (the CLB mode).
template <Width kWidth>
class Avx2::Emitter<kWidth, true> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>& head, const Normaliser<kWidth>& norm, int r, bool short_rows)
      : B2_(short_rows ? splat_word(norm.base[r]) : head.B2),
        S2_(short_rows ? splat_word(norm.slope[r]) : head.S2),
        rho_(splat_word(norm.rho[r])) {}
  template <class On>
  void store(uint8_t* out, Bytes delta, On on, Full) const {
    Avx2::store(out, keep(on, probabilities(delta)));
  }
  void store(uint8_t* out, Bytes delta, Lanes on, Tail tail) const {
    alignas(32) uint8_t bytes[32];
    Avx2::store(bytes, keep(on, probabilities(delta)));
    std::memcpy(out, bytes, tail.count);
  }

 private:
  Bytes probabilities(Bytes delta) const {
    const __m256i zero = _mm256_setzero_si256();
    return _mm256_packus_epi16(scaled(_mm256_unpacklo_epi8(delta, zero)), scaled(_mm256_unpackhi_epi8(delta, zero)));
  }
  __m256i scaled(__m256i delta) const {
    return _mm256_mulhi_epu16(_mm256_sub_epi16(B2_, _mm256_mullo_epi16(S2_, delta)), rho_);
  }
  __m256i B2_, S2_, rho_;
};

// int16: p = B*rho - (S*rho)*delta. It fits 16 unsigned bits (below 2T), so wrap-around does no harm.
template <Width kWidth>
class Avx2::Emitter<kWidth, false> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>&, const Normaliser<kWidth>& norm, int r, bool)
      : B_rho_(splat_word(norm.base[r])), S_rho_(splat_word(norm.slope[r])) {}
  void store(int16_t* out, Bytes delta, AllLanes, Full) const {
    Avx2::store(out, probabilities(_mm256_castsi256_si128(delta)));
    Avx2::store(out + 16, probabilities(_mm256_extracti128_si256(delta, 1)));
  }
  void store(int16_t* out, Bytes delta, Lanes on, Full) const {
    Avx2::store(out,
                keep(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(on)), probabilities(_mm256_castsi256_si128(delta))));
    Avx2::store(out + 16, keep(_mm256_cvtepi8_epi16(_mm256_extracti128_si256(on, 1)),
                               probabilities(_mm256_extracti128_si256(delta, 1))));
  }
  void store(int16_t* out, Bytes delta, Lanes on, Tail tail) const {
    alignas(32) int16_t words[32];
    store(words, delta, on, Full{});
    std::memcpy(out, words, tail.count * sizeof(int16_t));
  }

 private:
  __m256i probabilities(__m128i delta) const {
    const __m256i p = _mm256_sub_epi16(B_rho_, _mm256_mullo_epi16(S_rho_, _mm256_cvtepu8_epi16(delta)));
    return _mm256_min_epu16(p, _mm256_set1_epi16(32767));
  }
  __m256i B_rho_, S_rho_;
};

}  // namespace
}  // namespace hccs
