#include "dispatch.hpp"

#include <unistd.h>
#if defined(HCCS_NEON) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
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

#ifdef HCCS_NEON
bool has_dot_product() {
#ifdef __linux__
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
  return true;  // every Mac with such a processor has it
#else
  return false;
#endif
}
#endif

}  // namespace

const std::vector<Isa>& isas() {
  static const std::vector<Isa> all = [] {
    std::vector<Isa> found{{"scalar", true, softmax_rows_scalar, logits_scalar, &attention_scalar}};
#ifdef HCCS_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
    const bool avx512 = avx2 && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi");
    const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    found.push_back({"avx2", avx2, softmax_rows_avx2, logits_avx2, &attention_avx2});
    found.push_back({"avx512", avx512, softmax_rows_avx512, logits_avx512, vnni ? &attention_avx512 : &attention_avx2});
#endif
#ifdef HCCS_NEON
    found.push_back(
        {"neon", true, softmax_rows_neon, logits_scalar, has_dot_product() ? &attention_neon : &attention_scalar});
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

void run_attention(const AttentionJob& job, const AttentionKernel& kernel, int threads) {
  constexpr int64_t kBlock = 16;
  const int64_t blocks = (job.rows + kBlock - 1) / kBlock;
  const int64_t share = kBlock * ((blocks + threads - 1) / threads);
  const int64_t parts = (job.rows + share - 1) / share;
  // One allocation for all of them, here, where failing is an exception that the caller sees.
  const size_t each = (kernel.workspace(job) + 63) / 64 * 64;
  const auto free = [](std::byte* memory) { ::operator delete[](memory, std::align_val_t{64}); };
  const std::unique_ptr<std::byte[], decltype(free)> memory(
      static_cast<std::byte*>(::operator new[](each * parts, std::align_val_t{64})), free);
  const auto part = [&](int64_t i) {
    kernel.rows(job, i * share, std::min((i + 1) * share, job.rows), memory.get() + i * each);
  };
  std::vector<std::thread> workers;
  for (int64_t i = 1; i < parts; ++i) workers.emplace_back(part, i);
  part(0);
  for (std::thread& worker : workers) worker.join();
}

}  // namespace hccs
