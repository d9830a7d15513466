// The paper's kernel (section IV-A) in our own words: one row after the other, 32 elements at a time, five stages,
// scores kept in a scratch row. The yardstick for hccs_softmax.hpp; it takes full rows of one head only. As in the
// authors' own kernel the row length is a compile-time constant, so that a compiler may unroll the loops over a row.
#pragma once

#include <aie_api/aie.hpp>

#include "hccs_softmax.hpp"

namespace hccs {

template <mode M, typename Sum>
HCCS_INLINE auto row_reciprocal(const Sum& z) {
  if constexpr (M == mode::i16_div)
    return 32767 / z;  // eq. 6
  else if constexpr (M == mode::u8_div)
    return (255 << 15) / z;  // eq. 8
  else if constexpr (M == mode::i16_clb)
    return 32767 >> (31 - HCCS_SIGNED(clb(z)));  // eq. 9
  else if constexpr (M == mode::u8_lin)
    return (((47976 - (z << (HCCS_SIGNED(clb(z)) - 17))) * 255) >> 15) << (HCCS_SIGNED(clb(z)) - 16);
  else
    return (255 << 15) >> (31 - HCCS_SIGNED(clb(z)));
}

template <mode M, unsigned Chunks>
void softmax_by_row(const int8* __restrict x, typename output<M>::type* __restrict out, const head& theta,
                    unsigned rows, int16* __restrict scores) {
  constexpr unsigned n = Chunks * lanes;
  aie::set_rounding(aie::rounding_mode::floor);
  aie::set_saturation(aie::saturation_mode::saturate);
  const int shift = std::is_same_v<typename output<M>::type, uint8> ? 15 : 0;
  const aie::vector<uint8, 32> clamp = aie::broadcast<uint8, 32>(uint8(theta.D));
  const aie::vector<int8, 32> slope = aie::broadcast<int8, 32>(int8(-theta.S));
  const aie::accum<acc32, 32> base(aie::broadcast<int16, 32>(int16(theta.B)));

  HCCS_PLAIN_LOOP(rows, row, rows) {
    const int8* __restrict in = x + row * n;
    // Stage 1: the row's maximum.
    aie::vector<int8, 32> candidates = aie::load_v<32>(in);
    HCCS_FIXED_LOOP(maximum, i, Chunks - 1) { candidates = aie::max(candidates, aie::load_v<32>(in + 32 * (i + 1))); }
    const aie::vector<uint8, 32> maximum = aie::broadcast<uint8, 32>(aie::reduce_max(candidates));

    // Stages 2 to 4: clamped distance in uint8 (eq. 2), score by int8 MAC (eq. 3), running sum (eq. 5).
    aie::accum<acc32, 32> total = aie::zeros<acc32, 32>();
    HCCS_FIXED_LOOP(scores, i, Chunks) {
      const aie::vector<uint8, 32> v = aie::load_v<32>(in + 32 * i).template cast_to<uint8>();
      const aie::vector<uint8, 32> distance = aie::min(aie::sub(maximum, v), clamp);
      const aie::accum<acc32, 32> score = aie::mac(base, distance.template cast_to<int8>(), slope);
      total = aie::add(total, score);
      aie::store_v(scores + 32 * i, score.template to_vector<int16>(0));
    }
    const auto z = aie::reduce_add(total.template to_vector<int32>(0));

    // Stage 5: one reciprocal, one product per element (eq. 7).
    const aie::vector<int16, 32> rho = aie::broadcast<int16, 32>(row_reciprocal<M>(z));
    HCCS_FIXED_LOOP(normalise, i, Chunks) {
      const aie::vector<int16, 32> score = aie::load_v<32>(scores + 32 * i);
      aie::store_v(out + row * n + 32 * i,
                   aie::mul<acc32>(score, rho).template to_vector<typename output<M>::type>(shift));
    }
  }
}

}  // namespace hccs
