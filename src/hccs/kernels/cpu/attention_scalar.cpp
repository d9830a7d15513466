// Plain C++: the fallback for machines without a kernel of their own.
#include "attention_blocks.hpp"

namespace hccs {
namespace {

struct Scalar : PlainSteps<int16_t, 8, 1> {
  static constexpr int kRows = 2, kPanels = 1;
  struct Sums {
    int32_t lane[8];
  };
  struct Panel {
    int16_t lane[8];
  };
  static HCCS_INLINE Sums splat(int32_t value) { return {value, value, value, value, value, value, value, value}; }
  static HCCS_INLINE Sums load(const int32_t* from) {
    Sums sums;
    std::memcpy(&sums, from, sizeof sums);
    return sums;
  }
  static HCCS_INLINE void store(int32_t* to, const Sums& sums) { std::memcpy(to, &sums, sizeof sums); }
  static HCCS_INLINE Panel panel(const int16_t* from) {
    Panel panel;
    std::memcpy(&panel, from, sizeof panel);
    return panel;
  }
  static HCCS_INLINE Panel broadcast(const int16_t* from) {
    return {*from, *from, *from, *from, *from, *from, *from, *from};
  }
  static HCCS_INLINE Sums dot_keys(Sums sums, const Panel& keys, const Panel& query) {
    for (int i = 0; i < 8; ++i) sums.lane[i] += keys.lane[i] * query.lane[i];
    return sums;
  }
  static HCCS_INLINE Sums dot_values(const Sums& sums, const Panel& values, const Panel& weights) {
    return dot_keys(sums, values, weights);
  }
  struct Factor {
    Factor(int32_t multiplier, int shift) : multiplier(multiplier), shift(shift) {}
    HCCS_INLINE void store_logits(const Sums& sums, int8_t* x) const {
      for (int i = 0; i < 8; ++i) x[i] = round_half_up(sums.lane[i], multiplier, shift);
    }
    int32_t multiplier;
    int shift;
  };
};

}  // namespace

const AttentionKernel attention_scalar{AttentionRows<Scalar>::workspace, AttentionRows<Scalar>::run};

}  // namespace hccs
