// AVX-512 with VNNI (Ice Lake, Zen 4 and later): one instruction adds four byte products to each of 16 sums. It takes
// an unsigned and a signed byte: keys are packed as k + 128, and distances and probabilities are unsigned.
#include <immintrin.h>

#include "attention/blocks.hpp"

namespace hccs {
namespace {

// Interleaves four rows of 16 bytes: byte 4 * i + r of the result is byte i of row r.
alignas(64) constexpr uint8_t kInterleave[64] = {0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51,
                                                 4,  20, 36, 52, 5,  21, 37, 53, 6,  22, 38, 54, 7,  23, 39, 55,
                                                 8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58, 11, 27, 43, 59,
                                                 12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};

struct Avx512 : PlainSteps<uint8_t, 16, 4> {
  static constexpr int kRows = 4, kPanels = 4;
  static constexpr int kKeyOffset = 128;
  using Sums = __m512i;
  using Panel = __m512i;

  static HCCS_INLINE Sums splat(int32_t value) { return _mm512_set1_epi32(value); }
  static HCCS_INLINE Sums load(const int32_t* from) { return _mm512_loadu_si512(from); }
  static HCCS_INLINE void add_to(int32_t* to, Sums sums) { _mm512_storeu_si512(to, _mm512_add_epi32(load(to), sums)); }
  static HCCS_INLINE Panel panel(const uint8_t* from) { return _mm512_loadu_si512(from); }
  static HCCS_INLINE Panel broadcast(const uint8_t* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static HCCS_INLINE Sums dot_keys(Sums sums, Panel keys, Panel query) {
    return _mm512_dpbusd_epi32(sums, keys, query);
  }
  static HCCS_INLINE Sums dot_values(Sums sums, Panel values, Panel weights) {
    return _mm512_dpbusd_epi32(sums, weights, values);
  }

  // float32 holds the sum and M * 2^-r exactly, and the floor of a value rounded down is the floor of the value.
  struct Factor {
    Factor(int32_t multiplier, int shift)
        : factor(_mm512_set1_ps(static_cast<float>(multiplier) / static_cast<float>(int64_t{1} << shift))) {}
    HCCS_INLINE void store(Sums sums, int8_t* x) const {
      constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
      const __m512 real = _mm512_fmadd_round_ps(_mm512_cvtepi32_ps(sums), factor, _mm512_set1_ps(0.5f), kDown);
      // Too large a value would convert to the least int32; too small a one may, and saturates as it should.
      const __m512i whole = _mm512_cvt_roundps_epi32(_mm512_min_ps(real, _mm512_set1_ps(127)), kDown);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(x), _mm512_cvtsepi32_epi8(whole));
    }
    __m512 factor;
  };

