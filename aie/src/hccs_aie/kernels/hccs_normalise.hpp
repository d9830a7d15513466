// The third pass and the whole kernel. See hccs_softmax.hpp for the arithmetic.
#pragma once

#include "hccs_reciprocals.hpp"

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

// factor * c of row r in every lane; `fours` holds c of r's four rows.
HCCS_INLINE sums spread_offset(const aie::vector<int16, 16>& fours, unsigned r, const uint8 (&matrices)[4][32]) {
  aie::mmul<4, 4, 8, int16, uint8> product;
  product.mul(fours, aie::load_v<32>(matrices[r % 4]));
  return product.to_accum();
}

// What a row's terms are made of. Read for all rows of an iteration before any is used: a scalar that is used where it
// is read takes the same register for every row, and the rows then wait for each other.
struct row_scalars {
  HCCS_SCALAR z, offset, reciprocal, slope, length;
};

HCCS_INLINE auto leading_zeros(const row_scalars& of) { return HCCS_SIGNED(clb(of.z)); }

// u8_lin: 255 times the reciprocal of z = Z / 2^k by a line. Z has 15 bits at most, 17 leading zeros at least.
HCCS_INLINE auto linear_reciprocal(const row_scalars& of) {
  return ((47976 - (of.z << (leading_zeros(of) - 17))) * 255) >> 15;
}

// What one row's 32-element pieces share, and the rule from widened y (and y2 of a second line) to probabilities.
// `fours` says that c comes from the rows' 4x4 matrix and not as a scalar.
template <mode M, typename Theta>
struct normaliser;

template <>
struct normaliser<mode::u8_clb, head> {
  static constexpr bool fours = true;
  struct row {
    sums start;
    HCCS_SCALAR k;
  };
  halves slope255;
  HCCS_INLINE explicit normaliser(const head& theta) : slope255(aie::broadcast<int16, 32>(int16(255 * theta.S))) {}
  HCCS_INLINE void read(const scratch& __restrict s, unsigned r, row_scalars& of) const {
    of.z = HCCS_LOAD(s.sum + r * total_columns);
  }
  HCCS_INLINE row terms(const aie::vector<int16, 16>& offsets, unsigned r, const row_scalars& of) const {
    return {spread_offset(offsets, r, spread_255), 31 - leading_zeros(of)};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y) const {
    return aie::mac(terms.start, y, slope255).template to_vector<uint8>(terms.k);
  }
};

template <>
struct normaliser<mode::u8_clb, two_lines> : normaliser<mode::u8_clb, head> {
  halves slope255_2;
  HCCS_INLINE explicit normaliser(const two_lines& theta)
      : normaliser<mode::u8_clb, head>({theta.B, theta.S, theta.D}),
        slope255_2(aie::broadcast<int16, 32>(int16(255 * theta.S2))) {}
  HCCS_INLINE auto operator()(const row& terms, const halves& y, const halves& y2) const {
    return aie::mac(aie::mac(terms.start, y, slope255), y2, slope255_2).template to_vector<uint8>(terms.k);
  }
};

// u8_lin: rho has eight bits, so that rho*S is an operand of 16 and p = (rho*c + (rho*S)*y) >> k.
struct linear_row {
  sums start;
  halves slope;
  HCCS_SCALAR k;
};
template <>
struct normaliser<mode::u8_lin, head> {
  static constexpr bool fours = false;
  using row = linear_row;
  int32 S;
  HCCS_INLINE explicit normaliser(const head& theta) : S(theta.S) {}
  HCCS_INLINE void read(const scratch& __restrict s, unsigned r, row_scalars& of) const {
    of.z = HCCS_LOAD(s.sum + r * total_columns);
    of.offset = HCCS_LOAD(s.offset + r);
  }
  HCCS_INLINE row terms(const aie::vector<int16, 16>&, unsigned, const row_scalars& of) const {
    const auto rho = linear_reciprocal(of);
    const halves offset = aie::broadcast<int16, 32>(of.offset);
    return {aie::mul<acc32>(offset, aie::broadcast<int16, 32>(rho)), aie::broadcast<int16, 32>(rho * S),
            31 - leading_zeros(of)};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y) const {
    return aie::mac(terms.start, y, terms.slope).template to_vector<uint8>(terms.k);
  }
};

