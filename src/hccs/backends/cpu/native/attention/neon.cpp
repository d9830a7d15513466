// NEON with the dot product (Armv8.2 and later): four signed byte products to each of 4 sums.
#include <arm_neon.h>

#include "attention/blocks.hpp"

namespace hccs {
namespace {

struct Neon : PlainSteps<int8_t, 4, 4> {
  static constexpr int kRows = 4, kPanels = 4;
  static constexpr int kWeightOffset = 128;  // probabilities up to 255 become signed bytes; distances are ones
  using Sums = int32x4_t;
  using Panel = int8x16_t;

  static HCCS_INLINE Sums splat(int32_t value) { return vdupq_n_s32(value); }
  static HCCS_INLINE Sums load(const int32_t* from) { return vld1q_s32(from); }
  static HCCS_INLINE void add_to(int32_t* to, Sums sums) { vst1q_s32(to, vaddq_s32(load(to), sums)); }
  static HCCS_INLINE Panel panel(const int8_t* from) { return vld1q_s8(from); }
  static HCCS_INLINE Panel broadcast(const int8_t* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static HCCS_INLINE Sums dot_keys(Sums sums, Panel keys, Panel query) { return vdotq_s32(sums, keys, query); }
  static HCCS_INLINE Sums dot_values(Sums sums, Panel values, Panel weights) {
    return vdotq_s32(sums, values, weights);
  }

  // The rounding shift of 64 bits is round half up; narrowing saturates.
  struct Factor {
    Factor(int32_t multiplier, int shift) : multiplier(vdup_n_s32(multiplier)), shift(vdupq_n_s64(-shift)) {}
    HCCS_INLINE void store(Sums sums, int8_t* x) const {
      const int32x4_t whole = vcombine_s32(rounded(vget_low_s32(sums)), rounded(vget_high_s32(sums)));
      const int16x4_t words = vqmovn_s32(whole);
      const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
      vst1_lane_s32(reinterpret_cast<int32_t*>(x), vreinterpret_s32_s8(bytes), 0);
    }
    HCCS_INLINE int32x2_t rounded(int32x2_t sums) const {
      return vqmovn_s64(vrshlq_s64(vmull_s32(sums, multiplier), shift));
    }
    int32x2_t multiplier;
    int64x2_t shift;
  };
};

}  // namespace

const AttentionKernel attention_neon{AttentionRows<Neon>::workspace, AttentionRows<Neon>::run};

}  // namespace hccs
