#include <immintrin.h>

#include "top_k/rows.hpp"

namespace hccs {

// vpdpbusd multiplies unsigned by signed bytes: rows are moved by 128, which adds 128 times the query's sum.
void dot_rows_avx512(const int8_t* rows, int64_t count, int64_t dims, const int8_t* query, int32_t* scores) {
  constexpr int64_t kLanes = 64;
  const __m512i sign = _mm512_set1_epi8(-128);
  const int64_t whole = dims / (2 * kLanes) * (2 * kLanes);
  int32_t moved = 0;
  for (int64_t j = 0; j < whole; ++j) moved += 128 * query[j];
  for (int64_t i = 0; i < count; ++i) {
    const int8_t* row = rows + i * dims;
    __m512i sums[2] = {};
    for (int64_t j = 0; j < whole; j += 2 * kLanes)
      for (int part = 0; part < 2; ++part) {
        const int8_t* at = row + j + part * kLanes;
        _mm_prefetch(reinterpret_cast<const char*>(at + kPrefetch), _MM_HINT_T0);
        sums[part] = _mm512_dpbusd_epi32(sums[part], _mm512_xor_si512(_mm512_loadu_si512(at), sign),
                                         _mm512_loadu_si512(query + j + part * kLanes));
      }
    scores[i] = _mm512_reduce_add_epi32(_mm512_add_epi32(sums[0], sums[1])) - moved +
                dot_of(row + whole, query + whole, dims - whole);
  }
}

}  // namespace hccs
