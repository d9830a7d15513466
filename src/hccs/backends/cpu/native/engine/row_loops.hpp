// The operators between the products, written once as loops that the compiler turns into each instruction set's
// vectors.
//
// LayerNorm needs integers of 62 bits, and gets them from float64 where the machine fuses a multiplication and an
// addition, which rounds once: every number below is an integer, or one over a power of two, that float64 holds
// exactly, and the two roundings that the law asks for are the rounding of such an addition, to the nearest even.
//
// Everything here has internal linkage, for the reason given in softmax/rows.hpp.
#pragma once

#include <bit>
#include <cmath>
#include <type_traits>

#include "common/inline.hpp"
#include "common/rounding.hpp"
#include "engine/rows.hpp"

namespace hccs {
namespace {

#if defined(__FMA__) || defined(__aarch64__)
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif

// In which v is kept between the passes over a row.
using Kept = std::conditional_t<kFused, double, int32_t>;

constexpr int kXhatBits = 20;
constexpr int64_t kMostKept = 4096;  // values of rows at hand, the widest of which stands alone
constexpr int kTogether = 4;         // rows whose roots and divisions overlap, and which share gains and biases

// Adding it to |x| <= 2^51 rounds x to the nearest integer, ties to the even one, in the last bits of the sum.
constexpr double kRounder = 0x1.8p52;

HCCS_INLINE int32_t clamp(int32_t x, int32_t limit) { return x < -limit ? -limit : x > limit ? limit : x; }

struct RowStatistics {
  int32_t sum;
  double squares;  // exact: below 2^43
};

// What v_i of a row is, for each source.
struct Int32Of {
  const int32_t* a;
  HCCS_INLINE int32_t operator()(int64_t i) const { return a[i]; }
};
struct Int16Of {
  const int16_t* a;
  HCCS_INLINE int32_t operator()(int64_t i) const { return a[i]; }
};
template <class T>
struct SumOf {
  const T *a, *b;
  HCCS_INLINE int32_t operator()(int64_t i) const { return a[i] + b[i]; }
};
struct EmbeddingOf {
  const int8_t* word;
  const int16_t *position, *type;
  int shift;
  HCCS_INLINE int32_t operator()(int64_t i) const { return word[i] * (1 << shift) + position[i] + type[i]; }
};
template <class Source>
struct Clamped {
  Source source;
  int32_t limit;
  HCCS_INLINE int32_t operator()(int64_t i) const { return clamp(source(i), limit); }
};

// sqrt(h / Q) = reciprocal / 2^(shift + 20)
struct InverseRoot {
  uint32_t reciprocal;
  int shift;
  double factor() const { return reciprocal * std::bit_cast<double>(static_cast<uint64_t>(1023 - shift) << 52); }
};

HCCS_INLINE InverseRoot inverse_root(const NormConstants& norm, const RowStatistics& row) {
  const int64_t times = norm.times, sum = row.sum;
  // sum((h v - sum)^2) = h * (h * sum(v^2) - sum^2); RMSNorm has no sum
  const int64_t squares = times * (times * static_cast<int64_t>(row.squares) - sum * sum);
  const uint64_t Q = static_cast<uint64_t>(squares) + norm.epsilon;
  const int t = __builtin_clzll(Q) / 2;
  const uint64_t x = Q << (2 * t);
  // Of 64 bits float64 keeps 53: the root may be one off.
  auto s = static_cast<int64_t>(std::sqrt(static_cast<double>(static_cast<int64_t>(x >> 1)) * 2.0));
  if (s > 0xffffffff) s = 0xffffffff;
  const auto root = static_cast<uint64_t>(s);
  const uint64_t exact = root * root > x ? root - 1 : x - root * root > 2 * root ? root + 1 : root;
  return {static_cast<uint32_t>(norm.root / exact), norm.root_shift - t - kXhatBits};
}

// A row between the passes over it.
struct NormRow {
  RowStatistics statistics;
  InverseRoot by;
  const Kept* v;
  int16_t* out;
};

// The steps of LayerNorm that an instruction set may have its own form of.
struct PlainRow;
struct PlainNorm {
  using Row = PlainRow;
  // Writes v_begin to v_(channels - 1) of a row and sums them up.
  template <class Source>
  static HCCS_INLINE RowStatistics load(const Source& source, int64_t begin, int64_t channels, Kept* v) {
    int32_t sum = 0;
    double squares = 0;
#pragma omp simd reduction(+ : sum, squares)
    for (int64_t i = begin; i < channels; ++i) {
      const int32_t x = source(i);
      const auto real = static_cast<double>(x);
      v[i] = static_cast<Kept>(x);
      sum += x;
      squares += real * real;
    }
    return {sum, squares};
  }

