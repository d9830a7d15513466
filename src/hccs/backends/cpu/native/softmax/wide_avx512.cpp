// The wide form in AVX-512, for uint8 outputs: what depends on the distance alone is looked up, and VNNI weighs
// distances as it sums them.
#include "softmax/avx512.hpp"

namespace hccs {
namespace {

// Distances in the order in which packing two vectors of words sorts the bytes: see Avx512::HeadTable.
constexpr int packed_place(int delta) {
  return delta / 64 * 64 + delta % 16 / 8 * 32 + delta % 64 / 16 * 8 + delta % 8;
}

struct WideAvx512 : Avx512 {
  static constexpr bool kShifts = true;          // heads with and without a shift have loops of their own
  static constexpr bool kUnrollsMasked = false;  // loops for common lengths take their time to compile
  static constexpr int kKeptVectors = 1;
  using HeadKind = WideHead;
  template <Width kWidth>
  using Normaliser = WideNormaliser<kWidth, kRows>;

  // Scores of every distance 0..127, as they are and in packing order; and, of heads with a shift, what they lie below
  // the highest.
  struct HeadTable {
    HeadTable() = default;
    explicit HeadTable(const WideHead& of) : head(of) {
      const auto splat16 = [](int value) { return _mm512_set1_epi16(static_cast<short>(value)); };
      const __m512i B = splat16(of.B), S = splat16(of.S), D = splat16(of.D), S2 = splat16(of.S2), D2 = splat16(of.D2);
      const __m512i ramp = _mm512_cvtepu8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(kColumnNumbers)));
      const __m128i f = _mm_cvtsi32_si128(of.f);
      for (int i = 0; i < 4; ++i) {
        const __m512i d = _mm512_add_epi16(ramp, splat16(32 * i));
        __m512i s = _mm512_sub_epi16(B, _mm512_mullo_epi16(S, _mm512_min_epi16(d, D)));
        s = _mm512_sub_epi16(s, _mm512_mullo_epi16(S2, _mm512_min_epi16(d, D2)));
        s = _mm512_srl_epi16(s, f);
        _mm512_store_si512(scores + 32 * i, s);
        // Eight words at a time go where packing takes them from.
        __m128i eighths[4];
        std::memcpy(eighths, &s, sizeof s);
        for (int part = 0; part < 4; ++part)
          std::memcpy(packed_scores + packed_place(32 * i + 8 * part), &eighths[part], sizeof eighths[part]);
        const __m256i below = _mm512_cvtepi16_epi8(_mm512_sub_epi16(splat16(of.B >> of.f), s));
        std::memcpy(lost + 32 * i, &below, sizeof below);
      }
    }
    alignas(64) uint16_t scores[128];
    alignas(64) uint16_t packed_scores[128];
    alignas(64) uint8_t lost[128];
    WideHead head;
  };

  template <Width kWidth>
  struct HeadVectors {
    HCCS_INLINE explicit HeadVectors(const HeadTable& table)
        : D(splat(static_cast<int8_t>(table.head.D))),
          D2(splat(static_cast<int8_t>(table.head.D2))),
          S(splat(static_cast<int8_t>(table.head.S))),
          S2(splat(static_cast<int8_t>(table.head.S2))),
          shifted(table.head.f != 0),
          needs_high(table.head.D >= 64),
          of(table) {
      for (int i = 0; i < 4; ++i) scores[i] = _mm512_load_si512(table.packed_scores + 32 * i);
    }
    Bytes D, D2, S, S2;
    bool shifted, needs_high;
    const HeadTable& of;
    __m512i scores[4];
  };

  template <class HeadVectors>
  static HCCS_INLINE Sums add_lost(Sums sums, Bytes delta, const HeadVectors& head) {
    if (head.shifted) {
      const __m512i low = _mm512_load_si512(head.of.lost), high = _mm512_load_si512(head.of.lost + 64);
      const __m512i lost = _mm512_permutex2var_epi8(low, delta, high);
      return _mm512_add_epi64(sums, _mm512_sad_epu8(lost, _mm512_setzero_si512()));
    }
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums, delta, head.S), _mm512_min_epu8(delta, head.D2), head.S2);
  }
  template <bool kOneHead, class HeadVectors>
  static HCCS_INLINE void reduce_sum(const Sums (&v)[kRows], int32_t* sum, const HeadVectors& head) {
    if (kOneHead && head.shifted) return reduce_sum_rows(v, sum);  // byte sums in every row
    const auto op = [](__m512i a, __m512i b) HCCS_INLINE_LAMBDA { return _mm512_add_epi32(a, b); };
    __m512i quads[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      quads[i] = fold_dwords(fold_qwords(v[4 * i], v[4 * i + 1], op), fold_qwords(v[4 * i + 2], v[4 * i + 3], op), op);
    _mm512_store_si512(sum, fold_quarters(quads, op));
  }

  template <Width kWidth, bool kU8 = kWidth == Width::kU8>
  class Emitter;
};

// The outputs of 32 scores of a row.
template <Width kWidth>
class WideOutputs {
 public:
  HCCS_INLINE WideOutputs(const WideAvx512::HeadVectors<kWidth>& head, const WideAvx512::Normaliser<kWidth>& norm,
                          int r, bool up)
      : head_(head),
        rho_(Avx512::splat_word(norm.rho[r])),
        up_(_mm_cvtsi32_si128(norm.e[r])),
        down_(Avx512::splat_word(norm.down_words[r])),
        shifts_up_(up) {}
  HCCS_INLINE __m512i operator()(int i) const {
    __m512i s = head_.scores[i];
    if (shifts_up_) s = _mm512_sll_epi16(s, up_);
    return _mm512_srlv_epi16(_mm512_mulhi_epu16(s, rho_), down_);
  }

 private:
  const WideAvx512::HeadVectors<kWidth>& head_;
  __m512i rho_;
  __m128i up_;
  __m512i down_;
  bool shifts_up_;
};

// uint8: as the paper's form, a table of the row's 128 outputs.
template <Width kWidth>
class WideAvx512::Emitter<kWidth, true> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>& head, const Normaliser<kWidth>& norm, int r, bool short_rows) {
    const WideOutputs<kWidth> outputs(head, norm, r, short_rows);
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

template <Width kWidth, Masking kMasking>
struct WideAvx512Rows : BlockRows<WideAvx512, kWidth, kMasking> {};

}  // namespace

void wide_rows_avx512(const SoftmaxJob& job, int64_t begin, int64_t end) {
  switch (job.masking) {
    case Masking::kNone: return WideAvx512Rows<Width::kU8, Masking::kNone>::run(job, begin, end);
    case Masking::kLengths: return WideAvx512Rows<Width::kU8, Masking::kLengths>::run(job, begin, end);
    case Masking::kMask: return WideAvx512Rows<Width::kU8, Masking::kMask>::run(job, begin, end);
  }
}

}  // namespace hccs
