// AVX-512 with BW and VBMI (Ice Lake, Zen 4 and later): 64 columns per vector, 16 rows per block.
#pragma once

#include <immintrin.h>

#include "softmax/blocks.hpp"
#include "softmax/reductions_avx512.hpp"

namespace hccs {
namespace {

alignas(64) constexpr uint8_t kColumnNumbers[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

struct Avx512 {
  static constexpr int kRows = 16;
  static constexpr int kBytes = 64;
  static constexpr bool kStreams = true;
  static constexpr bool kUnrollsMasked = true;
  static constexpr bool kShifts = false;
  static constexpr int kKeptVectors = 0;
  template <Width>
  static constexpr bool kUnrolls = true;  // has loops of its own for common lengths
  using Bytes = __m512i;
  using Sums = __m512i;
  using HeadKind = Head;
  template <Width kWidth>
  using Normaliser = hccs::Normaliser<kWidth, kRows>;

  struct AllLanes {};
  using Lanes = __mmask64;

  static AllLanes lanes(Full) { return {}; }
  static Lanes lanes(Tail tail) { return _bzhi_u64(~Lanes{0}, static_cast<unsigned>(tail.count)); }
  static Lanes lanes_below(uint32_t length_bytes, int first) {
    const Bytes column = _mm512_add_epi8(_mm512_load_si512(kColumnNumbers), splat(static_cast<int8_t>(first)));
    return _mm512_cmplt_epu8_mask(column, splat_word(length_bytes));
  }
  static Lanes lanes(const uint8_t* mask, Full part) { return nonzero(load(mask, part)); }
  static Lanes lanes(const uint8_t* mask, Tail part) { return nonzero(load(mask, part)); }
  static Lanes nonzero(Bytes v) { return _mm512_cmpneq_epi8_mask(v, _mm512_setzero_si512()); }
  static int count(Lanes on) { return static_cast<int>(_mm_popcnt_u64(on)); }

  static Bytes load(const void* p, Full) { return _mm512_loadu_si512(p); }
  static Bytes load(const void* p, Tail tail) { return _mm512_maskz_loadu_epi8(lanes(tail), p); }

  static void stream(void* out, Bytes v) { _mm512_stream_si512(static_cast<__m512i*>(out), v); }
  static void end_streaming() { _mm_sfence(); }

  static void store_zeros(void* out) { _mm512_storeu_si512(out, _mm512_setzero_si512()); }

  static Bytes splat(int8_t value) { return _mm512_set1_epi8(value); }
  static Bytes splat_word(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
  static Bytes max(AllLanes, Bytes top, Bytes v) { return _mm512_max_epi8(top, v); }
  static Bytes max(Lanes on, Bytes top, Bytes v) { return _mm512_mask_max_epi8(top, on, top, v); }

  // m - x wraps to the right unsigned byte; eq. 2. Zero where off.
  static Bytes distance(AllLanes, Bytes m, Bytes x, Bytes D) { return _mm512_min_epu8(_mm512_sub_epi8(m, x), D); }
  static Bytes distance(Lanes on, Bytes m, Bytes x, Bytes D) {
    return _mm512_maskz_min_epu8(on, _mm512_sub_epi8(m, x), D);
  }

  static Sums no_sums() { return _mm512_setzero_si512(); }
  template <class HeadVectors>
  static Sums add_lost(Sums sums, Bytes delta, const HeadVectors&) {
    return _mm512_add_epi64(sums, _mm512_sad_epu8(delta, _mm512_setzero_si512()));
  }

  static HCCS_INLINE void reduce_max(const Bytes (&v)[kRows], uint32_t* m) { reduce_max_rows(v, m); }
  template <bool kOneHead, class HeadVectors>
  static HCCS_INLINE void reduce_sum(const Sums (&v)[kRows], int32_t* sum, const HeadVectors&) {
    reduce_sum_rows(v, sum);
  }
  static bool any(const int32_t (&e)[kRows]) {
    const __m512i v = _mm512_load_si512(e);
    return _mm512_test_epi32_mask(v, v) != 0;
  }

  // 2s for every distance 0..127, in the order in which packing two vectors of words sorts the bytes:
  // VPACKUSWB takes eight words of one and eight of the other in turn.
  struct HeadTable {
    HeadTable() = default;
    explicit HeadTable(const Head& of) : head(of) {
      for (int delta = 0; delta < 128; ++delta) {
        const int at = delta / 64 * 64 + delta % 16 / 8 * 32 + delta % 64 / 16 * 8 + delta % 8;
        doubled_scores[at] = static_cast<uint16_t>(2 * (of.B - of.S * (delta < of.D ? delta : of.D)));
      }
    }
    alignas(64) uint16_t doubled_scores[128];
    Head head;
  };

  template <Width kWidth, bool kU8 = kWidth == Width::kU8>
  struct HeadVectors;
  template <Width kWidth, bool kU8 = kWidth == Width::kU8>
  class Emitter;
};

// uint8: the output depends on the distance alone, so each row gets a table of its 128 outputs, and one VPERMI2B
// looks up 64 columns. (s * rho) >> 15 = (2s * rho) >> 16 is one multiply-high; packing saturates at 255 (the CLB
// mode).
template <Width kWidth>
struct Avx512::HeadVectors<kWidth, true> {
  HCCS_INLINE explicit HeadVectors(const HeadTable& table)
      : D(splat(static_cast<int8_t>(table.head.D))), needs_high(table.head.D >= 64) {
    for (int i = 0; i < 4; ++i) doubled_scores[i] = _mm512_load_si512(table.doubled_scores + 32 * i);
  }
  Bytes D;
  bool needs_high;
  __m512i doubled_scores[4];
};
template <Width kWidth>
class Avx512::Emitter<kWidth, true> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>& head, const Normaliser<kWidth>& norm, int r, bool short_rows) {
    const __m512i rho = splat_word(norm.rho[r]);
    const auto outputs = [&](int i) HCCS_INLINE_LAMBDA {
      __m512i s2 = head.doubled_scores[i];
      if (short_rows) s2 = _mm512_sll_epi16(s2, _mm_cvtsi32_si128(norm.e[r]));
      return _mm512_mulhi_epu16(s2, rho);
    };
    low_ = _mm512_packus_epi16(outputs(0), outputs(1));
    high_ = head.needs_high ? _mm512_packus_epi16(outputs(2), outputs(3)) : low_;
  }
  HCCS_INLINE void store(uint8_t* out, Bytes delta, AllLanes, Full) const {
    _mm512_storeu_si512(out, _mm512_permutex2var_epi8(low_, delta, high_));
  }
  HCCS_INLINE void store(uint8_t* out, Bytes delta, Lanes on, Full) const {
    _mm512_storeu_si512(out, _mm512_maskz_permutex2var_epi8(on, low_, delta, high_));
  }
  HCCS_INLINE void store(uint8_t* out, Bytes delta, Lanes on, Tail tail) const {
    _mm512_mask_storeu_epi8(out, lanes(tail), _mm512_maskz_permutex2var_epi8(on, low_, delta, high_));
  }

 private:
  __m512i low_, high_;
};

// int16: p = B*rho - (S*rho)*delta. It fits 16 unsigned bits (below 2T), so wrap-around does no harm.
template <Width kWidth>
struct Avx512::HeadVectors<kWidth, false> {
  HCCS_INLINE explicit HeadVectors(const HeadTable& table) : D(splat(static_cast<int8_t>(table.head.D))) {}
  Bytes D;
};
template <Width kWidth>
class Avx512::Emitter<kWidth, false> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>&, const Normaliser<kWidth>& norm, int r, bool)
      : B_rho_(splat_word(norm.base[r])), S_rho_(splat_word(norm.slope[r])) {}
  void store(int16_t* out, Bytes delta, AllLanes, Full) const {
    _mm512_storeu_si512(out, probabilities(_mm512_castsi512_si256(delta)));
    _mm512_storeu_si512(out + 32, probabilities(_mm512_extracti64x4_epi64(delta, 1)));
  }
  void store(int16_t* out, Bytes delta, Lanes on, Full) const {
    _mm512_storeu_si512(out, _mm512_maskz_mov_epi16(low(on), probabilities(_mm512_castsi512_si256(delta))));
    _mm512_storeu_si512(out + 32, _mm512_maskz_mov_epi16(high(on), probabilities(_mm512_extracti64x4_epi64(delta, 1))));
  }
  void store(int16_t* out, Bytes delta, Lanes on, Tail tail) const {
    const __m512i first = probabilities(_mm512_castsi512_si256(delta));
    _mm512_mask_storeu_epi16(out, low(lanes(tail)), _mm512_maskz_mov_epi16(low(on), first));
    if (tail.count <= 32) return;
    const __m512i second = probabilities(_mm512_extracti64x4_epi64(delta, 1));
    _mm512_mask_storeu_epi16(out + 32, high(lanes(tail)), _mm512_maskz_mov_epi16(high(on), second));
  }

 private:
  static __mmask32 low(Lanes on) { return static_cast<__mmask32>(on); }
  static __mmask32 high(Lanes on) { return static_cast<__mmask32>(on >> 32); }
  __m512i probabilities(__m256i delta) const {
    const __m512i p = _mm512_sub_epi16(B_rho_, _mm512_mullo_epi16(S_rho_, _mm512_cvtepu8_epi16(delta)));
    return _mm512_min_epu16(p, _mm512_set1_epi16(32767));
  }
  __m512i B_rho_, S_rho_;
};

}  // namespace
}  // namespace hccs
