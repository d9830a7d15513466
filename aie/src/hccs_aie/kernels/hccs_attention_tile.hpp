// One tile's share of a layer's attention: the query rows of one block of one head, to int8.
//
// Layer is the generated parameter header's class. A tile's input is 64 bytes whose first int32 is the sequence's
// length, then q, k and v, tiled as hccs_attention.hpp says.
#pragma once

#include "hccs_attention.hpp"

namespace hccs {

template <typename Layer>
struct attention_tile_scratch {
  attention_scratch<Layer::keys, Layer::dim, Layer::rows, Layer::planes> inside;
  alignas(64) int32 N[Layer::rows * Layer::dim];
  alignas(64) int32 Z[Layer::rows];
};

template <typename Layer>
void attention_tile(const int8* __restrict in, int8* __restrict out, unsigned tile,
                    attention_tile_scratch<Layer>& __restrict s) {
  constexpr unsigned rows = Layer::rows, keys = Layer::keys, dim = Layer::dim;
  const unsigned head = tile / Layer::blocks, block = tile % Layer::blocks;
  const attended mask{unsigned(*reinterpret_cast<const int32*>(in)), Layer::causal, block * rows};
  const int8* __restrict q = in + 64;
  const int8* __restrict k = q + rows * dim;
  attention<keys, dim, Layer::planes, Layer::product, true>(q, k, k + keys * dim, Layer::thetas[head],
                                                            Layer::logits[head], mask, rows, s.inside, s.N, s.Z);
  attention_as_int8<dim>(s.N, s.Z, Layer::outputs[head], rows, s.inside, out);
}

}  // namespace hccs
