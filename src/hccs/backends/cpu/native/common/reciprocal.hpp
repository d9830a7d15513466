// The reciprocal without a division, of u8_lin: the kernels', and the one by which a calibration judges them.
#pragma once

#include <cstdint>

namespace hccs {

// 255 / z of z = M / 2^15 from 1 to 2, in eight bits, by the line 1.4641 - z / 2.
constexpr int32_t kLinearTop = 47976;
constexpr int32_t linear_reciprocal(int32_t Z, int leading_bit) {
  const int32_t M = leading_bit > 15 ? Z >> (leading_bit - 15) : Z << (15 - leading_bit);
  return (255 * (kLinearTop - (M >> 1))) >> 15;
}

}  // namespace hccs
