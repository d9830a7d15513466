// What the NEON kernels have in common: all but their products, of kStepSize bytes at a time.
#pragma once

#include <arm_neon.h>

#include "attention/blocks.hpp"

namespace hccs {
namespace {

template <int kStepSize>
struct NeonSteps : PlainSteps<int8_t, 4, kStepSize> {
  using Base = PlainSteps<int8_t, 4, kStepSize>;
  using Base::kLanes;
  static constexpr int kRows = 4, kPanels = 4;
  static constexpr int kWeightOffset = 128;  // bytes up to 255 become signed ones; distances are such already
  using Sums = int32x4_t;
  using Ints = int32x4_t;

  static HCCS_INLINE Sums splat(int32_t value) { return vdupq_n_s32(value); }
  static HCCS_INLINE Sums sums(const int32_t* from) { return vld1q_s32(from); }
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

  // Behind distance 127 every score is the same.
  static void scores(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended,
                     const uint8_t* table, int8_t* weights, RowSums& sums) {
    const uint8x16x4_t near = vld1q_u8_x4(table), far = vld1q_u8_x4(table + 64);
    const int64_t end = round_up(attended.keys, kKeyBlock);
    for (int r = 0; r < rows; ++r, x += columns, on += columns, weights += columns) {
      // -1 in the lanes of attended keys, from key j on.
      const auto lanes = [&](int64_t j) HCCS_INLINE_LAMBDA {
        if (j + 16 <= (attended.alike ? attended.keys : attended.full * kKeyBlock)) return vdupq_n_u8(255);
        if (!attended.alike) return vtstq_u8(vld1q_u8(on + j), vdupq_n_u8(255));
        const int64_t left = attended.keys - j;
        return vcltq_u8(vld1q_u8(kNumbers), vdupq_n_u8(static_cast<uint8_t>(left > 0 ? left : 0)));
      };
      int8x16_t top = vdupq_n_s8(-128);
      for (int64_t j = 0; j < end; j += 16) top = vmaxq_s8(top, vbslq_s8(lanes(j), vld1q_s8(x + j), vdupq_n_s8(-128)));
      const int8x16_t m = vdupq_n_s8(vmaxvq_s8(top));
      int32_t count = 0;
      uint32x4_t sum = vdupq_n_u32(0);
      for (int64_t j = 0; j < end; j += 16) {
        const uint8x16_t attends = lanes(j);
        const uint8x16_t distance = vminq_u8(vreinterpretq_u8_s8(vsubq_s8(m, vld1q_s8(x + j))), vdupq_n_u8(127));
        const uint8x16_t found = vqtbx4q_u8(vqtbl4q_u8(near, distance), far, vsubq_u8(distance, vdupq_n_u8(64)));
        const uint8x16_t turned = veorq_u8(found, vdupq_n_u8(128));
        vst1q_s8(weights + j, vreinterpretq_s8_u8(vandq_u8(turned, attends)));
        sum = vpadalq_u16(sum, vpaddlq_u8(vandq_u8(found, attends)));
        count += vaddvq_u8(vandq_u8(attends, vdupq_n_u8(1)));
      }
      sums.count[r] = count;
      sums.weights[r] = static_cast<int32_t>(vaddvq_u32(sum));
    }
  }
  static constexpr uint8_t kNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
};

}  // namespace
}  // namespace hccs
