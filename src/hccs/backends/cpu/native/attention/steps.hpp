// The steps of attention between the products, in plain C++: for instruction sets that gain nothing from their own.
//
// Panels come in groups of Isa::kPanels, or half, a quarter of it where fewer are left. An instruction set may give the
// lanes of a group to keys and columns in an order of its own, as long as store_bytes and store_ints undo it.
#pragma once

#include "attention/keys.hpp"
#include "attention/scaling.hpp"
#include "common/inline.hpp"

namespace hccs {
namespace {

template <class Of, int kLaneCount, int kStepSize>
struct PlainSteps {
  using Element = Of;
  static constexpr int kLanes = kLaneCount, kStep = kStepSize;
  static constexpr int kQueryOffset = 0;             // staged queries are q + kQueryOffset
  static constexpr int kWeightOffset = 0;            // of probabilities and scores as elements
  static constexpr int kDepth = kStepSize;           // rows of q and columns of v are zeros up to a multiple of it
  static constexpr int kTiledRows = 0;               // rows that Isa::tile_products multiplies at a time
  static constexpr bool kOwnTile = false;            // its products are no sums of broadcast rows times panels
  static constexpr bool kWordScores = false;         // elements hold scores of 16 bits
  static constexpr bool kPairsOfScores = false;      // Isa::scores can look up both bytes together
  static constexpr int32_t kLargestSum = INT32_MAX;  // rows up to this Z are rounded to int8 by Factor

  // A row of q as elements, zeros up to `padded`.
  static void stage_query(const int8_t* from, int64_t dim, int64_t padded, Element* to) {
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) to[i] = static_cast<Element>(from[i]);
    for (int64_t i = dim; i < padded; ++i) to[i] = Element{0};
  }

  // Rows of kGroup * kLanes keys -> [kGroup][steps][kLanes][kStep], zeros behind dim.
  template <int kGroup>
  static void pack_keys(const int8_t* const* rows, int64_t dim, int64_t steps, Element* out) {
    for (int panel = 0; panel < kGroup; ++panel, rows += kLanes)
      for (int64_t first = 0; first < steps * kStep; first += kStep)
        for (int lane = 0; lane < kLanes; ++lane)
          for (int64_t i = first; i < first + kStep; ++i) *out++ = static_cast<Element>(i < dim ? rows[lane][i] : 0);
  }
  // The first `columns` of kStep rows -> [kGroup] times [kLanes][kStep], panel_stride apart; zeros behind them.
  template <int kGroup>
  static void pack_values(const int8_t* const* rows, int64_t columns, Element* out, int64_t panel_stride) {
    for (int64_t panel = 0; panel < kGroup; ++panel, out += panel_stride)
      for (int64_t lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < kStep; ++i) {
          const int64_t column = panel * kLanes + lane;
          out[lane * kStep + i] = static_cast<Element>(column < columns ? rows[i][column] : 0);
        }
  }

  // delta = min(m - x, D) over the attended keys (eq. 2), 0 for the others up to the end of the last block.
  static void distances(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended, int D,
                        Element* weights, RowSums& sums) {
    weigh(x, on, columns, rows, attended, [=](int d) HCCS_INLINE_LAMBDA { return d < D ? d : D; }, weights, sums);
  }
  // Bytes of scores, from a table of 256 distances, and 0 as above. An instruction set with kWeightOffset takes it off
  // the scores of attended keys.
  static void scores(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended,
                     const uint8_t* table, Element* weights, RowSums& sums) {
    const auto look_up = [=](int d) HCCS_INLINE_LAMBDA { return static_cast<int>(table[d]); };
    weigh(x, on, columns, rows, attended, look_up, weights, sums);
  }

 private:
  template <class Weight>
  static HCCS_INLINE void weigh(const int8_t* x, const uint8_t* on, int64_t columns, int rows, const Attended& attended,
                                const Weight& weight, Element* weights, RowSums& sums) {
    const int64_t plain = attended.alike ? attended.keys : attended.full * kKeyBlock;
    const int64_t end = round_up(attended.keys, kKeyBlock);
    for (int r = 0; r < rows; ++r, x += columns, on += columns, weights += columns) {
      int m = -128, count = static_cast<int>(plain), sum = 0;
#pragma omp simd reduction(max : m)
      for (int64_t j = 0; j < plain; ++j) m = x[j] > m ? x[j] : m;
      if (!attended.alike)
#pragma omp simd reduction(max : m) reduction(+ : count)
        for (int64_t j = plain; j < end; ++j) {
          const int candidate = on[j] ? x[j] : -128;
          m = candidate > m ? candidate : m;
          count += on[j];
        }
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < plain; ++j) {
        const int found = weight(m - x[j]);
        weights[j] = static_cast<Element>(found);
        sum += found;
      }
      if (attended.alike)
        for (int64_t j = plain; j < end; ++j) weights[j] = Element{0};
      else
#pragma omp simd reduction(+ : sum)
        for (int64_t j = plain; j < end; ++j) {
          const int found = weight((m - x[j]) & -on[j]) & -on[j];
          weights[j] = static_cast<Element>(found);
          sum += found;
        }
      sums.count[r] = count;
      sums.weights[r] = sum;
    }
  }
};

}  // namespace
}  // namespace hccs
