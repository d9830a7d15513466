// Sixteen rows' integers of 32 bits, and products of them in 64: what requantisation, LayerNorm and the int8 output of
// attention are made of. The Newton steps round anyhow; every result is then corrected with exact products.
#pragma once

#include <aie_api/aie.hpp>

#include "hints.hpp"

namespace hccs {

using ints = aie::vector<int32, 16>;
using wide = aie::accum<acc64, 16>;
using mask16 = aie::mask<16>;

HCCS_INLINE ints all_of(int32 value) { return aie::broadcast<int32, 16>(value); }

// (a * b) >> shift, as the mode in force rounds.
template <typename B>
HCCS_INLINE ints scaled(const ints& a, const aie::vector<B, 16>& b, int shift) {
  return aie::mul<acc64>(a, b).template to_vector<int32>(shift);
}

// The lanes in which a 64-bit number is below 0.
HCCS_INLINE mask16 negative(const wide& a) { return aie::lt(a.template to_vector<int32>(0), all_of(0)); }

// high * 2^31 + low.
HCCS_INLINE wide joined(const ints& high, const ints& low) { return aie::add(wide(high, 31), wide(low)); }

// One number of eight rows, twice: what 2 channels x 8 rows of a tile read.
HCCS_INLINE void store_twice(int32* __restrict out, const ints& sixteen_rows) {
  const auto first = sixteen_rows.template extract<8>(0), second = sixteen_rows.template extract<8>(1);
  aie::store_v(out, aie::concat(first, first));
  aie::store_v(out + 16, aie::concat(second, second));
}

// About 2^60 / z for z in [2^30, 2^31), in steps of 2^-29: a line, then three Newton steps.
HCCS_INLINE ints reciprocal(const ints& z) {
  ints y = aie::sub(all_of(1515870810), scaled(z, all_of(1010580540), 31));  // 48/17 - 32/17 z
  HCCS_UNROLL(step, 3) { y = scaled(y, aie::sub(all_of(1 << 30), scaled(z, y, 31)), 29); }
  return y;
}

// About 2^29 / sqrt(a / 2^31) for a in [2^29, 2^31): a line, then four Newton steps.
HCCS_INLINE ints inverse_root(const ints& a) {
  ints y = aie::sub(all_of(1143531274), scaled(a, all_of(644245094), 31));  // 2.13 - 1.2 a
  HCCS_UNROLL(step, 4) {
    const ints square = scaled(y, y, 30);
    y = scaled(y, aie::sub(all_of(3 << 28), scaled(a, square, 31)), 29);
  }
  return y;
}

}  // namespace hccs
