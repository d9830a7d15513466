// Portable C++: the fallback for machines without a kernel of their own. The compiler makes vectors of the products.
#include "linear/blocks.hpp"
#include "linear/portable.hpp"

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
                                   const int16_t* x, int64_t stride, int64_t inputs, Ahead, const Prefetch&) {
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

  template <LinearOutput kOutput, bool, int kTileRows>
  static HCCS_INLINE void finish(const Sums (&sums)[kTileRows][kPanels], const Channels<kPanels>& channels,
                                 const Target<kOutput>& to) {
    for (int r = 0; r < kTileRows; ++r)
      for (int c = 0; c < kPanels; ++c) finish_one(sums[r][c], channels, r, c, to);
  }
};

}  // namespace

constinit const LinearKernel linear_scalar = LinearRows<Scalar>::kernel();

}  // namespace hccs