  // y = clamp(rhe((rhe(d * r / 2^e) * G + B * 2^20) / 2^(20 + k)), -32767, 32767) from channel `begin` on.
  static HCCS_INLINE void normalise(const NormConstants& norm, const NormRow& row, int64_t begin) {
    const int64_t channels = norm.channels;
    const Kept* const v = row.v;
    int16_t* const out = row.out;
    if constexpr (kFused) {
      const double times = static_cast<double>(norm.times), sum = row.statistics.sum, factor = row.by.factor();
      const double *const gain = norm.real_gain, *const bias = norm.real_bias;
#pragma omp simd
      for (int64_t i = begin; i < channels; ++i) {
        const double d = __builtin_fma(times, v[i], -sum);
        const double xhat = __builtin_fma(d, factor, kRounder) - kRounder;
        double y = __builtin_fma(xhat, gain[i], bias[i]);
        y = y < -32767.0 ? -32767.0 : y;
        y = y > 32767.0 ? 32767.0 : y;
        out[i] = static_cast<int16_t>(std::bit_cast<int64_t>(y + kRounder));
      }
    } else {
      const int64_t r = row.by.reciprocal;
      for (int64_t i = begin; i < channels; ++i) {
        const int64_t d = norm.times * static_cast<int64_t>(v[i]) - row.statistics.sum;
        const int64_t bias = int64_t{norm.bias[i]} * (1 << kXhatBits);
        const int64_t scaled = shifted_half_even(d * r, row.by.shift) * norm.gain[i] + bias;
        const int64_t y = shifted_half_even(scaled, kXhatBits + norm.gain_bits);
        out[i] = static_cast<int16_t>(y < -32767 ? -32767 : y > 32767 ? 32767 : y);
      }
    }
  }
  template <int kRows>
  static HCCS_INLINE void normalise(const NormConstants& norm, const NormRow* rows) {
    for (int r = 0; r < kRows; ++r) normalise(norm, rows[r], 0);
  }

  // clamp(rhe(x / 2^bits), -127, 127) ^ turn
  static HCCS_INLINE void narrow(const int16_t* x, int64_t count, int bits, uint8_t turn, int8_t* out) {
    if (bits > 14) {  // what follows counts in int16
      for (int64_t i = 0; i < count; ++i)
        out[i] = static_cast<int8_t>(clamp(static_cast<int32_t>(shifted_half_even(x[i], bits)), 127) ^ turn);
      return;
    }
    const auto mask = static_cast<int16_t>((1 << bits) - 1), half = static_cast<int16_t>(bits ? 1 << (bits - 1) : 1);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const auto floor = static_cast<int16_t>(x[i] >> bits);
      const auto rest = static_cast<int16_t>((x[i] & mask) + (floor & 1));
      auto y = static_cast<int16_t>(floor + (rest > half ? 1 : 0));
      y = y < -127 ? int16_t{-127} : y;
      y = y > 127 ? int16_t{127} : y;
      out[i] = static_cast<int8_t>(y ^ turn);
    }
  }
};

// The ramp, the row's exponent and turned heads, for each of which an instruction set may have its own form.
struct PlainRow {
  // The largest |f(x)| of those written.
  static int32_t ramp(const RampConstants& ramp, const int16_t* x, int64_t count, int16_t* out) {
    const int32_t most = (64 << ramp.bits) - 1;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t distance = x[i] < 0 ? -x[i] : x[i], t = distance < most ? distance : most;
      const int32_t piece = t >> ramp.bits, rest = (t - (piece << ramp.bits)) << (15 - ramp.bits);
      const int32_t r = ramp.knot[piece] + ((ramp.slope[piece] * rest + (1 << 14)) >> 15);
      out[i] = static_cast<int16_t>((x[i] > 0 ? x[i] : 0) - r);
    }
    return largest(out, count);
  }
  static int32_t largest(const int16_t* x, int64_t count) {
    int32_t most = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t magnitude = x[i] < 0 ? -x[i] : x[i];
      most = magnitude > most ? magnitude : most;
    }
    return most;
  }

  // clamp(rhe(a * M / 2^38), -127, 127) of one head's channels.
  static HCCS_INLINE int8_t rotated(int32_t a, int32_t multiplier, double factor, uint8_t turn) {
    int32_t y;
    if constexpr (kFused)  // |y| < 2^17, in the last bits of the sum
      y = static_cast<int32_t>(std::bit_cast<int64_t>(__builtin_fma(static_cast<double>(a), factor, kRounder)));
    else
      y = static_cast<int32_t>(shifted_half_even(static_cast<int64_t>(a) * multiplier, kRotateShift));
    return static_cast<int8_t>(clamp(y, 127) ^ turn);
  }

  static void rotate(const RotateConstants& constants, const int16_t* cosine, const int16_t* sine, const int16_t* x,
                     uint8_t turn, int8_t* out) {
    const int64_t dim = constants.dim;
    for (int64_t head = 0; head < constants.heads; ++head, x += dim, out += dim) {
      const int64_t pairs = head < constants.turned ? constants.pairs : 0;
      const int32_t multiplier = constants.multiplier[head];
      const double factor = constants.factor[head];
      const int16_t* const second = x + pairs;
      int8_t* const second_out = out + pairs;
#pragma omp simd
      for (int64_t i = 0; i < pairs; ++i) {
        const int32_t c = cosine[i], s = sine[i];
        out[i] = rotated(x[i] * c - second[i] * s, multiplier, factor, turn);
        second_out[i] = rotated(second[i] * c + x[i] * s, multiplier, factor, turn);
      }
#pragma omp simd
      for (int64_t i = 2 * pairs; i < dim; ++i) out[i] = rotated(x[i] * 32767, multiplier, factor, turn);
    }
  }
};

