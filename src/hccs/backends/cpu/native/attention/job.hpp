// What an attention kernel is given. The arithmetic is docs/spec.md, "Integer attention"; reference.py is its
// readable form.
#pragma once

#include <cstddef>

#include "softmax/job.hpp"

namespace hccs {

// Fixed-point factors of one head, in the order in which hccs.Requant packs them.
struct Requant {
  int32_t multiplier, shift;          // q.k to logits
  int32_t out_multiplier, out_shift;  // N / Z to int8 output
  float v_scale;
};

// The lower and upper bytes of a head's scores, by distance.
struct ScoreTables {
  alignas(64) uint8_t low[256], high[256];
};

// One head of one sequence: where its rows start, and where its output does. Groups may lie anywhere: heads side by
// side in rows [tokens, heads * dim] are groups `dim` apart.
struct AttentionGroup {
  const int8_t *q, *k, *v;
  void* out;  // N int32, float32 or int8
  const Head* head;
  const WideHead* wide_head;  // in place of `head`, or null
  const Requant* requant;
  const ScoreTables* tables = nullptr;  // of the head's scores; null: a kernel that wants them makes them
  bool by_distance = false;             // the tables are all there is: of theta its B alone has a meaning
};
constexpr int kDistances = 128;  // all beyond have the last one's score
constexpr int64_t kUnlimited = INT32_MAX;

enum class AttentionOutput { kPair, kFloat32, kInt8 };
constexpr const char* kAttentionOutputNames[] = {"pair", "float32", "int8"};

// In place of a mode: only the output is divided.
constexpr int kDeferred = -1;

// Groups of one length. An executor of sequences that differ in theirs makes a job of each, over its heads; jobs are
// small and may be made on the spot.
struct AttentionJob {
  const AttentionGroup* groups;
  int64_t rows;     // of all groups
  int64_t queries;  // rows of one group
  int64_t keys;
  int64_t dim;
  // From row to row, in elements; a row itself is contiguous.
  int64_t q_stride, k_stride, v_stride, out_stride;
  // Query i, at position i + keys - queries, sees keys so far before and after it. Not with probabilities first, but
  // for kUnlimited before.
  int64_t before, after;
  Masking masking;
  StridedRows valid;         // per query row: int32 length, or `keys` booleans
  bool probabilities_first;  // in `mode`; otherwise normalisation is deferred
  Mode mode;
  SoftmaxRows softmax;  // makes the probabilities
  AttentionOutput output;
  bool turned;                 // kInt8: write x + 128 in uint8, as the product of unsigned and signed bytes takes it
  int32_t* sums;               // kPair: Z of every row of the job
  Interruption* interruption;  // polled between blocks of rows; null: never
};

struct AttentionKernel {
  // Bytes of working memory for one thread; it starts at a multiple of 64. What suffices for a job suffices for every
  // one with no more keys and no larger dim: an executor allocates once, for its longest sequence.
  size_t (*workspace)(const AttentionJob&);
  // Computes rows begin..end-1. No allocation, no exceptions, safe on several threads with a workspace each.
  void (*rows)(const AttentionJob&, int64_t begin, int64_t end, std::byte* workspace);
};

extern const AttentionKernel attention_scalar, attention_avx2, attention_avx512, attention_amx, attention_neon,
    attention_i8mm;
extern const AttentionKernel attention_amx_model;  // with a model of its tiles, for tests

// Runs the kernel over all rows of the job, on up to `threads` threads.
void run_attention(AttentionJob& job, const AttentionKernel& kernel, int threads, Interruption& interruption);

}  // namespace hccs
