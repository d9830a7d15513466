// NEON with the dot product (Armv8.2 and later): four signed byte products to each of 4 sums.
#include <arm_neon.h>

#include "attention/blocks.hpp"

namespace hccs {
namespace {

struct Neon : PlainSteps<int8_t, 4, 4> {
  static constexpr int kRows = 4, kPanels = 4;
  static constexpr int kWeightOffset = 128;  // probabilities up to 255 become signed bytes; distances are ones
  using Sums = int32x4_t;
  using Ints = int32x4_t;
  using Panel = int8x16_t;

  static HCCS_INLINE Sums splat(int32_t value) { return vdupq_n_s32(value); }
  static HCCS_INLINE Sums sums(const int32_t* from) { return vld1q_s32(from); }
  static HCCS_INLINE Panel panel(const int8_t* from) { return vld1q_s8(from); }
  static HCCS_INLINE Panel broadcast(const int8_t* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static HCCS_INLINE Sums dot(Sums sums, Panel panel, Panel row) { return vdotq_s32(sums, panel, row); }

  static HCCS_INLINE Ints whole(Sums sums) { return sums; }
  static HCCS_INLINE Ints ints(int32_t value) { return vdupq_n_s32(value); }
  static HCCS_INLINE Ints load(const int32_t* from) { return vld1q_s32(from); }
  static HCCS_INLINE void store(int32_t* to, Ints values) { vst1q_s32(to, values); }
  static HCCS_INLINE Ints add(Ints a, Ints b) { return vaddq_s32(a, b); }
  static HCCS_INLINE Ints combine(Ints values, Ints slope, Ints base) { return vmlaq_s32(base, values, slope); }

  // The rounding shift of 64 bits is round half up; narrowing saturates.
  struct Factor {
    Factor(int32_t multiplier, int shift) : multiplier(vdup_n_s32(multiplier)), shift(vdupq_n_s64(-shift)) {}
    Factor(const RowScaling& rows, int64_t r) : Factor(rows.multiplier[r], rows.shift[r]) {}
    HCCS_INLINE int16x4_t words(Ints sums) const {
      return vqmovn_s32(vcombine_s32(rounded(vget_low_s32(sums)), rounded(vget_high_s32(sums))));
    }
    HCCS_INLINE int32x2_t rounded(int32x2_t sums) const {
      return vqmovn_s64(vrshlq_s64(vmull_s32(sums, multiplier), shift));
    }
    int32x2_t multiplier;
    int64x2_t shift;
  };
  template <int kGroup>
  static HCCS_INLINE void store_bytes(const Ints (&sums)[kGroup], const Factor& factor, bool turned, int8_t* to) {
    const int8x8_t turn = vdup_n_s8(turned ? -128 : 0);
    for (int c = 0; c < kGroup; c += 2) {
      const int16x4_t low = factor.words(sums[c]);
      const int16x4_t high = c + 1 < kGroup ? factor.words(sums[c + 1]) : low;
      const int8x8_t bytes = veor_s8(vqmovn_s16(vcombine_s16(low, high)), turn);
      if (c + 1 < kGroup)
        vst1_s8(to + 4 * c, bytes);
      else
        vst1_lane_s32(reinterpret_cast<int32_t*>(to + 4 * c), vreinterpret_s32_s8(bytes), 0);
    }
  }
  template <int kGroup>
  static HCCS_INLINE void store_ints(const Ints (&sums)[kGroup], int32_t* to) {
    for (int c = 0; c < kGroup; ++c) store(to + c * kLanes, sums[c]);
  }
};

}  // namespace

const AttentionKernel attention_neon{AttentionRows<Neon>::workspace, AttentionRows<Neon>::run};

}  // namespace hccs
