// Lane-wise arithmetic, shuffles, reductions, multiplies and the matrix multiply of the AIE API.
#pragma once

#include <algorithm>
#include <utility>

#include "vector.hpp"

namespace aie {

namespace emulation {

template <typename T, unsigned N, typename F>
vector<T, N> lanewise(const char* name, const vector<T, N>& a, const vector<T, N>& b, F f) {
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.data[i] = T(f(a.data[i], b.data[i]));
  out.id = record(name, N, bits_of<T>, {a.id, b.id});
  return out;
}

// Out lane i takes lane from(i) of (a, b) laid end to end: every VSHUFFLE and VSHIFT is of this form.
template <typename T, unsigned N, typename F>
vector<T, N> permuted(const char* name, unsigned mode, const vector<T, N>& a, const vector<T, N>& b, F from) {
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) {
    const unsigned lane = from(i);
    out.data[i] = lane < N ? a.data[lane] : b.data[lane - N];
  }
  out.id = record_with(mode, name, N, bits_of<T>, {a.id, b.id});
  return out;
}

// Shuffle modes, for telling traces apart.
enum shuffle_mode : unsigned {
  zip_low = 1000,
  zip_high = 2000,
  unzip_even = 3000,
  unzip_odd = 4000,
  transposed = 5000,
  rotated = 6000
};

template <typename T>
using wrapping = std::conditional_t<std::is_floating_point_v<T>, T,
                                    std::conditional_t<std::is_same_v<T, bfloat16>, float, std::int64_t>>;

}  // namespace emulation

template <typename T, unsigned N, typename U>
auto broadcast_of(const U& a) {
  vector<T, N> out;
  out.data.fill(T(emulation::plain(a)));
  out.id = emulation::record("broadcast", N, emulation::bits_of<T>, {emulation::id_of(a)});
  return out;
}
template <typename T, unsigned N, typename U>
vector<T, N> broadcast(const U& a) {
  return broadcast_of<T, N>(a);
}
template <typename T, unsigned N>
  requires std::is_same_v<T, acc32>
accum<acc32, N> zeros() {
  accum<acc32, N> out;
  out.id = emulation::record("clear", N, 32);
  return out;
}
template <typename T, unsigned N>
  requires(!std::is_same_v<T, acc32> && !std::is_same_v<T, accfloat>)
vector<T, N> zeros() {
  return broadcast<T, N>(0);
}

template <typename T, unsigned N>
auto max(const vector<T, N>& a, const vector<T, N>& b) {
  return emulation::lanewise("max", a, b, [](T x, T y) { return x < y ? y : x; });
}
template <typename T, unsigned N>
auto min(const vector<T, N>& a, const vector<T, N>& b) {
  return emulation::lanewise("min", a, b, [](T x, T y) { return y < x ? y : x; });
}
// Vector add and subtract wrap around; only SRS saturates.
template <typename T, unsigned N>
auto add(const vector<T, N>& a, const vector<T, N>& b) {
  using W = emulation::wrapping<T>;
  return emulation::lanewise("add", a, b, [](T x, T y) { return W(x) + W(y); });
}
template <typename T, unsigned N>
auto sub(const vector<T, N>& a, const vector<T, N>& b) {
  using W = emulation::wrapping<T>;
  return emulation::lanewise("sub", a, b, [](T x, T y) { return W(x) - W(y); });
}

template <typename T, unsigned N>
mask<N> lt(const vector<T, N>& a, const vector<T, N>& b) {
  mask<N> out;
  for (unsigned i = 0; i < N; ++i) out.data[i] = a.data[i] < b.data[i];
  out.id = emulation::record("compare", N, emulation::bits_of<T>, {a.id, b.id});
  return out;
}
// Lane of b where the mask is set, of a where it is not.
template <typename T, unsigned N>
vector<T, N> select(const vector<T, N>& a, const vector<T, N>& b, const mask<N>& m) {
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.data[i] = m.data[i] ? b.data[i] : a.data[i];
  out.id = emulation::record("select", N, emulation::bits_of<T>, {a.id, b.id, m.id});
  return out;
}

