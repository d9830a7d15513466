// NEON with the dot product (Armv8.2 and later): four signed byte products to each of 4 sums.
#include "linear/neon.hpp"

namespace hccs {
namespace {

struct Neon : NeonOutputs, DotProducts<Neon> {
  using Panel = int8x16_t;
  static constexpr int kStep = 4;

  static HCCS_INLINE Panel panel(const int8_t* from) { return vld1q_s8(from); }
  static HCCS_INLINE Panel broadcast(const int8_t* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static HCCS_INLINE Sums dot(Sums sums, Panel weights, Panel x) { return vdotq_s32(sums, weights, x); }
};

}  // namespace

constinit const LinearKernel linear_neon = LinearRows<Neon>::kernel();

}  // namespace hccs
