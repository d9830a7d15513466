// Exact search: the rows of a matrix with the largest dot products with a query, int8 throughout.
#pragma once

#include <cstdint>

#include "common/interruption.hpp"

namespace hccs {

// scores[i] = the dot product of row i, `dims` bytes, with the query.
using DotRows = void (*)(const int8_t* rows, int64_t count, int64_t dims, const int8_t* query, int32_t* scores);

void dot_rows_scalar(const int8_t*, int64_t, int64_t, const int8_t*, int32_t*);
void dot_rows_avx2(const int8_t*, int64_t, int64_t, const int8_t*, int32_t*);
void dot_rows_avx512(const int8_t*, int64_t, int64_t, const int8_t*, int32_t*);

// The k best rows of every query, best first; of equal scores the smaller number first. k is at most `rows`.
struct TopKJob {
  const int8_t* vectors;  // [rows, dims]
  const int8_t* queries;  // [count, dims]
  int64_t rows, dims, count, k;
  int32_t* scores;   // [count, k]
  int64_t* numbers;  // [count, k]
};

void run_top_k(const TopKJob& job, DotRows dots, int threads, Interruption& interruption);

}  // namespace hccs
