#include <algorithm>
#include <atomic>

#include "common/parallel_for.hpp"
#include "float_logits/job.hpp"

namespace hccs {

bool run_logits(const LogitsJob& job, LogitsRows kernel, int threads, Interruption& interruption) {
  constexpr int64_t kLogitsAtOnce = int64_t{1} << 20;
  const RowParts parts(job.rows.rows, 1, threads, std::max<int64_t>(kLogitsAtOnce / job.rows.columns, 1));
  std::atomic<bool> finite = true;
  parallel_for(parts.count(), threads, interruption, [&](int64_t part) {
    if (!kernel(job, parts.begin(part), parts.end(part))) finite = false;
  });
  return finite;
}

}  // namespace hccs
