// Reductions of 16 vectors at once, for AVX-512: each level halves their number while it interleaves them, so that
// 32-bit lane r of the result belongs to row r. Where a blend can do half of the interleaving it does, because shuffles
// are scarcer.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "common/inline.hpp"

namespace hccs {
namespace {

template <class Op>
HCCS_INLINE __m512i fold_qwords(__m512i a, __m512i b, Op op) {  // of each 128 bits: a, b
  const __m512d crossed = _mm512_shuffle_pd(_mm512_castsi512_pd(a), _mm512_castsi512_pd(b), 0x55);
  return op(_mm512_mask_blend_epi64(0xaa, a, b), _mm512_castpd_si512(crossed));
}
template <class Op>
HCCS_INLINE __m512i fold_dwords(__m512i a, __m512i b, Op op) {  // of each 128 bits: a, a, b, b
  const __m512 af = _mm512_castsi512_ps(a), bf = _mm512_castsi512_ps(b);
  return op(_mm512_castps_si512(_mm512_shuffle_ps(af, bf, 0x88)), _mm512_castps_si512(_mm512_shuffle_ps(af, bf, 0xdd)));
}
template <class Op>
HCCS_INLINE __m512i fold_quarters(__m512i (&v)[4], Op op) {  // of the vector: v[0], v[1], v[2], v[3]
  const auto halves = [&](__m512i a, __m512i b) HCCS_INLINE_LAMBDA {
    return op(_mm512_mask_blend_epi64(0xf0, a, b), _mm512_shuffle_i64x2(a, b, 0x4e));
  };
  const __m512i a = halves(v[0], v[1]), b = halves(v[2], v[3]);
  return op(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}

// The largest signed byte of every vector, in all four bytes of its word of m.
HCCS_INLINE void reduce_max_rows(const __m512i (&v)[16], uint32_t* m) {
  const auto op = [](__m512i a, __m512i b) HCCS_INLINE_LAMBDA { return _mm512_max_epi8(a, b); };
  __m512i quads[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    quads[i] = fold_dwords(fold_qwords(v[4 * i], v[4 * i + 1], op), fold_qwords(v[4 * i + 2], v[4 * i + 3], op), op);
  __m512i top = fold_quarters(quads, op);
  top = _mm512_max_epi8(top, _mm512_srli_epi32(top, 16));
  top = _mm512_max_epi8(top, _mm512_srli_epi32(top, 8));
  const __m512i low_byte = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
  _mm512_store_si512(m, _mm512_shuffle_epi8(top, low_byte));
}
// The sum of every vector of byte sums: these leave the upper half of each 64 bits free for another row's.
HCCS_INLINE void reduce_sum_rows(const __m512i (&v)[16], int32_t* sum) {
  const auto op = [](__m512i a, __m512i b) HCCS_INLINE_LAMBDA { return _mm512_add_epi32(a, b); };
  const auto both = [&](int i) HCCS_INLINE_LAMBDA { return _mm512_or_si512(v[i], _mm512_slli_epi64(v[i + 1], 32)); };
  __m512i quads[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) quads[i] = fold_qwords(both(4 * i), both(4 * i + 2), op);
  _mm512_store_si512(sum, fold_quarters(quads, op));
}

}  // namespace
}  // namespace hccs
