// The part of the AIE API that the kernels use, as an optimiser sees it through AMD's headers: loads, stores, additions
// and subtractions are plain ones, everything else is an instruction it knows nothing of. Nothing here computes a
// softmax; a compiler's intermediate code over it shows what becomes of the kernels' memory order and arithmetic.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

using int8 = signed char;
using uint8 = unsigned char;
using int16 = std::int16_t;
using uint16 = std::uint16_t;
using int32 = std::int32_t;
using uint32 = std::uint32_t;
struct acc32 {};

#define STAND_IN inline __attribute__((always_inline))

STAND_IN int clb(int v) {
  int out;
  asm("clb" : "=r"(out) : "r"(v));
  return out;
}

namespace aie {

enum class rounding_mode { floor };
enum class saturation_mode { saturate };
STAND_IN void set_rounding(rounding_mode) { asm volatile("rounding" ::: "memory"); }
STAND_IN void set_saturation(saturation_mode) { asm volatile("saturation" ::: "memory"); }

template <typename T, unsigned N>
struct native {
  typedef T type __attribute__((ext_vector_type(N)));
};

// Two registers for what is wider than one.
template <typename T, unsigned N>
struct vector;
template <typename Tag, unsigned N>
struct accum {
  using half = typename native<int32, N / 2>::type;
  half low, high;
  accum() = default;
  template <typename T>
  STAND_IN explicit accum(const vector<T, N>& v, int = 0) {
    asm("ups" : "=x"(low), "=x"(high) : "x"(v.data));
  }
  template <typename T>
  STAND_IN vector<T, N> to_vector(int shift = 0) const {
    vector<T, N> out;
    asm("srs" : "=x"(out.data) : "x"(low), "x"(high), "r"(shift));
    return out;
  }
};

template <typename T, unsigned N>
struct vector {
  using type = typename native<T, N>::type;
  type data;
  template <unsigned M>
  STAND_IN vector<T, M> extract(unsigned part) const {
    vector<T, M> out;
    asm("extract" : "=x"(out.data) : "x"(data), "r"(part));
    return out;
  }
  template <typename U>
  STAND_IN auto cast_to() const {
    using other = vector<U, N * sizeof(T) / sizeof(U)>;
    return other{(typename other::type)data};
  }
  STAND_IN auto unpack() const {
    vector<std::conditional_t<std::is_signed_v<T>, int16, uint16>, N> out;
    asm("unpack" : "=x"(out.data) : "x"(data));
    return out;
  }
};
template <unsigned N>
struct mask {
  std::uint64_t lanes;
};

template <unsigned N, typename T>
STAND_IN vector<T, N> load_v(const T* p) {
  return {*reinterpret_cast<const typename native<T, N>::type*>(p)};
}
template <typename T, unsigned N>
STAND_IN void store_v(T* p, const vector<T, N>& v) {
  *reinterpret_cast<typename native<T, N>::type*>(p) = v.data;
}
template <typename T, unsigned N>
STAND_IN vector<T, N> add(const vector<T, N>& a, const vector<T, N>& b) {
  return {a.data + b.data};
}
template <typename T, unsigned N>
STAND_IN vector<T, N> sub(const vector<T, N>& a, const vector<T, N>& b) {
  return {a.data - b.data};
}

#define BINARY(name)                                                         \
  template <typename T, unsigned N>                                          \
  STAND_IN vector<T, N> name(const vector<T, N>& a, const vector<T, N>& b) { \
    vector<T, N> out;                                                        \
    asm(#name : "=x"(out.data) : "x"(a.data), "x"(b.data));                  \
    return out;                                                              \
  }
BINARY(max)
BINARY(min)

template <typename T, unsigned N>
STAND_IN vector<T, 2 * N> concat(const vector<T, N>& a, const vector<T, N>& b) {
  vector<T, 2 * N> out;
  asm("concat" : "=x"(out.data) : "x"(a.data), "x"(b.data));
  return out;
}
template <typename T, unsigned N>
STAND_IN vector<T, N> broadcast(int32 v) {
  vector<T, N> out;
  asm("broadcast" : "=x"(out.data) : "r"(v));
  return out;
}
template <typename T, unsigned N>
STAND_IN vector<T, N> zeros() {
  return {typename native<T, N>::type(0)};
}
template <typename T, unsigned N>
STAND_IN mask<N> lt(const vector<T, N>& a, const vector<T, N>& b) {
  mask<N> out;
  asm("lt" : "=r"(out.lanes) : "x"(a.data), "x"(b.data));
  return out;
}
template <typename T, unsigned N>
STAND_IN vector<T, N> select(const vector<T, N>& a, const vector<T, N>& b, const mask<N>& m) {
  vector<T, N> out;
  asm("select" : "=x"(out.data) : "x"(a.data), "x"(b.data), "r"(m.lanes));
  return out;
}
#define TWO_OUT(name)                                                                                                \
  template <typename T, unsigned N>                                                                                  \
  STAND_IN std::pair<vector<T, N>, vector<T, N>> name(const vector<T, N>& a, const vector<T, N>& b, unsigned step) { \
    vector<T, N> first, second;                                                                                      \
    asm(#name : "=x"(first.data), "=x"(second.data) : "x"(a.data), "x"(b.data), "r"(step));                          \
    return {first, second};                                                                                          \
  }
TWO_OUT(interleave_zip)
TWO_OUT(interleave_unzip)
template <typename T, unsigned N>
STAND_IN vector<T, N / 2> filter_even(const vector<T, N>& a, unsigned step) {
  vector<T, N / 2> out;
  asm("filter_even" : "=x"(out.data) : "x"(a.data), "r"(step));
  return out;
}
template <typename T, unsigned N>
STAND_IN vector<T, N> transpose(const vector<T, N>& a, unsigned rows, unsigned columns) {
  vector<T, N> out;
  asm("transpose" : "=x"(out.data) : "x"(a.data), "r"(rows), "r"(columns));
  return out;
}
template <typename T, unsigned N>
STAND_IN vector<T, N> shuffle_down_rotate(const vector<T, N>& a, unsigned by) {
  vector<T, N> out;
  asm("rotate" : "=x"(out.data) : "x"(a.data), "r"(by));
  return out;
}
template <typename Tag, typename A, typename B, unsigned N>
STAND_IN accum<Tag, N> mul(const vector<A, N>& a, const vector<B, N>& b) {
  accum<Tag, N> out;
  asm("mul" : "=x"(out.low), "=x"(out.high) : "x"(a.data), "x"(b.data));
  return out;
}
#define ACCUMULATE(name)                                                                              \
  template <typename Tag, typename A, typename B, unsigned N>                                         \
  STAND_IN accum<Tag, N> name(const accum<Tag, N>& c, const vector<A, N>& a, const vector<B, N>& b) { \
    accum<Tag, N> out;                                                                                \
    asm(#name : "=x"(out.low), "=x"(out.high) : "x"(c.low), "x"(c.high), "x"(a.data), "x"(b.data));   \
    return out;                                                                                       \
  }
ACCUMULATE(mac)
ACCUMULATE(msc)

template <unsigned M, unsigned K, unsigned N, typename A, typename B>
class mmul {
 public:
  mmul() = default;
  template <typename T>
  STAND_IN explicit mmul(const vector<T, M * N>& v, int = 0) : acc_(v) {}
  STAND_IN void mul(const vector<A, M * K>& a, const vector<B, K * N>& b) {
    asm("matrix_mul" : "=x"(acc_.low), "=x"(acc_.high) : "x"(a.data), "x"(b.data));
  }
  STAND_IN void mac(const vector<A, M * K>& a, const vector<B, K * N>& b) {
    const auto old = acc_;
    asm("matrix_mac" : "=x"(acc_.low), "=x"(acc_.high) : "x"(old.low), "x"(old.high), "x"(a.data), "x"(b.data));
  }
  STAND_IN accum<acc32, M * N> to_accum() const { return acc_; }
  template <typename T>
  STAND_IN vector<T, M * N> to_vector(int shift = 0) const {
    return acc_.template to_vector<T>(shift);
  }

 private:
  accum<acc32, M * N> acc_;
};

}  // namespace aie