  static HCCS_INLINE int32_t stage_query(const int8_t* from, int64_t dim, int64_t padded, uint8_t* to) {
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < padded; i += 64) {
      const __m512i row = _mm512_maskz_loadu_epi8(_bzhi_u64(~uint64_t{0}, dim - i < 64 ? dim - i : 64), from + i);
      _mm512_mask_storeu_epi8(to + i, _bzhi_u64(~uint64_t{0}, padded - i < 64 ? padded - i : 64), row);
      sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), row);
    }
    return _mm512_reduce_add_epi32(sum);
  }

  static void pack_keys(const int8_t* rows, int64_t stride, int64_t steps, uint8_t* out) {
    int64_t step = 0;
    for (; step + 16 <= steps; step += 16) transpose(rows + 4 * step, stride, out + 64 * step);
    for (; step < steps; ++step)
      for (int lane = 0; lane < 16; ++lane) {
        uint32_t four;
        std::memcpy(&four, rows + lane * stride + 4 * step, sizeof four);
        four ^= 0x80808080u;
        std::memcpy(out + 64 * step + 4 * lane, &four, sizeof four);
      }
  }
  // 16 rows of 16 words, each turned by 128, become 16 columns of them.
  static HCCS_INLINE void transpose(const int8_t* rows, int64_t stride, uint8_t* out) {
    __m512i a[16], b[16];
    const __m512i turn = _mm512_set1_epi8(-128);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_xor_si512(_mm512_loadu_si512(rows + i * stride), turn);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // a[i + 4 j]: words i, i + 4, i + 8, i + 12 of rows 4 j to 4 j + 3
      const __m512i low = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88), high = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
      const __m512i low2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
      const __m512i high2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
      _mm512_storeu_si512(out + 64 * i, _mm512_shuffle_i32x4(low, low2, 0x88));
      _mm512_storeu_si512(out + 64 * (i + 8), _mm512_shuffle_i32x4(low, low2, 0xdd));
      _mm512_storeu_si512(out + 64 * (i + 4), _mm512_shuffle_i32x4(high, high2, 0x88));
      _mm512_storeu_si512(out + 64 * (i + 12), _mm512_shuffle_i32x4(high, high2, 0xdd));
    }
  }
  static HCCS_INLINE void pack_values(const int8_t* rows, int64_t stride, uint8_t* out) {
    const auto row = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + i * stride)); };
    const __m512i four =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(1), 1)),
                           _mm256_inserti128_si256(_mm256_castsi128_si256(row(2)), row(3), 1), 1);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi8(_mm512_load_si512(kInterleave), four));
  }

  static RowSums distances(const int8_t* x, const uint8_t* on, int64_t full, int64_t blocks, int D, uint8_t* delta) {
    __m512i top = _mm512_set1_epi8(-128);
    int64_t block = 0;
    for (; block < full; ++block) top = _mm512_max_epi8(top, _mm512_loadu_si512(x + 64 * block));
    int count = static_cast<int>(64 * full);
    for (; block < blocks; ++block) {
      const __mmask64 attended = chosen(on + 64 * block);
      top = _mm512_mask_max_epi8(top, attended, top, _mm512_loadu_si512(x + 64 * block));
      count += static_cast<int>(_mm_popcnt_u64(attended));
    }
    const __m512i m = largest(top), most = _mm512_set1_epi8(static_cast<char>(D));
    __m512i sum = _mm512_setzero_si512();
    const auto keep = [&](int64_t at, __m512i distance) HCCS_INLINE_LAMBDA {
      _mm512_storeu_si512(delta + 64 * at, distance);
      sum = _mm512_add_epi64(sum, _mm512_sad_epu8(distance, _mm512_setzero_si512()));
    };
    for (block = 0; block < full; ++block)
      keep(block, _mm512_min_epu8(_mm512_sub_epi8(m, _mm512_loadu_si512(x + 64 * block)), most));
    for (; block < blocks; ++block)
      keep(block, _mm512_maskz_min_epu8(chosen(on + 64 * block), _mm512_sub_epi8(m, _mm512_loadu_si512(x + 64 * block)),
                                        most));
    return {count, static_cast<int32_t>(_mm512_reduce_add_epi64(sum))};
  }
  static HCCS_INLINE __mmask64 chosen(const uint8_t* on) {
    const __m512i bytes = _mm512_loadu_si512(on);
    return _mm512_test_epi8_mask(bytes, bytes);
  }
  // The largest byte everywhere. x ^ 127 turns the order into that of unsigned bytes, whose minimum over words is one
  // instruction.
  static HCCS_INLINE __m512i largest(__m512i v) {
    const __m256i half = _mm256_max_epi8(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    const __m128i turned = _mm_xor_si128(_mm_max_epi8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)),
                                         _mm_set1_epi8(127));
    const __m128i least = _mm_minpos_epu16(_mm_min_epu8(turned, _mm_srli_epi16(turned, 8)));
    return _mm512_broadcastb_epi8(_mm_xor_si128(least, _mm_set1_epi8(127)));
  }
};

}  // namespace

const AttentionKernel attention_avx512{AttentionRows<Avx512>::workspace, AttentionRows<Avx512>::run};

}  // namespace hccs