// floor((x * scale + 2^14) / 2^15), in the form that compilers know an instruction for; returns the largest magnitude.
HCCS_INLINE int32_t scale_channels(const int16_t* x, const int16_t* scale, int64_t count, int16_t* out) {
  int16_t most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < count; ++i) {
    const auto scaled = static_cast<int16_t>((((x[i] * scale[i]) >> 14) + 1) >> 1);
    const auto magnitude = static_cast<int16_t>(scaled < 0 ? -scaled : scaled);
    most = magnitude > most ? magnitude : most;
    out[i] = scaled;
  }
  return most;
}

template <class Norm>
void narrow_with_exponent(const int16_t* x, int64_t count, int32_t largest, uint8_t turn, int8_t* out) {
  const int width = std::bit_width(static_cast<uint32_t>(largest)), exponent = width > 7 ? width - 7 : 0;
  Norm::narrow(x, count, exponent, turn, out);
  out[count] = static_cast<int8_t>(exponent);
}

template <class Norm>
void narrow_row(const RampConstants* ramp, const int16_t* scale, const int16_t* x, int64_t count, uint8_t turn,
                int8_t* out) {
  alignas(64) int16_t room[kMostActive];
  int32_t largest = 0;
  if (ramp) {
    largest = Norm::Row::ramp(*ramp, x, count, room);
    x = room;
  }
  if (scale) {
    largest = scale_channels(x, scale, count, room);
    x = room;
  } else if (!ramp) {
    largest = Norm::Row::largest(x, count);
  }
  narrow_with_exponent<Norm>(x, count, largest, turn, out);
}

template <class Norm>
HCCS_INLINE RowStatistics load_source(const NormJob& job, int64_t row, Kept* v) {
  const int64_t channels = job.norm->channels;
  const auto at = [row](const void* base, int64_t stride) { return static_cast<const char*>(base) + row * stride; };
  const auto load = [&](const auto& source, int32_t limit) HCCS_INLINE_LAMBDA {
    return limit ? Norm::load(Clamped{source, limit}, 0, channels, v) : Norm::load(source, 0, channels, v);
  };
  switch (job.source) {
    case NormSource::kInt32:
      return Norm::load(Int32Of{reinterpret_cast<const int32_t*>(at(job.a, job.a_stride))}, 0, channels, v);
    case NormSource::kInt16:
      return Norm::load(Int16Of{reinterpret_cast<const int16_t*>(at(job.a, job.a_stride))}, 0, channels, v);
    case NormSource::kSum: {
      const auto sum = [&]<class T> {
        return load(SumOf<T>{reinterpret_cast<const T*>(at(job.a, job.a_stride)),
                             reinterpret_cast<const T*>(at(job.b, job.b_stride))},
                    job.limit);
      };
      return job.limit > INT16_MAX ? sum.template operator()<int32_t>() : sum.template operator()<int16_t>();
    }
    case NormSource::kEmbedding: {
      const EmbeddingConstants& e = *job.embedding;
      return load(EmbeddingOf{e.words + job.tokens.token[row] * channels,
                              e.positions + job.tokens.position[row] * e.position_stride,
                              e.types + job.tokens.type[row] * e.type_stride, e.shift},
                  e.limit);
    }
  }
  return {};
}

