// The second pass of the division modes: exact reciprocals of the row sums. See hccs_softmax.hpp for the arithmetic.
#pragma once

#include "hccs_softmax.hpp"

namespace hccs {

// Sixteen numbers twice each, from Copies of each.
template <unsigned Copies>
HCCS_INLINE halves two_copies(const int16* __restrict p) {
  if constexpr (Copies == 2)
    return aie::load_v<32>(p);
  else
    return aie::interleave_unzip(two_copies<Copies / 2>(p), two_copies<Copies / 2>(p + 8 * Copies), 1).first;
}

using words = aie::vector<uint32, 16>;
using shorts = aie::vector<int16, 16>;

// Exact floor(numerator / Z), sixteen rows at once, four operations per quotient bit. Each 32-bit lane holds the
// remainder above bit 16 and the numerator's waiting bits below, into whose place the quotient grows: doubling brings
// in a bit, and subtracting (Z << 16) - 1 sets a quotient bit. Where Z does not fit the subtraction wraps to a huge
// unsigned number, so the minimum keeps the lane as it was. The doubled minimum is a sum of two minima with their
// operands exchanged: a value added to itself would become a shift, for which there is no vector instruction.
HCCS_INLINE shorts divide(uint32 doubled_numerator, const shorts& z, unsigned bits) {
  const auto [first, second] = aie::interleave_zip(aie::zeros<int16, 16>(), z, 1);
  const words divisor =
      aie::sub(aie::concat(first, second).template cast_to<uint32>(), aie::broadcast<uint32, 16>(uint32(1)));
  words doubled = aie::broadcast<uint32, 16>(doubled_numerator);
  HCCS_PLAIN_LOOP(quotient_bits, bit, bits - 1) {
    const words less = aie::sub(doubled, divisor);
    doubled = aie::add(aie::min(doubled, less), aie::min(less, doubled));
  }
  const words last = aie::min(doubled, aie::sub(doubled, divisor));
  return aie::filter_even(last.template cast_to<int16>(), 1);
}

// Quotient bits that floor(32767 / Z) can have: Z is at least B, and at least n times the smallest score.
HCCS_INLINE unsigned quotient_bits(const head& theta, unsigned n, bool masked) {
  const int32 floor = theta.B - theta.S * theta.D;
  const int32 least = masked ? theta.B : (int32(n) * floor > theta.B ? int32(n) * floor : theta.B);
  unsigned bits = 15;
  while (bits > 1 && (least >> (16 - bits)) > 0) --bits;
  return bits;
}

// z where it is at least `enough`, else z * factor. A product, for the reason divide() gives.
HCCS_INLINE shorts raised(const shorts& z, int16 enough, int16 factor) {
  const shorts more = aie::mul<acc32>(z, aie::broadcast<int16, 16>(factor)).template to_vector<int16>(0);
  return aie::select(z, more, aie::lt(z, aie::broadcast<int16, 16>(enough)));
}

template <mode M, bool Masked>
void reciprocals(const head& theta, unsigned rows, unsigned n, const int16* __restrict sums_in,
                 int16* __restrict reciprocal_out, uint16* __restrict slope_out) {
  const unsigned bits = M == mode::u8_div ? 15 : quotient_bits(theta, n, Masked);
  const uint32 doubled = M == mode::u8_div ? uint32(255) << 17 : uint32(32767) << (17 - bits);
  const shorts slope = aie::broadcast<int16, 16>(int16(theta.S));
  HCCS_LOOP(batches, batch, rows / batch_rows, 1) {
    shorts z = aie::filter_even(two_copies<total_columns>(sums_in + batch * batch_rows * total_columns), 1);
    // Rows with Z < 256 are doubled until they have nine bits.
    if constexpr (M == mode::u8_div) z = raised(raised(raised(raised(z, 16, 16), 64, 4), 128, 2), 256, 2);
    const shorts rho = divide(doubled, z, bits);
    aie::store_v(reciprocal_out + batch * batch_rows, rho);
    if constexpr (M == mode::i16_div)
      aie::store_v(slope_out + batch * batch_rows, aie::mul<acc32>(rho, slope).template to_vector<uint16>(0));
  }
}

// The scaled reciprocal of two lines: Z brought to 15 bits, then 15 quotient bits of T * 2^t * 2^14 whatever Z was.
template <mode M, bool Masked>
void reciprocals(const two_lines&, unsigned rows, unsigned, const int16* __restrict sums_in,
                 int16* __restrict reciprocal_out, uint16* __restrict) {
  const uint32 doubled = uint32(M == mode::u8_div ? 255 << 7 : 32767) << 16;
  HCCS_LOOP(batches, batch, rows / batch_rows, 1) {
    shorts z = aie::filter_even(two_copies<total_columns>(sums_in + batch * batch_rows * total_columns), 1);
    z = raised(raised(raised(raised(z, 128, 256), 2048, 16), 8192, 4), 16384, 2);
    aie::store_v(reciprocal_out + batch * batch_rows, divide(doubled, z, 15));
  }
}

}  // namespace hccs
