// A plan of steps, and running batches through it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/instruction_sets.hpp"
#include "engine/steps.hpp"

namespace hccs {

// Steps over rows of one kind, which a block of rows runs through one after the other; or attention alone.
struct Segment {
  Space space;
  std::vector<std::unique_ptr<Step>> steps;
  std::optional<AttentionStep> attention;
};

// A part of a call's work behind which all threads wait for each other.
struct Phase {
  const Segment* segment;
  const Step* step;      // null: all of the segment's
  int64_t rows, pieces;  // rows of a part; parts that share the same rows, or a sequence's heads
  int64_t parts;
  int64_t number;  // of its first step in the plan
};

// The memory of one call at a time. It grows when a larger batch comes, and is kept.
struct Arena {
  Block values;
  int64_t capacity = 0;  // rows
  Block local;           // of each thread, then their common one
  Block workspaces;      // of each thread
  std::vector<int32_t> starts, token, position, type, past, text;
  std::vector<Phase> phases;
  std::vector<double> seconds;  // of each step of the plan, where they are timed and one thread runs; else empty
};

class Engine {
 public:
  // `arena_bytes` and `local_bytes`: of all values of a row.
  Engine(int64_t arena_bytes, int64_t local_bytes);

  const InstructionSet& instructions() const { return instructions_; }
  int64_t block_rows() const { return block_rows_; }

  void begin_segment(Space space);
  void add(std::unique_ptr<Step> step);
  void add(AttentionStep step);
  void set_scores(const Value& scores) { scores_ = scores; }
  const Value& scores() const { return scores_; }
  size_t steps() const;
  // Of the keys and values of one token, in all attentions.
  int64_t cache_bytes() const { return cache_bytes_; }
  WeightMemory& weights() { return weights_; }

  // Scores of the batch, int32 [rows][labels], where the plan leaves them; null when the interruption was requested.
  const std::byte* run(Arena& arena, const Batch& batch, int threads, Interruption& interruption) const;

 private:
  friend class Run;
  const InstructionSet& instructions_;
  const int64_t arena_bytes_, local_bytes_;
  const int64_t block_rows_;  // that go through a segment together
  WeightMemory weights_;
  std::vector<Segment> segments_;
  Value scores_{};
  int64_t cache_bytes_ = 0;
};

}  // namespace hccs
