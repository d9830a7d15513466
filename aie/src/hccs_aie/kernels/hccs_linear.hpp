// A linear layer of docs/spec.md on one tile: rq(W x + b), int8 products at the multiplier's full rate, and tables.
//
//     x       [rows/8][inputs/8]      tiles of 8 inputs x 8 rows
//     weight  [outputs/4][inputs/8]   tiles of 4 outputs x 8 inputs
//     y       [rows/8][outputs/4]     tiles of 4 outputs x 8 rows: int8, the next layer's x; or int16
// or, as the keys that attention reads, [rows/4][outputs/8] tiles of 4 rows x 8 outputs. A function of one byte follows
// by the table of its 256 values, in a loop of its own: in one loop look-ups leave the products too few registers.
#pragma once

#include "hccs_wide.hpp"

namespace hccs {

// bias and multiplier: [outputs][8], each number eight times. Multiplier: uint16, or int32 where one has more bits.
template <typename Multiplier>
struct linear {
  const int8* weight;
  const int32* bias;
  const Multiplier* multiplier;
  unsigned inputs, outputs;
};

enum class layout { int8_rows, int8_keys, int16_rows };

// rhe(a * M / 2^16) of 4 outputs x 8 rows.
template <typename Multiplier>
HCCS_INLINE aie::vector<int16, 32> requantised(const aie::vector<int32, 32>& a, const Multiplier* __restrict by) {
  const auto half = [&](unsigned k) {
    const aie::vector<Multiplier, 16> M = aie::load_v<16>(by + k * 16);
    return aie::mul<acc64>(a.template extract<16>(k), M).template to_vector<int16>(16);
  };
  return aie::concat(half(0), half(1));
}

// Inputs: the layer's, where a compiler is to know them, else 0. Sixteen outputs of eight rows an iteration.
template <unsigned Inputs, layout Layout, typename Multiplier, typename Out>
void linear_rows(const int8* __restrict x, const linear<Multiplier>& of, unsigned rows, Out* __restrict y) {
  using product = aie::mmul<4, 8, 8, int8, int8>;
  constexpr unsigned tiles = 4;
  const unsigned inputs = Inputs > 0 ? Inputs : of.inputs, strips = of.outputs / (4 * tiles);
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::set_saturation(aie::saturation_mode::symmetric);
  HCCS_LOOP(linear_strips, at, rows / 8 * strips, 4) {
    const unsigned block = at / strips, strip = at % strips;
    const int8* __restrict taken = x + block * 8 * inputs;
    const int8* __restrict weight = of.weight + strip * 4 * tiles * inputs;
    const unsigned first = strip * 32 * tiles;
    product sums[tiles];
    HCCS_UNROLL(t, tiles) { sums[t] = product(aie::load_v<32>(of.bias + first + t * 32)); }
    HCCS_UNROLL(step, inputs / 8) {
      const aie::vector<int8, 64> tile = aie::load_v<64>(taken + step * 64);
      HCCS_UNROLL(t, tiles) { sums[t].mac(aie::load_v<32>(weight + t * 4 * inputs + step * 32), tile); }
    }
    aie::vector<int16, 32> results[tiles];
    HCCS_UNROLL(t, tiles) {
      results[t] = requantised(sums[t].template to_vector<int32>(0), of.multiplier + first + t * 32);
    }
    if constexpr (Layout == layout::int8_keys) {
      HCCS_UNROLL(t, 2) {
        const auto keys = aie::transpose(aie::concat(results[2 * t].pack(), results[2 * t + 1].pack()), 8, 8);
        Out* __restrict out = y + (2 * block * (of.outputs / 8) + 2 * strip + t) * 32;
        aie::store_v(out, keys.template extract<32>(0));
        aie::store_v(out + of.outputs * 4, keys.template extract<32>(1));
      }
    } else {
      HCCS_UNROLL(t, tiles) {
        if constexpr (Layout == layout::int8_rows)
          aie::store_v(y + (at * tiles + t) * 32, results[t].pack());
        else
          aie::store_v(y + (at * tiles + t) * 32, results[t]);
      }
    }
  }
}

// table: by the byte's pattern, each 128-bit line twice. In place.
inline void table_rows(int8* __restrict x, unsigned count, const int8* __restrict table) {
  using lines = aie::lut<4, int8, int8>;
  aie::parallel_lookup<uint8, lines, aie::lut_oor_policy::truncate> lookup(lines(256, table, table), 0);
  HCCS_LOOP(table_pieces, i, count / 32, 8) {
    aie::store_v(x + i * 32, lookup.fetch(aie::load_v<32>(x + i * 32).template cast_to<uint8>()));
  }
}

}  // namespace hccs
