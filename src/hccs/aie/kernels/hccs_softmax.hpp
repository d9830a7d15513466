// HCCS softmax for the AI Engine, written for throughput: eight rows at a time, three short passes over a tile.
//
// 1. statistics   per eight rows: the row maxima m, the clamp level lo = max(m, D - 128) - D, then the row sums Z
// 2. reciprocal   (division modes) sixteen exact quotients at once
// 3. normalise    per row: one MAC and one shift-round-saturate store per 32 elements
//
// With y = max(x, lo) the clamped distance is delta = m - y, so the score (paper, eq. 3) is
//     s = B - S*delta = c + S*y,   c = B - S*m,
// and no score is ever stored. With g = y - lo >= 0 the row sum (eq. 5) is Z = n*(B - S*(m - lo)) + S*sum(g), and
// sum(g) comes out of int8 matrix multiplies. Normalisation needs one product per element in three of the modes:
//     u8_clb    p = (255*s) >> k                     = (255*c + (255*S)*y) >> k, any k: short rows need no extra care
//     i16_*     p = rho*s                            = rho*c + (rho*S)*y
//     u8_div    p = (rho*s) >> (15 - e),             e = max(8 - k, 0) lifts rows with Z < 256
// where k = floor(log2 Z). Everything below is exact; tests hold it to hccs.reference bit for bit.
#pragma once

#include <aie_api/aie.hpp>

#include <type_traits>

#include "hints.hpp"

