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
inline void copy_masked(const int8* __restrict x, const int16* __restrict lengths, unsigned rows, unsigned n,
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

HCCS_INLINE auto leading_zeros(const scratch& __restrict s, unsigned r) {
  return HCCS_SIGNED(clb(HCCS_LOAD(s.sum + r * total_columns)));
}

// What one row's 32-element pieces share, and the rule from widened y to probabilities.
template <mode M>
struct normaliser;

template <>
struct normaliser<mode::u8_clb> {
  struct row {
    sums start;
    HCCS_SCALAR k;
  };
  halves slope255;
  HCCS_INLINE explicit normaliser(const head& theta) : slope255(aie::broadcast<int16, 32>(int16(255 * theta.S))) {}
  HCCS_INLINE row load(const scratch& __restrict s, unsigned r) const {
    return {spread_offset(s, r, spread_255), 31 - leading_zeros(s, r)};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y) const {
    return aie::mac(terms.start, y, slope255).template to_vector<uint8>(terms.k);
  }
};

template <>
struct normaliser<mode::u8_div> {
  struct row {
    sums start;
    halves rho;
    HCCS_SCALAR shift;
  };
  halves slope;
  HCCS_INLINE explicit normaliser(const head& theta) : slope(aie::broadcast<int16, 32>(int16(theta.S))) {}
  HCCS_INLINE row load(const scratch& __restrict s, unsigned r) const {
    const auto short_by = leading_zeros(s, r) - 23;  // 8 - k
    return {spread_offset(s, r, spread_1), aie::broadcast<int16, 32>(HCCS_LOAD(s.reciprocal + r)),
            15 - (short_by & ~(short_by >> 31))};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y) const {
    const halves score = aie::mac(terms.start, y, slope).template to_vector<int16>(0);
    return aie::mul<acc32>(score, terms.rho).template to_vector<uint8>(terms.shift);
  }
};

// rho*S may pass 32767 in i16_clb, where rho is up to twice the exact reciprocal; it always fits uint16.
struct int16_row {
  sums start;
  aie::vector<uint16, 32> slope;
};

HCCS_INLINE auto int16_probabilities(const int16_row& terms, const halves& y) {
  return aie::mac(terms.start, y, terms.slope).template to_vector<int16>(0);
}

template <>
struct normaliser<mode::i16_div> {
  using row = int16_row;
  HCCS_INLINE explicit normaliser(const head&) {}
  HCCS_INLINE row load(const scratch& __restrict s, unsigned r) const {
    const halves offset = aie::broadcast<int16, 32>(HCCS_LOAD(s.offset + r));
    return {aie::mul<acc32>(offset, aie::broadcast<int16, 32>(HCCS_LOAD(s.reciprocal + r))),
            aie::broadcast<uint16, 32>(HCCS_LOAD(s.slope + r))};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y) const { return int16_probabilities(terms, y); }
};

template <>
struct normaliser<mode::i16_clb> {
  using row = int16_row;
  int32 S;
  HCCS_INLINE explicit normaliser(const head& theta) : S(theta.S) {}
  HCCS_INLINE row load(const scratch& __restrict s, unsigned r) const {
    const auto rho = 32767 >> (31 - leading_zeros(s, r));
    const halves offset = aie::broadcast<int16, 32>(HCCS_LOAD(s.offset + r));
    return {aie::mul<acc32>(offset, aie::broadcast<int16, 32>(rho)), aie::broadcast<uint16, 32>(rho * S)};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y) const { return int16_probabilities(terms, y); }
};

// Rows and pieces of one iteration: together eight pieces, which the nine accumulators and the vector registers hold
// from the first load to the last store. Rows whose terms fill a register each come four at a time.
template <mode M, unsigned Chunks>
struct shape {
  static constexpr unsigned pieces = Chunks == 0 ? 1 : Chunks < 4 ? Chunks : 4;
  static constexpr unsigned rows = Chunks > 2 ? 2 : Chunks == 1 && M == mode::u8_clb ? 8 : 4;
  static constexpr unsigned segments = Chunks > 4 ? Chunks / 4 : 1;  // iterations that share a row
};

// The terms of several rows, alive while their pieces are worked on.
template <mode M, unsigned Rows>
struct row_terms {
  bytes low[Rows / 2];
  typename normaliser<M>::row row[Rows];
};

template <mode M, unsigned Rows>
HCCS_INLINE row_terms<M, Rows> load_terms(const normaliser<M>& rule, const scratch& __restrict s, unsigned first) {
  row_terms<M, Rows> terms;
  HCCS_UNROLL(pair, Rows / 2) { terms.low[pair] = aie::load_v<64>(s.low + (first + 2 * pair) * lanes); }
  HCCS_UNROLL(r, Rows) { terms.row[r] = rule.load(s, first + r); }
  return terms;
}

// Loads every piece, then computes, then stores.
template <mode M, unsigned Rows, unsigned Pieces, bool Masked>
HCCS_INLINE void put_pieces(const int8* __restrict x, const normaliser<M>& rule, const row_terms<M, Rows>& terms,
                            const int16* __restrict lengths, unsigned n, unsigned first, unsigned piece,
                            typename output<M>::type* __restrict out) {
  using result = typename output<M>::type;
  bytes y[Pieces][Rows / 2];
  HCCS_UNROLL(p, Pieces) {
    HCCS_UNROLL(pair, Rows / 2) { y[p][pair] = load_pair(x + (first + 2 * pair) * n, n, piece + p); }
  }
  HCCS_UNROLL(p, Pieces) {
    HCCS_UNROLL(pair, Rows / 2) { y[p][pair] = aie::max(y[p][pair], terms.low[pair]); }
  }
  aie::vector<result, 32> out_of[Pieces][Rows];
  HCCS_UNROLL(p, Pieces) {
    HCCS_UNROLL(r, Rows) {
      out_of[p][r] = rule(terms.row[r], y[p][r / 2].template extract<32>(r % 2).unpack());
      if constexpr (Masked)
        out_of[p][r] = aie::select(aie::zeros<result, 32>(), out_of[p][r],
                                   inside(HCCS_LOAD(lengths + first + r), piece + p));
    }
  }
  HCCS_UNROLL(p, Pieces) {
    HCCS_UNROLL(r, Rows) { aie::store_v(out + (first + r) * n + (piece + p) * lanes, out_of[p][r]); }
  }
}

template <mode M, unsigned Chunks, bool Masked>
void normalise(const int8* __restrict x, const head& theta, const int16* __restrict lengths, unsigned rows,
               unsigned columns, const scratch& __restrict s, typename output<M>::type* __restrict out) {
  using block = shape<M, Chunks>;
  const unsigned n = Chunks > 0 ? Chunks * lanes : columns;
  const normaliser<M> rule(theta);
  if constexpr (Chunks == 0) {
    HCCS_LOOP(row_groups, group, rows / block::rows, 4) {
      const unsigned first = block::rows * group;
      const row_terms<M, block::rows> terms = load_terms<M, block::rows>(rule, s, first);
      HCCS_LOOP(pieces, piece, n / lanes, 5) {
        put_pieces<M, block::rows, 1, Masked>(x, rule, terms, lengths, n, first, piece, out);
      }
    }
  } else {
    HCCS_LOOP(row_groups, group, rows / block::rows * block::segments, 4) {
      const unsigned first = group / block::segments * block::rows;
      const unsigned piece = group % block::segments * block::pieces;
      const row_terms<M, block::rows> terms = load_terms<M, block::rows>(rule, s, first);
      put_pieces<M, block::rows, block::pieces, Masked>(x, rule, terms, lengths, n, first, piece, out);
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
    const int8* __restrict seen = tile;
    if constexpr (Masked) {
      int8* masked = reinterpret_cast<int8*>(tile_out);
      copy_masked(tile, tile_lengths, count, n, masked);
      seen = masked;
    }
    clamp_levels<Chunks, Masked, fours>(seen, theta, tile_lengths, count, n, s.low, offsets, s.floor);
    row_totals<Chunks, Masked>(seen, theta, count, n, s.low, s.floor, s.sum);
    if constexpr (M == mode::i16_div || M == mode::u8_div)
      reciprocals<M, Masked>(theta, count, n, s.sum, s.reciprocal, s.slope);
    normalise<M, Chunks, Masked>(tile, theta, tile_lengths, count, n, s, tile_out);
  }
}

}  // namespace hccs
