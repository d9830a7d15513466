// AVX-512 with BW and VBMI (Ice Lake, Zen 4 and later): 64 columns per vector, 16 rows per block.
#include <immintrin.h>

#include "blocks.hpp"

namespace hccs {
namespace {

struct Avx512 {
  static constexpr int kRows = 16;
  static constexpr int kBytes = 64;
  using Bytes = __m512i;
  using Sums = __m512i;

  struct AllLanes {};
  using Lanes = __mmask64;

  static AllLanes lanes(Full) { return {}; }
  static Lanes lanes(Tail tail) { return ~Lanes{0} >> (64 - tail.count); }
  static Lanes lanes(const uint8_t* mask, Full part) { return nonzero(load(mask, part)); }
  static Lanes lanes(const uint8_t* mask, Tail part) { return nonzero(load(mask, part)); }
  static Lanes nonzero(Bytes v) { return _mm512_test_epi8_mask(v, v); }
  static int count(Lanes on) { return static_cast<int>(_mm_popcnt_u64(on)); }

  static Bytes load(const void* p, Full) { return _mm512_loadu_si512(p); }
  static Bytes load(const void* p, Tail tail) { return _mm512_maskz_loadu_epi8(lanes(tail), p); }

  static Bytes splat(int8_t value) { return _mm512_set1_epi8(value); }
  static Bytes splat_word(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
  static Bytes max(Bytes a, Bytes b) { return _mm512_max_epi8(a, b); }
  static Bytes keep(AllLanes, Bytes v) { return v; }
  static Bytes keep(Lanes on, Bytes v) { return _mm512_maskz_mov_epi8(on, v); }
  static Bytes keep_or_lowest(AllLanes, Bytes v) { return v; }
  static Bytes keep_or_lowest(Lanes on, Bytes v) { return _mm512_mask_mov_epi8(splat(-128), on, v); }

  // m - x wraps to the right unsigned byte; eq. 2.
  static Bytes distance(Bytes m, Bytes x, Bytes D) { return _mm512_min_epu8(_mm512_sub_epi8(m, x), D); }

  static Sums no_sums() { return _mm512_setzero_si512(); }
  static Sums add_bytes(Sums sums, Bytes v) {
    return _mm512_add_epi64(sums, _mm512_sad_epu8(v, _mm512_setzero_si512()));
  }

  // Reduces 16 vectors at once: each of the four levels halves their number while it interleaves them, so
  // that 32-bit lane r of the result belongs to row r.
  template <class Op>
  static __m512i reduce_rows(const __m512i (&v)[kRows], Op op) {
    __m512i quad[4];
    for (int i = 0; i < 4; ++i) {
      const __m512i a = op(_mm512_unpacklo_epi32(v[4 * i], v[4 * i + 1]), _mm512_unpackhi_epi32(v[4 * i], v[4 * i + 1]));
      const __m512i b =
          op(_mm512_unpacklo_epi32(v[4 * i + 2], v[4 * i + 3]), _mm512_unpackhi_epi32(v[4 * i + 2], v[4 * i + 3]));
      quad[i] = op(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    const auto fold = [&](__m512i a, __m512i b) {
      return op(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
    };
    return fold(fold(quad[0], quad[1]), fold(quad[2], quad[3]));
  }
  static void reduce_max(const Bytes (&v)[kRows], uint32_t* m) {
    __m512i top = reduce_rows(v, [](__m512i a, __m512i b) { return _mm512_max_epi8(a, b); });
    top = _mm512_max_epi8(top, _mm512_srli_epi32(top, 16));
    top = _mm512_max_epi8(top, _mm512_srli_epi32(top, 8));
    const __m512i low_byte = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    _mm512_store_si512(m, _mm512_shuffle_epi8(top, low_byte));
  }
  static void reduce_sum(const Sums (&v)[kRows], int32_t* sum) {
    _mm512_store_si512(sum, reduce_rows(v, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }));
  }

  template <Mode kMode, bool kU8 = is_u8(kMode)>
  class Emitter;
};

// Distances 0..7, 16..23, 32..39, 48..55: VPACKUSWB of a vector in this order and one 8 higher is sorted.
alignas(64) constexpr uint16_t kPackOrder[32] = {0,  1,  2,  3,  4,  5,  6,  7,  16, 17, 18, 19, 20, 21, 22, 23,
                                                 32, 33, 34, 35, 36, 37, 38, 39, 48, 49, 50, 51, 52, 53, 54, 55};

// uint8: the output depends on the distance alone, so each row gets a table of its 128 outputs, and one
// VPERMI2B looks up 64 columns. (s * rho) >> 15 = (2s * rho) >> 16 is one multiply-high.
template <Mode kMode>
class Avx512::Emitter<kMode, true> {
 public:
  Emitter(const Head& head, int32_t rho, int32_t e) {
    const __m512i rho16 = _mm512_set1_epi16(static_cast<short>(rho));
    const __m512i B2 = _mm512_set1_epi16(static_cast<short>(head.B << (e + 1)));
    const __m512i S2 = _mm512_set1_epi16(static_cast<short>(head.S << (e + 1)));
    const __m512i D = _mm512_set1_epi16(static_cast<short>(head.D));
    const auto outputs = [&](int first) {
      const __m512i delta = _mm512_min_epu16(_mm512_add_epi16(_mm512_load_si512(kPackOrder), _mm512_set1_epi16(static_cast<short>(first))), D);
      return _mm512_mulhi_epu16(_mm512_sub_epi16(B2, _mm512_mullo_epi16(S2, delta)), rho16);
    };
    // Packing saturates at 255, which is the saturation of the CLB mode.
    low_ = _mm512_packus_epi16(outputs(0), outputs(8));
    high_ = _mm512_packus_epi16(outputs(64), outputs(72));
  }
  void store(uint8_t* out, Bytes delta, AllLanes, Full) const {
    _mm512_storeu_si512(out, _mm512_permutex2var_epi8(low_, delta, high_));
  }
  void store(uint8_t* out, Bytes delta, Lanes on, Full) const {
    _mm512_storeu_si512(out, _mm512_maskz_permutex2var_epi8(on, low_, delta, high_));
  }
  void store(uint8_t* out, Bytes delta, Lanes on, Tail tail) const {
    _mm512_mask_storeu_epi8(out, lanes(tail), _mm512_maskz_permutex2var_epi8(on, low_, delta, high_));
  }

 private:
  __m512i low_, high_;
};

// int16: p = B*rho - (S*rho)*delta. It fits 16 unsigned bits (below 2T), so wrap-around does no harm.
template <Mode kMode>
class Avx512::Emitter<kMode, false> {
 public:
  Emitter(const Head& head, int32_t rho, int32_t)
      : B_rho_(_mm512_set1_epi16(static_cast<short>(head.B * rho))),
        S_rho_(_mm512_set1_epi16(static_cast<short>(head.S * rho))) {}
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
    return is_clb(kMode) ? _mm512_min_epu16(p, _mm512_set1_epi16(32767)) : p;
  }
  __m512i B_rho_, S_rho_;
};

template <Mode kMode, Masking kMasking>
struct Avx512Rows : BlockRows<Avx512, kMode, kMasking> {};

}  // namespace

void softmax_rows_avx512(const SoftmaxJob& job, int64_t begin, int64_t end) {
  for_job<Avx512Rows>(job, begin, end);
}

}  // namespace hccs