struct two_linear_row {
  sums start;
  halves slope, slope2;
  HCCS_SCALAR k;
};
template <>
struct normaliser<mode::u8_lin, two_lines> : normaliser<mode::u8_lin, head> {
  using row = two_linear_row;
  int32 S2;
  HCCS_INLINE explicit normaliser(const two_lines& theta)
      : normaliser<mode::u8_lin, head>({theta.B, theta.S, theta.D}), S2(theta.S2) {}
  HCCS_INLINE row terms(const aie::vector<int16, 16>&, unsigned, const row_scalars& of) const {
    const auto rho = linear_reciprocal(of);
    const halves offset = aie::broadcast<int16, 32>(of.offset);
    return {aie::mul<acc32>(offset, aie::broadcast<int16, 32>(rho)), aie::broadcast<int16, 32>(rho * S),
            aie::broadcast<int16, 32>(rho * S2), 31 - leading_zeros(of)};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y, const halves& y2) const {
    return aie::mac(aie::mac(terms.start, y, terms.slope), y2, terms.slope2).template to_vector<uint8>(terms.k);
  }
};

// Scores first, then their product with a rho of too many bits for a product with c and S: u8_div of one line, and
// every other mode of two.
struct scaled_scores {
  static constexpr bool fours = true;
  struct row {
    sums start;
    halves rho;
    HCCS_SCALAR shift;
  };
  halves slope;
  HCCS_INLINE explicit scaled_scores(int32 S) : slope(aie::broadcast<int16, 32>(int16(S))) {}
};

template <>
struct normaliser<mode::u8_div, head> : scaled_scores {
  HCCS_INLINE explicit normaliser(const head& theta) : scaled_scores(theta.S) {}
  HCCS_INLINE void read(const scratch& __restrict s, unsigned r, row_scalars& of) const {
    of.z = HCCS_LOAD(s.sum + r * total_columns);
    of.reciprocal = HCCS_LOAD(s.reciprocal + r);
  }
  HCCS_INLINE row terms(const aie::vector<int16, 16>& offsets, unsigned r, const row_scalars& of) const {
    const auto short_by = leading_zeros(of) - 23;  // 8 - k
    return {spread_offset(offsets, r, spread_1), aie::broadcast<int16, 32>(of.reciprocal),
            15 - (short_by & ~(short_by >> 31))};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y) const {
    const halves score = aie::mac(terms.start, y, slope).template to_vector<int16>(0);
    return aie::mul<acc32>(score, terms.rho).template to_vector<uint8>(terms.shift);
  }
};

