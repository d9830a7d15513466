#include <memory>
#include <new>

#include "attention/job.hpp"
#include "common/parallel_for.hpp"

namespace hccs {

void run_attention(AttentionJob& job, const AttentionKernel& kernel, int threads, Interruption& interruption) {
  constexpr int64_t kBlock = 16;
  // One part for each thread, since every part packs its keys and values anew; the kernel itself polls within it.
  const RowParts parts(job.rows, kBlock, threads, job.rows);
  job.interruption = &interruption;
  // One allocation for all of them, here, where failing is an exception that the caller sees.
  const size_t each = (kernel.workspace(job) + 63) / 64 * 64;
  const auto free = [](std::byte* memory) { ::operator delete[](memory, std::align_val_t{64}); };
  const std::unique_ptr<std::byte[], decltype(free)> memory(
      static_cast<std::byte*>(::operator new[](each * parts.count(), std::align_val_t{64})), free);
  parallel_for(parts.count(), threads, interruption,
               [&](int64_t part) { kernel.rows(job, parts.begin(part), parts.end(part), memory.get() + part * each); });
}

}  // namespace hccs
