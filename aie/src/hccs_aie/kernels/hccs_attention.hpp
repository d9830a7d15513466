// Attention of one head on one tile: q.k, HCCS and p.v, from int8 to the exact pair (N, Z) of docs/spec.md.
//
// 1. logits   x = q.k >> shift, rounded half up: int8 in the tile's own memory
// 2. levels   per eight rows: the maxima m, the clamp level lo = max(m, D - 128) - D, c = B - S*m
// 3. totals   y = max(x, lo), Z = n*c + S*sum(y)
// 4. scores   s = c + S*y as uint8, if B <= 255
// 5. values   N = s.v
//
// From 128 keys on n*B <= 32767 makes every score uint8. With larger ones no score is formed: N = sum(s*v) =
// c*V + S*(y.v) with V the columns' sums of v, and the product takes the clamped logits. Either way both matrix
// products have operands of eight bits, at the multiplier's full rate.
//
// Everything is transposed: logits are k.q^T, the result is v^T.y^T. A register then holds eight keys of eight rows,
// row index fastest, so that what belongs to a row lies in lane i % 8 everywhere: maxima fold by rotations alone, and
// clamp levels, c and sums come out spread over the lanes in which they are used.
//
// Tiles, as 4x8x8 products read and write them, their own elements row after row:
//     q      [rows/8][Dim/8]   of 8 columns x 8 rows
//     k      [n/4][Dim/8]      of 4 keys x 8 columns
//     v      [Dim/4][n/8]      of 4 columns x 8 keys
//     x      [rows/8][n/8]     of 8 keys x 8 rows
//     N      [rows/8][Dim/4]   of 4 columns x 8 rows, int32
//     Z      [rows/8]          of 8 rows, twice over, int16
#pragma once

#include "hccs_softmax.hpp"

namespace hccs {

constexpr unsigned rows_together = 8;  // rows of one product, and of a block of logits
constexpr unsigned strip = 4;          // products that share their second operand

// Bytes of one call's buffers and scratch, each once.
constexpr unsigned attention_bytes(unsigned rows, unsigned keys, unsigned dim) {
  return rows * (5 * dim + 2 * keys + 20) + 2 * keys * dim + 16 * dim;
}

// Most rows of one call: 64, or 32 where those would not leave 4 KiB of a tile's 64 for the rest.
constexpr unsigned attention_rows(unsigned keys, unsigned dim) {
  return attention_bytes(64, keys, dim) <= 60 * 1024 ? 64 : 32;
}

template <typename Weight>
using strip_product = aie::mmul<4, 8, 8, int8, Weight>;

template <unsigned Keys, unsigned Dim>
struct attention_scratch {
  static constexpr unsigned rows = attention_rows(Keys, Dim);
  alignas(64) int8 logits[rows * Keys];
  alignas(64) uint8 scores[rows * Keys];  // tiled like the logits
  alignas(64) int8 low[8 * rows];         // lo of eight rows, eight times over
  alignas(64) int16 offset[4 * rows];     // c of eight rows, four times over
  alignas(64) int16 value_sums[8 * Dim];  // V of a column, eight times
};

// One step of some products: 4x8 tiles `apart` elements from each other times the same 8x8 tile.
template <typename Weight, unsigned Count>
HCCS_INLINE void add_strip(strip_product<Weight> (&to)[Count], bool first, const int8* __restrict tiles, unsigned apart,
                           const aie::vector<Weight, 64>& other) {
  HCCS_UNROLL(t, Count) {
    const aie::vector<int8, 32> tile = aie::load_v<32>(tiles + t * apart);
    if (first)
      to[t].mul(tile, other);
    else
      to[t].mac(tile, other);
  }
}

// x = clamp((q.k + half) >> shift): a factor 2^-shift. Sixteen keys of eight rows an iteration.
template <unsigned Dim>
void attention_logits(const int8* __restrict q, const int8* __restrict k, unsigned rows, unsigned n, int shift,
                      int8* __restrict x) {
  const unsigned strips = n / 16;
  aie::set_rounding(aie::rounding_mode::positive_inf);
  aie::set_saturation(aie::saturation_mode::saturate);
  HCCS_LOOP(logit_strips, at, rows / rows_together * strips, 4) {
    const int8* __restrict queries = q + at / strips * rows_together * Dim;
    const int8* __restrict keys = k + at % strips * 16 * Dim;
    strip_product<int8> products[strip];
    HCCS_UNROLL(step, Dim / 8) {
      add_strip<int8>(products, step == 0, keys + step * 32, 4 * Dim, aie::load_v<64>(queries + step * 64));
    }
    HCCS_UNROLL(t, strip) { aie::store_v(x + at * 128 + t * 32, products[t].template to_vector<int8>(shift)); }
  }
  aie::set_rounding(aie::rounding_mode::floor);
}

template <unsigned Keys>
void attention_levels(const int8* __restrict x, const head& theta, unsigned rows, int8* __restrict low_out,
                      int16* __restrict offset_out) {
  const bytes least = aie::broadcast<int8, 64>(int8(theta.D - 128));
  const bytes width = aie::broadcast<int8, 64>(int8(theta.D));
  const halves slope = aie::broadcast<int16, 32>(int16(theta.S));
  const sums base(aie::broadcast<int16, 32>(int16(theta.B)));
  HCCS_LOOP(level_rows, block, rows / rows_together, 4) {
    const int8* __restrict logits = x + block * rows_together * Keys;
    bytes most = aie::load_v<64>(logits);
    HCCS_UNROLL(j, Keys / 8 - 1) { most = aie::max(most, aie::load_v<64>(logits + (j + 1) * 64)); }
    most = aie::max(most, aie::shuffle_down_rotate(most, 32));
    most = aie::max(most, aie::shuffle_down_rotate(most, 16));
    most = aie::max(most, aie::shuffle_down_rotate(most, 8));
    const sums offset = aie::msc(base, most.template extract<32>(0).unpack(), slope);
    aie::store_v(low_out + block * 64, aie::sub(aie::max(most, least), width));
    aie::store_v(offset_out + block * 32, offset.template to_vector<int16>(0));
  }
}

// A loop of its own, so that no compiler keeps the rows of attention_levels() in registers. sum(y) is a product with
// ones, int16 for up to 256 keys.
template <unsigned Keys>
void attention_totals(const int8* __restrict x, const head& theta, unsigned rows, const int8* __restrict low_in,
                      const int16* __restrict offset_in, int16* __restrict Z) {
  const aie::vector<int8, 32> ones = aie::broadcast<int8, 32>(int8(1));
  const halves slope = aie::broadcast<int16, 32>(int16(theta.S));
  const halves count = aie::broadcast<int16, 32>(int16(Keys));
  HCCS_LOOP(total_rows, block, rows / rows_together, 4) {
    const int8* __restrict logits = x + block * rows_together * Keys;
    const bytes low = aie::load_v<64>(low_in + block * 64);
    strip_product<int8> total;
    HCCS_UNROLL(j, Keys / 8) {
      const bytes y = aie::max(aie::load_v<64>(logits + j * 64), low);
      if (j == 0)
        total.mul(ones, y);
      else
        total.mac(ones, y);
    }
    sums z = aie::mul<acc32>(aie::load_v<32>(offset_in + block * 32), count);
    z = aie::mac(z, total.template to_vector<int16>(0), slope);
    aie::store_v(Z + block * 16, z.template to_vector<int16>(0).template extract<16>(0));
  }
}

// 4x8 matrices that take the first or the last four rows of an 8x8 tile.
alignas(32) static const int8 first_rows[32] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0,
                                                0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0};
