// Residual and LayerNorm of docs/spec.md on one tile: v = x + part, int16 each, to an int16 stream and its int8 form.
//
// 1. statistics  per eight rows: sum(v), and what sum(v^2) is made of, from v = 256 a + b by products of 16 bits
// 2. variances   sixteen rows at once: W = h sum(v^2) - sum(v)^2, Q = h W + epsilon; d = h v - sum(v) is never squared
// 3. alignment   per row, scalar: t and A = Q * 4^t
// 4. roots       sixteen rows at once: s = isqrt(A), r = isqrt(h * 4^w) div s
// 5. apply       d, xhat = rhe(d r / 2^(w - t - 20)), y
//
// Tiles are 4 channels x 8 rows, row index fastest, as products write them. Rows of a register differ in t, a shift
// does not: d is raised by 2^(t - 1) instead, which 32 bits hold as d^2 <= Q, and r doubled where t > 0.
#pragma once

#include "hccs_wide.hpp"

namespace hccs {

// gain, bias: [channels][8], each number eight times. root_high * 2^31 + root_low = isqrt(channels * 4^w).
struct norm {
  const int32 *gain, *bias;
  unsigned channels;
  int32 epsilon_high, epsilon_low, root_high, root_low;  // of 31 bits each
  int shift;                                             // w - 20
  int gain_bits, narrow_bits;
};

constexpr unsigned norm_rows = 64;

struct norm_scratch {
  alignas(64) int32 sums[4][norm_rows];        // of v, a^2, a b and b^2
  alignas(64) int32 minus_sum[2 * norm_rows];  // of eight rows, twice over
  alignas(64) int32 raised[2 * norm_rows];     // 2^max(t - 1, 0), likewise
  alignas(64) uint32 root[2 * norm_rows];      // r, or 2 r where t > 0, likewise
  alignas(64) int32 high[norm_rows];           // Q >> 32, then A >> 33
  alignas(64) uint32 low[norm_rows];           // Q's low 32 bits, then those of A >> 2 below bit 31
  alignas(64) int32 whole[norm_rows];          // 1 where A is a multiple of four
  alignas(64) int32 doubled[norm_rows];        // 2 where t > 0, else 1
};

using lanes16 = aie::vector<int16, 32>;
using sums32 = aie::accum<acc32, 32>;

// Eight rows' sums over the channels in the lanes, twice.
HCCS_INLINE ints folded(const sums32& partial) {
  const aie::vector<int32, 32> all = partial.template to_vector<int32>(0);
  const ints four = aie::add(all.template extract<16>(0), all.template extract<16>(1));
  return aie::add(four, aie::shuffle_down_rotate(four, 8));
}

inline void norm_statistics(const int16* __restrict x, const int16* __restrict part, unsigned channels, unsigned rows,
                            int32 (&__restrict sums)[4][norm_rows]) {
  const lanes16 one = aie::broadcast<int16, 32>(int16(1)), whole = aie::broadcast<int16, 32>(int16(256));
  HCCS_LOOP(norm_blocks, block, rows / 8, 4) {
    const int16* __restrict stream = x + block * 8 * channels;
    const int16* __restrict added = part + block * 8 * channels;
    sums32 sum = aie::zeros<acc32, 32>(), upper = sum, cross = sum, lower = sum;
    HCCS_LOOP(norm_squares, i, channels / 4, 8) {
      const sums32 v = aie::mac(sums32(aie::load_v<32>(stream + i * 32)), aie::load_v<32>(added + i * 32), one);
      const lanes16 a = v.template to_vector<int16>(8);
      const lanes16 b = aie::msc(v, a, whole).template to_vector<int16>(0);
      sum = aie::add(sum, v);
      upper = aie::mac(upper, a, a);
      cross = aie::mac(cross, a, b);
      lower = aie::mac(lower, b, b);
    }
    const ints totals[4] = {folded(sum), folded(upper), folded(cross), folded(lower)};
    HCCS_UNROLL(i, 4) { aie::store_v(sums[i] + block * 8, totals[i].template extract<8>(0)); }
  }
}

inline void norm_variances(const norm& of, unsigned rows, const int32 (&__restrict sums)[4][norm_rows],
                           int32* __restrict minus_sum, int32* __restrict high, uint32* __restrict low) {
  const int32 h = int32(of.channels);
  const wide epsilon = joined(all_of(of.epsilon_high), all_of(of.epsilon_low));
  HCCS_LOOP(variance_rows, block, rows / 16, 2) {
    const ints total = aie::load_v<16>(sums[0] + block * 16);
    wide W = aie::mul<acc64>(aie::load_v<16>(sums[1] + block * 16), all_of(h << 16));
    W = aie::mac(W, aie::load_v<16>(sums[2] + block * 16), all_of(h << 9));
    W = aie::mac(W, aie::load_v<16>(sums[3] + block * 16), all_of(h));
    W = aie::msc(W, total, total);
    // h W: W has 52 bits, so its upper part goes up by 2^6 and h by 2^21.
    const ints top = W.template to_vector<int32>(27);
    const ints rest = aie::msc(W, top, all_of(1 << 27)).template to_vector<int32>(0);
    wide Q = aie::mac(epsilon, rest, all_of(h));
    Q = aie::mac(Q, scaled(top, all_of(64), 0), aie::broadcast<uint32, 16>(uint32(h) << 21));
    const ints words = Q.template to_vector<int32>(32);
    const aie::vector<uint32, 16> half = aie::broadcast<uint32, 16>(uint32(1) << 31);
    store_twice(minus_sum + block * 32, aie::sub(all_of(0), total));
    aie::store_v(high + block * 16, words);
    aie::store_v(low + block * 16, aie::msc(aie::msc(Q, words, half), words, half).template to_vector<uint32>(0));
  }
}

// A = Q * 4^t in [2^62, 2^64), cut into A >> 33 and the 31 bits below.
inline void norm_alignment(unsigned rows, int32* __restrict high, uint32* __restrict low, int32* __restrict whole,
                           int32* __restrict doubled, int32* __restrict raised) {
  HCCS_LOOP(norm_scalars, row, rows, 32) {
    const auto h = HCCS_LOAD(high + row);
    const auto l = HCCS_LOAD(low + row);
    const auto none = (h - 1) >> 31;  // -1 where the upper word is 0
    const auto zeros = HCCS_SIGNED(clb(h)) + (none & (HCCS_SIGNED(clb(l >> 1)) - 1));
    const auto moved = zeros & 62, within = moved & 31;
    const auto far = (31 - moved) >> 31;  // -1 from 32 places on
    const auto shifted = HCCS_SIGNED(l << within);
    const auto near = HCCS_SIGNED(HCCS_UNSIGNED(h) << within) + HCCS_SIGNED((l >> 1) >> (31 - within));
    const auto top = HCCS_UNSIGNED((near & ~far) + (shifted & far));
    const auto bottom = HCCS_UNSIGNED(shifted & ~far);
    const auto before = (moved >> 1) - 1;
    const auto unmoved = before >> 31;  // -1 where t = 0
    HCCS_STORE(high + row, HCCS_SIGNED(top >> 1));
    HCCS_STORE(low + row, ((top & 1u) << 30) + (bottom >> 2));
    HCCS_STORE(whole + row, (((HCCS_SIGNED(bottom & 3u)) - 1) >> 31) & 1);
    HCCS_STORE(doubled + row, unmoved + 2);
    const auto factor = 1 << (before & ~unmoved);
    const unsigned at = row / 8 * 16 + row % 8;
    HCCS_STORE(raised + at, factor);
    HCCS_STORE(raised + at + 8, factor);
  }
}

// r, doubled where t > 0.
inline void norm_roots(const norm& of, unsigned rows, const int32* __restrict high, const uint32* __restrict low,
                       const int32* __restrict whole, const int32* __restrict doubled, uint32* __restrict root) {
  const wide numerator = joined(all_of(of.root_high), all_of(of.root_low));
  const ints top = all_of(of.root_high), one = all_of(1);
  HCCS_LOOP(root_rows, block, rows / 16, 2) {
    const ints a = aie::load_v<16>(high + block * 16);
    const ints y = inverse_root(a);
    const wide A = joined(a, aie::load_v<16>(low + block * 16).template cast_to<int32>());
    // s = 2 s1 + 0 or 1 with s1 = isqrt(A >> 2): about a y, then by its remainder, then exactly.
    ints s1 = scaled(a, y, 29);
    s1 = aie::add(s1, scaled(aie::msc(A, s1, s1).template to_vector<int32>(5), y, 56));
    HCCS_UNROLL(step, 2) {
      const wide left = aie::msc(A, s1, s1);
      const wide over = aie::sub(aie::sub(aie::sub(left, s1), s1), one);
      const ints up = aie::select(aie::add(s1, one), s1, negative(over));
      s1 = aie::select(up, aie::sub(s1, one), negative(left));
    }
    const wide odd = aie::sub(aie::sub(aie::msc(A, s1, s1), s1), aie::load_v<16>(whole + block * 16));
    const ints bit = aie::select(one, all_of(0), negative(odd));
    ints r = scaled(top, y, 30);
    const auto remainder = [&](const ints& q) { return aie::msc(aie::msc(aie::msc(numerator, q, s1), q, s1), q, bit); };
    r = aie::add(r, scaled(remainder(r).template to_vector<int32>(6), y, 55));
    HCCS_UNROLL(step, 2) {
      const wide left = remainder(r);
      const wide over = aie::sub(aie::sub(aie::sub(left, s1), s1), bit);
      const ints up = aie::select(aie::add(r, one), r, negative(over));
      r = aie::select(up, aie::sub(r, one), negative(left));
    }
    const auto twice = aie::mul<acc64>(r, aie::load_v<16>(doubled + block * 16)).template to_vector<uint32>(0);
    const auto first = twice.template extract<8>(0), second = twice.template extract<8>(1);
    aie::store_v(root + block * 32, aie::concat(first, first));
    aie::store_v(root + block * 32 + 16, aie::concat(second, second));
  }
}

inline void norm_apply(const int16* __restrict x, const int16* __restrict part, const norm& of, unsigned rows,
                       const int32* __restrict minus_sum, const int32* __restrict raised, const uint32* __restrict root,
                       int16* __restrict y, int8* __restrict narrowed) {
  const lanes16 h = aie::broadcast<int16, 32>(int16(of.channels));
  HCCS_LOOP(norm_rows, block, rows / 8, 4) {
    const unsigned at = block * 8 * of.channels;
    const ints start = aie::load_v<16>(minus_sum + block * 16), factor = aie::load_v<16>(raised + block * 16);
    const aie::vector<uint32, 16> r = aie::load_v<16>(root + block * 16);
    const sums32 first(aie::concat(start, start));
    HCCS_LOOP(norm_channels, i, of.channels / 4, 8) {
      const sums32 d =
          aie::mac(aie::mac(first, aie::load_v<32>(x + at + i * 32), h), aie::load_v<32>(part + at + i * 32), h);
      const aie::vector<int32, 32> distances = d.template to_vector<int32>(0);
      aie::vector<int16, 16> half[2];
      HCCS_UNROLL(k, 2) {
        const ints xhat = scaled(scaled(distances.template extract<16>(k), factor, 0), r, of.shift);
        const wide bias(aie::load_v<16>(of.bias + i * 32 + k * 16), 20);
        half[k] = aie::mac(bias, xhat, aie::load_v<16>(of.gain + i * 32 + k * 16))
                      .template to_vector<int16>(20 + of.gain_bits);
      }
      const lanes16 both = aie::concat(half[0], half[1]);
      aie::store_v(y + at + i * 32, both);
      aie::store_v(narrowed + at + i * 32, sums32(both).template to_vector<int8>(of.narrow_bits));
    }
  }
}

// rows: a multiple of 32 up to 64; channels: a multiple of 32 up to 1024.
inline void layer_norm(const int16* __restrict x, const int16* __restrict part, const norm& of, unsigned rows,
                       norm_scratch& __restrict s, int16* __restrict y, int8* __restrict narrowed) {
  aie::set_rounding(aie::rounding_mode::floor);
  aie::set_saturation(aie::saturation_mode::saturate);
  norm_statistics(x, part, of.channels, rows, s.sums);
  norm_variances(of, rows, s.sums, s.minus_sum, s.high, s.low);
  norm_alignment(rows, s.high, s.low, s.whole, s.doubled, s.raised);
  norm_roots(of, rows, s.high, s.low, s.whole, s.doubled, s.root);
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::set_saturation(aie::saturation_mode::symmetric);
  norm_apply(x, part, of, rows, s.minus_sum, s.raised, s.root, y, narrowed);
}

}  // namespace hccs
