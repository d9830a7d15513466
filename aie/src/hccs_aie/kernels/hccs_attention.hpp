// Attention of one head on one tile: q.k, HCCS and p.v, from int8 to the exact pair (N, Z) of docs/spec.md, or to int8.
//
// 1. logits   x = round_half_up(q.k * M / 2^r): int8 in the tile's own memory, -128 where a key takes no part
// 2. levels   per eight rows: the maxima m, the clamp levels lo = max(m, D - 128) - D, c = B - (S + S2)*m
// 3. scores   s = (c + S*max(x, lo) + S2*max(x, lo2)) >> f as uint8, 0 where a key takes no part
// 4. totals   Z = sum(s), a product with ones
// 5. values   N = s.v
// 6. output   (optional) y = round_half_up(N * R / 2^t), R = floor(Mo * 2^k / Z)
//
// Scores beyond 255 (one line, B > 255) are planes of bytes that add up to s, each min(rest, 255). In full rows none is
// formed then: N = sum(s*v) = c*V + S*(y.v) with V the columns' sums of v, and the product takes the clamped logits.
// Either way both matrix products have operands of eight bits, at the multiplier's full rate.
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
//     N, y   [rows/8][Dim/4]   of 4 columns x 8 rows, int32 and int8
//     Z      [rows]            int32
#pragma once

#include "hccs_softmax.hpp"
#include "hccs_wide.hpp"

namespace hccs {

constexpr unsigned rows_together = 8;  // rows of one product, and of a block of logits
constexpr unsigned strip = 4;          // products that share their second operand

// Planes of the largest score of one line, 32767 / n.
constexpr unsigned max_planes(unsigned keys) { return (32767 / keys + 254) / 255; }

// Bytes of one call's buffers and scratch, each once.
constexpr unsigned attention_bytes(unsigned rows, unsigned keys, unsigned dim) {
  return rows * (6 * dim + (1 + max_planes(keys)) * keys + 52) + 2 * keys * dim + 16 * dim;
}

// Most rows of one call: 64, or 32 where those would not leave 4 KiB of a tile's 64 for the rest.
constexpr unsigned attention_rows(unsigned keys, unsigned dim) {
  return attention_bytes(64, keys, dim) <= 60 * 1024 ? 64 : 32;
}

template <typename Weight>
using strip_product = aie::mmul<4, 8, 8, int8, Weight>;

template <unsigned Keys, unsigned Dim, unsigned Rows = attention_rows(Keys, Dim), unsigned Planes = max_planes(Keys)>
struct attention_scratch {
  static constexpr unsigned rows = Rows;
  alignas(64) int8 logits[rows * Keys];
  alignas(64) uint8 scores[Planes * rows * Keys];  // tiled like the logits, plane after plane
  alignas(64) int8 low[8 * rows];                  // lo of eight rows, eight times over
  alignas(64) int8 low2[8 * rows];
  alignas(64) int16 offset[4 * rows];     // c of eight rows, four times over
  alignas(64) int16 value_sums[8 * Dim];  // V of a column, eight times
  alignas(64) int32 divisor[rows];        // Z brought to 31 bits
  alignas(64) uint16 raised[2 * rows];    // 2^(15 - k) of eight rows, twice over
  alignas(64) int32 reciprocal[2 * rows];
};

// What takes q.k to logits: multiplier / 2^shift; multiplier 0 stands for 1, which needs no product.
struct factor {
  int32 multiplier;
  int shift;
};

// Which keys a row attends to: the first `keys`, and in causal rows those up to its own place, first + row.
struct attended {
  unsigned keys;
  bool causal;
  unsigned first;
};

// lane_index of a tile of eight keys x eight rows, for 256 keys.
template <unsigned... I>
constexpr auto key_indices(std::integer_sequence<unsigned, I...>) {
  struct {
    alignas(64) uint8 of[sizeof...(I)];
  } table{{uint8(I / 8)...}};
  return table;
}
alignas(64) static constexpr auto key_index = key_indices(std::make_integer_sequence<unsigned, 2048>());
alignas(64) static constexpr uint8 row_index[64] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5,
                                                    6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3,
                                                    4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};

