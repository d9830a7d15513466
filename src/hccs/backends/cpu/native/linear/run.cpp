#include <algorithm>
#include <memory>
#include <new>

#include "common/parallel_for.hpp"
#include "linear/job.hpp"

namespace hccs {

void run_linear(const LinearJob& job, const LinearKernel& kernel, int64_t rows, int threads,
                Interruption& interruption) {
  constexpr int64_t kUnseen = 1 << 28;  // products after which an interruption must have been looked for
  const int64_t blocks = (job.outputs + kernel.block_outputs - 1) / kernel.block_outputs;
  // One part for each thread: of the rows, or of the outputs where there are few rows.
  const bool by_rows = rows >= int64_t{threads} * kernel.block_rows;
  const RowParts parts(by_rows ? rows : blocks, by_rows ? kernel.block_rows : 1, threads, by_rows ? rows : blocks);
  const int64_t tiles = kUnseen / (std::max<int64_t>(job.inputs, 1) * job.outputs * kernel.block_rows);
  const int64_t at_once = kernel.block_rows * std::max<int64_t>(tiles, 1);
  const size_t each = (kernel.workspace(job.inputs) + 63) / 64 * 64;
  const auto free = [](std::byte* memory) { ::operator delete[](memory, std::align_val_t{64}); };
  const std::unique_ptr<std::byte[], decltype(free)> memory(
      static_cast<std::byte*>(::operator new[](each * parts.count(), std::align_val_t{64})), free);
  parallel_for(parts.count(), threads, interruption, [&](int64_t part) {
    const int64_t begin = parts.begin(part), end = parts.end(part), last = by_rows ? end : rows;
    for (int64_t row = by_rows ? begin : 0; row < last && !interruption.poll(); row += at_once)
      kernel.run(job, row, std::min(row + at_once, last), by_rows ? 0 : begin, by_rows ? blocks : end,
                 memory.get() + part * each);
  });
}

}  // namespace hccs