template <typename T, unsigned N>
std::pair<vector<T, N>, vector<T, N>> interleave_zip(const vector<T, N>& a, const vector<T, N>& b, unsigned step) {
  const auto from = [step](unsigned i) { return (i / (2 * step)) * step + i % step + ((i / step) % 2) * N; };
  // Zipped lanes 0..N-1 are the first result, N..2N-1 the second.
  const auto high = [&](unsigned i) { return from(i + N); };
  if constexpr (vector<T, N>::bits() < 512) {
    // Both halves come out of one 512-bit shuffle.
    auto low_half = emulation::permuted("shuffle", emulation::zip_low + step, a, b, from);
    auto high_half = emulation::permuted("same_shuffle", emulation::zip_high + step, a, b, high);
    return {low_half, high_half};
  } else {
    return {emulation::permuted("shuffle", emulation::zip_low + step, a, b, from),
            emulation::permuted("shuffle", emulation::zip_high + step, a, b, high)};
  }
}
template <typename T, unsigned N>
std::pair<vector<T, N>, vector<T, N>> interleave_unzip(const vector<T, N>& a, const vector<T, N>& b, unsigned step) {
  const auto even = [step](unsigned i) { return (i / step) * 2 * step + i % step; };
  const auto odd = [&](unsigned i) { return even(i) + step; };
  return {emulation::permuted("shuffle", emulation::unzip_even + step, a, b, even),
          emulation::permuted("shuffle", emulation::unzip_odd + step, a, b, odd)};
}
template <typename T, unsigned N>
vector<T, N / 2> filter_even(const vector<T, N>& a, unsigned step = 1) {
  vector<T, N / 2> out;
  for (unsigned i = 0; i < N / 2; ++i) out.data[i] = a.data[(i / step) * 2 * step + i % step];
  out.id = emulation::record_with(emulation::unzip_even + step, "shuffle", N, emulation::bits_of<T>, {a.id});
  return out;
}
template <typename T, unsigned N>
vector<T, N> transpose(const vector<T, N>& a, unsigned rows, unsigned columns) {
  return emulation::permuted("shuffle", emulation::transposed + rows, a, a,
                             [=](unsigned i) { return (i % rows) * columns + i / rows; });
}
template <typename T, unsigned N>
vector<T, N> shuffle_down_rotate(const vector<T, N>& a, unsigned n) {
  return emulation::permuted("shift", emulation::rotated + n, a, a, [n](unsigned i) { return (i + n) % N; });
}

// A tree of shift-and-combine steps, then one lane extract (aie_api detail/aie2/max_min_reduce.hpp, add_reduce.hpp).
template <typename T, unsigned N>
auto reduce_max(const vector<T, N>& a) {
  T best = a.data[0];
  for (T x : a.data) best = best < x ? x : best;
  return emulation::scalar<T>{best, emulation::record("reduce_max", N, emulation::bits_of<T>, {a.id})};
}
template <typename T, unsigned N>
auto reduce_add(const vector<T, N>& a) {
  emulation::wrapping<T> sum = 0;
  if constexpr (std::is_floating_point_v<T>) {
    std::array<T, N> tree = a.data;  // the order in which the tree adds, for the same rounding
    for (unsigned half = N / 2; half; half /= 2)
      for (unsigned i = 0; i < half; ++i) tree[i] += tree[i + half];
    sum = tree[0];
  } else {
    for (T x : a.data) sum += x;
  }
  const char* name = std::is_floating_point_v<T> ? "reduce_add_float" : "reduce_add";
  return emulation::scalar<T>{T(sum), emulation::record(name, N, emulation::bits_of<T>, {a.id})};
}

namespace emulation {

template <typename Tag, typename A, typename B, unsigned N>
accum<Tag, N> multiply(const char* name, const accum<Tag, N>* start, const vector<A, N>& a, const vector<B, N>& b,
                       int sign) {
  accum<Tag, N> out;
  for (unsigned i = 0; i < N; ++i) {
    if constexpr (std::is_same_v<Tag, accfloat>) {
      const float product = float(a.data[i]) * float(b.data[i]);
      out.data[i] = (start ? start->data[i] : 0.0f) + (sign < 0 ? -product : product);
    } else {
      using Word = std::make_unsigned_t<typename accum<Tag, N>::element>;
      const Word product = Word(std::int64_t(a.data[i])) * Word(std::int64_t(b.data[i]));
      const Word begin = start ? Word(start->data[i]) : Word(0);
      out.data[i] = typename accum<Tag, N>::element(sign < 0 ? begin - product : begin + product);
    }
  }
  unsigned width = std::max(bits_of<A>, bits_of<B>);
  value first = a.id, second = b.id;
  if constexpr (std::is_same_v<Tag, acc64>) {
    // A product of 32 bits is one of 16-bit digits, each operand's shuffled out of it first.
    static_assert(sizeof(A) == 4 && sizeof(B) >= 2);
    width = bits_of<B>;
    name = start ? "mac_wide" : "mul_wide";
    first = record("digits", N, 32, {first});
    if constexpr (sizeof(B) == 4) second = record("digits", N, 32, {second});
  }
  out.id = start ? record_with(sign < 0, name, N, width, {first, second, start->id})
                 : record(name, N, width, {first, second});
  return out;
}

template <typename A>
using default_tag = std::conditional_t<std::is_same_v<A, bfloat16>, accfloat, acc32>;
template <typename A>
inline constexpr bool is_bf16 = std::is_same_v<A, bfloat16>;

}  // namespace emulation

