#include "engine/engine.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/pool.hpp"

namespace hccs {
namespace {

constexpr int64_t kMostBlockRows = 256;
// Rows below which threads share the channels of each step, with a wait behind it, rather than the rows of a segment.
constexpr int64_t kRowsPerThread = 72;
constexpr int64_t kPiecesPerThread = 2;
constexpr int64_t kNormRows = 8;  // worth handing over
constexpr int64_t kFewRows = 64;  // that go through a segment before a clock is worth reading
constexpr int kFewThreads = 4;

constexpr int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
constexpr int64_t parts_of(int64_t whole, int64_t each) { return (whole + each - 1) / each; }

int64_t block_rows_for(int64_t local_bytes, const LinearKernel& linear) {
  const int64_t fit = local_bytes ? std::min(linear.local_bytes / local_bytes, kMostBlockRows) : kMostBlockRows;
  return std::max(fit / linear.block_rows, int64_t{1}) * linear.block_rows;
}

}  // namespace

Engine::Engine(int64_t arena_bytes, int64_t local_bytes)
    : instructions_(in_use()),
      arena_bytes_(arena_bytes),
      local_bytes_(local_bytes),
      block_rows_(block_rows_for(local_bytes, *instructions_.linear)) {}

void Engine::begin_segment(Space space) { segments_.push_back({space, {}, std::nullopt}); }
void Engine::add(std::unique_ptr<Step> step) { segments_.back().steps.push_back(std::move(step)); }
void Engine::add(AttentionStep step) {
  step.set_cached_before(cache_bytes_);
  cache_bytes_ += step.cache_bytes();
  segments_.back().attention.emplace(std::move(step));
}
size_t Engine::steps() const {
  size_t all = 0;
  for (const Segment& segment : segments_) all += segment.attention ? 1 : segment.steps.size();
  return all;
}

// One call: the phases that its segments make with so many rows and threads.
class Run : public PhasedWork {
 public:
  Run(const Engine& engine, Arena& arena, const Batch& batch, int threads, Interruption& interruption)
      : engine_(engine), arena_(arena), batch_(batch), threads_(threads), interruption_(interruption) {
    grow();
    arena.phases.clear();
    int64_t number = 0;
    for (const Segment& segment : engine.segments_) {
      plan(segment, number);
      number += segment.attention ? 1 : static_cast<int64_t>(segment.steps.size());
    }
  }

  int64_t phases() const override { return static_cast<int64_t>(arena_.phases.size()); }
  int64_t parts(int64_t phase) const override { return arena_.phases[phase].parts; }

  void run(int64_t number, int64_t part, int worker) noexcept override {
    const Phase& phase = arena_.phases[number];
    const int64_t rows = batch_.rows(phase.segment->space);
    Memory memory = memory_of(worker);
    if (const auto& attention = phase.segment->attention) {
      const int64_t per_sequence = phase.pieces;
      const int64_t each = parts_of(attention->shared_heads(), per_sequence) * attention->group();
      const int64_t head = part % per_sequence * each, sequence = part / per_sequence;
      const int64_t head_end = std::min(head + each, attention->heads());
      timed(phase.number, [&] { attention->run(batch_, memory, interruption_, sequence, head, head_end); });
    } else if (phase.step) {  // one step of rows that all threads share
      memory.local = local(threads_);
      const int64_t row = part / phase.pieces * phase.rows, row_end = std::min(row + phase.rows, rows);
      const int64_t pieces = phase.step->pieces(), piece = part % phase.pieces;
      phase.step->run(batch_, memory, row, row_end, piece * pieces / phase.pieces, (piece + 1) * pieces / phase.pieces);
    } else {
      const int64_t row = part * phase.rows, row_end = std::min(row + phase.rows, rows);
      memory.local_first = row;
      int64_t step_number = phase.number;
      for (const auto& step : phase.segment->steps) {
        if (row_end - row > kFewRows && interruption_.poll()) return;
        timed(step_number++, [&] { step->run(batch_, memory, row, row_end, 0, step->pieces()); });
      }
    }
  }

