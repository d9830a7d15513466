// HCCS softmax for the AI Engine, written for throughput: many rows at a time, short passes over a tile.
//
// 1. statistics   per sixteen rows: the row maxima m, the clamp level lo = max(m, D - 128) - D, then the row sums Z
// 2. reciprocal   (division modes) sixteen exact quotients at once
// 3. normalise    per row: one MAC and one shift-round-saturate store per 32 elements
//
// Every loop body loads first, computes next and stores last, over values that do not depend on each other, because a
// compiler that cannot tell two buffers apart keeps loads behind the stores before them. For the same reason each pass
// is a function whose pointer arguments are all __restrict and in which no closure stands between a loop and memory.
//
// With y = max(x, lo) the clamped distance is delta = m - y, so the score (paper, eq. 3) is
//     s = B - S*delta = c + S*y,   c = B - S*m,
// and no score is ever stored. With g = y - lo >= 0 the row sum (eq. 5) is Z = n*(B - S*(m - lo)) + S*sum(g), and
// sum(g) comes out of int8 matrix multiplies. Normalisation needs one product per element in three of the modes:
//     u8_clb    p = (255*s) >> k                     = (255*c + (255*S)*y) >> k, any k: short rows need no extra care
//     i16_*     p = rho*s                            = rho*c + (rho*S)*y
//     u8_div    p = (rho*s) >> (15 - e),             e = max(8 - k, 0) lifts rows with Z < 256; u8_lin likewise
// where k = floor(log2 Z).
//
// With two lines (docs/spec.md) there are two clamp levels, s = c + S*y + S2*y2 with c = B - (S + S2)*m, and one more
// maximum and product each where y is used. u8_clb stays as above; the other modes' scaled reciprocal makes
// p = (rho*s) >> (k + t), t = 0 for int16 and 7 for uint8, of all rows alike. Everything below is exact; tests hold it
// to hccs.reference bit for bit.
#pragma once

#include <aie_api/aie.hpp>

#include <type_traits>

#include "hints.hpp"