// p = (s * rho) >> (k + t).
template <mode M>
struct normaliser<M, two_lines> : scaled_scores {
  static constexpr bool divides = M == mode::u8_div || M == mode::i16_div;
  halves slope2, full;
  HCCS_INLINE explicit normaliser(const two_lines& theta)
      : scaled_scores(theta.S), slope2(aie::broadcast<int16, 32>(int16(theta.S2))) {
    if constexpr (!divides) full = aie::broadcast<int16, 32>(int16(32767));
  }
  HCCS_INLINE void read(const scratch& __restrict s, unsigned r, row_scalars& of) const {
    of.z = HCCS_LOAD(s.sum + r * total_columns);
    if constexpr (divides) of.reciprocal = HCCS_LOAD(s.reciprocal + r);
  }
  HCCS_INLINE row terms(const aie::vector<int16, 16>& offsets, unsigned r, const row_scalars& of) const {
    const auto shift = (M == mode::u8_div ? 38 : 31) - leading_zeros(of);
    const sums start = spread_offset(offsets, r, spread_1);
    if constexpr (divides)
      return {start, aie::broadcast<int16, 32>(of.reciprocal), shift};
    else
      return {start, full, shift};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y, const halves& y2) const {
    const halves score = aie::mac(aie::mac(terms.start, y, slope), y2, slope2).template to_vector<int16>(0);
    return aie::mul<acc32>(score, terms.rho).template to_vector<typename output<M>::type>(terms.shift);
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
struct normaliser<mode::i16_div, head> {
  static constexpr bool fours = false;
  using row = int16_row;
  HCCS_INLINE explicit normaliser(const head&) {}
  HCCS_INLINE void read(const scratch& __restrict s, unsigned r, row_scalars& of) const {
    of.offset = HCCS_LOAD(s.offset + r);
    of.reciprocal = HCCS_LOAD(s.reciprocal + r);
    of.slope = HCCS_LOAD(s.slope + r);
  }
  HCCS_INLINE row terms(const aie::vector<int16, 16>&, unsigned, const row_scalars& of) const {
    const halves offset = aie::broadcast<int16, 32>(of.offset);
    return {aie::mul<acc32>(offset, aie::broadcast<int16, 32>(of.reciprocal)), aie::broadcast<uint16, 32>(of.slope)};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y) const { return int16_probabilities(terms, y); }
};

template <>
struct normaliser<mode::i16_clb, head> {
  static constexpr bool fours = false;
  using row = int16_row;
  int32 S;
  HCCS_INLINE explicit normaliser(const head& theta) : S(theta.S) {}
  HCCS_INLINE void read(const scratch& __restrict s, unsigned r, row_scalars& of) const {
    of.z = HCCS_LOAD(s.sum + r * total_columns);
    of.offset = HCCS_LOAD(s.offset + r);
  }
  HCCS_INLINE row terms(const aie::vector<int16, 16>&, unsigned, const row_scalars& of) const {
    const auto rho = 32767 >> (31 - leading_zeros(of));
    const halves offset = aie::broadcast<int16, 32>(of.offset);
    return {aie::mul<acc32>(offset, aie::broadcast<int16, 32>(rho)), aie::broadcast<uint16, 32>(rho * S)};
  }
  HCCS_INLINE auto operator()(const row& terms, const halves& y) const { return int16_probabilities(terms, y); }
};

// An iteration takes pairs of blocks of rows x pieces. At most eight pieces a block: from its first product to its last
// store it fills eight of nine accumulators.
template <mode M, unsigned Chunks, typename Theta>
struct shape {
  // Two products a piece, two levels, or a slope of each row's own leave fewer registers.
  static constexpr bool heavy = M == mode::u8_div || has_two<Theta>;
  static constexpr bool own_slopes = M == mode::u8_lin && Chunks == 2;
  static constexpr unsigned most = heavy && Chunks % 2 == 0 ? 2 : 4;
  static constexpr unsigned pieces = Chunks == 0 ? 1 : Chunks < most ? Chunks : most;
  static constexpr unsigned rows =
      pieces > 2 || own_slopes || (heavy && pieces == 2) || (M != mode::u8_clb && Chunks == 1) ? 2 : 4;
  static constexpr unsigned segments = Chunks > pieces ? Chunks / pieces : 1;  // iterations that share a row
};

// What is read of an iteration's rows before anything is computed.
template <unsigned Rows, typename Theta>
struct row_inputs {
  row_scalars scalars[Rows];
  bytes low[Rows / 2], low2[has_two<Theta> ? Rows / 2 : 1];
  aie::vector<int16, 16> offsets[Rows / 4];
};

template <mode M, unsigned Rows, bool Masked, typename Theta>
HCCS_INLINE void read_rows(const normaliser<M, Theta>& rule, const scratch_of<Theta>& __restrict s,
                           const int16* __restrict lengths, unsigned first, row_inputs<Rows, Theta>& in) {
  HCCS_UNROLL(r, Rows) { rule.read(s, first + r, in.scalars[r]); }
  if constexpr (Masked) {
    HCCS_UNROLL(r, Rows) { in.scalars[r].length = HCCS_LOAD(lengths + first + r); }
  }
  if constexpr (normaliser<M, Theta>::fours) {
    HCCS_UNROLL(four, Rows / 4) { in.offsets[four] = aie::load_v<16>(s.offset_fours + (first / 4 + four) * 16); }
  }
  HCCS_UNROLL(pair, Rows / 2) { in.low[pair] = aie::load_v<64>(s.low + (first + 2 * pair) * lanes); }
  if constexpr (has_two<Theta>) {
    HCCS_UNROLL(pair, Rows / 2) { in.low2[pair] = aie::load_v<64>(s.low2 + (first + 2 * pair) * lanes); }
  }
}

template <mode M, unsigned Rows, unsigned Pieces>
struct block_outputs {
  aie::vector<typename output<M>::type, 32> of[Pieces][Rows];
};

// Clamped logits of the block's pieces: two rows to a register.
template <unsigned Rows, unsigned Pieces, unsigned All, typename Theta>
HCCS_INLINE void clamped(const int8* __restrict x, const row_inputs<All, Theta>& in, unsigned skip, unsigned n,
                         unsigned piece, bytes (&y)[Pieces][Rows / 2]) {
  HCCS_UNROLL(p, Pieces) {
    HCCS_UNROLL(pair, Rows / 2) { y[p][pair] = load_pair(x + 2 * pair * n, n, piece + p); }
  }
  HCCS_UNROLL(p, Pieces) {
    HCCS_UNROLL(pair, Rows / 2) { y[p][pair] = aie::max(y[p][pair], in.low[skip / 2 + pair]); }
  }
}

// Row r of the two in a register, widened.
HCCS_INLINE halves widened(const bytes& two_rows, unsigned r) { return two_rows.template extract<32>(r % 2).unpack(); }

template <mode M, unsigned Rows, unsigned Pieces, bool Masked, unsigned All, typename Theta>
HCCS_INLINE void probabilities(const normaliser<M, Theta>& rule, const row_inputs<All, Theta>& in, unsigned skip,
                               unsigned piece, const bytes (&y)[Pieces][Rows / 2], block_outputs<M, Rows, Pieces>& p) {
  using result = typename output<M>::type;
  typename normaliser<M, Theta>::row terms[Rows];
  HCCS_UNROLL(r, Rows) { terms[r] = rule.terms(in.offsets[(skip + r) / 4], skip + r, in.scalars[skip + r]); }
  HCCS_UNROLL(i, Pieces) {
    bytes y2[Rows / 2];
    if constexpr (has_two<Theta>) {
      // The second line is clamped at a higher level, so that its y is also that of the first's.
      HCCS_UNROLL(pair, Rows / 2) { y2[pair] = aie::max(y[i][pair], in.low2[skip / 2 + pair]); }
    }
    HCCS_UNROLL(r, Rows) {
      if constexpr (has_two<Theta>)
        p.of[i][r] = rule(terms[r], widened(y[i][r / 2], r), widened(y2[r / 2], r));
      else
        p.of[i][r] = rule(terms[r], widened(y[i][r / 2], r));
      if constexpr (Masked)
        p.of[i][r] = aie::select(aie::zeros<result, 32>(), p.of[i][r], inside(in.scalars[skip + r].length, piece + i));
    }
  }
}

template <mode M, unsigned Rows, unsigned Pieces>
HCCS_INLINE void store_block(typename output<M>::type* __restrict out, unsigned n,
                             const block_outputs<M, Rows, Pieces>& p) {
  HCCS_UNROLL(i, Pieces) {
    HCCS_UNROLL(r, Rows) { aie::store_v(out + r * n + i * lanes, p.of[i][r]); }
  }
}

// Pairs of blocks of `Rows` rows: a block's logits, and what its pair of blocks reads of its rows, are read before the
// probabilities of the block before it are written. `in` is the first pair's.
template <mode M, unsigned Rows, unsigned Pieces, bool Masked, typename Theta>
HCCS_INLINE void pairs_of_blocks(const int8* __restrict x, unsigned pairs, const normaliser<M, Theta>& rule,
                                 const scratch_of<Theta>& __restrict s, const int16* __restrict lengths,
                                 unsigned first_row, row_inputs<2 * Rows, Theta>& in, unsigned n, unsigned piece,
                                 typename output<M>::type* __restrict out) {
  bytes first[Pieces][Rows / 2], second[Pieces][Rows / 2];
  clamped<Rows, Pieces>(x, in, 0, n, piece, first);
  HCCS_UNROLL(pair, pairs) {
    const unsigned at = pair * 2 * Rows;
    block_outputs<M, Rows, Pieces> p, q;
    probabilities<M, Rows, Pieces, Masked>(rule, in, 0, piece, first, p);
    clamped<Rows, Pieces>(x + (at + Rows) * n, in, Rows, n, piece, second);
    store_block<M>(out + at * n + piece * lanes, n, p);
    probabilities<M, Rows, Pieces, Masked>(rule, in, Rows, piece, second, q);
    if (pair + 1 < pairs) {
      read_rows<M, 2 * Rows, Masked>(rule, s, lengths, first_row + at + 2 * Rows, in);
      clamped<Rows, Pieces>(x + (at + 2 * Rows) * n, in, 0, n, piece, first);
    }
    store_block<M>(out + (at + Rows) * n + piece * lanes, n, q);
  }
}

template <mode M, unsigned Chunks, bool Masked, typename Theta>
void normalise(const int8* __restrict x, const Theta& theta, const int16* __restrict lengths, unsigned rows,
               unsigned columns, const scratch_of<Theta>& __restrict s, typename output<M>::type* __restrict out) {
  using block = shape<M, Chunks, Theta>;
  constexpr unsigned read = 2 * block::rows;
  const unsigned pairs = short_rows<Chunks> && HCCS_LONG_BODIES ? 8 / block::rows : 1, together = pairs * read;
  const unsigned n = Chunks > 0 ? Chunks * lanes : columns;
  const normaliser<M, Theta> rule(theta);
  if constexpr (Chunks == 0) {
    HCCS_LOOP(row_groups, group, rows / together, 2) {
      const unsigned first = together * group;
      row_inputs<read, Theta> in;
      read_rows<M, read, Masked>(rule, s, lengths, first, in);
      HCCS_LOOP(pieces, piece, n / lanes, 5) {
        pairs_of_blocks<M, block::rows, 1, Masked>(x + first * n, 1, rule, s, lengths, first, in, n, piece,
                                                   out + first * n);
      }
    }
  } else {
    HCCS_LOOP(row_groups, group, rows / together * block::segments, 2) {
      const unsigned first = group / block::segments * together;
      const unsigned piece = group % block::segments * block::pieces;
      row_inputs<read, Theta> in;
      read_rows<M, read, Masked>(rule, s, lengths, first, in);
      pairs_of_blocks<M, block::rows, block::pieces, Masked>(x + first * n, pairs, rule, s, lengths, first, in, n,
                                                             piece, out + first * n);
    }
  }
}

// Softmax of `rows` rows of n int8 logits that share one head. rows: a multiple of 32 up to n = 128, of 16 above.
// n: a multiple of 32 up to 512, and 32 * Chunks when Chunks > 0. lengths: one per row when Masked, unused otherwise.
// Buffers are 64-byte aligned.
template <mode M, unsigned Chunks, bool Masked, typename Theta>
void softmax(const int8* __restrict x, typename output<M>::type* __restrict out, const Theta& theta,
             const int16* __restrict lengths, unsigned rows, unsigned n, scratch_of<Theta>& __restrict s) {
  aie::set_rounding(aie::rounding_mode::floor);
  aie::set_saturation(aie::saturation_mode::saturate);
  for (unsigned done = 0; done < rows; done += tile_rows) {
    const unsigned count = rows - done < tile_rows ? rows - done : tile_rows;
    const int8* __restrict tile = x + done * n;
    typename output<M>::type* __restrict tile_out = out + done * n;
    const int16* __restrict tile_lengths = Masked ? lengths + done : lengths;
    const int8* __restrict seen = tile;
    if constexpr (Masked) {
      int8* masked = reinterpret_cast<int8*>(tile_out);
      copy_masked(tile, tile_lengths, count, n, masked);
      seen = masked;
    }
    clamp_levels<Chunks, Masked, normaliser<M, Theta>::fours>(seen, theta, tile_lengths, count, n, s);
    const int8* low2 = s.low;
    if constexpr (has_two<Theta>) low2 = s.low2;
    row_totals<Chunks, Masked>(seen, theta, count, n, s.low, low2, s.floor, s.sum);
    if constexpr (M == mode::i16_div || M == mode::u8_div)
      reciprocals<M, Masked>(theta, count, n, s.sum, s.reciprocal, s.slope);
    normalise<M, Chunks, Masked>(tile, theta, tile_lengths, count, n, s, tile_out);
  }
}

}  // namespace hccs
