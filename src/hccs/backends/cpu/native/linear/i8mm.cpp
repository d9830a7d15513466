// NEON with the product of matrices (i8mm, Armv8.6 and later): eight signed byte products to each of 2 x 2 sums.
#include "linear/neon.hpp"

namespace hccs {
namespace {

struct I8mm : NeonOutputs, DotProducts<I8mm> {
  static constexpr int kStep = 8;

  // Rows go in pairs, an odd one with itself, and outputs too: [steps][kPanels * kLanes][8] weights.
  template <int kTileRows, class Bias, class Prefetch>
  static HCCS_INLINE void products(Sums (&sums)[kTileRows][kPanels], const Bias& bias, const int8_t* weights,
                                   const int8_t* x, int64_t stride, int64_t padded, Ahead, const Prefetch& prefetch) {
    constexpr int kRowPairs = (kTileRows + 1) / 2, kPairs = kPanels * kLanes / 2;
    Sums squares[kRowPairs][kPairs];
#pragma GCC unroll 4
    for (auto& row : squares)
#pragma GCC unroll 8
      for (Sums& square : row) square = vdupq_n_s32(0);
    prefetch();
    for (int64_t i = 0; i < padded; i += kStep, weights += 16 * kPairs) {
      __builtin_prefetch(weights + Ahead::kBytes, 0, 3);
      __builtin_prefetch(weights + Ahead::kBytes + 64, 0, 3);
      int8x16_t rows[kRowPairs];
#pragma GCC unroll 4
      for (int r = 0; r < kRowPairs; ++r) {
        const int8_t* const second = x + (2 * r + 1 < kTileRows ? 2 * r + 1 : 2 * r) * stride;
        rows[r] = vcombine_s8(vld1_s8(x + 2 * r * stride + i), vld1_s8(second + i));
      }
#pragma GCC unroll 8
      for (int c = 0; c < kPairs; ++c) {
        const int8x16_t pair = vld1q_s8(weights + 16 * c);
#pragma GCC unroll 4
        for (int r = 0; r < kRowPairs; ++r) squares[r][c] = vmmlaq_s32(squares[r][c], rows[r], pair);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c)
        sums[r][c] = add(row_of(squares[r / 2][2 * c], squares[r / 2][2 * c + 1], r % 2), bias(r) + c * kLanes);
  }
  // Four outputs of the upper or the lower row of two squares.
  static HCCS_INLINE Sums row_of(Sums left, Sums right, bool lower) {
    return lower ? vcombine_s32(vget_high_s32(left), vget_high_s32(right))
                 : vcombine_s32(vget_low_s32(left), vget_low_s32(right));
  }
};

}  // namespace

constinit const LinearKernel linear_i8mm = LinearRows<I8mm>::kernel();

}  // namespace hccs
