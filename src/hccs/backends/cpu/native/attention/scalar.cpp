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
  typedef int32_t Integers __attribute__((vector_size(16)));
  using Panel = Sums;

  static HCCS_INLINE Integers integers(const int32_t* from) {
    Integers loaded;
    std::memcpy(&loaded, from, sizeof loaded);
    return loaded;
  }
  static HCCS_INLINE Sums splat(int32_t value) {
    const float real = static_cast<float>(value);
    return Sums{real, real, real, real};
  }
  static HCCS_INLINE Sums load(const int32_t* from) { return __builtin_convertvector(integers(from), Sums); }
  static HCCS_INLINE void add_to(int32_t* to, Sums sums) {
    const Integers total = integers(to) + __builtin_convertvector(sums, Integers);
    std::memcpy(to, &total, sizeof total);
  }
  static HCCS_INLINE Panel panel(const float* from) {
    Panel loaded;
    std::memcpy(&loaded, from, sizeof loaded);
    return loaded;
  }
  static HCCS_INLINE Panel broadcast(const float* from) { return Panel{*from, *from, *from, *from}; }
  static HCCS_INLINE Sums dot_keys(Sums sums, Panel keys, Panel query) { return sums + keys * query; }
  static HCCS_INLINE Sums dot_values(Sums sums, Panel values, Panel weights) { return sums + values * weights; }

  struct Factor {
    Factor(int32_t multiplier, int shift) : multiplier(multiplier), shift(shift) {}
    HCCS_INLINE void store(Sums sums, int8_t* x) const {
      for (int i = 0; i < 4; ++i) x[i] = round_half_up(static_cast<int32_t>(sums[i]), multiplier, shift);
    }
    int32_t multiplier;
    int shift;
  };
};

}  // namespace

const AttentionKernel attention_scalar{AttentionRows<Scalar>::workspace, AttentionRows<Scalar>::run};

}  // namespace hccs
