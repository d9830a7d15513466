#include "top_k/rows.hpp"

namespace hccs {
void dot_rows_scalar(const int8_t* rows, int64_t count, int64_t dims, const int8_t* query, int32_t* scores) {
  dot_rows_of(rows, count, dims, query, scores);
}
}  // namespace hccs
