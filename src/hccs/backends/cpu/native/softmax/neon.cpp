// NEON (AArch64): 16 columns per vector. Reductions across a vector are single instructions there, so a
// block exists only to share the division and to hide latency.
#include <arm_neon.h>

#include "softmax/blocks.hpp"

namespace hccs {
namespace {

// Sliding over this gives a byte mask whose first lanes are on.
alignas(16) constexpr uint8_t kFirstLanes[32] = {255, 255, 255, 255, 255, 255, 255, 255,
                                                 255, 255, 255, 255, 255, 255, 255, 255};

alignas(16) constexpr uint8_t kColumnNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct Neon {
  static constexpr int kRows = 8;
  static constexpr int kBytes = 16;
  static constexpr bool kStreams = false;  // no intrinsic stores past the caches
  static constexpr bool kUnrollsMasked = true;
  static constexpr bool kShifts = false;
  static constexpr int kKeptVectors = 0;
  template <Width>
  static constexpr bool kUnrolls = true;
  using Bytes = uint8x16_t;
  using Sums = uint32x4_t;
  using HeadKind = Head;
  template <Width kWidth>
  using Normaliser = hccs::Normaliser<kWidth, kRows>;

  struct AllLanes {};
  using Lanes = uint8x16_t;

  static AllLanes lanes(Full) { return {}; }
  static Lanes lanes(Tail tail) { return vld1q_u8(kFirstLanes + 16 - tail.count); }
  static Lanes lanes_below(uint32_t length_bytes, int first) {
    return vcltq_u8(vaddq_u8(vld1q_u8(kColumnNumbers), splat(static_cast<int8_t>(first))), splat_word(length_bytes));
  }
  static Lanes lanes(const uint8_t* mask, Full part) { return nonzero(load(mask, part)); }
  static Lanes lanes(const uint8_t* mask, Tail part) { return nonzero(load(mask, part)); }
  static Lanes nonzero(Bytes v) { return vtstq_u8(v, v); }
  static int count(Lanes on) { return vaddvq_u8(vshrq_n_u8(on, 7)); }

  static Bytes load(const void* p, Full) { return vld1q_u8(static_cast<const uint8_t*>(p)); }
  // A tail goes through the stack, so that nothing past the row is read.
  static Bytes load(const void* p, Tail tail) {
    uint8_t bytes[16] = {};
    std::memcpy(bytes, p, tail.count);
    return vld1q_u8(bytes);
  }

  static void store_zeros(void* out) { vst1q_u8(static_cast<uint8_t*>(out), vdupq_n_u8(0)); }

  static Bytes splat(int8_t value) { return vdupq_n_u8(static_cast<uint8_t>(value)); }
  static Bytes splat_word(uint32_t value) { return vdupq_n_u8(static_cast<uint8_t>(value)); }
  static Bytes max(AllLanes, Bytes top, Bytes v) {
    return vreinterpretq_u8_s8(vmaxq_s8(vreinterpretq_s8_u8(top), vreinterpretq_s8_u8(v)));
  }
  static Bytes max(Lanes on, Bytes top, Bytes v) { return max(AllLanes{}, top, vbslq_u8(on, v, splat(-128))); }
  static Bytes keep(AllLanes, Bytes v) { return v; }
  static Bytes keep(Lanes on, Bytes v) { return vandq_u8(on, v); }

  // m - x wraps to the right unsigned byte; eq. 2. Zero where off.
  template <class On>
  static Bytes distance(On on, Bytes m, Bytes x, Bytes D) {
    return keep(on, vminq_u8(vsubq_u8(m, x), D));
  }

  static Sums no_sums() { return vdupq_n_u32(0); }
  template <class HeadVectors>
  static Sums add_lost(Sums sums, Bytes delta, const HeadVectors&) {
    return vpadalq_u16(sums, vpaddlq_u8(delta));
  }

  static void reduce_max(const Bytes (&v)[kRows], uint32_t* m) {
    for (int r = 0; r < kRows; ++r) m[r] = static_cast<uint8_t>(vmaxvq_s8(vreinterpretq_s8_u8(v[r])));
  }
  template <bool kOneHead, class HeadVectors>
  static void reduce_sum(const Sums (&v)[kRows], int32_t* sum, const HeadVectors&) {
    for (int r = 0; r < kRows; ++r) sum[r] = static_cast<int32_t>(vaddvq_u32(v[r]));
  }

  static bool any(const int32_t (&e)[kRows]) { return (vmaxvq_s32(vld1q_s32(e)) | vmaxvq_s32(vld1q_s32(e + 4))) != 0; }

  using HeadTable = Head;
  template <Width kWidth>
  struct HeadVectors {
    HCCS_INLINE explicit HeadVectors(const HeadTable& head)
        : D(splat(static_cast<int8_t>(head.D))),
          B(vdupq_n_s16(static_cast<int16_t>(head.B))),
          S(vdupq_n_s16(static_cast<int16_t>(head.S))) {}
    Bytes D;
    int16x8_t B, S;
  };

  template <Width kWidth, bool kU8 = kWidth == Width::kU8>
  class Emitter;
};

// uint8: the doubling multiply-high gives (2 * s * rho) >> 16 = (s * rho) >> 15; the narrowing saturates at
// 255 (the CLB mode).
template <Width kWidth>
class Neon::Emitter<kWidth, true> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>& head, const Normaliser<kWidth>& norm, int r, bool short_rows)
      : B_(head.B), S_(head.S), rho_(vdupq_n_s16(static_cast<int16_t>(norm.rho[r]))) {
    if (short_rows) {
      B_ = vshlq_s16(B_, vdupq_n_s16(static_cast<int16_t>(norm.e[r])));
      S_ = vshlq_s16(S_, vdupq_n_s16(static_cast<int16_t>(norm.e[r])));
    }
  }
  template <class On>
  void store(uint8_t* out, Bytes delta, On on, Full) const {
    vst1q_u8(out, keep(on, probabilities(delta)));
  }
  void store(uint8_t* out, Bytes delta, Lanes on, Tail tail) const {
    uint8_t bytes[16];
    store(bytes, delta, on, Full{});
    std::memcpy(out, bytes, tail.count);
  }

