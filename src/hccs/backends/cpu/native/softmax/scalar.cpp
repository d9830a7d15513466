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

Scaling scaling(const Head&, int32_t Z, Mode mode) {
  Scaling found;
  found.down = is_u8(mode) ? 15 : 0;
  if (Z <= 0) return found;
  found.up = is_u8(mode) && Z < 256 ? 8 - leading_bit(Z) : 0;
  Z <<= found.up;
  const int k = leading_bit(Z);
  if (is_clb(mode))
    found.rho = numerator(mode) >> k;  // eq. 9
  else if (mode == Mode::kU8Lin)
    found.rho = linear_reciprocal(Z, k) << (15 - k);
  else
    found.rho = numerator(mode) / Z;  // eq. 6, 8
  return found;
}
Scaling scaling(const WideHead&, int32_t Z, Mode mode) {
  const int32_t T = is_u8(mode) ? 255 : 32767, spare = is_u8(mode) ? 7 : 0;
  if (Z <= 0) return {};
  const int k = leading_bit(Z), h = k > 15 ? k - 15 : 0;
  if (is_clb(mode)) return {T << spare, 0, k + spare};
  if (mode == Mode::kU8Lin) return {linear_reciprocal(Z, k) << spare, 0, k + spare};
  const int32_t divisor = (Z + (1 << h) - 1) >> h;
  return {(T << (k - h + spare)) / divisor, 0, k + spare};
}

template <class Kind>
struct Rows {
  template <Width kWidth, Masking kMasking>
  struct Of {
    using Out = typename Output<kWidth>::type;

    static void run(const SoftmaxJob& job, int64_t begin, int64_t end) {
      HeadCursor heads(job, begin);
      RowCursor valid(job.valid, begin);
      for (int64_t r = begin; r < end; ++r) {
        row(job.x + r * job.columns, static_cast<Out*>(job.out) + r * job.columns, job.columns, valid.at(),
            heads.template head<Kind>(), job.mode);
        valid.advance(1);
        heads.advance(1);
      }
    }

    static void row(const int8_t* x, Out* out, int64_t columns, const char* selection, const Kind& head, Mode mode) {
      const int64_t count = kMasking == Masking::kLengths ? *reinterpret_cast<const int32_t*>(selection) : columns;
      const auto takes_part = [&](int64_t i) { return kMasking != Masking::kMask || selection[i] != 0; };

      int32_t m = -128;
      for (int64_t i = 0; i < count; ++i)
        if (takes_part(i) && x[i] > m) m = x[i];

      int32_t Z = 0;  // eq. 5
      for (int64_t i = 0; i < count; ++i)
        if (takes_part(i)) Z += score(head, m - x[i]);

      const auto [rho, up, down] = scaling(head, Z, mode);
      constexpr int32_t kT = kWidth == Width::kU8 ? 255 : 32767;
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
