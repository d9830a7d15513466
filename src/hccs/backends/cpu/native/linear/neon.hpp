// What the NEON kernels have in common: what follows the products of a tile.
#pragma once

#include <arm_neon.h>

#include "linear/blocks.hpp"

namespace hccs {
namespace {

struct NeonOutputs {
  using Element = int8_t;
  using Sums = int32x4_t;
  static constexpr Bytes kBytes = Bytes::kPlain;
  static constexpr int kLanes = 4, kRows = 6, kPanels = 4;

  static HCCS_INLINE Sums add(Sums sums, const int32_t* from) { return vaddq_s32(sums, vld1q_s32(from)); }

  // clamp(rhe(acc * M / 2^16), -127, 127) of 16 outputs. Below 2^8 the product has 24 bits and is exact in float32;
  // where acc or the product is rounded, it is clipped, and stays so however it is rounded.
  static HCCS_INLINE int8x16_t to_int8(const Sums (&acc)[4], const float* factor) {
    int16x4_t words[4];
    for (int c = 0; c < 4; ++c) {
      const float32x4_t product = vmulq_f32(vcvtq_f32_s32(acc[c]), vld1q_f32(factor + 4 * c));
      words[c] = vqmovn_s32(vcvtnq_s32_f32(product));  // both saturate
    }
    const int8x16_t bytes =
        vcombine_s8(vqmovn_s16(vcombine_s16(words[0], words[1])), vqmovn_s16(vcombine_s16(words[2], words[3])));
    return vmaxq_s8(bytes, vdupq_n_s8(-127));
  }
  // clamp(rhe(acc * M / 2^shift), -32767, 32767) of 4 outputs, in integers of 64 bits.
  static HCCS_INLINE int16x4_t to_int16(Sums acc, const int32_t* multiplier, int shift) {
    return vmax_s16(vqmovn_s32(saturated(acc, multiplier, shift)), vdup_n_s16(-32767));
  }
  // rhe(acc * M / 2^shift) in int32.
  static HCCS_INLINE int32x4_t saturated(Sums acc, const int32_t* multiplier, int shift) {
    const int32x4_t by = vld1q_s32(multiplier);
    const int32x2_t low = nearest(vmull_s32(vget_low_s32(acc), vget_low_s32(by)), shift);
    const int32x2_t high = nearest(vmull_s32(vget_high_s32(acc), vget_high_s32(by)), shift);
    return vcombine_s32(low, high);
  }
  static HCCS_INLINE int32x2_t nearest(int64x2_t product, int shift) {
    const int64x2_t by = vdupq_n_s64(-shift), below_half = vdupq_n_s64((int64_t{1} << (shift - 1)) - 1);
    const int64x2_t odd = vandq_s64(vshlq_s64(product, by), vdupq_n_s64(1));
    return vqmovn_s64(vshlq_s64(vaddq_s64(product, vaddq_s64(odd, below_half)), by));
  }

  template <LinearOutput kOutput, bool, int kTileRows>
  static HCCS_INLINE void finish(const Sums (&sums)[kTileRows][4], const Channels<16>& channels,
                                 const Target<kOutput>& to) {
    for (int r = 0; r < kTileRows; ++r) {
      auto* const out = to.out + r * to.stride;
      const int16_t* const stream = adds_stream(kOutput) ? to.stream + r * to.stream_stride : nullptr;
      if constexpr (is_int8(kOutput)) {
        uint8x16_t y = vreinterpretq_u8_s8(to_int8(sums[r], channels.factor));
        if constexpr (kOutput == LinearOutput::kInt8Table) y = looked_up(to.table, y);
        vst1q_u8(out, veorq_u8(y, vdupq_n_u8(static_cast<uint8_t>(to.offset))));  // 0 or 0x80
      } else {
        for (int c = 0; c < 4; ++c) {
          if constexpr (kOutput == LinearOutput::kInt32) {
            vst1q_s32(out + 4 * c, sums[r][c]);
            continue;
          }
          if constexpr (kOutput == LinearOutput::kLong) {
            const int32x4_t y = saturated(sums[r][c], channels.multiplier + 4 * c, channels.shift);
            const int32x4_t most = vdupq_n_s32(to.limit);
            vst1q_s32(out + 4 * c, vmaxq_s32(vminq_s32(y, most), vnegq_s32(most)));
            continue;
          }
          const int16x4_t y = to_int16(sums[r][c], channels.multiplier + 4 * c, channels.shift);
          if constexpr (kOutput == LinearOutput::kInt16) vst1_s16(out + 4 * c, y);
          if constexpr (kOutput == LinearOutput::kSumInt32)
            vst1q_s32(out + 4 * c, vaddl_s16(y, vld1_s16(stream + 4 * c)));
          if constexpr (kOutput == LinearOutput::kSumInt16)
            vst1_s16(out + 4 * c, vmax_s16(vqadd_s16(y, vld1_s16(stream + 4 * c)), vdup_n_s16(-32767)));
        }
      }
    }
  }

  // entries[index + 128]; a look-up beyond 64 entries gives nothing, so that four of them add up.
  static HCCS_INLINE uint8x16_t looked_up(const int8_t* entries, uint8x16_t index) {
    uint8x16_t found = vdupq_n_u8(0);
    for (int i = 0; i < 4; ++i) {
      const uint8x16x4_t part = vld1q_u8_x4(reinterpret_cast<const uint8_t*>(entries) + 64 * i);
      found = vorrq_u8(found, vqtbl4q_u8(part, veorq_u8(index, vdupq_n_u8(static_cast<uint8_t>(128 ^ (64 * i))))));
    }
    return found;
  }
};

}  // namespace
}  // namespace hccs
