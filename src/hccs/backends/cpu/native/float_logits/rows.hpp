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

// A score at some distance: of one line, or of the wide form.
inline int32_t score(const Head& head, int32_t distance) { return head.B - head.S * std::min(distance, head.D); }
inline int32_t score(const WideHead& head, int32_t distance) {
  return (head.B - head.S * std::min(distance, head.D) - head.S2 * std::min(distance, head.D2)) >> head.f;
}

template <class Kind>
struct Row {
  const uint8_t* valid;  // null: all columns
  Kind head;
  float scale;
};

template <class Kind, class Body>
void for_rows(const LogitsJob& job, int64_t begin, int64_t end, Body body) {
  HeadCursor heads(job.rows, begin);
  RowCursor masks(job.rows.valid, begin);
  for (int64_t r = begin; r < end; ++r) {
    const char* mask = job.rows.masking == Masking::kMask ? masks.at() : nullptr;
    body(r, Row<Kind>{reinterpret_cast<const uint8_t*>(mask), heads.template head<Kind>(), job.scales[heads.index()]});
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

template <bool kMasked, class Kind>
int32_t row_sum(const int16_t* __restrict x, const uint8_t* __restrict valid, int64_t n, Kind head, int32_t m) {
  int32_t Z = 0;
#pragma omp simd reduction(+ : Z)
  for (int64_t i = 0; i < n; ++i) Z += score(head, m - to_int8(x[i])) * on<kMasked>(valid, i);  // eq. 2, 3, 5
  return Z;
}

// p = min((s * factor) >> shift, T); a factor of 0 for a row with nothing valid.
struct Scaling {
  int32_t factor, shift;
};

// factor = rho * 2^e as in the reference (eq. 6, 8, 9).
inline Scaling scaling(const Head&, int32_t Z, Mode mode) {
  if (Z <= 0) return {0, 0};
  const int k = 31 - __builtin_clz(static_cast<uint32_t>(Z));
  const int e = is_u8(mode) && k < 8 ? 8 - k : 0;
  const int32_t rho = is_clb(mode)           ? numerator(mode) >> (k + e)
                      : mode == Mode::kU8Lin ? linear_reciprocal(Z, k) << (15 - k - e)
                                             : numerator(mode) / (Z << e);
  return {rho << e, is_u8(mode) ? 15 : 0};
}
inline Scaling scaling(const WideHead&, int32_t Z, Mode mode) {
  if (Z <= 0) return {0, 0};
  const int32_t T = is_u8(mode) ? 255 : 32767, spare = is_u8(mode) ? 7 : 0;
  const int k = 31 - __builtin_clz(static_cast<uint32_t>(Z)), h = std::max(k - 15, 0);
  const int32_t divisor = (Z + (1 << h) - 1) >> h;
  const int32_t rho = is_clb(mode)           ? T << spare
                      : mode == Mode::kU8Lin ? linear_reciprocal(Z, k) << spare
                                             : (T << (k - h + spare)) / divisor;
  return {rho, k + spare};
}

template <bool kMasked, class Kind>
bool forward_row(const float* __restrict z, int16_t* __restrict x, float* __restrict p, int64_t n, Row<Kind> row,
                 Mode mode) {
  const uint8_t* __restrict valid = row.valid;
  const Kind head = row.head;
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
  const auto [factor, shift] = scaling(head, row_sum<kMasked>(x, valid, n, head, m), mode);
  const int32_t T = is_u8(mode) ? 255 : 32767, rho = factor, down = shift;
  const float real_T = static_cast<float>(T);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const int32_t s = score(head, m - to_int8(x[i])) * on<kMasked>(valid, i);
    p[i] = static_cast<float>(std::min((s * rho) >> down, T)) / real_T;  // eq. 7
  }
  return true;
}

// The gradient of p_i = s_i / Z on real x, with the paths through Z and the maximum (shared by ties).
template <bool kMasked>
void backward_row(const float* __restrict g, const int16_t* __restrict x, float* __restrict dz, float* __restrict learn,
                  int64_t n, const Row<Head>& row) {
  const uint8_t* __restrict valid = row.valid;
  const Head head = row.head;
  const int32_t S = head.S, D = head.D;
  const int32_t m = maximum<kMasked>(x, valid, n);
  const float Z = static_cast<float>(std::max(row_sum<kMasked>(x, valid, n, head, m), 1));
  float mean = 0;
#pragma omp simd reduction(+ : mean)
  for (int64_t i = 0; i < n; ++i) {
    const int32_t s = score(head, m - to_int8(x[i])) * on<kMasked>(valid, i);
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

// The same for the wide form; scores are taken before the shift, which scales them all alike. `learn` gets dL/d(B, S,
// D, S2, D2, f, scale), of which f has none.
template <bool kMasked>
void backward_row(const float* __restrict g, const int16_t* __restrict x, float* __restrict dz, float* __restrict learn,
                  int64_t n, const Row<WideHead>& row) {
  const uint8_t* __restrict valid = row.valid;
  WideHead head = row.head;
  head.f = 0;
  const int32_t S = head.S, D = head.D, S2 = head.S2, D2 = head.D2;
  const int32_t m = maximum<kMasked>(x, valid, n);
  const float Z = static_cast<float>(std::max(row_sum<kMasked>(x, valid, n, head, m), 1));
  float mean = 0;
#pragma omp simd reduction(+ : mean)
  for (int64_t i = 0; i < n; ++i) {
    const int32_t s = score(head, m - to_int8(x[i])) * on<kMasked>(valid, i);
    mean += g[i] * static_cast<float>(s);
  }
  mean /= Z;
  const float inverse = 1 / Z;
  float total = 0, free = 0, free2 = 0, slope = 0, slope2 = 0;
  int32_t peaks = 0;
#pragma omp simd reduction(+ : total, free, free2, slope, slope2, peaks)
  for (int64_t i = 0; i < n; ++i) {
    const int32_t distance = m - to_int8(x[i]), chosen = on<kMasked>(valid, i);
    const float t = (g[i] - mean) * inverse * static_cast<float>(chosen);  // dL/ds
    total += t;
    free += t * static_cast<float>(not_positive(distance - D));
    free2 += t * static_cast<float>(not_positive(distance - D2));
    slope += t * static_cast<float>(std::min(distance, D));
    slope2 += t * static_cast<float>(std::min(distance, D2));
    peaks += chosen * not_positive(distance);
  }
  const float gentle = static_cast<float>(S), steep = static_cast<float>(S2);
  const float share = (free * gentle + free2 * steep) / static_cast<float>(std::max(peaks, 1));
  const float per_logit = 1 / row.scale;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const int32_t distance = m - to_int8(x[i]), chosen = on<kMasked>(valid, i);
    const int32_t outside = (x[i] + 128) >> 8;  // 0 in the quantiser's range, where alone there is a slope
    const float slope_here = gentle * static_cast<float>(not_positive(distance - D)) +
                             steep * static_cast<float>(not_positive(distance - D2));
    const float t = (g[i] - mean) * inverse * slope_here;
    const float peak = share * static_cast<float>(not_positive(distance));
    dz[i] = (t - peak) * static_cast<float>(chosen) * per_logit * static_cast<float>(not_positive(outside * outside));
  }
  if (learn) {
    float moved = 0;
#pragma omp simd reduction(+ : moved)
    for (int64_t i = 0; i < n; ++i) moved += dz[i] * static_cast<float>(to_int8(x[i]));
    learn[0] = total;
    learn[1] = -slope;
    learn[2] = -(total - free) * gentle;
    learn[3] = -slope2;
    learn[4] = -(total - free2) * steep;
    learn[5] = 0;
    learn[6] = -moved;
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

template <class Kind>
bool forward_heads(const LogitsJob& job, int64_t begin, int64_t end) {
  const int64_t n = job.rows.columns;
  const Mode mode = job.rows.mode;
  bool finite = true;
  for_rows<Kind>(job, begin, end, [&](int64_t r, const Row<Kind>& row) {
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

template <class Kind>
bool backward_heads(const LogitsJob& job, int64_t begin, int64_t end) {
  const int64_t n = job.rows.columns;
  constexpr int kLearnt = sizeof(Kind) / sizeof(int32_t) + 1;
  for_rows<Kind>(job, begin, end, [&](int64_t r, const Row<Kind>& row) {
    const float* g = job.input + r * n;
    const int16_t* x = job.rounded + r * n;
    float* dz = job.output + r * n;
    float* learn = job.parameters ? job.parameters + kLearnt * r : nullptr;
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

bool forward_rows(const LogitsJob& job, int64_t begin, int64_t end) {
  return (job.rows.wide_heads ? forward_heads<WideHead> : forward_heads<Head>)(job, begin, end);
}

bool backward_rows(const LogitsJob& job, int64_t begin, int64_t end) {
  return (job.rows.wide_heads ? backward_heads<WideHead> : backward_heads<Head>)(job, begin, end);
}

}  // namespace
}  // namespace hccs
