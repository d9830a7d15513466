#include "dispatch.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

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

const std::vector<Isa>& isas() {
  static const std::vector<Isa> all = [] {
    std::vector<Isa> found{{"scalar", true, softmax_rows_scalar, logits_scalar}};
#ifdef HCCS_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
    const bool avx512 = avx2 && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vbmi");
    found.push_back({"avx2", avx2, softmax_rows_avx2, logits_avx2});
    found.push_back({"avx512", avx512, softmax_rows_avx512, logits_avx512});
#endif
#ifdef HCCS_NEON
    found.push_back({"neon", true, softmax_rows_neon, logits_scalar});
#endif
    return found;
  }();
  return all;
}

void run_softmax(SoftmaxJob& job, SoftmaxRows kernel, int threads) {
  job.past_caches = larger_than_caches(job);
  // A multiple of every kernel's block, so that only the last thread meets an incomplete block.
  constexpr int64_t kBlock = 16;
  const int64_t blocks = (job.rows + kBlock - 1) / kBlock;
  const int64_t share = kBlock * ((blocks + threads - 1) / threads);
  std::vector<std::thread> workers;
  for (int64_t begin = share; begin < job.rows; begin += share)
    workers.emplace_back(kernel, std::cref(job), begin, std::min(begin + share, job.rows));
  kernel(job, 0, std::min(share, job.rows));
  for (std::thread& worker : workers) worker.join();
}

bool run_logits(const LogitsJob& job, LogitsRows kernel, int threads) {
  const int64_t share = (job.rows.rows + threads - 1) / threads;
  std::atomic<bool> finite = true;
  const auto part = [&](int64_t begin) {
    if (!kernel(job, begin, std::min(begin + share, job.rows.rows))) finite = false;
  };
  std::vector<std::thread> workers;
  for (int64_t begin = share; begin < job.rows.rows; begin += share) workers.emplace_back(part, begin);
  part(0);
  for (std::thread& worker : workers) worker.join();
  return finite;
}

}  // namespace hccs
