// The kernels of logits.hpp, in loops that compilers vectorise: include once per instruction set.
//
// Everything has internal linkage, for the reason given in rows.hpp. A float32 holds every integer here exactly.
#pragma once

#include <algorithm>
#include <cstring>

#include "float_logits/job.hpp"
#include "softmax/rows.hpp"

namespace hccs {
namespace {

// Adding and taking away 1.5 * 2^23 rounds half to even.
constexpr float kRound = 12582912.0f;

inline int32_t to_int8(int32_t x) { return std::min(std::max(x, -128), 127); }

struct Row {
  const uint8_t* valid;  // null: all columns
  int32_t B, S, D;
  float scale;
};

template <class Body>
void for_rows(const LogitsJob& job, int64_t begin, int64_t end, Body body) {
  HeadCursor heads(job.rows, begin);
  RowCursor masks(job.rows.valid, begin);
  for (int64_t r = begin; r < end; ++r) {
    const Head& head = heads.head();
    const char* mask = job.rows.masking == Masking::kMask ? masks.at() : nullptr;
    body(r, Row{reinterpret_cast<const uint8_t*>(mask), head.B, head.S, head.D, job.scales[&head - job.rows.heads]});
    heads.advance(1);
    masks.advance(1);
  }
}

// Selections below are products with 0 or 1 rather than branches: that is what vectorises.
template <bool kMasked>
int32_t on(const uint8_t* valid, int64_t i) {
  return kMasked ? valid[i] != 0 : 1;
}

// 1 where value <= 0, else 0.
inline int32_t not_positive(int32_t value) { return 1 - std::min(std::max(value, 0), 1); }

template <bool kMasked>
int32_t maximum(const int16_t* __restrict x, const uint8_t* __restrict valid, int64_t n) {
  int32_t m = -128;
#pragma omp simd reduction(max : m)
  for (int64_t i = 0; i < n; ++i) m = std::max(m, (to_int8(x[i]) + 128) * on<kMasked>(valid, i) - 128);
  return m;
}

template <bool kMasked>
int32_t row_sum(const int16_t* __restrict x, const uint8_t* __restrict valid, int64_t n, Row row, int32_t m) {
  const int32_t B = row.B, S = row.S, D = row.D;
  int32_t Z = 0;
#pragma omp simd reduction(+ : Z)
  for (int64_t i = 0; i < n; ++i) Z += (B - S * std::min(m - to_int8(x[i]), D)) * on<kMasked>(valid, i);  // eq. 2, 3, 5
  return Z;
}

// rho * 2^e as in the reference (eq. 6, 8, 9); 0 for a row with nothing valid.
int32_t reciprocal(int32_t Z, Mode mode) {
  if (Z <= 0) return 0;
  const int k = 31 - __builtin_clz(static_cast<uint32_t>(Z));
  const int e = is_u8(mode) && k < 8 ? 8 - k : 0;
  const int32_t rho = is_clb(mode) ? numerator(mode) >> (k + e) : numerator(mode) / (Z << e);
  return rho << e;
}

template <bool kMasked>
bool forward_row(const float* __restrict z, int16_t* __restrict x, float* __restrict p, int64_t n, Row row, Mode mode) {
  const uint8_t* __restrict valid = row.valid;
  const int32_t B = row.B, S = row.S, D = row.D;
  const float scale = row.scale;
  int32_t nan = 0;
#pragma omp simd reduction(| : nan)
  for (int64_t i = 0; i < n; ++i) {
    const float v = z[i] / scale;
    nan |= v != v;
    x[i] = static_cast<int16_t>((std::min(std::max(v, -32768.0f), 32767.0f) + kRound) - kRound);
  }
  if (nan) return false;
  const int32_t m = maximum<kMasked>(x, valid, n);
  const int32_t rho = reciprocal(row_sum<kMasked>(x, valid, n, row, m), mode);
  const int32_t T = is_u8(mode) ? 255 : 32767, shift = is_u8(mode) ? 15 : 0;
  const float real_T = static_cast<float>(T);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const int32_t s = (B - S * std::min(m - to_int8(x[i]), D)) * on<kMasked>(valid, i);
    p[i] = static_cast<float>(std::min((s * rho) >> shift, T)) / real_T;  // eq. 7
  }
  return true;
}

// The gradient of p_i = s_i / Z on real x, with the paths through Z and the maximum (shared by ties).
template <bool kMasked>
void backward_row(const float* __restrict g, const int16_t* __restrict x, float* __restrict dz, float* __restrict learn,
                  int64_t n, Row row) {
  const uint8_t* __restrict valid = row.valid;
  const int32_t B = row.B, S = row.S, D = row.D;
  const int32_t m = maximum<kMasked>(x, valid, n);
  const float Z = static_cast<float>(std::max(row_sum<kMasked>(x, valid, n, row, m), 1));
  float mean = 0;
#pragma omp simd reduction(+ : mean)
  for (int64_t i = 0; i < n; ++i) {
    const int32_t s = (B - S * std::min(m - to_int8(x[i]), D)) * on<kMasked>(valid, i);
    mean += g[i] * static_cast<float>(s);
  }
  mean /= Z;
  const float inverse = 1 / Z;
  float free = 0, beyond = 0, slope = 0;
  int32_t peaks = 0;
#pragma omp simd reduction(+ : free, beyond, slope, peaks)
  for (int64_t i = 0; i < n; ++i) {
    const int32_t distance = m - to_int8(x[i]), chosen = on<kMasked>(valid, i);
    const float t = (g[i] - mean) * inverse * static_cast<float>(chosen);  // dL/ds
    const float inside = static_cast<float>(not_positive(distance - D));
    free += t * inside;
    beyond += t * (1 - inside);
    slope += t * static_cast<float>(std::min(distance, D));
    peaks += chosen * not_positive(distance);
  }
  const float share = free / static_cast<float>(std::max(peaks, 1));
  const float per_logit = static_cast<float>(S) / row.scale;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const int32_t distance = m - to_int8(x[i]), chosen = on<kMasked>(valid, i);
    const int32_t outside = (x[i] + 128) >> 8;  // 0 in the quantiser's range, where alone there is a slope
    const float t = (g[i] - mean) * inverse * static_cast<float>(chosen * not_positive(distance - D));
    const float peak = share * static_cast<float>(chosen * not_positive(distance));
    dz[i] = (t - peak) * per_logit * static_cast<float>(not_positive(outside * outside));
  }
  if (learn) {
    float moved = 0;
#pragma omp simd reduction(+ : moved)
    for (int64_t i = 0; i < n; ++i) moved += dz[i] * static_cast<float>(to_int8(x[i]));
    learn[0] = free + beyond;
    learn[1] = -slope;
    learn[2] = -beyond * static_cast<float>(S);
    learn[3] = -moved;
  }
}

