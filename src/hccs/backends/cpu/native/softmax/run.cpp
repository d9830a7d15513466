#include <unistd.h>

#include <algorithm>

#include "common/parallel_for.hpp"
#include "softmax/job.hpp"

namespace hccs {
namespace {

bool larger_than_caches(const SoftmaxJob& job) {
#ifdef _SC_LEVEL3_CACHE_SIZE
  static const int64_t last_level = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), int64_t{16} << 20);
#else
  constexpr int64_t last_level = int64_t{32} << 20;
#endif
  return job.rows * job.columns * (is_u8(job.mode) ? 2 : 3) > last_level;
}

}  // namespace

void run_softmax(SoftmaxJob& job, SoftmaxRows kernel, int threads, Interruption& interruption) {
  constexpr int64_t kBlock = 16;  // a multiple of every kernel's block
  constexpr int64_t kLogitsAtOnce = int64_t{1} << 21;
  job.past_caches = larger_than_caches(job);
  // Even the divisions that share out rows show in a call on a few of them.
  if (threads == 1 && job.rows * job.columns <= kLogitsAtOnce) return kernel(job, 0, job.rows);
  const RowParts parts(job.rows, kBlock, threads, std::max<int64_t>(kLogitsAtOnce / job.columns, 1));
  parallel_for(parts.count(), threads, interruption,
               [&](int64_t part) { kernel(job, parts.begin(part), parts.end(part)); });
}

}  // namespace hccs
