// From row sums to reciprocals, for all rows of a block at once.
#pragma once

#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

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

// A 16-bit value in both halves of its word: vectors of it are broadcast from memory without a shuffle.
template <class Ints>
HCCS_INLINE Ints in_both_halves(Ints v) {
  return (v & 0xffff) | (v << 16);
}

template <class Ints, class Floats>
HCCS_INLINE Ints bits_of(Floats value) {
  Ints bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// From the exponent of the float, exact below 2^24.
template <class Ints, class Floats>
HCCS_INLINE Ints leading_bits(Ints Z) {
  return (bits_of<Ints>(__builtin_convertvector(Z, Floats)) >> 23) - 127;
}

// `linear_reciprocal` from the float's mantissa.
template <class Ints, class Floats>
HCCS_INLINE Ints linear_reciprocals(Ints Z) {
  const Ints M = ((bits_of<Ints>(__builtin_convertvector(Z, Floats)) & 0x7fffff) | 0x800000) >> 8;
  return (255 * (kLinearTop - (M >> 1))) >> 15;
}

// floor(kNumerator / M) for integers M of 16 bits and a numerator of 30 that is exact in float32.
template <int32_t kNumerator, class Ints, class Floats>
HCCS_INLINE Ints floor_quotients(Floats M) {
#ifdef __AVX512F__
  if constexpr (sizeof(Floats) == 64) {
    constexpr int kDown = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
    return (Ints)_mm512_cvttps_epi32(_mm512_div_round_ps(_mm512_set1_ps(kNumerator), (__m512)M, kDown));
  }
#endif
  // The rounded quotient reaches the next integer at most: rounding keeps the order.
  const Ints quotient = __builtin_convertvector(float(kNumerator) / M, Ints);
  return quotient + ((kNumerator - quotient * __builtin_convertvector(M, Ints)) >> 31);
}

// Z and its reciprocal for every row of a block, and the words from which a row's output is made.
template <Width kWidth, int kRows>
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
  HCCS_INLINE void solve(const int32_t (&B_rows)[kRows], const int32_t (&S_rows)[kRows], Mode mode) {
    const Ints B = load(B_rows), S = load(S_rows);
    Ints Z = load(valid) * B - S * load(sum);  // eq. 5
    Z = Z > 1 ? Z : 1;                         // a row without valid columns: its output is masked
    Ints k = leading_bit(Z), shift = {};
    if constexpr (kWidth == Width::kU8) {  // the short-row rule
      shift = k < 8 ? 8 - k : 0;
      Z <<= shift;
      k += shift;
    }
    store(e, shift);
    Ints reciprocal;
    constexpr int32_t kNumerator = numerator(kWidth == Width::kU8 ? Mode::kU8Div : Mode::kI16Div);
    if (is_clb(mode))
      reciprocal = (kNumerator - (Ints{})) >> k;  // eq. 9
    else if (mode == Mode::kU8Lin)
      reciprocal = linear_reciprocals<Ints, Floats>(Z) << (15 - k);
    else
      reciprocal = __builtin_convertvector(float(kNumerator) / __builtin_convertvector(Z, Floats), Ints);  // eq. 6, 8
    store(rho, twice(reciprocal));
    store(base, twice(kWidth == Width::kU8 ? B << (shift + 1) : B * reciprocal));
    store(slope, twice(kWidth == Width::kU8 ? S << (shift + 1) : S * reciprocal));
  }

 private:
  static HCCS_INLINE Ints load(const int32_t (&from)[kRows]) {
    Ints v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  static HCCS_INLINE void store(void* to, Ints v) { std::memcpy(to, &v, sizeof v); }
  static HCCS_INLINE Ints twice(Ints v) { return in_both_halves(v); }
  static HCCS_INLINE Ints leading_bit(Ints Z) { return leading_bits<Ints, Floats>(Z); }
};

// As above for the wide form. p = (s rho) >> j is ((s 2^e) rho') >> 16 >> down: 16 bits throughout, since s < 2^(k+1).
template <Width kWidth, int kRows>
struct WideNormaliser {
  alignas(64) int32_t valid[kRows];
  alignas(64) int32_t sum[kRows];
  alignas(64) int32_t e[kRows];
  alignas(64) int32_t down[kRows];
  alignas(64) uint32_t down_words[kRows];  // in both halves, as rho
  alignas(64) uint32_t rho[kRows];

  using Ints = typename RowLanes<kRows>::Ints;
  using Floats = typename RowLanes<kRows>::Floats;

  HCCS_INLINE void solve(const int32_t (&top_score)[kRows], const int32_t (&)[kRows], Mode mode) {
    constexpr int32_t kT = kWidth == Width::kU8 ? 255 : 32767, kSpare = kWidth == Width::kU8 ? 7 : 0;
    Ints top, lost, count;
    std::memcpy(&top, top_score, sizeof top);
    std::memcpy(&lost, sum, sizeof lost);
    std::memcpy(&count, valid, sizeof count);
    Ints Z = count * top - lost;
    Z = Z > 1 ? Z : 1;  // a row without valid columns: its output is masked
    const Ints bits = bits_of<Ints>(__builtin_convertvector(Z, Floats)), k = (bits >> 23) - 127;
    Ints reciprocal = Ints{} + (kT << kSpare);
    if (mode == Mode::kU8Lin) {
      reciprocal = linear_reciprocals<Ints, Floats>(Z) << 7;
    } else if (!is_clb(mode)) {
      // M = ceil(Z 2^(15 - k)): the float's mantissa, rounded up to 16 bits, with the exponent of 2^15.
      const Ints M_bits = ((bits & 0x7fffff) + ((127 + 15) << 23) + 0xff) & ~0xff;
      Floats M;
      std::memcpy(&M, &M_bits, sizeof M);
      reciprocal = floor_quotients<kT << (15 + kSpare), Ints>(M);
    }
    // From the leading bit kFits on, s rho is shifted down behind its upper 16 bits; below, s is shifted up before.
    constexpr int32_t kFits = 16 - kSpare;
    Ints up, behind;
    if constexpr (kWidth == Width::kU8) {
      up = k < kFits ? kFits - k : Ints{};
      behind = k > kFits ? k - kFits : Ints{};
    } else {
      // s 2^(16 - k) might need 17 bits, rho has 15: it takes the last of the shift.
      up = k < kFits - 1 ? kFits - 1 - k : Ints{};
      behind = k > kFits ? k - kFits : Ints{};
      reciprocal = k < kFits ? reciprocal * 2 : reciprocal;
    }
    reciprocal = in_both_halves(reciprocal);
    const Ints twice_behind = in_both_halves(behind);
    std::memcpy(down_words, &twice_behind, sizeof behind);
    std::memcpy(e, &up, sizeof up);
    std::memcpy(down, &behind, sizeof behind);
    std::memcpy(rho, &reciprocal, sizeof reciprocal);
  }
};

}  // namespace
}  // namespace hccs
