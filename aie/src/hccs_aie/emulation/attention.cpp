// The attention kernels, compiled for the host: every number of keys and head size is a kernel of its own.
#include "hccs_attention.hpp"

#include <memory>
#include <utility>

#include "kernels.hpp"

namespace hccs::emulated {

namespace {

// buffers: q, k, v, N, Z, y (empty without an int8 output).
// numbers: rows, keys, dim, multiplier (0: a power of two), shift, masked, attended keys, causal, first,
//          output multiplier, output shift, B, S, D and, of two lines, S2, D2, f.
enum Number { RowCount, Keys, Dim, Multiplier, Shift, Masked, Attended, Causal, First, OutMultiplier, OutShift, Theta };

template <unsigned N, unsigned D, unsigned Planes, typename T>
void whole(const Call& call, const T& theta) {
  const auto& n = call.numbers;
  auto scratch = std::make_unique<attention_scratch<N, D>>();
  const factor by{int32(n[Multiplier]), int(n[Shift])};
  const attended mask{unsigned(n[Attended]), n[Causal] != 0, unsigned(n[First])};
  const unsigned rows = unsigned(n[RowCount]);
  auto *sums = call.as<int32>(3), *totals = call.as<int32>(4);
  const auto run = [&]<bool Product, bool Hidden>() {
    if constexpr (Planes > 0 || !Hidden)
      attention<N, D, Planes, Product, Hidden>(call.as<int8>(0), call.as<int8>(1), call.as<int8>(2), theta, by, mask,
                                               rows, *scratch, sums, totals);
  };
  if (n[Multiplier])
    n[Masked] ? run.template operator()<true, true>() : run.template operator()<true, false>();
  else
    n[Masked] ? run.template operator()<false, true>() : run.template operator()<false, false>();
  if (call.bytes[5])
    attention_as_int8<D>(sums, totals, {int32(n[OutMultiplier]), int(n[OutShift])}, rows, *scratch, call.as<int8>(5));
}

template <unsigned N, unsigned D>
void of_sizes(const Call& call) {
  const auto* t = &call.numbers[Theta];
  if (call.numbers.size() > Theta + 3)
    return whole<N, D, 1>(call,
                          two_lines{int32(t[0]), int32(t[1]), int32(t[2]), int32(t[3]), int32(t[4]), int32(t[5])});
  const head theta{int32(t[0]), int32(t[1]), int32(t[2])};
  const unsigned planes = (theta.B + 254) / 255;
  if (planes == 1) return whole<N, D, 1>(call, theta);
  if (!call.numbers[Masked]) return whole<N, D, 0>(call, theta);
  if constexpr (max_planes(N) > 1)
    if (planes == 2) return whole<N, D, 2>(call, theta);
  if constexpr (max_planes(N) > 1) return whole<N, D, max_planes(N)>(call, theta);
}

template <unsigned D, unsigned... Chunks>
void by_keys(const Call& call, std::integer_sequence<unsigned, Chunks...>) {
  const unsigned keys = unsigned(call.numbers[Keys]);
  ((keys == (Chunks + 1) * lanes ? of_sizes<(Chunks + 1) * lanes, D>(call) : void()), ...);
}
template <unsigned D, unsigned... Chunks>
void values_by_keys(const Call& call, std::integer_sequence<unsigned, Chunks...>) {
  const unsigned keys = unsigned(call.numbers[Keys]), rows = unsigned(call.numbers[RowCount]);
  ((keys == (Chunks + 1) * lanes
        ? weighted_values<(Chunks + 1) * lanes, D>(call.as<uint8>(0), call.as<int8>(1), rows, call.as<int32>(2))
        : void()),
   ...);
}
using all_keys = std::make_integer_sequence<unsigned, 256 / lanes>;

void require_sizes(const Call& call) {
  const auto rows = call.numbers[RowCount], keys = call.numbers[Keys], dim = call.numbers[Dim];
  require(keys >= 32 && keys <= 256 && keys % 32 == 0, "n must be a multiple of 32 up to 256");
  require(dim == 32 || dim == 64, "the head size must be 32 or 64");
  require(rows >= 32 && rows <= attention_rows(unsigned(keys), unsigned(dim)) && rows % 32 == 0,
          "rows must be 32, or 64 where they fit");
}

}  // namespace

unsigned attention_rows(unsigned n, unsigned dim) { return hccs::attention_rows(n, dim); }

void run_attention(const Call& call) {
  const auto& n = call.numbers;
  require(call.buffers.size() == 6 && (n.size() == Theta + 3 || n.size() == Theta + 6),
          "six buffers, 14 or 17 numbers");
  require_sizes(call);
  const auto rows = std::size_t(n[RowCount]), keys = std::size_t(n[Keys]), dim = std::size_t(n[Dim]);
  call.require_bytes({rows * dim, keys * dim, keys * dim, 4 * rows * dim, 4 * rows, call.bytes[5] ? rows * dim : 0});
  require(n[Multiplier] >= 0 && n[Multiplier] < 1 << 24 && n[Shift] >= 0 && n[Shift] <= 62, "no such factor");
  require(n[OutMultiplier] >= 0 && n[OutMultiplier] < 1 << 24 && n[OutShift] >= 0 && n[OutShift] <= 47,
          "no such output factor");
  require(n[Attended] >= 0 && n[Attended] <= n[Keys] && n[First] >= 0 && n[First] < 256, "no such keys");
  const std::int64_t *t = &n[Theta], B = t[0], S = t[1], D = t[2];
  const bool two = n.size() > Theta + 3;
  require(1 <= D && D <= 127 && 0 <= S && S <= 127 && 1 <= B && S * D <= B, "no kernel runs these parameters");
  if (two)
    require(0 <= t[3] && t[3] <= 127 && 1 <= t[4] && t[4] <= D && S * D + t[3] * t[4] <= B && 0 <= t[5] && t[5] <= 7 &&
                B >> t[5] <= 255 && B + 128 * (S + t[3]) <= 32767,
            "no kernel runs these two lines");
  else
    require(B <= 32767 / n[Keys], "no kernel runs these parameters");
  dim == 32 ? by_keys<32>(call, all_keys()) : by_keys<64>(call, all_keys());
}

// buffers: q, k, x; numbers: rows, keys, dim, shift.
void run_logits(const Call& call) {
  const auto& n = call.numbers;
  require(call.buffers.size() == 3 && n.size() == 4, "three buffers and four numbers");
  require_sizes(call);
  call.require_bytes({std::size_t(n[0] * n[2]), std::size_t(n[1] * n[2]), std::size_t(n[0] * n[1])});
  require(n[3] >= 0 && n[3] <= 30, "no such shift");
  const factor by{0, int(n[3])};
  const auto run = n[2] == 32 ? attention_logits<32, false> : attention_logits<64, false>;
  run(call.as<int8>(0), call.as<int8>(1), unsigned(n[0]), unsigned(n[1]), by, call.as<int8>(2));
}

// buffers: p, v, N; numbers: rows, keys, dim.
void run_values(const Call& call) {
  const auto& n = call.numbers;
  require(call.buffers.size() == 3 && n.size() == 3, "three buffers and three numbers");
  require_sizes(call);
  call.require_bytes({std::size_t(n[0] * n[1]), std::size_t(n[1] * n[2]), std::size_t(4 * n[0] * n[2])});
  n[2] == 32 ? values_by_keys<32>(call, all_keys()) : values_by_keys<64>(call, all_keys());
}

}  // namespace hccs::emulated