// Padding and causal masks leave a prefix of the row: its length, or -1 for any other mask.
int64_t prefix(const uint8_t* valid, int64_t n) {
  if (valid == nullptr) return n;
  const void* gap = std::memchr(valid, 0, n);
  if (gap == nullptr) return n;
  const int64_t length = static_cast<const uint8_t*>(gap) - valid;
  return std::memchr(valid + length, 1, n - length) ? -1 : length;
}

bool forward_rows(const LogitsJob& job, int64_t begin, int64_t end) {
  const int64_t n = job.rows.columns;
  const Mode mode = job.rows.mode;
  bool finite = true;
  for_rows(job, begin, end, [&](int64_t r, const Row& row) {
    const float* z = job.input + r * n;
    int16_t* x = job.rounded + r * n;
    float* p = job.output + r * n;
    const int64_t length = prefix(row.valid, n);
    if (length < 0) {
      finite &= forward_row<true>(z, x, p, n, row, mode);
    } else {
      finite &= forward_row<false>(z, x, p, length, row, mode);
      std::fill(x + length, x + n, int16_t{0});
      std::fill(p + length, p + n, 0.0f);
    }
  });
  return finite;
}

bool backward_rows(const LogitsJob& job, int64_t begin, int64_t end) {
  const int64_t n = job.rows.columns;
  for_rows(job, begin, end, [&](int64_t r, const Row& row) {
    const float* g = job.input + r * n;
    const int16_t* x = job.rounded + r * n;
    float* dz = job.output + r * n;
    float* learn = job.parameters ? job.parameters + 4 * r : nullptr;
    const int64_t length = prefix(row.valid, n);
    if (length < 0) {
      backward_row<true>(g, x, dz, learn, n, row);
    } else {
      backward_row<false>(g, x, dz, learn, length, row);
      std::fill(dz + length, dz + n, 0.0f);
    }
  });
  return true;
}

}  // namespace
}  // namespace hccs
