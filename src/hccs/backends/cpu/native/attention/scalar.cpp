// Portable C++: the fallback for machines without a kernel of their own, in the compiler's vectors of four.
#include "attention/blocks.hpp"

namespace hccs {
namespace {

// clamp(floor((sum * multiplier + 2^(shift - 1)) / 2^shift), -128, 127)
HCCS_INLINE int8_t round_half_up(int32_t sum, int32_t multiplier, int shift) {
  const int64_t rounded = (static_cast<int64_t>(sum) * multiplier + (int64_t{1} << (shift - 1))) >> shift;
  return static_cast<int8_t>(rounded < -128 ? -128 : rounded > 127 ? 127 : rounded);
}

// float32 multiplies everywhere, and it is exact here: q.k stays within 2^24, and so does the product of a chunk's 256
// keys, 255 * 128 * 256 < 2^23.
struct Scalar : PlainSteps<float, 4, 1> {
  static constexpr int kRows = 4, kPanels = 2;
  typedef float Sums __attribute__((vector_size(16)));
  typedef int32_t Ints __attribute__((vector_size(16)));
  using Panel = Sums;

  static HCCS_INLINE Sums splat(int32_t value) {
    const float real = static_cast<float>(value);
    return Sums{real, real, real, real};
  }
  static HCCS_INLINE Sums sums(const int32_t* from) { return __builtin_convertvector(load(from), Sums); }
  static HCCS_INLINE Panel panel(const float* from) {
    Panel loaded;
    std::memcpy(&loaded, from, sizeof loaded);
    return loaded;
  }
  static HCCS_INLINE Panel broadcast(const float* from) { return Panel{*from, *from, *from, *from}; }
  static HCCS_INLINE Sums dot(Sums sums, Panel panel, Panel row) { return sums + panel * row; }

  static HCCS_INLINE Ints whole(Sums sums) { return __builtin_convertvector(sums, Ints); }
  static HCCS_INLINE Ints ints(int32_t value) { return Ints{value, value, value, value}; }
  static HCCS_INLINE Ints load(const int32_t* from) {
    Ints loaded;
    std::memcpy(&loaded, from, sizeof loaded);
    return loaded;
  }
  static HCCS_INLINE void store(int32_t* to, Ints values) { std::memcpy(to, &values, sizeof values); }
  static HCCS_INLINE Ints add(Ints a, Ints b) { return a + b; }
  static HCCS_INLINE Ints combine(Ints values, Ints slope, Ints base) { return base + values * slope; }

  struct Factor {
    Factor(int32_t multiplier, int shift) : multiplier(multiplier), shift(shift) {}
    Factor(const RowScaling& rows, int64_t r) : Factor(rows.multiplier[r], rows.shift[r]) {}
    int32_t multiplier;
    int shift;
  };
  template <int kGroup>
  static HCCS_INLINE void store_bytes(const Ints (&sums)[kGroup], const Factor& factor, bool turned, int8_t* to) {
    const int turn = turned ? 0x80 : 0;
    for (int c = 0; c < kGroup; ++c)
      for (int i = 0; i < 4; ++i)
        to[4 * c + i] = static_cast<int8_t>(round_half_up(sums[c][i], factor.multiplier, factor.shift) ^ turn);
  }
  template <int kGroup>
  static HCCS_INLINE void store_ints(const Ints (&sums)[kGroup], int32_t* to) {
    for (int c = 0; c < kGroup; ++c) store(to + c * kLanes, sums[c]);
  }
};

}  // namespace

const AttentionKernel attention_scalar{AttentionRows<Scalar>::workspace, AttentionRows<Scalar>::run};

}  // namespace hccs
