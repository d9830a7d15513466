// Plain C++: the fallback for machines without a kernel of their own, one row after the other.
#include "softmax/rows.hpp"

namespace hccs {
namespace {

int leading_bit(uint32_t Z) { return 31 - __builtin_clz(Z); }

// What a row's output is made of: p = min(((s << up) * rho) >> down, T).
struct Scaling {
  int32_t rho = 0, up = 0, down = 0;
};

int32_t score(const Head& head, int32_t distance) {
  return head.B - head.S * (distance < head.D ? distance : head.D);  // eq. 2, 3
}
int32_t score(const WideHead& head, int32_t distance) {
  const int32_t first = distance < head.D ? distance : head.D, second = distance < head.D2 ? distance : head.D2;
  return (head.B - head.S * first - head.S2 * second) >> head.f;
}

template <Mode kMode>
Scaling scaling(const Head&, int32_t Z) {
  Scaling found;
  found.down = is_u8(kMode) ? 15 : 0;
  if (Z <= 0) return found;
  found.up = is_u8(kMode) && Z < 256 ? 8 - leading_bit(Z) : 0;
  found.rho = is_clb(kMode) ? numerator(kMode) >> leading_bit(Z << found.up)
                            : numerator(kMode) / (Z << found.up);  // eq. 6, 8, 9
  return found;
}
template <Mode kMode>
Scaling scaling(const WideHead&, int32_t Z) {
  constexpr int32_t kT = is_u8(kMode) ? 255 : 32767, kSpare = is_u8(kMode) ? 7 : 0;
  if (Z <= 0) return {};
  const int k = leading_bit(Z), h = k > 15 ? k - 15 : 0;
  const int32_t divisor = (Z + (1 << h) - 1) >> h;
  return {is_clb(kMode) ? kT << kSpare : (kT << (k - h + kSpare)) / divisor, 0, k + kSpare};
}

template <class Kind>
struct Rows {
  template <Mode kMode, Masking kMasking>
  struct Of {
    using Out = typename Output<kMode>::type;

    static void run(const SoftmaxJob& job, int64_t begin, int64_t end) {
      HeadCursor heads(job, begin);
      RowCursor valid(job.valid, begin);
      for (int64_t r = begin; r < end; ++r) {
        row(job.x + r * job.columns, static_cast<Out*>(job.out) + r * job.columns, job.columns, valid.at(),
            heads.template head<Kind>());
        valid.advance(1);
        heads.advance(1);
      }
    }

    static void row(const int8_t* x, Out* out, int64_t columns, const char* selection, const Kind& head) {
      const int64_t count = kMasking == Masking::kLengths ? *reinterpret_cast<const int32_t*>(selection) : columns;
      const auto takes_part = [&](int64_t i) { return kMasking != Masking::kMask || selection[i] != 0; };

      int32_t m = -128;
      for (int64_t i = 0; i < count; ++i)
        if (takes_part(i) && x[i] > m) m = x[i];

      int32_t Z = 0;  // eq. 5
      for (int64_t i = 0; i < count; ++i)
        if (takes_part(i)) Z += score(head, m - x[i]);

      const auto [rho, up, down] = scaling<kMode>(head, Z);
      constexpr int32_t kT = is_u8(kMode) ? 255 : 32767;
      for (int64_t i = 0; i < columns; ++i) {
        if (i >= count || !takes_part(i)) {
          out[i] = 0;
          continue;
        }
        const int32_t p = ((score(head, m - x[i]) << up) * rho) >> down;  // eq. 7
        out[i] = static_cast<Out>(p < kT ? p : kT);
      }
    }
  };
};

}  // namespace

void softmax_rows_scalar(const SoftmaxJob& job, int64_t begin, int64_t end) {
  if (job.wide_heads) return for_job<Rows<WideHead>::Of>(job, begin, end);
  for_job<Rows<Head>::Of>(job, begin, end);
}

}  // namespace hccs