alignas(32) static const int8 last_rows[32] = {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0,
                                               0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1};

// s = c + S*y in uint8, 32 keys of eight rows an iteration. A product with S times those matrices widens y at once.
template <unsigned Keys>
void attention_scores(const int8* __restrict x, const head& theta, unsigned rows, const int8* __restrict low_in,
                      const int16* __restrict offset_in, uint8* __restrict scores) {
  const aie::vector<int8, 32> slope = aie::broadcast<int8, 32>(int8(theta.S));
  const aie::vector<int8, 32> first = aie::mul<acc32>(aie::load_v<32>(first_rows), slope).template to_vector<int8>(0);
  const aie::vector<int8, 32> last = aie::mul<acc32>(aie::load_v<32>(last_rows), slope).template to_vector<int8>(0);
  constexpr unsigned parts = Keys / 32;
  HCCS_LOOP(score_parts, at, rows / rows_together * parts, 4) {
    const bytes low = aie::load_v<64>(low_in + at / parts * 64);
    const halves offset = aie::load_v<32>(offset_in + at / parts * 32);
    bytes y[4];
    HCCS_UNROLL(j, 4) { y[j] = aie::max(aie::load_v<64>(x + at * 256 + j * 64), low); }
    HCCS_UNROLL(j, 4) {
      strip_product<int8> upper(offset), lower(offset);
      upper.mac(first, y[j]);
      lower.mac(last, y[j]);
      aie::store_v(scores + at * 256 + j * 64, upper.template to_vector<uint8>(0));
      aie::store_v(scores + at * 256 + j * 64 + 32, lower.template to_vector<uint8>(0));
    }
  }
}

