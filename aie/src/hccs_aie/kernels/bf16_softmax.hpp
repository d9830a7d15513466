// BF16 softmax with max-subtraction, the floating-point baseline: three passes over each row, 16 elements at a time.
//
// AIE-ML has no exponential: exp(d) = exp(whole part) * exp(fraction) from two 256-entry tables, indexed by d in 8.8
// fixed point, and the reciprocal of the sum is a soft-float library call. AIE-MLv2 has exp2 and reciprocal
// instructions.
#pragma once

#include <aie_api/aie.hpp>

#include "hints.hpp"

namespace hccs {

using bf16_lanes = aie::vector<bfloat16, 16>;

// exp by table: `whole` holds exp(i) for the upper index byte (two's complement), `fraction` exp(i / 256).
// Each table comes twice (ab, cd), every 128-bit line repeated, as aie::lut<4> wants it.
struct exp_tables {
  const bfloat16 *whole_ab, *whole_cd, *fraction_ab, *fraction_cd;
};

struct exp_by_table {
  using table = aie::lut<4, bfloat16, bfloat16>;
  using lookup = aie::parallel_lookup<uint16, table, aie::lut_oor_policy::truncate>;
  lookup whole, fraction;
  HCCS_INLINE explicit exp_by_table(const exp_tables& t)
      : whole(table(256, t.whole_ab, t.whole_cd), 8), fraction(table(256, t.fraction_ab, t.fraction_cd), 0) {}
  HCCS_INLINE aie::accum<accfloat, 16> operator()(const aie::accum<accfloat, 16>& difference) {
    // The index must not wrap: exp(-127) is already 0 in BF16.
    const bf16_lanes bounded =
        aie::max(difference.template to_vector<bfloat16>(), aie::broadcast<bfloat16, 16>(bfloat16(-127.0f)));
    const aie::vector<uint16, 16> index = aie::to_fixed<int16>(bounded, 8).template cast_to<uint16>();
    return aie::mul(whole.fetch(index), fraction.fetch(index));
  }
};

struct exp_native {
  HCCS_INLINE aie::accum<accfloat, 16> operator()(const aie::accum<accfloat, 16>& difference) {
    const bf16_lanes scaled = difference.template to_vector<bfloat16>();
    const bf16_lanes log2_e = aie::broadcast<bfloat16, 16>(bfloat16(1.4453125f));
    const bf16_lanes power = aie::exp2<bfloat16>(aie::mul(scaled, log2_e).template to_vector<float>());
    return aie::accum<accfloat, 16>(power);
  }
};

template <typename Exp>
void softmax_bf16(const bfloat16* __restrict x, bfloat16* __restrict out, unsigned rows, unsigned n, Exp exponential) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  HCCS_PLAIN_LOOP(rows, row, rows) {
    const bfloat16* __restrict in = x + row * n;
    bfloat16* __restrict to = out + row * n;
    bf16_lanes candidates = aie::load_v<16>(in);
    HCCS_PLAIN_LOOP(maximum, i, n / 16 - 1) { candidates = aie::max(candidates, aie::load_v<16>(in + 16 * (i + 1))); }
    const aie::accum<accfloat, 16> maximum(aie::broadcast<bfloat16, 16>(aie::reduce_max(candidates)));

    aie::accum<accfloat, 16> total = aie::zeros<accfloat, 16>();
    HCCS_PLAIN_LOOP(exponentials, i, n / 16) {
      const aie::accum<accfloat, 16> v(aie::load_v<16>(in + 16 * i));
      const aie::accum<accfloat, 16> e = exponential(aie::sub(v, maximum));
      total = aie::add(total, e);
      aie::store_v(to + 16 * i, e.template to_vector<bfloat16>());
    }
    const auto reciprocal = aie::inv(aie::reduce_add(total.template to_vector<float>()));
    const bf16_lanes scale = aie::broadcast<bfloat16, 16>(reciprocal);
    HCCS_PLAIN_LOOP(scale, i, n / 16) {
      const bf16_lanes e = aie::load_v<16>(to + 16 * i);
      aie::store_v(to + 16 * i, aie::mul(e, scale).template to_vector<bfloat16>());
    }
  }
}

}  // namespace hccs