template <class Norm>
void norm_rows(const NormJob& job, int64_t rows) {
  const NormConstants& norm = *job.norm;
  alignas(64) Kept kept[kMostKept];
  alignas(64) int16_t unwanted[kMostKept];
  const int64_t width = (norm.channels + 31) / 32 * 32;
  const int64_t together = kMostKept / width < kTogether ? kMostKept / width : kTogether;
  for (int64_t first = 0; first < rows; first += together) {
    const int count = static_cast<int>(rows - first < together ? rows - first : together);
    NormRow at_hand[kTogether];
    for (int r = 0; r < count; ++r) {
      auto* const out = reinterpret_cast<char*>(job.out) + (first + r) * job.out_stride;
      Kept* const v = kept + r * width;
      at_hand[r] = {load_source<Norm>(job, first + r, v),
                    {},
                    v,
                    job.out ? reinterpret_cast<int16_t*>(out) : unwanted + r * width};
      if (!norm.centred) at_hand[r].statistics.sum = 0;
    }
    for (int r = 0; r < count; ++r) at_hand[r].by = inverse_root(norm, at_hand[r].statistics);
    if (count == kTogether)
      Norm::template normalise<kTogether>(norm, at_hand);
    else
      for (int r = 0; r < count; ++r) Norm::template normalise<1>(norm, at_hand + r);
    for (int r = 0; r < count; ++r) {
      const int64_t row = first + r;
      if (job.clamped) {
        char* const to = static_cast<char*>(job.clamped) + row * job.clamped_stride;
        const auto keep = [&](auto* stream) HCCS_INLINE_LAMBDA {
          using Kind = std::remove_pointer_t<decltype(stream)>;
          for (int64_t i = 0; i < norm.channels; ++i) stream[i] = static_cast<Kind>(at_hand[r].v[i]);
        };
        job.clamped_long ? keep(reinterpret_cast<int32_t*>(to)) : keep(reinterpret_cast<int16_t*>(to));
      }
      if (job.narrowed == nullptr) continue;
      int8_t* const to = job.narrowed + row * job.narrowed_stride;
      if (job.bits == kRowExponent)
        narrow_row<Norm>(nullptr, job.scale, at_hand[r].out, norm.channels, job.turn, to);
      else
        Norm::narrow(at_hand[r].out, norm.channels, job.bits, job.turn, to);
    }
  }
}

void embed_row(const EmbeddingConstants& e, int32_t token, int32_t position, int32_t type, int64_t channels,
               void* out) {
  const int8_t* const word = e.words + token * channels;
  const int16_t *const p = e.positions + position * e.position_stride, *const t = e.types + type * e.type_stride;
  const int32_t factor = 1 << e.shift;
  for (int64_t i = 0; i < channels; ++i) {
    const int32_t v = word[i] * factor + p[i] + t[i];
    if (e.limit)
      static_cast<int16_t*>(out)[i] = static_cast<int16_t>(clamp(v, e.limit));
    else
      static_cast<int32_t*>(out)[i] = v;
  }
}

template <class Norm>
void narrow_values(const int16_t* x, int64_t count, int bits, uint8_t turn, int8_t* out) {
  Norm::narrow(x, count, bits, turn, out);
}