// N = w.v of uint8 weights tiled like x: scores, or, in a kernel of its own, probabilities. Sixteen columns of eight
// rows an iteration.
template <unsigned Keys, unsigned Dim>
void weighted_values(const uint8* __restrict w, const int8* __restrict v, unsigned rows, int32* __restrict N) {
  constexpr unsigned strips = Dim / 16;
  HCCS_LOOP(value_strips, at, rows / rows_together * strips, 4) {
    const uint8* __restrict weights = w + at / strips * rows_together * Keys;
    const int8* __restrict values = v + at % strips * 16 * Keys;
    strip_product<uint8> products[strip];
    HCCS_UNROLL(j, Keys / 8) {
      add_strip<uint8>(products, j == 0, values + j * 32, 4 * Keys, aie::load_v<64>(weights + j * 64));
    }
    HCCS_UNROLL(t, strip) { aie::store_v(N + (at * strip + t) * 32, products[t].template to_vector<int32>(0)); }
  }
}

template <unsigned Keys, unsigned Dim>
void value_sums(const int8* __restrict v, int16* __restrict sums_out) {
  const bytes ones = aie::broadcast<int8, 64>(int8(1));
  HCCS_LOOP(value_sum_strips, at, Dim / 8, 4) {
    strip_product<int8> products[2];
    HCCS_UNROLL(j, Keys / 8) { add_strip<int8>(products, j == 0, v + at * 8 * Keys + j * 32, 4 * Keys, ones); }
    HCCS_UNROLL(t, 2) { aie::store_v(sums_out + (at * 2 + t) * 32, products[t].template to_vector<int16>(0)); }
  }
}

// N = c*V + S*G with 16-bit operands: G = 256*(G >> 8) + rest, and 256*S has 15 bits.
HCCS_INLINE sums scaled_values(const sums& G, const halves& offset, const halves& value_sum, const halves& slope,
                               const halves& slope256, const halves& full) {
  const halves high = G.template to_vector<int16>(8);
  const halves rest = aie::msc(G, high, full).template to_vector<int16>(0);
  return aie::mac(aie::mac(aie::mul<acc32>(offset, value_sum), high, slope256), rest, slope);
}

// The same from clamped logits.
template <unsigned Keys, unsigned Dim>
void clamped_values(const int8* __restrict x, const int8* __restrict v, const head& theta, unsigned rows,
                    const int8* __restrict low_in, const int16* __restrict offset_in,
                    const int16* __restrict value_sums, int32* __restrict N) {
  constexpr unsigned strips = Dim / 16;
  const halves slope = aie::broadcast<int16, 32>(int16(theta.S));
  const halves slope256 = aie::broadcast<int16, 32>(int16(256 * theta.S));
  const halves full = aie::broadcast<int16, 32>(int16(256));
  HCCS_LOOP(value_strips, at, rows / rows_together * strips, 4) {
    const unsigned block = at / strips, columns = at % strips;
    const int8* __restrict logits = x + block * rows_together * Keys;
    const int8* __restrict values = v + columns * 16 * Keys;
    const bytes low = aie::load_v<64>(low_in + block * 64);
    const halves offset = aie::load_v<32>(offset_in + block * 32);
    strip_product<int8> G[strip];
    HCCS_UNROLL(j, Keys / 8) {
      add_strip<int8>(G, j == 0, values + j * 32, 4 * Keys, aie::max(aie::load_v<64>(logits + j * 64), low));
    }
    halves sum[strip];
    HCCS_UNROLL(t, strip) { sum[t] = aie::load_v<32>(value_sums + (columns * strip + t) * 32); }
    HCCS_UNROLL(t, strip) {
      const sums total = scaled_values(G[t].to_accum(), offset, sum[t], slope, slope256, full);
      aie::store_v(N + (at * strip + t) * 32, total.template to_vector<int32>(0));
    }
  }
}

// The pair (N, Z) of `rows` query rows over Keys keys. rows: 32, or 64 where attention_rows() says so; Keys: a
// multiple of 32 up to 256; Dim: 32 or 64; Narrow: B <= 255. shift: 0 to 23. Buffers are 64-byte aligned.
template <unsigned Keys, unsigned Dim, bool Narrow>
void attention(const int8* __restrict q, const int8* __restrict k, const int8* __restrict v, const head& theta,
               int shift, unsigned rows, attention_scratch<Keys, Dim>& __restrict s, int32* __restrict N,
               int16* __restrict Z) {
  attention_logits<Dim>(q, k, rows, Keys, shift, s.logits);
  attention_levels<Keys>(s.logits, theta, rows, s.low, s.offset);
  attention_totals<Keys>(s.logits, theta, rows, s.low, s.offset, Z);
  if constexpr (Narrow) {
    attention_scores<Keys>(s.logits, theta, rows, s.low, s.offset, s.scores);
    weighted_values<Keys, Dim>(s.scores, v, rows, N);
  } else {
    value_sums<Keys, Dim>(v, s.value_sums);
    clamped_values<Keys, Dim>(s.logits, v, theta, rows, s.low, s.offset, s.value_sums, N);
  }
}

}  // namespace hccs
