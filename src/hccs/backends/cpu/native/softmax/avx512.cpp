#include "softmax/avx512.hpp"

namespace hccs {
namespace {

template <Width kWidth, Masking kMasking>
struct Avx512Rows : BlockRows<Avx512, kWidth, kMasking> {};

bool has_vnni() {
  static const bool found = __builtin_cpu_supports("avx512vnni");
  return found;
}

}  // namespace

void softmax_rows_avx512(const SoftmaxJob& job, int64_t begin, int64_t end) {
  if (job.columns <= 32) return softmax_rows_avx2(job, begin, end);  // half-empty vectors would be slower
  if (job.wide_heads) return (has_vnni() && is_u8(job.mode) ? wide_rows_avx512 : softmax_rows_avx2)(job, begin, end);
  for_job<Avx512Rows>(job, begin, end);
}

}  // namespace hccs
