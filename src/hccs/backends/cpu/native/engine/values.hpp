// Where the values of a program lie while a batch runs through it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hccs {

// Sequences lie packed, one behind the other: a row for each token, or one for each sequence.
enum class Space { kTokens, kSequences };

// The tokens whose rows those of sequences are. A causal plan serves both: scores of the last tokens, or of all.
enum class Chosen { kFirst, kLast, kAll };

// Keys and values of texts, [2][texts][heads][capacity][dim] for one attention after the other.
struct CachedRows {
  int8_t* memory;
  int64_t texts, capacity;
  const int32_t *past, *text;  // of each sequence of the batch: its tokens in the cache, and where these lie
};

// One sequence of integers per row. A value that only the steps of one segment use lies in the memory of the thread
// that runs them, for a block of rows; any other in the arena, for all rows.
struct Value {
  Space space;
  bool local;
  bool turned;        // its bytes are x + 128
  int64_t row_bytes;  // from row to row
  int64_t offset;     // bytes of a row that lie before it: times the capacity in rows, where it starts
};

struct Batch {
  int64_t sequences, tokens;
  const int32_t* starts;                   // [sequences + 1]: the row of each sequence's first token
  const int32_t *token, *position, *type;  // of each row
  const uint8_t* images;                   // [sequences][channels][height][width]
  int64_t dims = 0;                        // first channels of which a unit vector is made
  Chosen chosen = Chosen::kFirst;
  const CachedRows* cache = nullptr;

  int64_t rows(Space space) const { return space == Space::kTokens || chosen == Chosen::kAll ? tokens : sequences; }
  int64_t length(int64_t sequence) const { return starts[sequence + 1] - starts[sequence]; }
  // Tokens of a sequence with those in the cache.
  int64_t keys(int64_t sequence) const { return length(sequence) + (cache ? cache->past[sequence] : 0); }
  // The row of the token that a row of `Space::kSequences` belongs to.
  int64_t token_row(int64_t row) const {
    return chosen == Chosen::kAll ? row : chosen == Chosen::kLast ? starts[row + 1] - 1 : starts[row];
  }
};

// The memory of a batch, as one thread sees it.
struct Memory {
  std::byte* arena;
  int64_t capacity;  // rows of every value in the arena
  std::byte* local;
  int64_t local_capacity, local_first;  // its first row is this one of the batch
  std::byte* workspace;

  std::byte* at(const Value& value, int64_t row) const {
    return value.local ? local + value.offset * local_capacity + (row - local_first) * value.row_bytes
                       : arena + value.offset * capacity + row * value.row_bytes;
  }
  template <class T>
  T* at(const Value& value, int64_t row) const {
    return reinterpret_cast<T*>(at(value, row));
  }
};

}  // namespace hccs
