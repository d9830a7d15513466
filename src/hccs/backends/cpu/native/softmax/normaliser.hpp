// From row sums to reciprocals, for all rows of a block at once.
#pragma once

#include <cstring>

#include "common/inline.hpp"
#include "softmax/job.hpp"

namespace hccs {
namespace {

// Values that follow are read back from memory: a broadcast load costs no shuffle, while the compiler, seeing
// the vector that was stored, would rather extract its lanes.
HCCS_INLINE void through_memory() { asm volatile("" ::: "memory"); }

// One lane per row, in the compiler's portable vectors.
template <int kRows>
struct RowLanes;
template <>
struct RowLanes<8> {
  typedef int32_t Ints __attribute__((vector_size(32)));
  typedef float Floats __attribute__((vector_size(32)));
};
template <>
struct RowLanes<16> {
  typedef int32_t Ints __attribute__((vector_size(64)));
  typedef float Floats __attribute__((vector_size(64)));
};

// Z and its reciprocal for every row of a block, and the words from which a row's output is made.
template <Mode kMode, int kRows>
struct Normaliser {
  alignas(64) int32_t valid[kRows];
  alignas(64) int32_t sum[kRows];
  alignas(64) int32_t e[kRows];
  alignas(64) uint32_t rho[kRows];
  alignas(64) uint32_t base[kRows];   // u8: 2 B 2^e;  i16: B rho
  alignas(64) uint32_t slope[kRows];  // u8: 2 S 2^e;  i16: S rho

  using Ints = typename RowLanes<kRows>::Ints;
  using Floats = typename RowLanes<kRows>::Floats;

  // Division in float32 is exact here. Let a < 2^23 be the numerator and b = Z < 2^15, a/b no integer and
  // k = ceil(a/b). Then k - a/b >= 1/b, while half the gap between k and the float below it is at most
  // k * 2^-24 < (a + b) / b * 2^-24 < 1/b: rounding never reaches k, so truncation gives floor(a/b).
  HCCS_INLINE void solve(const int32_t (&B_rows)[kRows], const int32_t (&S_rows)[kRows]) {
    const Ints B = load(B_rows), S = load(S_rows);
    Ints Z = load(valid) * B - S * load(sum);  // eq. 5
    Z = Z > 1 ? Z : 1;                         // a row without valid columns: its output is masked
    Ints k = leading_bit(Z), shift = {};
    if constexpr (is_u8(kMode)) {  // the short-row rule
      shift = k < 8 ? 8 - k : 0;
      Z <<= shift;
      k += shift;
    }
    store(e, shift);
    Ints reciprocal;
    if constexpr (is_clb(kMode))
      reciprocal = (numerator(kMode) - (Ints{})) >> k;  // eq. 9
    else
      reciprocal =
          __builtin_convertvector(float(numerator(kMode)) / __builtin_convertvector(Z, Floats), Ints);  // eq. 6, 8
    store(rho, twice(reciprocal));
    store(base, twice(is_u8(kMode) ? B << (shift + 1) : B * reciprocal));
    store(slope, twice(is_u8(kMode) ? S << (shift + 1) : S * reciprocal));
  }

 private:
  static HCCS_INLINE Ints load(const int32_t (&from)[kRows]) {
    Ints v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  static HCCS_INLINE void store(void* to, Ints v) { std::memcpy(to, &v, sizeof v); }
  // A 16-bit value in both halves of its word: vectors of it are broadcast from memory without a shuffle.
  static HCCS_INLINE Ints twice(Ints v) { return (v & 0xffff) | (v << 16); }
  // From the exponent of the float, exact below 2^24.
  static HCCS_INLINE Ints leading_bit(Ints Z) {
    const Floats value = __builtin_convertvector(Z, Floats);
    Ints bits;
    std::memcpy(&bits, &value, sizeof bits);
    return (bits >> 23) - 127;
  }
};

}  // namespace
}  // namespace hccs