template <typename Tag, typename A, typename B, unsigned N>
accum<Tag, N> mul(const vector<A, N>& a, const vector<B, N>& b) {
  return emulation::multiply<Tag>(emulation::is_bf16<A> ? "mul_float" : "mul",
                                  static_cast<const accum<Tag, N>*>(nullptr), a, b, 1);
}
template <typename A, typename B, unsigned N>
auto mul(const vector<A, N>& a, const vector<B, N>& b) {
  return mul<emulation::default_tag<A>>(a, b);
}
template <typename Tag, typename A, typename B, unsigned N>
accum<Tag, N> mac(const accum<Tag, N>& acc, const vector<A, N>& a, const vector<B, N>& b) {
  return emulation::multiply(emulation::is_bf16<A> ? "mac_float" : "mac", &acc, a, b, 1);
}
template <typename Tag, typename A, typename B, unsigned N>
accum<Tag, N> msc(const accum<Tag, N>& acc, const vector<A, N>& a, const vector<B, N>& b) {
  return emulation::multiply(emulation::is_bf16<A> ? "mac_float" : "mac", &acc, a, b, -1);
}
template <typename Tag, unsigned N>
accum<Tag, N> add(const accum<Tag, N>& a, const accum<Tag, N>& b) {
  accum<Tag, N> out;
  for (unsigned i = 0; i < N; ++i) {
    if constexpr (std::is_same_v<Tag, accfloat>)
      out.data[i] = a.data[i] + b.data[i];
    else
      out.data[i] = typename accum<Tag, N>::element(std::uint64_t(a.data[i]) + std::uint64_t(b.data[i]));
  }
  out.id = emulation::record(std::is_same_v<Tag, accfloat> ? "add_accum_float" : "add_accum", N, 32, {a.id, b.id});
  return out;
}

// The vector first becomes an accumulator.
template <typename T, unsigned N>
accum<acc64, N> sub(const accum<acc64, N>& a, const vector<T, N>& b) {
  const accum<acc64, N> wide(b);
  accum<acc64, N> out;
  for (unsigned i = 0; i < N; ++i) out.data[i] = std::int64_t(std::uint64_t(a.data[i]) - std::uint64_t(wide.data[i]));
  out.id = emulation::record("add_accum", N, 32, {a.id, wide.id});
  return out;
}

// C[M x N] (+)= A[M x K] * B[K x N], row-major tiles.
template <unsigned M, unsigned K, unsigned N, typename A, typename B = A, typename Tag = acc32>
class mmul {
 public:
  mmul() = default;
  template <typename T>
  explicit mmul(const vector<T, M * N>& v, int shift = 0) : acc_(v, shift) {}
  void mul(const vector<A, M * K>& a, const vector<B, K * N>& b) { product(a, b, false); }
  void mac(const vector<A, M * K>& a, const vector<B, K * N>& b) { product(a, b, true); }
  accum<Tag, M * N> to_accum() const { return acc_; }
  template <typename T>
  vector<T, M * N> to_vector(int shift = 0) const {
    return acc_.template to_vector<T>(shift);
  }

 private:
  void product(const vector<A, M * K>& a, const vector<B, K * N>& b, bool add) {
    for (unsigned i = 0; i < M; ++i) {
      std::array<std::int32_t, N> row{};
      for (unsigned k = 0; k < K; ++k)
        for (unsigned j = 0; j < N; ++j) row[j] += std::int32_t(a.data[i * K + k]) * b.data[k * N + j];
      for (unsigned j = 0; j < N; ++j) acc_.data[i * N + j] = row[j] + (add ? acc_.data[i * N + j] : 0);
    }
    constexpr unsigned width = std::max(emulation::bits_of<A>, emulation::bits_of<B>);
    acc_.id = add ? emulation::record("matrix_mac", M * N, width, {a.id, b.id, acc_.id})
                  : emulation::record("matrix_mul", M * N, width, {a.id, b.id});
  }
  accum<Tag, M * N> acc_;
};

}  // namespace aie
