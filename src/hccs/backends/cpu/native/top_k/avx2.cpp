#include <immintrin.h>

#include "top_k/rows.hpp"

namespace hccs {
namespace {

__m256i widened(const int8_t* at) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

}  // namespace

void dot_rows_avx2(const int8_t* rows, int64_t count, int64_t dims, const int8_t* query, int32_t* scores) {
  constexpr int64_t kLanes = 16;
  const int64_t whole = dims / (4 * kLanes) * (4 * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    const int8_t* row = rows + i * dims;
    __m256i sums[4] = {};
    for (int64_t j = 0; j < whole; j += 4 * kLanes) {
      _mm_prefetch(reinterpret_cast<const char*>(row + j + kPrefetch), _MM_HINT_T0);
      for (int part = 0; part < 4; ++part)
        sums[part] = _mm256_add_epi32(
            sums[part], _mm256_madd_epi16(widened(row + j + part * kLanes), widened(query + j + part * kLanes)));
    }
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(sums[0], sums[1]), _mm256_add_epi32(sums[2], sums[3]));
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    scores[i] =
        _mm_extract_epi32(two, 0) + _mm_extract_epi32(two, 1) + dot_of(row + whole, query + whole, dims - whole);
  }
}

}  // namespace hccs