using unsigned_bytes = aie::vector<uint8, 64>;

// The last key of each of eight rows; without any key the first, whose score is 0 by c.
HCCS_INLINE unsigned_bytes last_keys(const attended& mask, unsigned block) {
  const uint8 last = uint8(mask.keys > 0 ? mask.keys - 1 : 0);
  const unsigned_bytes all = aie::broadcast<uint8, 64>(last);
  if (!mask.causal) return all;
  const unsigned_bytes first = aie::broadcast<uint8, 64>(uint8(mask.first + block * 8));
  return aie::min(aie::add(aie::load_v<64>(row_index), first), all);
}

// Lanes of eight keys x eight rows, from key `key` on, that take no part.
HCCS_INLINE auto outside(const unsigned_bytes& last, unsigned key) {
  return aie::lt(last, aie::load_v<64>(key_index.of + key * 8));
}

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

// Four keys x eight rows of logits.
template <bool Product>
HCCS_INLINE aie::vector<int8, 32> rounded_logits(const strip_product<int8>& sum, const factor& by) {
  if constexpr (Product) {
    const aie::vector<int32, 32> all = sum.template to_vector<int32>(0);
    const ints multiplier = all_of(by.multiplier);
    const auto half = [&](unsigned k) {
      return aie::mul<acc64>(all.template extract<16>(k), multiplier).template to_vector<int16>(by.shift);
    };
    return aie::concat(half(0), half(1)).pack();
  } else {
    return sum.template to_vector<int8>(by.shift);
  }
}

// x = clamp(round_half_up(q.k * M / 2^r)). Sixteen keys of eight rows an iteration; eight with a product, whose digits
// and sums of 64 bits take the registers.
template <unsigned Dim, bool Product>
void attention_logits(const int8* __restrict q, const int8* __restrict k, unsigned rows, unsigned n, const factor& by,
                      int8* __restrict x) {
  constexpr unsigned tiles = Product ? 2 : strip;
  const unsigned strips = n / (4 * tiles);
  aie::set_rounding(aie::rounding_mode::positive_inf);
  aie::set_saturation(aie::saturation_mode::saturate);
  HCCS_LOOP(logit_strips, at, rows / rows_together * strips, 4) {
    const int8* __restrict queries = q + at / strips * rows_together * Dim;
    const int8* __restrict keys = k + at % strips * 4 * tiles * Dim;
    strip_product<int8> products[tiles];
    HCCS_UNROLL(step, Dim / 8) {
      add_strip<int8>(products, step == 0, keys + step * 32, 4 * Dim, aie::load_v<64>(queries + step * 64));
    }
    HCCS_UNROLL(t, tiles) { aie::store_v(x + (at * tiles + t) * 32, rounded_logits<Product>(products[t], by)); }
  }
  aie::set_rounding(aie::rounding_mode::floor);
}

// -128 in the place of logits whose keys take no part.
inline void masked_logits(unsigned rows, unsigned n, const attended& mask, int8* __restrict x) {
  const bytes least = aie::broadcast<int8, 64>(int8(-128));
  const unsigned eighths = n / 8;
  HCCS_LOOP(mask_tiles, at, rows / rows_together * eighths, 8) {
    const auto hidden = outside(last_keys(mask, at / eighths), at % eighths * 8);
    aie::store_v(x + at * 64, aie::select(aie::load_v<64>(x + at * 64), least, hidden));
  }
}

