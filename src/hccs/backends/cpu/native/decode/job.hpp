// Attention of few queries over many keys, as generation has it: one new token over all that came before.
//
// There is too little work per key to pack k and v for it: rows are read as they lie in a cache, once for all query
// rows that share them. Scores, of one line or two, come from a table of 128 entries by distance: D is at most 127.
#pragma once

#include <cstddef>

#include "attention/job.hpp"

namespace hccs {

// Scores, or probabilities, by distance: low and high bytes.
struct ScoreTable {
  alignas(64) uint8_t low[kDistances];
  alignas(64) uint8_t high[kDistances];
  bool has_high;
};

// One query row.
struct DecodeRow {
  const int8_t* q;
  void* out;                // N int32, float32 or int8
  int32_t* sum;             // where pairs want their Z
  const int32_t* head;      // B, S, D, and S2, D2, f where wide
  const ScoreTable* table;  // of the head's scores; null: they are made from `head`
  const Requant* requant;
  int64_t keys;       // from here on no key is attended to
  const uint8_t* on;  // nonzero for attended keys before; null: all of them
};

// Query rows that share keys and values: those of the heads of one group.
struct DecodeGroup {
  const int8_t *k, *v;
  const DecodeRow* rows;
};

struct DecodeJob {
  const DecodeGroup* groups;
  int64_t group_count;
  int64_t rows;  // of one group
  int64_t keys, dim;
  int64_t k_stride, v_stride;  // from key to key, in bytes
  bool wide;
  bool probabilities_first;
  Mode mode;
  AttentionOutput output;
};

// What instruction sets do their own way. Logits and weights of a row lie `stride` bytes from the next row's; what lies
// behind them up to a multiple of 64 may be overwritten.
struct DecodeKernel {
  // Scores of a head; then, from them and a row's sum of them, its probabilities.
  void (*scores)(const int32_t* head, bool wide, ScoreTable& table);
  void (*probabilities)(const ScoreTable& scores, int32_t Z, bool wide, Mode mode, ScoreTable& table);
  // Logits of all rows of the group over keys begin..end-1.
  void (*logits)(const DecodeJob&, const DecodeGroup&, int64_t begin, int64_t end, int8_t* x, int64_t stride);
  // The largest attended logit of keys begin..end-1; -128 where there is none.
  int (*most)(const int8_t* x, const uint8_t* on, int64_t begin, int64_t end);
  // Weights of keys begin..end-1 by their distance from m, 0 where not attended, then zeros up to a multiple of 4.
  // Returns their sum; without `low` nothing else.
  int32_t (*weights)(const int8_t* x, const uint8_t* on, int64_t begin, int64_t end, int m, const ScoreTable& table,
                     uint8_t* low, uint8_t* high);
  // products[r][c] = sum of weights times values over keys begin..end-1, for `rows` rows of weights; high may be null.
  void (*products)(const DecodeJob&, const DecodeGroup&, int64_t begin, int64_t end, const uint8_t* low,
                   const uint8_t* high, int64_t stride, int64_t rows, int32_t* products);
  // A row's output of its N and Z.
  void (*write)(const DecodeJob&, const DecodeRow&, const int32_t* N, int32_t Z);
};

extern const DecodeKernel decode_scalar, decode_avx2, decode_avx512, decode_neon;

// The kernel for the instruction set of an attention kernel.
const DecodeKernel& decode_kernel_of(const AttentionKernel& attention);

// One group on this thread, in working memory that starts at a multiple of 64: it suffices for fewer keys and rows,
// too.
size_t decode_workspace(const DecodeJob& job);
void decode_group(const DecodeJob& job, const DecodeKernel& kernel, const DecodeGroup& group, std::byte* workspace);

// Runs the kernel over all groups of the job, on up to `threads` threads: whole groups, or pieces of their keys where
// groups are few.
void run_decode(const DecodeJob& job, const DecodeKernel& kernel, int threads, Interruption& interruption);

}  // namespace hccs
