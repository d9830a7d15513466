// One tile's share of a layer: consecutive rows, each softmaxed with the parameters of the head it belongs to.
//
// Layer is the generated parameter header's class: `selected` (mode), `theta` (head or two_lines), `columns`,
// `rows_per_head`, `thetas[]`.
#pragma once

#include "hccs_normalise.hpp"

namespace hccs {

// Row lengths whose chunk loops are worth unrolling: short ones, and the two long powers of two.
constexpr unsigned unrolled_chunks(unsigned n) {
  const unsigned chunks = n / lanes;
  return chunks <= 4 || chunks == 8 || chunks == 16 ? chunks : 0;
}

// Rows first_row .. first_row + rows - 1 of the layer, counted head after head. Both are multiples of
// rows_multiple(columns), and so is rows_per_head.
template <typename Layer>
void softmax_tile(const int8* __restrict x, typename output<Layer::selected>::type* __restrict out, unsigned first_row,
                  unsigned rows, scratch_of<typename Layer::theta>& __restrict s) {
  constexpr unsigned n = Layer::columns;
  static_assert(Layer::rows_per_head % rows_multiple(n) == 0);
  unsigned done = 0;
  while (done < rows) {
    const unsigned at = first_row + done;
    const unsigned left_in_head = Layer::rows_per_head - at % Layer::rows_per_head;
    const unsigned count = rows - done < left_in_head ? rows - done : left_in_head;
    const typename Layer::theta& theta = Layer::thetas[at / Layer::rows_per_head];
    softmax<Layer::selected, unrolled_chunks(n), false>(x + done * n, out + done * n, theta, nullptr, count, n, s);
    done += count;
  }
}

}  // namespace hccs