void add_rows(const int16_t* a, const int16_t* b, int64_t count, int32_t limit, void* out) {
  if (limit) {
    auto* const to = static_cast<int16_t*>(out);
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<int16_t>(clamp(a[i] + b[i], limit));
  } else {
    auto* const to = static_cast<int32_t*>(out);
    for (int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
  }
}

template <class Out>
HCCS_INLINE int32_t multiply_as(const int16_t* a, const int16_t* b, int64_t count, int bits, int32_t limit, Out* out) {
  const int32_t mask = (1 << bits) - 1, half = bits ? 1 << (bits - 1) : 1;
  int32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < count; ++i) {
    const int32_t product = a[i] * b[i], floor = product >> bits;
    const int32_t rest = (product & mask) + (floor & 1);
    const int32_t y = clamp(floor + (rest > half ? 1 : 0), limit), magnitude = y < 0 ? -y : y;
    most = magnitude > most ? magnitude : most;
    out[i] = static_cast<Out>(y);
  }
  return most;
}
int32_t multiply_rows(const int16_t* a, const int16_t* b, int64_t count, int bits, int32_t limit, void* out) {
  return limit <= INT16_MAX ? multiply_as(a, b, count, bits, limit, static_cast<int16_t*>(out))
                            : multiply_as(a, b, count, bits, limit, static_cast<int32_t*>(out));
}

int32_t largest_of_long(const int32_t* x, int64_t count) {
  int32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = x[i] < 0 ? -x[i] : x[i];
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

void narrow_long_row(const int32_t* x, int64_t count, int32_t largest, uint8_t turn, int8_t* out) {
  const int width = std::bit_width(static_cast<uint32_t>(largest)), exponent = width > 7 ? width - 7 : 0;
  const int32_t mask = (1 << exponent) - 1, half = exponent ? 1 << (exponent - 1) : 1;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const int32_t floor = x[i] >> exponent, rest = (x[i] & mask) + (floor & 1);
    out[i] = static_cast<int8_t>(clamp(floor + (rest > half ? 1 : 0), 127) ^ turn);
  }
  out[count] = static_cast<int8_t>(exponent);
}

void add_long_rows(const int32_t* a, const int32_t* b, int64_t count, int32_t limit, int32_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = clamp(a[i] + b[i], limit);
}

void pool_tokens(Pooling pooling, const int16_t* x, int64_t stride, int64_t tokens, int64_t channels, int32_t* out) {
  const auto token = [&](int64_t t) {
    return reinterpret_cast<const int16_t*>(reinterpret_cast<const char*>(x) + t * stride);
  };
  const int16_t* const start = token(pooling == Pooling::kLast ? tokens - 1 : 0);
  for (int64_t i = 0; i < channels; ++i) out[i] = start[i];
  for (int64_t t = 1; t < tokens; ++t) {
    const int16_t* const from = token(t);
    if (pooling == Pooling::kMean)
      for (int64_t i = 0; i < channels; ++i) out[i] += from[i];
    if (pooling == Pooling::kMax)
      for (int64_t i = 0; i < channels; ++i) out[i] = out[i] < from[i] ? from[i] : out[i];
  }
}

// floor(sqrt(x)) of x below 2^63
HCCS_INLINE int64_t root_of(int64_t x) {
  auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(x)));
  while (root * root > x) --root;
  while ((root + 1) * (root + 1) <= x) ++root;
  return root;
}

constexpr int kUnitBits = 25;  // of a value: then squares of 4096 channels add up below 2^63

void unit_row(const int32_t* x, int64_t channels, int16_t* out) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < channels; ++i) {
    const uint32_t magnitude = x[i] < 0 ? 0u - static_cast<uint32_t>(x[i]) : static_cast<uint32_t>(x[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  const int width = std::bit_width(largest), bits = width > kUnitBits ? width - kUnitBits : 0;
  int64_t squares = 0;
  for (int64_t i = 0; i < channels; ++i) {
    const int64_t e = shifted_half_even(x[i], bits);
    squares += e * e;
  }
  const int64_t norm = root_of(squares);
  for (int64_t i = 0; i < channels; ++i) {
    if (norm == 0) {
      out[i] = 0;
      continue;
    }
    // floor((2 e 32767 + N) / (2 N))
    const int64_t above = 2 * 32767 * shifted_half_even(x[i], bits) + norm, below = 2 * norm;
    const int64_t u = above / below - (above % below < 0);
    out[i] = static_cast<int16_t>(u < -32767 ? -32767 : u > 32767 ? 32767 : u);
  }
}

template <class Norm>
constexpr RowKernels kRowLoops{norm_rows<Norm>, embed_row, narrow_values<Norm>, narrow_row<Norm>, Norm::Row::ramp,
                               pool_tokens,     unit_row,  Norm::Row::rotate,   multiply_rows,    narrow_long_row,
                               largest_of_long, add_rows,  add_long_rows};

}  // namespace
}  // namespace hccs
