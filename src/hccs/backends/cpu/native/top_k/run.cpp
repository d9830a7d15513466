#include <algorithm>
#include <vector>

#include "common/parallel_for.hpp"
#include "top_k/job.hpp"

namespace hccs {
namespace {

struct Found {
  int32_t score;
  int64_t number;
};

bool better(const Found& a, const Found& b) { return a.score != b.score ? a.score > b.score : a.number < b.number; }

// The best rows so far: a heap whose front is the worst of them.
struct Best {
  int64_t k;
  std::vector<Found> heap;

  // Rows come by ascending number: one that equals the worst comes after it.
  void offer(int32_t score, int64_t number) {
    if (static_cast<int64_t>(heap.size()) == k) {
      if (score <= heap.front().score) return;
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.pop_back();
    }
    heap.push_back({score, number});
    std::push_heap(heap.begin(), heap.end(), better);
  }
};

}  // namespace

void run_top_k(const TopKJob& job, DotRows dots, int threads, Interruption& interruption) {
  constexpr int64_t kBlock = 64;  // rows that stay in the cache while every query passes over them
  constexpr int64_t kBytesAtOnce = int64_t{1} << 24;
  const RowParts parts(job.rows, kBlock, threads, std::max(kBytesAtOnce / (job.dims * job.count), kBlock));
  std::vector<std::vector<Best>> found(parts.count());
  parallel_for(parts.count(), threads, interruption, [&](int64_t part) {
    std::vector<Best> best(job.count, Best{job.k, {}});
    int32_t scores[kBlock];
    for (int64_t row = parts.begin(part); row < parts.end(part); row += kBlock) {
      const int64_t count = std::min(kBlock, parts.end(part) - row);
      for (int64_t q = 0; q < job.count; ++q) {
        dots(job.vectors + row * job.dims, count, job.dims, job.queries + q * job.dims, scores);
        for (int64_t i = 0; i < count; ++i) best[q].offer(scores[i], row + i);
      }
    }
    found[part] = std::move(best);
  });
  if (interruption.requested()) return;
  for (int64_t q = 0; q < job.count; ++q) {
    std::vector<Found> all;
    for (const auto& best : found) all.insert(all.end(), best[q].heap.begin(), best[q].heap.end());
    std::sort(all.begin(), all.end(), better);
    for (int64_t i = 0; i < job.k; ++i) {
      job.scores[q * job.k + i] = all[i].score;
      job.numbers[q * job.k + i] = all[i].number;
    }
  }
}

}  // namespace hccs
