#include "softmax/avx2.hpp"

namespace hccs {
namespace {

// The wide form: scores are made of their two lines wherever they are needed.
struct WideAvx2 : Avx2 {
  template <Width>
  static constexpr bool kUnrolls = false;  // they would take as long to compile as everything else
  using HeadKind = WideHead;
  using HeadTable = WideHead;
  template <Width kWidth>
  using Normaliser = WideNormaliser<kWidth, kRows>;

  template <Width kWidth>
  struct HeadVectors {
    HCCS_INLINE explicit HeadVectors(const HeadTable& head)
        : D(splat(static_cast<int8_t>(head.D))),
          D2(splat(static_cast<int8_t>(head.D2))),
          S_bytes(splat(static_cast<int8_t>(head.S))),
          S2_bytes(splat(static_cast<int8_t>(head.S2))),
          B(words(head.B)),
          S(words(head.S)),
          S2(words(head.S2)),
          top(words(head.B >> head.f)),
          f(_mm_cvtsi32_si128(head.f)),
          shifted(head.f != 0) {}
    static HCCS_INLINE __m256i words(int value) { return _mm256_set1_epi16(static_cast<short>(value)); }
    // Scores of 16 distances, and of the same clamped at D2.
    HCCS_INLINE __m256i scores(__m256i delta, __m256i delta2) const {
      const __m256i s = _mm256_sub_epi16(B, _mm256_mullo_epi16(S, delta));
      return _mm256_srl_epi16(_mm256_sub_epi16(s, _mm256_mullo_epi16(S2, delta2)), f);
    }
    Bytes D, D2, S_bytes, S2_bytes;
    __m256i B, S, S2, top;
    __m128i f;
    bool shifted;
  };

  template <class HeadVectors>
  static HCCS_INLINE Sums add_lost(Sums sums, Bytes delta, const HeadVectors& head) {
    const Bytes delta2 = _mm256_min_epu8(delta, head.D2);
    const __m256i one = _mm256_set1_epi16(1), zero = _mm256_setzero_si256();
    if (!head.shifted) {  // two products of bytes side by side stay below 2^15
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(delta, head.S_bytes), one));
      return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(delta2, head.S2_bytes), one));
    }
    const __m256i low = head.scores(_mm256_unpacklo_epi8(delta, zero), _mm256_unpacklo_epi8(delta2, zero));
    const __m256i high = head.scores(_mm256_unpackhi_epi8(delta, zero), _mm256_unpackhi_epi8(delta2, zero));
    const __m256i lost = _mm256_sub_epi16(_mm256_add_epi16(head.top, head.top), _mm256_add_epi16(low, high));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(lost, one));
  }

  template <Width kWidth>
  class Outputs {
   public:
    HCCS_INLINE Outputs(const HeadVectors<kWidth>& head, const Normaliser<kWidth>& norm, int r)
        : head_(head),
          rho_(splat_word(norm.rho[r])),
          up_(_mm_cvtsi32_si128(norm.e[r])),
          down_(_mm_cvtsi32_si128(norm.down[r])) {}
    HCCS_INLINE __m256i of(__m256i delta, __m256i delta2) const {
      const __m256i s = _mm256_sll_epi16(head_.scores(delta, delta2), up_);
      return _mm256_srl_epi16(_mm256_mulhi_epu16(s, rho_), down_);
    }
    HCCS_INLINE Bytes clamped(Bytes delta) const { return _mm256_min_epu8(delta, head_.D2); }

   private:
    const HeadVectors<kWidth>& head_;
    __m256i rho_;
    __m128i up_, down_;
  };

  template <Width kWidth, bool kU8 = kWidth == Width::kU8>
  class Emitter;
};

template <Width kWidth>
class WideAvx2::Emitter<kWidth, true> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>& head, const Normaliser<kWidth>& norm, int r, bool)
      : outputs_(head, norm, r) {}
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
    const Bytes delta2 = outputs_.clamped(delta);
    return _mm256_packus_epi16(outputs_.of(_mm256_unpacklo_epi8(delta, zero), _mm256_unpacklo_epi8(delta2, zero)),
                               outputs_.of(_mm256_unpackhi_epi8(delta, zero), _mm256_unpackhi_epi8(delta2, zero)));
  }
  Outputs<kWidth> outputs_;
};

template <Width kWidth>
class WideAvx2::Emitter<kWidth, false> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>& head, const Normaliser<kWidth>& norm, int r, bool)
      : outputs_(head, norm, r) {}
  void store(int16_t* out, Bytes delta, AllLanes, Full) const {
    Avx2::store(out, half<0>(delta));
    Avx2::store(out + 16, half<1>(delta));
  }
  void store(int16_t* out, Bytes delta, Lanes on, Full) const {
    Avx2::store(out, keep(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(on)), half<0>(delta)));
    Avx2::store(out + 16, keep(_mm256_cvtepi8_epi16(_mm256_extracti128_si256(on, 1)), half<1>(delta)));
  }
  void store(int16_t* out, Bytes delta, Lanes on, Tail tail) const {
    alignas(32) int16_t words[32];
    store(words, delta, on, Full{});
    std::memcpy(out, words, tail.count * sizeof(int16_t));
  }

 private:
  template <int kHalf>
  __m256i half(Bytes delta) const {
    const auto wide = [](Bytes bytes) { return _mm256_cvtepu8_epi16(_mm256_extracti128_si256(bytes, kHalf)); };
    const __m256i p = outputs_.of(wide(delta), wide(outputs_.clamped(delta)));
    return _mm256_min_epu16(p, _mm256_set1_epi16(32767));
  }
  Outputs<kWidth> outputs_;
};

template <Width kWidth, Masking kMasking>
struct Avx2Rows : BlockRows<Avx2, kWidth, kMasking> {};
template <Width kWidth, Masking kMasking>
struct WideAvx2Rows : BlockRows<WideAvx2, kWidth, kMasking> {};

}  // namespace

void softmax_rows_avx2(const SoftmaxJob& job, int64_t begin, int64_t end) {
  if (job.wide_heads) return for_job<WideAvx2Rows>(job, begin, end);
  for_job<Avx2Rows>(job, begin, end);
}

}  // namespace hccs