 private:
  Bytes probabilities(Bytes delta) const {
    return vcombine_u8(scaled(vmovl_u8(vget_low_u8(delta))), scaled(vmovl_u8(vget_high_u8(delta))));
  }
  uint8x8_t scaled(uint16x8_t delta) const {
    return vqmovun_s16(vqdmulhq_s16(vmlsq_s16(B_, S_, vreinterpretq_s16_u16(delta)), rho_));
  }
  int16x8_t B_, S_, rho_;
};

// int16: p = B*rho - (S*rho)*delta. It fits 16 unsigned bits (below 2T), so wrap-around does no harm.
template <Width kWidth>
class Neon::Emitter<kWidth, false> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>&, const Normaliser<kWidth>& norm, int r, bool)
      : B_rho_(vdupq_n_u16(static_cast<uint16_t>(norm.base[r]))),
        S_rho_(vdupq_n_u16(static_cast<uint16_t>(norm.slope[r]))) {}
  void store(int16_t* out, Bytes delta, AllLanes, Full) const { store(out, delta, vdupq_n_u8(255), Full{}); }
  void store(int16_t* out, Bytes delta, Lanes on, Full) const {
    half(out, vget_low_u8(delta), vget_low_u8(on));
    half(out + 8, vget_high_u8(delta), vget_high_u8(on));
  }
  void store(int16_t* out, Bytes delta, Lanes on, Tail tail) const {
    int16_t words[16];
    store(words, delta, on, Full{});
    std::memcpy(out, words, tail.count * sizeof(int16_t));
  }

 private:
  void half(int16_t* out, uint8x8_t delta, uint8x8_t on) const {
    const uint16x8_t p = vminq_u16(vmlsq_u16(B_rho_, S_rho_, vmovl_u8(delta)), vdupq_n_u16(32767));
    const int16x8_t wide_on = vmovl_s8(vreinterpret_s8_u8(on));
    vst1q_s16(out, vandq_s16(vreinterpretq_s16_u16(p), wide_on));
  }
  uint16x8_t B_rho_, S_rho_;
};

// The wide form: scores are made of their two lines wherever they are needed.
struct WideNeon : Neon {
  using HeadKind = WideHead;
  using HeadTable = WideHead;
  template <Width kWidth>
  using Normaliser = WideNormaliser<kWidth, kRows>;

  template <Width kWidth>
  struct HeadVectors {
    HCCS_INLINE explicit HeadVectors(const HeadTable& head)
        : D(splat(static_cast<int8_t>(head.D))),
          D2(splat(static_cast<int8_t>(head.D2))),
          S(vdup_n_u8(static_cast<uint8_t>(head.S))),
          S2(vdup_n_u8(static_cast<uint8_t>(head.S2))),
          B(vdupq_n_u16(static_cast<uint16_t>(head.B))),
          top(vdupq_n_u16(static_cast<uint16_t>(head.B >> head.f))),
          f(vdupq_n_s16(static_cast<int16_t>(-head.f))) {}
    // Scores of 8 distances, and of the same clamped at D2.
    HCCS_INLINE uint16x8_t scores(uint8x8_t delta, uint8x8_t delta2) const {
      return vshlq_u16(vmlsl_u8(vmlsl_u8(B, S, delta), S2, delta2), f);
    }
    Bytes D, D2;
    uint8x8_t S, S2;
    uint16x8_t B, top;
    int16x8_t f;
  };