namespace hccs {

enum class mode { i16_div, i16_clb, u8_div, u8_clb };

template <mode M>
struct output {
  using type = std::conditional_t<M == mode::i16_div || M == mode::i16_clb, int16, uint8>;
};

// theta of one head: 1 <= D <= 127, 0 <= S <= 127, S*D <= B, n*B <= 32767.
struct head {
  int32 B, S, D;
};

constexpr unsigned tile_rows = 64;   // rows of one pass over the scratch arrays
constexpr unsigned batch_rows = 16;  // rows that share one division
constexpr unsigned lanes = 32;       // n comes in multiples of this

// Rows come in multiples of this: short rows in enough of them that a pipelined loop is worth its prologue.
constexpr unsigned rows_multiple(unsigned n) { return n <= 128 ? 32 : 16; }
template <unsigned Chunks>
constexpr bool short_rows = Chunks >= 1 && Chunks <= 4;

#if defined(__AIE_ARCH__) && __AIE_ARCH__ > 20
constexpr unsigned total_columns = 8;
#else
constexpr unsigned total_columns = 4;
#endif

// Per-row results of the statistics pass, one tile long.
struct scratch {
  alignas(64) int8 low_bytes[tile_rows * 8];  // per eight rows: lane i holds row i % 8
  alignas(64) int16 low[tile_rows];
  alignas(64) int16 offset[tile_rows];            // c
  alignas(64) int16 offset_fours[4 * tile_rows];  // c of four rows, four times over: a 4x4 matrix of equal rows
  alignas(64) int16 floor[tile_rows];             // Z without S*sum(g)
  alignas(64) int16 sum[tile_rows];               // Z
  alignas(64) int16 reciprocal[tile_rows];
  alignas(64) uint16 slope[tile_rows];  // rho * S
};

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

// The maximum of each of eight rows, repeated: lane i holds the maximum of row i % 8.
template <unsigned Chunks>
HCCS_INLINE bytes row_maxima(const int8* __restrict x, unsigned n) {
  const pairs m = pair_maxima<Chunks>(x, n);
  // Fold two registers into one by pairing the halves of every row: 32 candidates a row become 16, then 8.
  const auto [even03, odd03] = aie::interleave_unzip(m.rows01, m.rows23, 16);
  const auto [even47, odd47] = aie::interleave_unzip(m.rows45, m.rows67, 16);
  const auto [even, odd] = aie::interleave_unzip(aie::max(even03, odd03), aie::max(even47, odd47), 8);
  // Row index fastest, so that rotations by whole groups of eight fold all rows at once.
  bytes folded = aie::transpose(aie::max(even, odd), 8, 8);
  folded = aie::max(folded, aie::shuffle_down_rotate(folded, 32));
  folded = aie::max(folded, aie::shuffle_down_rotate(folded, 16));
  return aie::max(folded, aie::shuffle_down_rotate(folded, 8));
}

// From lane i = value of row i % 8 to each pair's layout: 32 lanes of one row, 32 lanes of the next.
HCCS_INLINE pairs spread(const bytes& periodic) {
  const bytes grouped = aie::transpose(periodic, 8, 8);
  const auto [rows03, rows47] = aie::interleave_zip(grouped, grouped, 8);
  const auto [rows01, rows23] = aie::interleave_zip(rows03, rows03, 16);
  const auto [rows45, rows67] = aie::interleave_zip(rows47, rows47, 16);
  return {rows01, rows23, rows45, rows67};
}

// From 8 partial sums of each of eight rows to their totals in lanes 0 to 7. AIE-ML multiplies 16-bit tiles to four
// columns, later generations to eight; every column is the same.
template <unsigned Columns>
HCCS_INLINE aie::vector<uint16, 32> totals_first(const halves& rows03, const halves& rows47) {
  aie::mmul<4, 8, Columns, int16, int8> first, second;
  const aie::vector<int8, 8 * Columns> ones = aie::broadcast<int8, 8 * Columns>(int8(1));
  first.mul(rows03, ones);
  second.mul(rows47, ones);
  const auto totals03 = first.template to_vector<uint16>(0);
  const auto totals47 = second.template to_vector<uint16>(0);
  if constexpr (Columns == 4)
    return aie::transpose(aie::concat(totals03, totals47), 8, 4);
  else
    return aie::transpose(aie::interleave_unzip(totals03, totals47, 4).first, 8, 4);
}

using block_sums = aie::mmul<4, 8, 8, int8, int8>;

// Adds y = max(x, lo) of two pairs of rows to their accumulators. Two at a time: each waits out the other's latency,
// and only two pairs' clamp levels are alive.
template <unsigned Chunks>
HCCS_INLINE void add_chunks(const int8* __restrict pair_a, const int8* __restrict pair_b, unsigned n,
                            const bytes& low_a, const bytes& low_b, const aie::vector<int8, 32>& ones, block_sums& a,
                            block_sums& b) {
  if constexpr (Chunks > 0) {
    HCCS_UNROLL(chunk, Chunks) {
      a.mac(ones, aie::max(load_pair(pair_a, n, chunk), low_a));
      b.mac(ones, aie::max(load_pair(pair_b, n, chunk), low_b));
    }
  } else {
    HCCS_LOOP(sums_chunks, chunk, n / lanes, 1) {
      a.mac(ones, aie::max(load_pair(pair_a, n, chunk), low_a));
      b.mac(ones, aie::max(load_pair(pair_b, n, chunk), low_b));
    }
  }
}

// sum(g) of eight rows, g = max(x, lo) - lo, in lanes 0 to 7. At most 512 * 127, so it fits uint16.
template <unsigned Chunks>
HCCS_INLINE aie::vector<uint16, 32> row_sums(const int8* __restrict x, unsigned n, const pairs& low,
                                             const aie::vector<int8, 32>& less_low01,
                                             const aie::vector<int8, 32>& less_low23) {
  const aie::vector<int8, 32> sum01 = aie::load_v<32>(sum_into_rows_0_1);
  const aie::vector<int8, 32> sum23 = aie::load_v<32>(sum_into_rows_2_3);
  block_sums rows03, rows47;
  rows03.mul(less_low01, low.rows01);
  rows47.mul(less_low01, low.rows45);
  add_chunks<Chunks>(x, x + 4 * n, n, low.rows01, low.rows45, sum01, rows03, rows47);
  rows03.mac(less_low23, low.rows23);
  rows47.mac(less_low23, low.rows67);
  add_chunks<Chunks>(x + 2 * n, x + 6 * n, n, low.rows23, low.rows67, sum23, rows03, rows47);
  // Eight partial sums a row, each at most 64 * 127: a second product with ones adds them up.
  return totals_first<total_columns>(rows03.template to_vector<int16>(0), rows47.template to_vector<int16>(0));
}

// First half of the statistics: per eight rows the maxima, the clamp level, c, and the part of Z without sum(g).
// A loop of its own, so that no compiler keeps a whole block of logits in registers for the second half. c goes out as
// one number a row, or (Fours) as the 4x4 matrices from which normalise() spreads it by a product.
template <unsigned Chunks, bool Masked, bool Fours>
HCCS_INLINE void clamp_levels(const int8* __restrict x, const head& theta, const int16* __restrict lengths,
                              unsigned rows, unsigned n, int8* __restrict low_bytes, int16* __restrict low_out,
                              int16* __restrict offset_out, int16* __restrict floor_out) {
  const bytes least = aie::broadcast<int8, 64>(int8(theta.D - 128));
  const bytes width = aie::broadcast<int8, 64>(int8(theta.D));
  const halves slope = aie::broadcast<int16, 32>(int16(theta.S));
  const halves slope_n = aie::broadcast<int16, 32>(int16(theta.S * int32(n)));
  const sums base(aie::broadcast<int16, 32>(int16(theta.B)));
  const sums base_n(aie::broadcast<int16, 32>(int16(theta.B * int32(n))));
  const auto one_block = [&](unsigned block) HCCS_INLINE_LAMBDA {
    const bytes maxima = row_maxima<Chunks>(x + block * 8 * n, n);
    const bytes low = aie::sub(aie::max(maxima, least), width);
    const halves maxima16 = maxima.template extract<32>(0).unpack();
    const halves low16 = low.template extract<32>(0).unpack();
    const sums offset = aie::msc(base, maxima16, slope);
    halves floor;
    if constexpr (Masked) {
      const halves least_score = aie::mac(offset, low16, slope).template to_vector<int16>(0);
      const halves length = aie::load_v<8>(lengths + block * 8).template grow<32>();
      floor = aie::mul<acc32>(least_score, length).template to_vector<int16>(0);
    } else {
      floor = aie::mac(aie::msc(base_n, maxima16, slope_n), low16, slope_n).template to_vector<int16>(0);
    }
    aie::store_v(low_bytes + block * 64, low);
    aie::store_v(low_out + block * 8, low16.template extract<8>(0));
    const halves offset16 = offset.template to_vector<int16>(0);
    if constexpr (Fours) {
      const auto [rows03, rows47] = aie::interleave_unzip(offset16, offset16, 4);
      aie::store_v(offset_out + block * 32, rows03.template extract<16>(0));
      aie::store_v(offset_out + block * 32 + 16, rows47.template extract<16>(0));
    } else {
      aie::store_v(offset_out + block * 8, offset16.template extract<8>(0));
    }
    aie::store_v(floor_out + block * 8, floor.template extract<8>(0));
  };
  if constexpr (Chunks == 1) {
    // The shortest rows leave a block mostly waiting for its own fold: two of them fill each other's gaps.
    HCCS_LOOP(clamp_blocks, pair, rows / 16, 2) {
      one_block(2 * pair);
      one_block(2 * pair + 1);
    }
  } else if constexpr (short_rows<Chunks>) {
    HCCS_LOOP(clamp_blocks, block, rows / 8, 4) { one_block(block); }
  } else {
    HCCS_LOOP(clamp_blocks, block, rows / 8, 2) { one_block(block); }
  }
}

// Second half: Z of eight rows.
template <unsigned Chunks, bool Masked>
HCCS_INLINE void row_totals(const int8* __restrict x, const head& theta, unsigned rows, unsigned n,
                            const int8* __restrict low_bytes, const int16* __restrict floors,
                            int16* __restrict sum_out) {
  const halves slope = aie::broadcast<int16, 32>(int16(theta.S));
  const aie::vector<int8, 32> minus_chunks = aie::broadcast<int8, 32>(int8(-int32(n / lanes)));
  const aie::vector<int8, 32> less_low01 =
      aie::mul<acc32>(aie::load_v<32>(sum_into_rows_0_1), minus_chunks).template to_vector<int8>(0);
  const aie::vector<int8, 32> less_low23 =
      aie::mul<acc32>(aie::load_v<32>(sum_into_rows_2_3), minus_chunks).template to_vector<int8>(0);
  const auto one_block = [&](unsigned block) HCCS_INLINE_LAMBDA {
    const pairs low = spread(aie::load_v<64>(low_bytes + block * 64));
    const aie::vector<uint16, 32> excess = row_sums<Chunks>(x + block * 8 * n, n, low, less_low01, less_low23);
    const sums floor(aie::load_v<8>(floors + block * 8).template grow<32>());
    halves z = aie::mac(floor, excess, slope).template to_vector<int16>(0);
    // An empty row divides by one; its outputs are masked to zero.
    if constexpr (Masked) z = aie::max(z, aie::broadcast<int16, 32>(int16(1)));
    aie::store_v(sum_out + block * 8, z.template extract<8>(0));
  };
  if constexpr (short_rows<Chunks>) {
    HCCS_LOOP(sum_blocks, block, rows / 8, 4) { one_block(block); }
  } else {
    HCCS_LOOP(sum_blocks, block, rows / 8, 2) { one_block(block); }
  }
}

// Exact floor(numerator / Z), sixteen rows at once, three operations per quotient bit. Each 32-bit lane holds the
// remainder above bit 16 and the numerator's waiting bits below, into whose place the quotient grows: doubling brings
// in a bit, and subtracting (Z << 16) - 1 sets a quotient bit. Where Z does not fit the subtraction wraps to a huge
// unsigned number, so the minimum keeps the lane as it was.
HCCS_INLINE aie::vector<int16, 16> divide(uint32 numerator_high, const aie::vector<int16, 16>& z, unsigned bits) {
  const auto [first, second] = aie::interleave_zip(aie::zeros<int16, 16>(), z, 1);
  const aie::vector<uint32, 16> divisor =
      aie::sub(aie::concat(first, second).template cast_to<uint32>(), aie::broadcast<uint32, 16>(uint32(1)));
  aie::vector<uint32, 16> state = aie::broadcast<uint32, 16>(numerator_high);
  HCCS_LOOP(quotient_bits, bit, bits, 1) {
    state = aie::add(state, state);
    state = aie::min(state, aie::sub(state, divisor));
  }
  return aie::filter_even(state.template cast_to<int16>(), 1);
}

// Quotient bits that floor(32767 / Z) can have: Z is at least B, and at least n times the smallest score.
HCCS_INLINE unsigned quotient_bits(const head& theta, unsigned n, bool masked) {
  const int32 floor = theta.B - theta.S * theta.D;
  const int32 least = masked ? theta.B : (int32(n) * floor > theta.B ? int32(n) * floor : theta.B);
  unsigned bits = 15;
  while (bits > 1 && (least >> (16 - bits)) > 0) --bits;
  return bits;
}

template <mode M, bool Masked>
HCCS_INLINE void reciprocals(const head& theta, unsigned rows, unsigned n, const int16* __restrict sums_in,
                             int16* __restrict reciprocal_out, uint16* __restrict slope_out) {
  const unsigned bits = M == mode::u8_div ? 15 : quotient_bits(theta, n, Masked);
  const uint32 numerator = M == mode::u8_div ? uint32(255) << 16 : uint32(32767) << (16 - bits);
  const aie::vector<int16, 16> slope = aie::broadcast<int16, 16>(int16(theta.S));
  HCCS_LOOP(batches, batch, rows / batch_rows, 1) {
    aie::vector<int16, 16> z = aie::load_v<16>(sums_in + batch * batch_rows);
    if constexpr (M == mode::u8_div) {
      const aie::vector<int16, 16> enough = aie::broadcast<int16, 16>(int16(256));
      HCCS_LOOP(doublings, step, 8, 8) { z = aie::select(z, aie::add(z, z), aie::lt(z, enough)); }
    }
    const aie::vector<int16, 16> rho = divide(numerator, z, bits);
    aie::store_v(reciprocal_out + batch * batch_rows, rho);
    if constexpr (M == mode::i16_div)
      aie::store_v(slope_out + batch * batch_rows, aie::mul<acc32>(rho, slope).template to_vector<uint16>(0));
  }
}

}  // namespace hccs
