// NEON with the product of matrices (i8mm, Armv8.6 and later): eight signed byte products to each of 2 x 2 sums.
#include "attention/neon.hpp"

namespace hccs {
namespace {

struct I8mm : NeonSteps<8> {
  static constexpr bool kOwnTile = true;

  // Rows go in pairs, one alone with itself, and the lanes of a panel too.
  template <int kTileRows, int kPanels>
  static HCCS_INLINE void tile(Sums (&sums)[kTileRows][kPanels], const int8_t* panels, int64_t panel_stride,
                               const int8_t* rows, int64_t row_stride, int64_t steps) {
    constexpr int kRowPairs = (kTileRows + 1) / 2;
    Sums squares[kRowPairs][kPanels][2];
    for (auto& row : squares)
      for (auto& panel : row)
        for (Sums& square : panel) square = vdupq_n_s32(0);
    for (int64_t step = 0; step < steps; ++step, rows += kStep, panels += kLanes * kStep) {
      int8x16_t two[kRowPairs];
#pragma GCC unroll 2
      for (int r = 0; r < kRowPairs; ++r) {
        const int8_t* const second = rows + (2 * r + 1 < kTileRows ? 2 * r + 1 : 2 * r) * row_stride;
        two[r] = vcombine_s8(vld1_s8(rows + 2 * r * row_stride), vld1_s8(second));
      }
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const int8x16_t pair = vld1q_s8(panels + c * panel_stride + 16 * half);
#pragma GCC unroll 2
          for (int r = 0; r < kRowPairs; ++r) squares[r][c][half] = vmmlaq_s32(squares[r][c][half], two[r], pair);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c) {
        const Sums left = squares[r / 2][c][0], right = squares[r / 2][c][1];
        const Sums row = r % 2 ? vcombine_s32(vget_high_s32(left), vget_high_s32(right))
                               : vcombine_s32(vget_low_s32(left), vget_low_s32(right));
        sums[r][c] = vaddq_s32(sums[r][c], row);
      }
  }
};

}  // namespace

const AttentionKernel attention_i8mm{AttentionRows<I8mm>::workspace, AttentionRows<I8mm>::run};

}  // namespace hccs