  template <class HeadVectors>
  static HCCS_INLINE Sums add_lost(Sums sums, Bytes delta, const HeadVectors& head) {
    const Bytes delta2 = vminq_u8(delta, head.D2);
    sums = vpadalq_u16(sums, vsubq_u16(head.top, head.scores(vget_low_u8(delta), vget_low_u8(delta2))));
    return vpadalq_u16(sums, vsubq_u16(head.top, head.scores(vget_high_u8(delta), vget_high_u8(delta2))));
  }

  template <Width kWidth>
  class Outputs {
   public:
    HCCS_INLINE Outputs(const HeadVectors<kWidth>& head, const Normaliser<kWidth>& norm, int r)
        : head_(head),
          rho_(vdup_n_u16(static_cast<uint16_t>(norm.rho[r]))),
          up_(vdupq_n_s16(static_cast<int16_t>(norm.e[r]))),
          down_(vdupq_n_s32(-16 - norm.down[r])) {}
    HCCS_INLINE uint16x8_t of(uint8x8_t delta) const {
      const uint16x8_t s = vshlq_u16(head_.scores(delta, vmin_u8(delta, vget_low_u8(head_.D2))), up_);
      const uint16x4_t low = vmovn_u32(vshlq_u32(vmull_u16(vget_low_u16(s), rho_), down_));
      const uint16x8_t p = vcombine_u16(low, vmovn_u32(vshlq_u32(vmull_u16(vget_high_u16(s), rho_), down_)));
      return vminq_u16(p, vdupq_n_u16(kWidth == Width::kU8 ? 255 : 32767));
    }

   private:
    const HeadVectors<kWidth>& head_;
    uint16x4_t rho_;
    int16x8_t up_;
    int32x4_t down_;
  };

  template <Width kWidth, bool kU8 = kWidth == Width::kU8>
  class Emitter;
};

template <Width kWidth>
class WideNeon::Emitter<kWidth, true> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>& head, const Normaliser<kWidth>& norm, int r, bool)
      : outputs_(head, norm, r) {}
  template <class On>
  void store(uint8_t* out, Bytes delta, On on, Full) const {
    vst1q_u8(out, keep(on, vcombine_u8(vmovn_u16(outputs_.of(vget_low_u8(delta))),
                                       vmovn_u16(outputs_.of(vget_high_u8(delta))))));
  }
  void store(uint8_t* out, Bytes delta, Lanes on, Tail tail) const {
    uint8_t bytes[16];
    store(bytes, delta, on, Full{});
    std::memcpy(out, bytes, tail.count);
  }

 private:
  Outputs<kWidth> outputs_;
};

template <Width kWidth>
class WideNeon::Emitter<kWidth, false> {
 public:
  HCCS_INLINE Emitter(const HeadVectors<kWidth>& head, const Normaliser<kWidth>& norm, int r, bool)
      : outputs_(head, norm, r) {}
  void store(int16_t* out, Bytes delta, AllLanes, Full) const { store(out, delta, vdupq_n_u8(255), Full{}); }
  void store(int16_t* out, Bytes delta, Lanes on, Full) const {
    half(out, vget_low_u8(delta), vget_low_u8(on));
    half(out + 8, vget_high_u8(delta), vget_high_u8(on));
  }
  void store(int16_t* out, Bytes delta, Lanes on, Tail tail) const {
    int16_t words[16];
    store(words, delta, on, Full{});
    std::memcpy(out, words, tail.count * sizeof(int16_t));
  }

 private:
  void half(int16_t* out, uint8x8_t delta, uint8x8_t on) const {
    const int16x8_t wide_on = vmovl_s8(vreinterpret_s8_u8(on));
    vst1q_s16(out, vandq_s16(vreinterpretq_s16_u16(outputs_.of(delta)), wide_on));
  }
  Outputs<kWidth> outputs_;
};

template <Width kWidth, Masking kMasking>
struct NeonRows : BlockRows<Neon, kWidth, kMasking> {};
template <Width kWidth, Masking kMasking>
struct WideNeonRows : BlockRows<WideNeon, kWidth, kMasking> {};

}  // namespace

void softmax_rows_neon(const SoftmaxJob& job, int64_t begin, int64_t end) {
  if (job.wide_heads) return for_job<WideNeonRows>(job, begin, end);
  for_job<NeonRows>(job, begin, end);
}

}  // namespace hccs
