// The dot products of top_k/job.hpp, as a loop that compilers vectorise for the instruction set: include once for each.
#pragma once

#include "top_k/job.hpp"

namespace hccs {
namespace {

constexpr int64_t kPrefetch = 4096;  // bytes ahead; addresses after the end are only hints

inline int32_t dot_of(const int8_t* row, const int8_t* query, int64_t dims) {
  int32_t sum = 0;
  for (int64_t j = 0; j < dims; ++j) sum += row[j] * query[j];
  return sum;
}

inline void dot_rows_of(const int8_t* rows, int64_t count, int64_t dims, const int8_t* query, int32_t* scores) {
  for (int64_t i = 0; i < count; ++i) scores[i] = dot_of(rows + i * dims, query, dims);
}

}  // namespace
}  // namespace hccs
