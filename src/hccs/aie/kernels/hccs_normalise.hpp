// The third pass and the whole kernel. See hccs_softmax.hpp for the arithmetic.
#pragma once

#include "hccs_softmax.hpp"

namespace hccs {

// Lanes of piece `piece` that lie inside a row of `length` valid positions.
template <typename Length>
HCCS_INLINE auto inside(const Length& length, unsigned piece) {
  const auto left = length - int32(piece * lanes);
  const auto positive = left & ~(left >> 31);  // max(left, 0) without a branch
  const auto over = positive - int32(lanes);
  const auto clipped = int32(lanes) + (over & (over >> 31));  // min(positive, 32)
  return aie::lt(aie::load_v<32>(lane_index), aie::broadcast<uint8, 32>(clipped));
}

// Padding takes no part in the maximum nor, at -128, in sum(g). The copy goes where the output will be.
HCCS_INLINE void copy_masked(const int8* __restrict x, const int16* __restrict lengths, unsigned rows, unsigned n,
                             int8* __restrict out) {
  const aie::vector<int8, 32> padding = aie::broadcast<int8, 32>(int8(-128));
  HCCS_LOOP(masked_rows, row, rows, 16) {
    const auto length = HCCS_LOAD(lengths + row);
    HCCS_LOOP(masked_pieces, piece, n / lanes, 1) {
      const unsigned at = row * n + piece * lanes;
      aie::store_v(out + at, aie::select(padding, aie::load_v<32>(x + at), inside(length, piece)));
    }
  }
}

// 4x8 matrices whose row r is all `factor`, the rest 0: four rows' c (offset_fours) times one of them is that row's
// factor * c in all 32 lanes.
alignas(32) static const uint8 spread_255[4][32] = {
    {255, 255, 255, 255, 255, 255, 255, 255},
    {0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255}};
alignas(32) static const uint8 spread_1[4][32] = {
    {1, 1, 1, 1, 1, 1, 1, 1},
    {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}};

// factor * c of row r in every lane.
HCCS_INLINE sums spread_offset(const scratch& __restrict s, unsigned r, const uint8 (&matrices)[4][32]) {
  aie::mmul<4, 4, 8, int16, uint8> product;
  product.mul(aie::load_v<16>(s.offset_fours + r / 4 * 16), aie::load_v<32>(matrices[r % 4]));
  return product.to_accum();
}

// What one row's 32-element pieces share, and the rule from widened y to stored probabilities.
template <mode M>
struct normaliser;

template <>
struct normaliser<mode::u8_clb> {
  halves slope255;
  HCCS_INLINE explicit normaliser(const head& theta) : slope255(aie::broadcast<int16, 32>(int16(255 * theta.S))) {}
  HCCS_INLINE auto row(const scratch& __restrict s, unsigned r) const {
    const auto k = 31 - HCCS_SIGNED(clb(HCCS_LOAD(s.sum + r)));
    const sums start = spread_offset(s, r, spread_255);
    return [this, k, start](const halves& y)
               HCCS_INLINE_LAMBDA { return aie::mac(start, y, slope255).template to_vector<uint8>(k); };
  }
};

template <>
struct normaliser<mode::u8_div> {
  halves slope;
  HCCS_INLINE explicit normaliser(const head& theta) : slope(aie::broadcast<int16, 32>(int16(theta.S))) {}
  HCCS_INLINE auto row(const scratch& __restrict s, unsigned r) const {
    const auto short_by = HCCS_SIGNED(clb(HCCS_LOAD(s.sum + r))) - 23;  // 8 - k
    const auto shift = 15 - (short_by & ~(short_by >> 31));
    const halves rho = aie::broadcast<int16, 32>(HCCS_LOAD(s.reciprocal + r));
    const sums start = spread_offset(s, r, spread_1);
    return [this, shift, rho, start](const halves& y) HCCS_INLINE_LAMBDA {
      const halves score = aie::mac(start, y, slope).template to_vector<int16>(0);
      return aie::mul<acc32>(score, rho).template to_vector<uint8>(shift);
    };
  }
};

// rho*S may pass 32767 in i16_clb, where rho is up to twice the exact reciprocal; it always fits uint16.
struct int16_rule {
  sums start;
  aie::vector<uint16, 32> slope;
  HCCS_INLINE auto operator()(const halves& y) const { return aie::mac(start, y, slope).template to_vector<int16>(0); }
};

template <>
struct normaliser<mode::i16_div> {
  HCCS_INLINE explicit normaliser(const head&) {}
  HCCS_INLINE int16_rule row(const scratch& __restrict s, unsigned r) const {
    const halves offset = aie::broadcast<int16, 32>(HCCS_LOAD(s.offset + r));
    return {aie::mul<acc32>(offset, aie::broadcast<int16, 32>(HCCS_LOAD(s.reciprocal + r))),
            aie::broadcast<uint16, 32>(HCCS_LOAD(s.slope + r))};
  }
};

template <>
struct normaliser<mode::i16_clb> {
  int32 S;
  HCCS_INLINE explicit normaliser(const head& theta) : S(theta.S) {}
  HCCS_INLINE int16_rule row(const scratch& __restrict s, unsigned r) const {
    const auto rho = 32767 >> (31 - HCCS_SIGNED(clb(HCCS_LOAD(s.sum + r))));
    const halves offset = aie::broadcast<int16, 32>(HCCS_LOAD(s.offset + r));
    return {aie::mul<acc32>(offset, aie::broadcast<int16, 32>(rho)), aie::broadcast<uint16, 32>(rho * S)};
  }
};

// 64 elements of a row. AIE-MLv2 loads them at once, from rows that all begin on 64 bytes.
template <unsigned Chunks>
HCCS_INLINE bytes load_64(const int8* __restrict p) {
  if constexpr (Chunks > 0 && Chunks % 2 == 0)
    return aie::load_v<64>(p);
  else
    return aie::concat(aie::load_v<32>(p), aie::load_v<32>(p + 32));
}

template <mode M, unsigned Chunks, bool Masked>
HCCS_INLINE void normalise(const int8* __restrict x, const head& theta, const int16* __restrict lengths, unsigned rows,
                           unsigned n, const scratch& __restrict s, typename output<M>::type* __restrict out) {
  using result = typename output<M>::type;
  const normaliser<M> rule(theta);
  const auto one_row = [&](unsigned row) HCCS_INLINE_LAMBDA {
    const bytes low = aie::broadcast<int8, 64>(HCCS_LOAD(s.low + row));
    const auto probabilities = rule.row(s, row);
    const auto put = [&](const halves& y, unsigned piece) HCCS_INLINE_LAMBDA {
      aie::vector<result, 32> p = probabilities(y);
      if constexpr (Masked) p = aie::select(aie::zeros<result, 32>(), p, inside(HCCS_LOAD(lengths + row), piece));
      aie::store_v(out + row * n + piece * lanes, p);
    };
    const auto put_two = [&](unsigned pair) HCCS_INLINE_LAMBDA {
      const bytes y = aie::max(load_64<Chunks>(x + row * n + 64 * pair), low);
      put(y.template extract<32>(0).unpack(), 2 * pair);
      put(y.template extract<32>(1).unpack(), 2 * pair + 1);
    };
    const auto put_last = [&](unsigned piece) HCCS_INLINE_LAMBDA {
      const aie::vector<int8, 32> tail = aie::load_v<32>(x + row * n + piece * lanes);
      put(aie::max(tail, low.template extract<32>(0)).unpack(), piece);
    };
    if constexpr (Chunks > 0) {
      HCCS_UNROLL(pair, Chunks / 2) { put_two(pair); }
      if constexpr (Chunks % 2 == 1) put_last(Chunks - 1);
    } else {
      HCCS_LOOP(pieces, pair, n / 64, 1) { put_two(pair); }
      if (n % 64 != 0) put_last(n / lanes - 1);
    }
  };
  // Several rows an iteration: one alone would mostly wait, pipelined or not. Long int16 rows keep more in registers.
  if constexpr (sizeof(result) == 1 || Chunks == 1 || Chunks == 2) {
    const auto four_rows = [&](unsigned group) HCCS_INLINE_LAMBDA {
      HCCS_UNROLL(row, 4) { one_row(4 * group + row); }
    };
    if constexpr (short_rows<Chunks>) {
      HCCS_LOOP(row_groups, group, rows / 4, 8) { four_rows(group); }
    } else {
      HCCS_LOOP(row_groups, group, rows / 4, 4) { four_rows(group); }
    }
  } else {
    HCCS_LOOP(row_groups, group, rows / 2, 8) {
      one_row(2 * group);
      one_row(2 * group + 1);
    }
  }
}

// Softmax of `rows` rows of n int8 logits that share one head. rows: a multiple of 32 up to n = 128, of 16 above.
// n: a multiple of 32 up to 512, and 32 * Chunks when Chunks > 0. lengths: one per row when Masked, unused otherwise.
// Buffers are 64-byte aligned.
template <mode M, unsigned Chunks, bool Masked>
void softmax(const int8* __restrict x, typename output<M>::type* __restrict out, const head& theta,
             const int16* __restrict lengths, unsigned rows, unsigned n, scratch& __restrict s) {
  aie::set_rounding(aie::rounding_mode::floor);
  aie::set_saturation(aie::saturation_mode::saturate);
  for (unsigned done = 0; done < rows; done += tile_rows) {
    const unsigned count = rows - done < tile_rows ? rows - done : tile_rows;
    const int8* __restrict tile = x + done * n;
    typename output<M>::type* __restrict tile_out = out + done * n;
    const int16* __restrict tile_lengths = Masked ? lengths + done : lengths;
    constexpr bool fours = M == mode::u8_div || M == mode::u8_clb;
    int16* offsets = fours ? s.offset_fours : s.offset;
    if constexpr (Masked) {
      int8* masked = reinterpret_cast<int8*>(tile_out);
      copy_masked(tile, tile_lengths, count, n, masked);
      clamp_levels<Chunks, true, fours>(masked, theta, tile_lengths, count, n, s.low_bytes, s.low, offsets, s.floor);
      row_totals<Chunks, true>(masked, theta, count, n, s.low_bytes, s.floor, s.sum);
    } else {
      clamp_levels<Chunks, false, fours>(tile, theta, tile_lengths, count, n, s.low_bytes, s.low, offsets, s.floor);
      row_totals<Chunks, false>(tile, theta, count, n, s.low_bytes, s.floor, s.sum);
    }
    if constexpr (M == mode::i16_div || M == mode::u8_div)
      reciprocals<M, Masked>(theta, count, n, s.sum, s.reciprocal, s.slope);
    normalise<M, Chunks, Masked>(tile, theta, tile_lengths, count, n, s, tile_out);
  }
}

}  // namespace hccs