namespace hccs {

enum class mode { i16_div, i16_clb, u8_div, u8_clb, u8_lin };

template <mode M>
struct output {
  using type = std::conditional_t<M == mode::i16_div || M == mode::i16_clb, int16, uint8>;
};

// theta of one head: 1 <= D <= 127, 0 <= S <= 127, S*D <= B, n*B <= 32767.
struct head {
  int32 B, S, D;
};

// The same of two lines: 1 <= D2 <= D, S + S2 <= 127, S*D + S2*D2 <= B, n*B <= 32767. f: attention's alone.
struct two_lines {
  int32 B, S, D, S2, D2, f = 0;
};
template <typename Theta>
constexpr bool has_two = std::is_same_v<Theta, two_lines>;

constexpr unsigned tile_rows = 128;  // rows of one pass over the scratch arrays, over which its set-up is spread
constexpr unsigned clamp_rows = 16;  // rows whose maxima are folded together
constexpr unsigned batch_rows = 16;  // rows that share one division
constexpr unsigned lanes = 32;       // n comes in multiples of this

// Rows come in multiples of this: short rows in enough of them that a pipelined loop is worth its prologue.
constexpr unsigned rows_multiple(unsigned n) { return n <= 128 ? 32 : 16; }
template <unsigned Chunks>
constexpr bool short_rows = Chunks >= 1 && Chunks <= 4;

// AIE-ML multiplies 16-bit tiles to four columns, later generations to eight. Row totals come out once per column.
#if defined(__AIE_ARCH__) && __AIE_ARCH__ > 20
constexpr unsigned total_columns = 8;
#else
constexpr unsigned total_columns = 4;
#endif

// Per-row results of the statistics passes, one tile long.
struct scratch {
  alignas(64) int8 low[tile_rows * lanes];             // lo in 32 lanes a row: a register holds two rows
  alignas(64) int16 offset[tile_rows];                 // c
  alignas(64) int16 offset_fours[4 * tile_rows];       // c of four rows, four times over: a 4x4 matrix of equal rows
  alignas(64) int16 floor[total_columns * tile_rows];  // Z without S*sum(g), total_columns times a row
  alignas(64) int16 sum[total_columns * tile_rows];    // Z, likewise
  alignas(64) int16 reciprocal[tile_rows];
  alignas(64) uint16 slope[tile_rows];  // rho * S
};

struct two_line_scratch : scratch {
  alignas(64) int8 low2[tile_rows * lanes];  // lo of the second line
  alignas(64) int8 maxima[4 * tile_rows];    // sixteen rows' to a register, as row_maxima() gives them
};
template <typename Theta>
using scratch_of = std::conditional_t<has_two<Theta>, two_line_scratch, scratch>;

// 4x8 matrices that add rows 0..3 (a pair's first row) and 4..7 (its second) of an 8x8 block into rows of the result.
alignas(32) static const int8 sum_into_rows_0_1[32] = {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1};
alignas(32) static const int8 sum_into_rows_2_3[32] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                       1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1};
alignas(32) static const uint8 lane_index[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

using bytes = aie::vector<int8, 64>;
using halves = aie::vector<int16, 32>;
using sums = aie::accum<acc32, 32>;

// Chunk i of two neighbouring rows in one register.
HCCS_INLINE bytes load_pair(const int8* __restrict row, unsigned n, unsigned i) {
  return aie::concat(aie::load_v<32>(row + i * lanes), aie::load_v<32>(row + n + i * lanes));
}

struct pairs {
  bytes rows01, rows23, rows45, rows67;
};

// The lane-wise maximum over the chunks of two neighbouring rows.
template <unsigned Chunks>
HCCS_INLINE bytes pair_maximum(const int8* __restrict row, unsigned n) {
  bytes most = load_pair(row, n, 0);
  HCCS_UNROLL(chunk, Chunks - 1) { most = aie::max(most, load_pair(row, n, chunk + 1)); }
  return most;
}

// The same for eight rows; Chunks == 0 loops over the n / 32 chunks of all of them together.
template <unsigned Chunks>
HCCS_INLINE pairs pair_maxima(const int8* __restrict x, unsigned n) {
  if constexpr (Chunks > 0) {
    return {pair_maximum<Chunks>(x, n), pair_maximum<Chunks>(x + 2 * n, n), pair_maximum<Chunks>(x + 4 * n, n),
            pair_maximum<Chunks>(x + 6 * n, n)};
  } else {
    pairs most{load_pair(x, n, 0), load_pair(x + 2 * n, n, 0), load_pair(x + 4 * n, n, 0), load_pair(x + 6 * n, n, 0)};
    HCCS_PLAIN_LOOP(maxima_chunks, chunk, n / lanes - 1) {
      most.rows01 = aie::max(most.rows01, load_pair(x, n, chunk + 1));
      most.rows23 = aie::max(most.rows23, load_pair(x + 2 * n, n, chunk + 1));
      most.rows45 = aie::max(most.rows45, load_pair(x + 4 * n, n, chunk + 1));
      most.rows67 = aie::max(most.rows67, load_pair(x + 6 * n, n, chunk + 1));
    }
    return most;
  }
}

// Pairs the halves of every row's candidates: twice as many rows in a register, half as many candidates of each.
HCCS_INLINE bytes fold(const bytes& first_rows, const bytes& next_rows, unsigned left) {
  const auto [even, odd] = aie::interleave_unzip(first_rows, next_rows, left);
  return aie::max(even, odd);
}

// Eight candidates for the maximum of each of eight rows.
template <unsigned Chunks>
HCCS_INLINE bytes eight_candidates(const int8* __restrict x, unsigned n) {
  const pairs m = pair_maxima<Chunks>(x, n);
  return fold(fold(m.rows01, m.rows23, 16), fold(m.rows45, m.rows67, 16), 8);
}

// The maximum of each of sixteen rows, repeated: lane i holds the maximum of row i % 16.
template <unsigned Chunks>
HCCS_INLINE bytes row_maxima(const int8* __restrict x, unsigned n) {
  const bytes four = fold(eight_candidates<Chunks>(x, n), eight_candidates<Chunks>(x + 8 * n, n), 4);
  // Row index fastest, so that rotations by whole groups of sixteen fold all rows at once.
  bytes folded = aie::transpose(four, 16, 4);
  folded = aie::max(folded, aie::shuffle_down_rotate(folded, 32));
  return aie::max(folded, aie::shuffle_down_rotate(folded, 16));
}

// 32 lanes of one row and 32 of the next in each register, from eight rows of eight lanes each.
HCCS_INLINE pairs spread(const bytes& eights) {
  const auto [rows03, rows47] = aie::interleave_zip(eights, eights, 8);
  const auto [rows01, rows23] = aie::interleave_zip(rows03, rows03, 16);
  const auto [rows45, rows67] = aie::interleave_zip(rows47, rows47, 16);
  return {rows01, rows23, rows45, rows67};
}

struct sixteen_rows {
  pairs rows07, rows8f;
};

// Lane i of sixteen, repeated, in all lanes of row i: row after row four times, then eight, then 32.
HCCS_INLINE sixteen_rows spread_rows(const bytes& periodic) {
  const bytes fours = aie::transpose(periodic, 4, 16);
  const auto [eights07, eights8f] = aie::interleave_zip(fours, fours, 4);
  return {spread(eights07), spread(eights8f)};
}

HCCS_INLINE void store_pairs(int8* __restrict out, const pairs& p) {
  aie::store_v(out, p.rows01);
  aie::store_v(out + 64, p.rows23);
  aie::store_v(out + 128, p.rows45);
  aie::store_v(out + 192, p.rows67);
}

// Sixteen rows' numbers, each total_columns times in a row: the layout in which the row totals come out.
HCCS_INLINE void store_copies(int16* __restrict out, const halves& periodic) {
  const halves twice = aie::interleave_zip(periodic, periodic, 1).first;
  const auto [rows07, rows8f] = aie::interleave_zip(twice, twice, 2);
  if constexpr (total_columns == 4) {
    aie::store_v(out, rows07);
    aie::store_v(out + 32, rows8f);
  } else {
    const auto [rows03, rows47] = aie::interleave_zip(rows07, rows07, 4);
    const auto [rows8b, rowscf] = aie::interleave_zip(rows8f, rows8f, 4);
    aie::store_v(out, rows03);
    aie::store_v(out + 32, rows47);
    aie::store_v(out + 64, rows8b);
    aie::store_v(out + 96, rowscf);
  }
}

// Sixteen rows' c as four 4x4 matrices of equal rows.
HCCS_INLINE void store_fours(int16* __restrict out, const halves& periodic) {
  const halves twice = aie::interleave_zip(periodic, periodic, 4).first;
  const auto [rows07, rows8f] = aie::interleave_zip(twice, twice, 8);
  aie::store_v(out, rows07);
  aie::store_v(out + 32, rows8f);
}

// What every block of the first pass shares.
template <typename Theta>
struct clamp_terms;
template <>
struct clamp_terms<head> {
  bytes least, width;
  halves slope, slope_n;
  sums base, base_n;
  HCCS_INLINE clamp_terms(const head& theta, unsigned n)
      : least(aie::broadcast<int8, 64>(int8(theta.D - 128))),
        width(aie::broadcast<int8, 64>(int8(theta.D))),
        slope(aie::broadcast<int16, 32>(int16(theta.S))),
        slope_n(aie::broadcast<int16, 32>(int16(theta.S * int32(n)))),
        base(aie::broadcast<int16, 32>(int16(theta.B))),
        base_n(aie::broadcast<int16, 32>(int16(theta.B * int32(n)))) {}
};
// c is of the sum of both slopes, and so are `slope` and `slope_n`.
template <>
struct clamp_terms<two_lines> : clamp_terms<head> {
  halves first, second;  // the lines' own slopes, times n in full rows
  bytes least2, width2;
  HCCS_INLINE clamp_terms(const two_lines& theta, unsigned n, bool masked)
      : clamp_terms<head>({theta.B, theta.S + theta.S2, theta.D}, n),
        first(aie::broadcast<int16, 32>(int16(theta.S * (masked ? 1 : int32(n))))),
        second(aie::broadcast<int16, 32>(int16(theta.S2 * (masked ? 1 : int32(n))))),
        least2(aie::broadcast<int8, 64>(int8(theta.D2 - 128))),
        width2(aie::broadcast<int8, 64>(int8(theta.D2))) {}
};

// Sixteen rows of the first pass, from their maxima on.
template <bool Masked, bool Fours, typename Theta>
HCCS_INLINE void clamp_block(const bytes& maxima, const clamp_terms<Theta>& terms, const int16* __restrict lengths,
                             int8* __restrict low_out, int16* __restrict offset_out, int16* __restrict floor_out) {
  bytes low = aie::sub(aie::max(maxima, terms.least), terms.width);
  const halves maxima16 = maxima.template extract<32>(0).unpack();
  const halves low16 = low.template extract<32>(0).unpack();
  const sums offset = aie::msc(terms.base, maxima16, terms.slope);
  const halves offset16 = offset.template to_vector<int16>(0);
  sums most = offset;
  if constexpr (!Masked) most = aie::msc(terms.base_n, maxima16, terms.slope_n);
  if constexpr (has_two<Theta>) {
    most = aie::mac(most, low16, terms.first);
    low = aie::sub(aie::max(maxima, terms.least2), terms.width2);
    most = aie::mac(most, low.template extract<32>(0).unpack(), terms.second);
  } else {
    most = aie::mac(most, low16, Masked ? terms.slope : terms.slope_n);
  }
  halves floor = most.template to_vector<int16>(0);
  if constexpr (Masked) {
    const aie::vector<int16, 16> length = aie::load_v<16>(lengths);
    floor = aie::mul<acc32>(floor, aie::concat(length, length)).template to_vector<int16>(0);
  }
  if constexpr (!has_two<Theta>) {
    const auto [rows07, rows8f] = spread_rows(low);
    store_pairs(low_out, rows07);
    store_pairs(low_out + 8 * lanes, rows8f);
  }
  if constexpr (Fours)
    store_fours(offset_out, offset16);
  else
    aie::store_v(offset_out, offset16.template extract<16>(0));
  store_copies(floor_out, floor);
}

// First half of the statistics: the maxima, the clamp levels, c, and the part of Z without sum(g). A loop of its own,
// so that no compiler keeps a whole block of logits in registers for the second half. c goes out as one number a row,
// or (Fours) as the 4x4 matrices from which normalise() spreads it by a product.
template <unsigned Chunks, bool Masked, bool Fours>
void clamp_levels(const int8* __restrict x, const head& theta, const int16* __restrict lengths, unsigned rows,
                  unsigned columns, scratch& __restrict s) {
  const unsigned n = Chunks > 0 ? Chunks * lanes : columns;
  const clamp_terms<head> terms(theta, n);
  constexpr unsigned per_row = Fours ? 4 : 1;
  int8* __restrict low_out = s.low;
  int16* __restrict offset_out = Fours ? s.offset_fours : s.offset;
  int16* __restrict floor_out = s.floor;
  const unsigned blocks = short_rows<Chunks> && HCCS_LONG_BODIES ? 2 : 1;
  HCCS_LOOP(clamp_blocks, at, rows / (blocks * clamp_rows), 1) {
    bytes maxima[2];
    HCCS_UNROLL(i, blocks) { maxima[i] = row_maxima<Chunks>(x + (blocks * at + i) * clamp_rows * n, n); }
    HCCS_UNROLL(i, blocks) {
      const unsigned row = (blocks * at + i) * clamp_rows;
      clamp_block<Masked, Fours>(maxima[i], terms, Masked ? lengths + row : lengths, low_out + row * lanes,
                                 offset_out + row * per_row, floor_out + row * total_columns);
    }
  }
}

// The first line's clamp levels from the second's, lo2 = max(m, D2 - 128) - D2: cheaper than spreading them over the
// lanes anew. Where lo2 is below D - D2 - 128 the first line clamps nothing.
struct first_levels {
  bytes least, width;
  HCCS_INLINE explicit first_levels(const two_lines& theta)
      : least(aie::broadcast<int8, 64>(int8(theta.D - theta.D2 - 128))),
        width(aie::broadcast<int8, 64>(int8(theta.D - theta.D2))) {}
  HCCS_INLINE bytes operator()(const bytes& low2) const { return aie::sub(aie::max(low2, least), width); }
  HCCS_INLINE pairs operator()(const pairs& p) const {
    return {(*this)(p.rows01), (*this)(p.rows23), (*this)(p.rows45), (*this)(p.rows67)};
  }
};

// Of two lines in two loops: their constants leave no registers for all of it at once.
template <unsigned Chunks, bool Masked, bool Fours>
void clamp_levels(const int8* __restrict x, const two_lines& theta, const int16* __restrict lengths, unsigned rows,
                  unsigned columns, two_line_scratch& __restrict s) {
  const unsigned n = Chunks > 0 ? Chunks * lanes : columns;
  constexpr unsigned per_row = Fours ? 4 : 1;
  int8* __restrict maxima = s.maxima;
  int8* __restrict low = s.low;
  int8* __restrict low2 = s.low2;
  int16* __restrict offset_out = Fours ? s.offset_fours : s.offset;
  int16* __restrict floor_out = s.floor;
  const first_levels first(theta);
  const bytes least2 = aie::broadcast<int8, 64>(int8(theta.D2 - 128));
  const bytes width2 = aie::broadcast<int8, 64>(int8(theta.D2));
  HCCS_LOOP(level_blocks, block, rows / clamp_rows, 1) {
    const unsigned at = block * clamp_rows * lanes;
    const bytes m = row_maxima<Chunks>(x + block * clamp_rows * n, n);
    const bytes level = aie::sub(aie::max(m, least2), width2);
    aie::store_v(maxima + block * 64, m);
    const auto [rows07, rows8f] = spread_rows(level);
    store_pairs(low2 + at, rows07);
    store_pairs(low + at, first(rows07));
    store_pairs(low2 + at + 8 * lanes, rows8f);
    store_pairs(low + at + 8 * lanes, first(rows8f));
  }
  const clamp_terms<two_lines> terms(theta, n, Masked);
  HCCS_LOOP(clamp_blocks, block, rows / clamp_rows, 1) {
    const unsigned row = block * clamp_rows;
    clamp_block<Masked, Fours>(aie::load_v<64>(maxima + block * 64), terms, Masked ? lengths + row : lengths, low,
                               offset_out + row * per_row, floor_out + row * total_columns);
  }
}

using block_sums = aie::mmul<4, 8, 8, int8, int8>;
using block_totals = aie::mmul<4, 8, total_columns, int16, int8>;
using totals = aie::vector<int16, 4 * total_columns>;

// Clamp levels of two rows; of two lines both.
template <typename Theta>
struct levels {
  bytes low, low2;
};
template <typename Theta>
HCCS_INLINE levels<Theta> load_levels(const int8* __restrict low, const int8* __restrict low2, unsigned at) {
  if constexpr (has_two<Theta>)
    return {aie::load_v<64>(low + at), aie::load_v<64>(low2 + at)};
  else
    return {aie::load_v<64>(low + at), {}};
}

// Partial sums of y = max(x, lo) of a line and of the second.
template <typename Theta>
struct line_sums {
  block_sums first, second;
  HCCS_INLINE void start(const aie::vector<int8, 32>& less, const levels<Theta>& at) {
    first.mul(less, at.low);
    if constexpr (has_two<Theta>) second.mul(less, at.low2);
  }
  HCCS_INLINE void add(const aie::vector<int8, 32>& ones, const bytes& x, const levels<Theta>& at) {
    first.mac(ones, aie::max(x, at.low));
    if constexpr (has_two<Theta>) second.mac(ones, aie::max(x, at.low2));
  }
  HCCS_INLINE void less(const aie::vector<int8, 32>& less, const levels<Theta>& at) {
    first.mac(less, at.low);
    if constexpr (has_two<Theta>) second.mac(less, at.low2);
  }
};

// Adds two pairs of rows to their accumulators. Two at a time: each waits out the other's latency, and only two pairs'
// clamp levels are alive.
template <unsigned Chunks, typename Theta>
HCCS_INLINE void add_chunks(const int8* __restrict pair_a, const int8* __restrict pair_b, unsigned n,
                            const levels<Theta>& low_a, const levels<Theta>& low_b, const aie::vector<int8, 32>& ones,
                            line_sums<Theta>& a, line_sums<Theta>& b) {
  if constexpr (Chunks > 0) {
    HCCS_UNROLL(chunk, Chunks) {
      a.add(ones, load_pair(pair_a, n, chunk), low_a);
      b.add(ones, load_pair(pair_b, n, chunk), low_b);
    }
  } else {
    HCCS_LOOP(sums_chunks, chunk, n / lanes, 1) {
      a.add(ones, load_pair(pair_a, n, chunk), low_a);
      b.add(ones, load_pair(pair_b, n, chunk), low_b);
    }
  }
}

using slopes = aie::vector<int8, 8 * total_columns>;

// What every block of the second pass shares.
template <typename Theta>
struct sum_terms {
  aie::vector<int8, 32> sum01, sum23, less01, less23;
  slopes slope, slope2;
  HCCS_INLINE sum_terms(const Theta& theta, unsigned n)
      : sum01(aie::load_v<32>(sum_into_rows_0_1)),
        sum23(aie::load_v<32>(sum_into_rows_2_3)),
        slope(aie::broadcast<int8, 8 * total_columns>(int8(theta.S))) {
    const aie::vector<int8, 32> minus_chunks = aie::broadcast<int8, 32>(int8(-int32(n / lanes)));
    less01 = aie::mul<acc32>(sum01, minus_chunks).template to_vector<int8>(0);
    less23 = aie::mul<acc32>(sum23, minus_chunks).template to_vector<int8>(0);
    if constexpr (has_two<Theta>) slope2 = aie::broadcast<int8, 8 * total_columns>(int8(theta.S2));
  }
};

struct eight_totals {
  totals rows03, rows47;
};

// Z of eight rows. With g = y - lo: eight partial sums of g a row, each at most 64 * 127; a second product adds them
// up, times S, onto the floor.
template <unsigned Chunks, bool Masked, typename Theta>
HCCS_INLINE eight_totals total_block(const int8* __restrict x, unsigned n, const sum_terms<Theta>& terms,
                                     const int8* __restrict low, const int8* __restrict low2,
                                     const int16* __restrict floors) {
  const auto low01 = load_levels<Theta>(low, low2, 0), low45 = load_levels<Theta>(low, low2, 128);
  line_sums<Theta> rows03, rows47;
  rows03.start(terms.less01, low01);
  rows47.start(terms.less01, low45);
  add_chunks<Chunks>(x, x + 4 * n, n, low01, low45, terms.sum01, rows03, rows47);
  const auto low23 = load_levels<Theta>(low, low2, 64), low67 = load_levels<Theta>(low, low2, 192);
  rows03.less(terms.less23, low23);
  rows47.less(terms.less23, low67);
  add_chunks<Chunks>(x + 2 * n, x + 6 * n, n, low23, low67, terms.sum23, rows03, rows47);
  block_totals first(aie::load_v<4 * total_columns>(floors), 0);
  block_totals second(aie::load_v<4 * total_columns>(floors + 4 * total_columns), 0);
  first.mac(rows03.first.template to_vector<int16>(0), terms.slope);
  second.mac(rows47.first.template to_vector<int16>(0), terms.slope);
  if constexpr (has_two<Theta>) {
    first.mac(rows03.second.template to_vector<int16>(0), terms.slope2);
    second.mac(rows47.second.template to_vector<int16>(0), terms.slope2);
  }
  eight_totals z{first.template to_vector<int16>(0), second.template to_vector<int16>(0)};
  if constexpr (Masked) {
    // An empty row divides by one; its outputs are masked to zero.
    const totals one = aie::broadcast<int16, 4 * total_columns>(int16(1));
    z = {aie::max(z.rows03, one), aie::max(z.rows47, one)};
  }
  return z;
}

HCCS_INLINE void store_totals(int16* __restrict out, const eight_totals& z) {
  aie::store_v(out, z.rows03);
  aie::store_v(out + 4 * total_columns, z.rows47);
}

// Second half: Z, total_columns times a row.
template <unsigned Chunks, bool Masked, typename Theta>
void row_totals(const int8* __restrict x, const Theta& theta, unsigned rows, unsigned columns,
                const int8* __restrict low, const int8* __restrict low2, const int16* __restrict floors,
                int16* __restrict sum_out) {
  const unsigned n = Chunks > 0 ? Chunks * lanes : columns;
  const sum_terms<Theta> terms(theta, n);
  // Blocks fill each other's gaps; two lines need their registers.
  const unsigned blocks = !short_rows<Chunks> ? 1 : (has_two<Theta> ? 1 : 2) * (HCCS_LONG_BODIES ? 2 : 1);
  HCCS_LOOP(sum_blocks, block, rows / (8 * blocks), 1) {
    eight_totals z[4];
    HCCS_UNROLL(i, blocks) {
      const unsigned row = 8 * (blocks * block + i);
      z[i] = total_block<Chunks, Masked>(x + row * n, n, terms, low + row * lanes,
                                         has_two<Theta> ? low2 + row * lanes : low2, floors + row * total_columns);
    }
    HCCS_UNROLL(i, blocks) { store_totals(sum_out + 8 * (blocks * block + i) * total_columns, z[i]); }
  }
}

}  // namespace hccs