template <unsigned Keys, typename Theta>
void attention_levels(const int8* __restrict x, const Theta& theta, unsigned rows, bool empty, int8* __restrict low_out,
                      int8* __restrict low2_out, int16* __restrict offset_out) {
  const bytes least = aie::broadcast<int8, 64>(int8(theta.D - 128));
  const bytes width = aie::broadcast<int8, 64>(int8(theta.D));
  bytes least2, width2;
  int32 both = theta.S;
  if constexpr (has_two<Theta>) {
    least2 = aie::broadcast<int8, 64>(int8(theta.D2 - 128));
    width2 = aie::broadcast<int8, 64>(int8(theta.D2));
    both = theta.S + theta.S2;
  }
  const halves slope = aie::broadcast<int16, 32>(int16(both));
  const sums base(aie::broadcast<int16, 32>(int16(empty ? -1 : theta.B)));
  HCCS_LOOP(level_rows, block, rows / rows_together, 4) {
    const int8* __restrict logits = x + block * rows_together * Keys;
    bytes most = aie::load_v<64>(logits);
    HCCS_UNROLL(j, Keys / 8 - 1) { most = aie::max(most, aie::load_v<64>(logits + (j + 1) * 64)); }
    most = aie::max(most, aie::shuffle_down_rotate(most, 32));
    most = aie::max(most, aie::shuffle_down_rotate(most, 16));
    most = aie::max(most, aie::shuffle_down_rotate(most, 8));
    const sums offset = aie::msc(base, most.template extract<32>(0).unpack(), slope);
    aie::store_v(low_out + block * 64, aie::sub(aie::max(most, least), width));
    if constexpr (has_two<Theta>) aie::store_v(low2_out + block * 64, aie::sub(aie::max(most, least2), width2));
    aie::store_v(offset_out + block * 32, offset.template to_vector<int16>(0));
  }
}

// A loop of its own, so that no compiler keeps the rows of attention_levels() in registers. sum(y) is a product with
// ones, int16 for up to 256 keys.
template <unsigned Keys>
void clamped_totals(const int8* __restrict x, const head& theta, unsigned rows, const int8* __restrict low_in,
                    const int16* __restrict offset_in, int32* __restrict Z) {
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
    aie::store_v(Z + block * 8, z.template to_vector<int32>(0).template extract<8>(0));
  }
}

// 4x8 matrices that take the first or the last four rows of an 8x8 tile.
alignas(32) static const int8 first_rows[32] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0,
                                                0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0};
alignas(32) static const int8 last_rows[32] = {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0,
                                               0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1};

// S times one of those matrices.
HCCS_INLINE aie::vector<int8, 32> sloped(const int8 (&matrix)[32], int32 S) {
  return aie::mul<acc32>(aie::load_v<32>(matrix), aie::broadcast<int8, 32>(int8(S))).template to_vector<int8>(0);
}

// s = (c + S*y + S2*y2) >> f in uint8, 32 keys of eight rows an iteration. A product with S times those matrices widens
// y at once. Of several planes this one holds what the ones before, 255 each, left over.
template <unsigned Keys, bool Planes, bool Masked, typename Theta>
void attention_scores(const int8* __restrict x, const Theta& theta, unsigned rows, unsigned plane, const attended& mask,
                      const int8* __restrict low_in, const int8* __restrict low2_in, const int16* __restrict offset_in,
                      uint8* __restrict scores) {
  const aie::vector<int8, 32> first = sloped(first_rows, theta.S), last = sloped(last_rows, theta.S);
  aie::vector<int8, 32> first2, last2;
  int shift = 0;
  if constexpr (has_two<Theta>) {
    first2 = sloped(first_rows, theta.S2), last2 = sloped(last_rows, theta.S2);
    shift = theta.f;
  }
  const halves above = aie::broadcast<int16, 32>(int16(255 * plane));
  const unsigned_bytes none = aie::zeros<uint8, 64>();
  constexpr unsigned parts = Keys / 32;
  HCCS_LOOP(score_parts, at, rows / rows_together * parts, 4) {
    const unsigned block = at / parts;
    const bytes low = aie::load_v<64>(low_in + block * 64);
    halves offset = aie::load_v<32>(offset_in + block * 32);
    if constexpr (Planes) offset = aie::sub(offset, above);
    bytes low2;
    if constexpr (has_two<Theta>) low2 = aie::load_v<64>(low2_in + block * 64);
    unsigned_bytes last_key;
    if constexpr (Masked) last_key = last_keys(mask, block);
    bytes y[4];
    HCCS_UNROLL(j, 4) { y[j] = aie::max(aie::load_v<64>(x + at * 256 + j * 64), low); }
    HCCS_UNROLL(j, 4) {
      strip_product<int8> upper(offset), lower(offset);
      upper.mac(first, y[j]);
      lower.mac(last, y[j]);
      if constexpr (has_two<Theta>) {
        const bytes y2 = aie::max(y[j], low2);
        upper.mac(first2, y2);
        lower.mac(last2, y2);
      }
      uint8* __restrict out = scores + at * 256 + j * 64;
      if constexpr (Masked) {
        const unsigned_bytes s =
            aie::concat(upper.template to_vector<uint8>(shift), lower.template to_vector<uint8>(shift));
        aie::store_v(out, aie::select(s, none, outside(last_key, at % parts * 32 + j * 8)));
      } else {
        aie::store_v(out, upper.template to_vector<uint8>(shift));
        aie::store_v(out + 32, lower.template to_vector<uint8>(shift));
      }
    }
  }
}