 private:
  template <class Work>
  void timed(int64_t step, const Work& work) const {
    if (arena_.seconds.empty()) return work();
    const auto start = std::chrono::steady_clock::now();
    work();
    arena_.seconds[step] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void plan(const Segment& segment, int64_t number) {
    const int64_t rows = batch_.rows(segment.space), block = engine_.block_rows_;
    if (segment.attention) {
      // A sequence's heads together where there are sequences enough to share, or no one to share them with.
      const bool together = threads_ == 1 || batch_.sequences >= 4 * threads_;
      const int64_t heads = segment.attention->shared_heads();
      const int64_t pieces = together ? 1 : std::min<int64_t>(heads, 64);
      const int64_t per_sequence = parts_of(heads, parts_of(heads, pieces));
      arena_.phases.push_back({&segment, nullptr, 0, per_sequence, batch_.sequences * per_sequence, number});
    } else if (threads_ > 1 && rows < threads_ * kRowsPerThread && rows <= block) {
      for (const auto& step : segment.steps) {
        const int64_t pieces = std::min(step->pieces(), kPiecesPerThread * threads_);
        const int64_t each = pieces > 1 ? rows : std::max(kNormRows, parts_of(rows, threads_));
        arena_.phases.push_back({&segment, step.get(), each, pieces, pieces * parts_of(rows, each), number});
      }
    } else {
      // Blocks of one size, as many for each thread.
      const int64_t tile = engine_.instructions_.linear->block_rows;
      const int64_t blocks = round_up(parts_of(rows, block), threads_);
      const int64_t each = std::min(block, round_up(parts_of(rows, blocks), tile));
      arena_.phases.push_back({&segment, nullptr, each, 1, parts_of(rows, each), number});
    }
  }

  void grow() {
    if (batch_.tokens > arena_.capacity) {
      arena_.values = Block();  // the old one is of no use
      arena_.capacity = 0;
      const int64_t capacity = round_up(batch_.tokens, 64);  // values then start at multiples of 64
      arena_.values = Block(engine_.arena_bytes_ * capacity);
      arena_.capacity = capacity;
    }
    int64_t longest = 0;
    for (int64_t i = 0; i < batch_.sequences; ++i) longest = std::max(longest, batch_.keys(i));
    size_t workspace = 0;
    for (const Segment& segment : engine_.segments_) {
      if (segment.attention) workspace = std::max(workspace, segment.attention->workspace(longest));
      for (const auto& step : segment.steps) workspace = std::max(workspace, step->workspace());
    }
    workspace_ = round_up(static_cast<int64_t>(workspace), 64);
    local_ = engine_.local_bytes_ * round_up(engine_.block_rows_, 64);
    ensure(arena_.workspaces, workspace_ * threads_);
    ensure(arena_.local, local_ * (threads_ + 1));
  }
  static void ensure(Block& block, int64_t bytes) {
    if (block.size() < static_cast<size_t>(bytes)) block = Block(bytes);
  }

  std::byte* local(int64_t thread) const { return arena_.local.data() + thread * local_; }
  Memory memory_of(int worker) const {
    return {arena_.values.data(),
            arena_.capacity,
            local(worker),
            round_up(engine_.block_rows_, 64),
            0,
            arena_.workspaces.data() + worker * workspace_};
  }

  const Engine& engine_;
  Arena& arena_;
  const Batch& batch_;
  const int threads_;
  Interruption& interruption_;
  int64_t workspace_ = 0, local_ = 0;
};

const std::byte* Engine::run(Arena& arena, const Batch& batch, int threads, Interruption& interruption) const {
  // More threads than cores are of no use, and each takes memory. Counting cores reads files.
  static const int most = std::max<int>(kFewThreads, static_cast<int>(std::thread::hardware_concurrency()));
  threads = std::min(threads, most);
  Run run(*this, arena, batch, threads, interruption);
  run_phases(run, threads, interruption);
  if (interruption.requested()) return nullptr;
  return arena.values.data() + scores_.offset * arena.capacity;
}

}  // namespace hccs
