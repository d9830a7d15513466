// Plain C++: the fallback for machines without a kernel of their own, one row after the other.
#include "softmax/rows.hpp"

namespace hccs {
namespace {

int leading_bit(uint32_t Z) { return 31 - __builtin_clz(Z); }

template <Mode kMode, Masking kMasking>
struct ScalarRows {
  using Out = typename Output<kMode>::type;

  static void run(const SoftmaxJob& job, int64_t begin, int64_t end) {
    HeadCursor heads(job, begin);
    RowCursor valid(job.valid, begin);
    for (int64_t r = begin; r < end; ++r) {
      row(job.x + r * job.columns, static_cast<Out*>(job.out) + r * job.columns, job.columns, valid.at(), heads.head());
      valid.advance(1);
      heads.advance(1);
    }
  }

  static void row(const int8_t* x, Out* out, int64_t columns, const char* selection, const Head& head) {
    const int64_t count = kMasking == Masking::kLengths ? *reinterpret_cast<const int32_t*>(selection) : columns;
    const auto takes_part = [&](int64_t i) { return kMasking != Masking::kMask || selection[i] != 0; };

    int32_t m = -128;
    for (int64_t i = 0; i < count; ++i)
      if (takes_part(i) && x[i] > m) m = x[i];
    const auto distance = [&](int64_t i) { return m - x[i] < head.D ? m - x[i] : head.D; };  // eq. 2

    int32_t Z = 0;  // eq. 5
    for (int64_t i = 0; i < count; ++i)
      if (takes_part(i)) Z += head.B - head.S * distance(i);

    int32_t rho = 0, e = 0;
    if (Z > 0) {
      e = is_u8(kMode) && Z < 256 ? 8 - leading_bit(Z) : 0;
      rho = is_clb(kMode) ? numerator(kMode) >> leading_bit(Z << e) : numerator(kMode) / (Z << e);
    }
    constexpr int32_t kT = is_u8(kMode) ? 255 : 32767;
    for (int64_t i = 0; i < columns; ++i) {
      if (i >= count || !takes_part(i)) {
        out[i] = 0;
        continue;
      }
      const int32_t s = (head.B - head.S * distance(i)) << e;      // eq. 3
      const int32_t p = is_u8(kMode) ? (s * rho) >> 15 : s * rho;  // eq. 7
      out[i] = static_cast<Out>(p < kT ? p : kT);
    }
  }
};

}  // namespace

void softmax_rows_scalar(const SoftmaxJob& job, int64_t begin, int64_t end) { for_job<ScalarRows>(job, begin, end); }

}  // namespace hccs
