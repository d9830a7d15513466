// The vector kernel, written once. `Isa` supplies the instructions; each softmax_<isa>.cpp defines one.
//
// Rows go in blocks of Isa::kRows through three passes over data that stays in the L1 cache: maxima,
// distance sums, output. A row's reductions have long latency and little work, so the block's rows are
// reduced together (a transpose folded into the reduction), and one vector division serves them all.
//
// The sum needs no multiply per lane: Z = n_valid * B - S * sum(delta), and sum(delta) is a byte sum.
#pragma once

#include <cstring>

#include "rows.hpp"

namespace hccs {
namespace {

// A full vector of columns, or the row's last few.
struct Full {};
struct Tail {
  int count;
};

template <class Isa, Mode kMode, Masking kMasking>
struct BlockRows {
  using Out = typename Output<kMode>::type;
  using Bytes = typename Isa::Bytes;
  using Emitter = typename Isa::template Emitter<kMode>;
  static constexpr int kRows = Isa::kRows;

  struct Row {
    const int8_t* x;
    Out* out;
    const Head* head;
    const uint8_t* mask;
    int64_t count;  // columns to look at: all, or the row's length
  };

  // One entry per row; unused entries of the last block stay zero.
  struct Normaliser {
    alignas(64) int32_t B[kRows] = {};
    alignas(64) int32_t S[kRows] = {};
    alignas(64) int32_t valid[kRows] = {};
    alignas(64) int32_t sum[kRows];
    alignas(64) int32_t rho[kRows];
    alignas(64) int32_t e[kRows];

    // Division in float32 is exact here. Let a < 2^23 be the numerator and b = Z < 2^15, a/b no integer
    // and k = ceil(a/b). Then k - a/b >= 1/b, while k * 2^-24 < (a + b) / b * 2^-24 < 1/b bounds half the
    // gap below k: rounding never reaches k, so truncating the quotient gives floor(a/b).
    void reciprocals() {
      for (int r = 0; r < kRows; ++r) {
        int32_t Z = valid[r] * B[r] - S[r] * sum[r];  // eq. 5
        Z = Z > 1 ? Z : 1;                            // a row without valid columns: its output is masked
        int32_t k = leading_bit(Z);
        e[r] = is_u8(kMode) && k < 8 ? 8 - k : 0;  // the short-row rule
        rho[r] = is_clb(kMode)
                     ? numerator(kMode) >> (k + e[r])                                                   // eq. 9
                     : static_cast<int32_t>(float(numerator(kMode)) / static_cast<float>(Z << e[r]));  // eq. 6, 8
      }
    }
    // From the exponent of the float, exact below 2^24: it vectorises on every instruction set.
    static int32_t leading_bit(int32_t Z) {
      const float value = static_cast<float>(Z);
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      return static_cast<int32_t>(bits >> 23) - 127;
    }
  };

  template <class Step>
  static inline __attribute__((always_inline)) void for_columns(const Row& row, Step step) {
    int64_t k = 0;
    for (; k + Isa::kBytes <= row.count; k += Isa::kBytes) step(k, Full{});
    if (k < row.count) step(k, Tail{static_cast<int>(row.count - k)});
  }

  // The lanes that take part. Without a mask these are the vector's columns.
  template <class Part>
  static inline auto lanes(const Row& row, int64_t k, Part part) {
    if constexpr (kMasking == Masking::kMask)
      return Isa::lanes(row.mask + k, part);
    else
      return Isa::lanes(part);
  }

  static void block(const Row (&rows)[kRows], int live) {
    Normaliser norm;
    alignas(64) Bytes maxima[kRows];
    for (int r = 0; r < live; ++r) {
      Bytes top = Isa::splat(-128);
      int32_t valid = 0;
      for_columns(rows[r], [&](int64_t k, auto part) {
        const auto on = lanes(rows[r], k, part);
        top = Isa::max(top, Isa::keep_or_lowest(on, Isa::load(rows[r].x + k, part)));
        if constexpr (kMasking == Masking::kMask) valid += Isa::count(on);
      });
      maxima[r] = top;
      norm.B[r] = rows[r].head->B;
      norm.S[r] = rows[r].head->S;
      norm.valid[r] = kMasking == Masking::kMask ? valid : static_cast<int32_t>(rows[r].count);
    }
    for (int r = live; r < kRows; ++r) maxima[r] = Isa::splat(-128);
    alignas(64) uint32_t m[kRows];  // each maximum, repeated in all four bytes
    Isa::reduce_max(maxima, m);

    typename Isa::Sums sums[kRows];
    for (int r = 0; r < live; ++r) {
      typename Isa::Sums sum = Isa::no_sums();
      const Bytes top = Isa::splat_word(m[r]), D = Isa::splat(static_cast<int8_t>(rows[r].head->D));
      for_columns(rows[r], [&](int64_t k, auto part) {
        const Bytes delta = Isa::distance(top, Isa::load(rows[r].x + k, part), D);
        sum = Isa::add_bytes(sum, Isa::keep(lanes(rows[r], k, part), delta));
      });
      sums[r] = sum;
    }
    for (int r = live; r < kRows; ++r) sums[r] = Isa::no_sums();
    Isa::reduce_sum(sums, norm.sum);
    norm.reciprocals();

    for (int r = 0; r < live; ++r) {
      const Row& row = rows[r];
      const Bytes top = Isa::splat_word(m[r]), D = Isa::splat(static_cast<int8_t>(row.head->D));
      const Emitter emitter(*row.head, norm.rho[r], norm.e[r]);
      for_columns(row, [&](int64_t k, auto part) {
        const Bytes delta = Isa::distance(top, Isa::load(row.x + k, part), D);
        emitter.store(row.out + k, delta, lanes(row, k, part), part);
      });
    }
  }

  static void run(const SoftmaxJob& job, int64_t begin, int64_t end) {
    HeadCursor heads(job, begin);
    RowCursor valid(job.valid, begin);
    Row rows[kRows];
    for (int64_t first = begin; first < end; first += kRows) {
      const int live = static_cast<int>(end - first < kRows ? end - first : kRows);
      for (int r = 0; r < live; ++r) {
        const int64_t at = (first + r) * job.columns;
        rows[r] = {job.x + at, static_cast<Out*>(job.out) + at, &heads.next(), nullptr, job.columns};
        if constexpr (kMasking == Masking::kMask) rows[r].mask = reinterpret_cast<const uint8_t*>(valid.next());
        if constexpr (kMasking == Masking::kLengths) {
          rows[r].count = *reinterpret_cast<const int32_t*>(valid.next());
          std::memset(rows[r].out + rows[r].count, 0, (job.columns - rows[r].count) * sizeof(Out));
        }
      }
      block(rows, live);
    }
  }
};

}  // namespace
}  // namespace hccs