// Z of the scores of all planes.
template <unsigned Keys, unsigned Planes>
void score_totals(const uint8* __restrict scores, unsigned rows, int32* __restrict Z) {
  const aie::vector<int8, 32> ones = aie::broadcast<int8, 32>(int8(1));
  HCCS_LOOP(total_rows, block, rows / rows_together, 4) {
    strip_product<uint8> total;
    HCCS_UNROLL(p, Planes) {
      HCCS_UNROLL(j, Keys / 8) {
        const unsigned_bytes s = aie::load_v<64>(scores + (p * rows + block * rows_together) * Keys + j * 64);
        if (p + j == 0)
          total.mul(ones, s);
        else
          total.mac(ones, s);
      }
    }
    aie::store_v(Z + block * 8, total.template to_vector<int32>(0).template extract<8>(0));
  }
}

// N = w.v of uint8 weights tiled like x: scores, or, in a kernel of its own, probabilities. Sixteen columns of eight
// rows an iteration.
template <unsigned Keys, unsigned Dim, unsigned Planes = 1>
void weighted_values(const uint8* __restrict w, const int8* __restrict v, unsigned rows, int32* __restrict N) {
  constexpr unsigned strips = Dim / 16;
  HCCS_LOOP(value_strips, at, rows / rows_together * strips, 4) {
    const int8* __restrict values = v + at % strips * 16 * Keys;
    strip_product<uint8> products[strip];
    HCCS_UNROLL(p, Planes) {
      const uint8* __restrict weights = w + (p * rows + at / strips * rows_together) * Keys;
      HCCS_UNROLL(j, Keys / 8) {
        add_strip<uint8>(products, p + j == 0, values + j * 32, 4 * Keys, aie::load_v<64>(weights + j * 64));
      }
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

// 2^(15 - k) and Z * 2^(30 - k) of every row, k = floor(log2 Z) <= 15.
inline void output_alignment(const int32* __restrict Z, unsigned rows, int32* __restrict divisor,
                             uint16* __restrict raised) {
  HCCS_LOOP(output_scalars, row, rows, 32) {
    const auto total = HCCS_LOAD(Z + row);
    const auto z = total - ((total - 1) >> 31);  // a row without keys has Z = 0: 1 serves
    const auto zeros = HCCS_SIGNED(clb(z));
    const auto factor = 1 << (zeros - 16);
    const unsigned at = row / 8 * 16 + row % 8;
    HCCS_STORE(divisor + row, z << (zeros - 1));
    HCCS_STORE(raised + at, factor);
    HCCS_STORE(raised + at + 8, factor);
  }
}

// R = floor(Mo * 2^k / Z), sixteen rows at once.
inline void output_reciprocals(const int32* __restrict divisor, int32 multiplier, unsigned rows,
                               int32* __restrict reciprocals) {
  const ints top = all_of(multiplier), one = all_of(1);
  const wide numerator(top, 30);
  HCCS_LOOP(output_batches, batch, rows / 16, 2) {
    const ints z = aie::load_v<16>(divisor + batch * 16);
    ints R = scaled(reciprocal(z), top, 30);
    HCCS_UNROLL(step, 2) {
      const wide left = aie::msc(numerator, R, z);
      const ints up = aie::select(aie::add(R, one), R, negative(aie::sub(left, z)));
      R = aie::select(up, aie::sub(R, one), negative(left));
    }
    store_twice(reciprocals + batch * 32, R);
  }
}

template <unsigned Dim>
void attention_output(const int32* __restrict N, const factor& by, unsigned rows, const uint16* __restrict raised,
                      const int32* __restrict reciprocals, int8* __restrict y) {
  aie::set_rounding(aie::rounding_mode::positive_inf);
  HCCS_LOOP(output_tiles, at, rows / rows_together * (Dim / 4), 4) {
    const unsigned block = at / (Dim / 4);
    const aie::vector<uint16, 16> up = aie::load_v<16>(raised + block * 16);
    const ints R = aie::load_v<16>(reciprocals + block * 16);
    const auto half = [&](unsigned k) {
      const ints lifted = scaled(aie::load_v<16>(N + at * 32 + k * 16), up, 0);
      return aie::mul<acc64>(lifted, R).template to_vector<int16>(by.shift + 15);
    };
    aie::store_v(y + at * 32, aie::concat(half(0), half(1)).pack());
  }
  aie::set_rounding(aie::rounding_mode::floor);
}

// The pair (N, Z) of `rows` query rows over Keys keys. rows: 32, or 64 where attention_rows() says so; Keys: a
// multiple of 32 up to 256; Dim: 32 or 64; Planes: of scores, 1 where B >> f <= 255; 0: none is formed (one line, full
// rows). Product: `by` has a multiplier. Of two lines B + 128*(S + S2) <= 32767. Buffers are 64-byte aligned.
template <unsigned Keys, unsigned Dim, unsigned Planes, bool Product, bool Masked, typename Theta, typename Scratch>
void attention(const int8* __restrict q, const int8* __restrict k, const int8* __restrict v, const Theta& theta,
               const factor& by, const attended& mask, unsigned rows, Scratch& __restrict s, int32* __restrict N,
               int32* __restrict Z) {
  attention_logits<Dim, Product>(q, k, rows, Keys, by, s.logits);
  if constexpr (Masked) masked_logits(rows, Keys, mask, s.logits);
  attention_levels<Keys>(s.logits, theta, rows, Masked && mask.keys == 0, s.low, s.low2, s.offset);
  if constexpr (Planes > 0) {
    HCCS_UNROLL(plane, Planes) {
      attention_scores<Keys, (Planes > 1), Masked>(s.logits, theta, rows, plane, mask, s.low, s.low2, s.offset,
                                                   s.scores + plane * rows * Keys);
    }
    score_totals<Keys, Planes>(s.scores, rows, Z);
    weighted_values<Keys, Dim, Planes>(s.scores, v, rows, N);
  } else {
    clamped_totals<Keys>(s.logits, theta, rows, s.low, s.offset, Z);
    value_sums<Keys, Dim>(v, s.value_sums);
    clamped_values<Keys, Dim>(s.logits, v, theta, rows, s.low, s.offset, s.value_sums, N);
  }
}

// The pair as int8, by the output's factor.
template <unsigned Dim, typename Scratch>
void attention_as_int8(const int32* __restrict N, const int32* __restrict Z, const factor& by, unsigned rows,
                       Scratch& __restrict s, int8* __restrict y) {
  output_alignment(Z, rows, s.divisor, s.raised);
  output_reciprocals(s.divisor, by.multiplier, rows, s.reciprocal);
  attention_output<Dim>(N, by, rows, s.raised, s.reciprocal, y);
}

}  // namespace hccs
