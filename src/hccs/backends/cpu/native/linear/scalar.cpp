// Portable C++: the fallback for machines without a kernel of their own. The compiler makes vectors of the products.
#include "linear/blocks.hpp"

namespace hccs {
namespace {

struct Scalar {
  using Element = int16_t;
  using Sums = int32_t;
  static constexpr Bytes kBytes = Bytes::kPlain;
  static constexpr int kLanes = 1, kStep = 1, kRows = 2, kPanels = 4;

  static constexpr int kTail = 0;

  static int64_t excess(const int8_t*, int64_t) { return 0; }
  static void stage(const uint8_t* from, int turn, int64_t inputs, int16_t* to) {
    for (int64_t i = 0; i < inputs; ++i) to[i] = static_cast<int8_t>(from[i] ^ turn);
  }
  // A channel's weights lie together.
  static constexpr int64_t place(int64_t output, int64_t input, int64_t padded) { return output * padded + input; }
  template <int kTileRows, class Bias, class Prefetch>
  static HCCS_INLINE void products(Sums (&sums)[kTileRows][kPanels], const Bias& bias, const int16_t* weights,
                                   const int16_t* x, int64_t stride, int64_t inputs, const Prefetch&) {
    for (int r = 0; r < kTileRows; ++r) {
      const int16_t* const row = x + r * stride;
      const int32_t* const from = bias(r);
      int32_t a = from[0], b = from[1], c = from[2], d = from[3];
      for (int64_t i = 0; i < inputs; ++i) {
        a += row[i] * weights[i];
        b += row[i] * weights[inputs + i];
        c += row[i] * weights[2 * inputs + i];
        d += row[i] * weights[3 * inputs + i];
      }
      sums[r][0] = a, sums[r][1] = b, sums[r][2] = c, sums[r][3] = d;
    }
  }

  // clamp(rhe(acc * M / 2^shift), -limit, limit)
  static HCCS_INLINE int32_t requantised(int32_t acc, int32_t multiplier, int shift, int32_t limit) {
    const int64_t nearest = shifted_half_even(static_cast<int64_t>(acc) * multiplier, shift);
    return static_cast<int32_t>(nearest < -limit ? -limit : nearest > limit ? limit : nearest);
  }
  template <LinearOutput kOutput, bool, int kTileRows>
  static HCCS_INLINE void finish(const Sums (&sums)[kTileRows][kPanels], const Channels<kPanels>& channels,
                                 const Target<kOutput>& to) {
    const int32_t limit = is_int8(kOutput) ? 127 : kOutput == LinearOutput::kLong ? to.limit : 32767;
    for (int r = 0; r < kTileRows; ++r)
      for (int c = 0; c < kPanels; ++c) {
        const int32_t acc = sums[r][c];
        int32_t y = acc;
        if constexpr (kOutput != LinearOutput::kInt32)
          y = requantised(acc, channels.multiplier[c], channels.shift, limit);
        if constexpr (kOutput == LinearOutput::kInt8Table) y = to.table[y + 128];
        if constexpr (is_int8(kOutput)) y += to.offset;
        if constexpr (adds_stream(kOutput)) y += to.stream[r * to.stream_stride + c];
        if constexpr (kOutput == LinearOutput::kSumInt16) y = y < -32767 ? -32767 : y > 32767 ? 32767 : y;
        to.out[r * to.stride + c] = static_cast<typename Target<kOutput>::Out>(y);
      }
  }
};

}  // namespace

constinit const LinearKernel linear_scalar = LinearRows<Scalar>::kernel();

}  // namespace hccs
