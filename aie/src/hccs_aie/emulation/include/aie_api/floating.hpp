// The floating-point part that the BF16 baselines need: bf16 arithmetic, table look-up, exp2, reciprocal.
#pragma once

#include <cmath>

#include "operations.hpp"

namespace aie {

inline constexpr unsigned vector_decl_align = 32;

enum class lut_oor_policy { truncate, saturate };

// A table for four look-ups at once: each 128-bit line is stored twice in `ab` and twice in `cd`, so that four
// memory banks can answer together.
template <unsigned Parallel, typename Offset, typename Slope>
struct lut {
  static_assert(Parallel == 4);
  lut(unsigned elements, const void* ab, const void* cd)
      : elements(elements), ab(static_cast<const Offset*>(ab)), cd(static_cast<const Offset*>(cd)) {}
  unsigned elements;
  const Offset *ab, *cd;
};

template <typename Key, typename Lut, lut_oor_policy Policy = lut_oor_policy::saturate>
class parallel_lookup;

template <typename Key, typename Offset, lut_oor_policy Policy>
class parallel_lookup<Key, lut<4, Offset, Offset>, Policy> {
 public:
  static_assert(Policy == lut_oor_policy::truncate, "the kernels wrap indices");
  parallel_lookup(const lut<4, Offset, Offset>& table, unsigned step_bits = 0) : table_(table), step_(step_bits) {}

  template <unsigned N>
  vector<Offset, N> fetch(const vector<Key, N>& keys) const {
    constexpr unsigned line = 16 / sizeof(Offset);
    vector<Offset, N> out;
    for (unsigned i = 0; i < N; ++i) {
      const unsigned index = (keys.data[i] >> step_) & (table_.elements - 1);
      out.data[i] = table_.ab[(index / line) * 2 * line + index % line];
    }
    out.id = emulation::record_with(step_, "lookup", N, emulation::bits_of<Offset>, {keys.id});
    return out;
  }

 private:
  lut<4, Offset, Offset> table_;
  unsigned step_;
};

// Fixed point with `shift` fraction bits, rounded down and wrapped, as the VFLOOR instruction does.
template <typename T, unsigned N>
vector<T, N> to_fixed(const vector<bfloat16, N>& v, int shift) {
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.data[i] = T(std::int64_t(std::floor(std::ldexp(float(v.data[i]), shift))));
  out.id = emulation::record("to_fixed", N, 16, {v.id});
  return out;
}

template <typename T, unsigned N>
vector<T, N> exp2(const vector<float, N>& v) {
  static_assert(std::is_same_v<T, bfloat16>);
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.data[i] = bfloat16(std::exp2(v.data[i]));
  out.id = emulation::record("exp2", N, 16, {v.id});
  return out;
}

template <typename T>
auto inv(const T& a) {
  return emulation::scalar<float>{1.0f / float(emulation::plain(a)),
                                  emulation::record("inv", 1, 32, {emulation::id_of(a)})};
}

template <typename Tag, unsigned N>
  requires std::is_same_v<Tag, accfloat>
accum<accfloat, N> sub(const accum<Tag, N>& a, const accum<Tag, N>& b) {
  accum<accfloat, N> out;
  for (unsigned i = 0; i < N; ++i) out.data[i] = a.data[i] - b.data[i];
  out.id = emulation::record("add_accum_float", N, 32, {a.id, b.id});
  return out;
}

template <typename T, unsigned N>
  requires std::is_same_v<T, accfloat>
accum<accfloat, N> zeros() {
  accum<accfloat, N> out;
  out.id = emulation::record("clear", N, 32);
  return out;
}

}  // namespace aie
