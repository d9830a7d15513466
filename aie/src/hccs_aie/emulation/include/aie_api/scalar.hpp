// A scalar register whose arithmetic is recorded. On the AI Engine these are plain integers, so kernels name them
// with `auto` and never spell this type.
#pragma once

#include <type_traits>

#include "trace.hpp"

namespace aie::emulation {

template <typename T>
struct scalar {
  T v{};
  value id = 0;
  operator T() const { return v; }
};

template <typename T>
struct is_scalar : std::false_type {};
template <typename T>
struct is_scalar<scalar<T>> : std::true_type {};

template <typename T>
T plain(const scalar<T>& s) {
  return s.v;
}
template <typename T>
T plain(const T& s) {
  return s;
}
template <typename T>
value id_of(const scalar<T>& s) {
  return s.id;
}
template <typename T>
value id_of(const T&) {
  return 0;
}

template <typename A, typename B>
concept tracked = (is_scalar<A>::value && (is_scalar<B>::value || std::is_arithmetic_v<B>)) ||
                  (std::is_arithmetic_v<A> && is_scalar<B>::value);

#define HCCS_TRACKED_OPERATOR(op, name)                                                \
  template <typename A, typename B>                                                    \
    requires tracked<A, B>                                                             \
  auto operator op(const A& a, const B& b) {                                           \
    using R = decltype(plain(a) op plain(b));                                          \
    return scalar<R>{plain(a) op plain(b), record(name, 1, 32, {id_of(a), id_of(b)})}; \
  }
HCCS_TRACKED_OPERATOR(+, "scalar_add")
HCCS_TRACKED_OPERATOR(-, "scalar_sub")
HCCS_TRACKED_OPERATOR(*, "scalar_mul")
HCCS_TRACKED_OPERATOR(<<, "scalar_shift")
HCCS_TRACKED_OPERATOR(>>, "scalar_shift")
HCCS_TRACKED_OPERATOR(&, "scalar_and")
#undef HCCS_TRACKED_OPERATOR

// Division is floor for the non-negative operands the kernels have; a zero divisor gives 0 as no trap exists.
template <typename A, typename B>
  requires tracked<A, B>
auto operator/(const A& a, const B& b) {
  using R = decltype(plain(a) / plain(b));
  const R quotient = plain(b) == 0 ? R(0) : R(plain(a) / plain(b));
  const char* name = std::is_floating_point_v<R> ? "scalar_float_div" : "scalar_div";
  return scalar<R>{quotient, record(name, 1, 32, {id_of(a), id_of(b)})};
}

template <typename T>
scalar<T> operator~(const scalar<T>& a) {
  return {T(~a.v), record("scalar_and", 1, 32, {a.id})};
}

// A scalar load fills a 32-bit register.
template <typename T>
auto load_scalar(const T* p) {
  using Register = std::conditional_t<sizeof(T) == 4, T, std::int32_t>;
  return scalar<Register>{Register(*p), record("scalar_load", 1, 8 * sizeof(T), {}, p, sizeof(T))};
}

// The same bits with a sign, or without.
template <typename T, typename V>
scalar<T> as(const V& v) {
  return {T(plain(v)), id_of(v)};
}

template <typename T, typename V>
void store_scalar(T* p, const V& v) {
  *p = T(plain(v));
  record("scalar_store", 1, 8 * sizeof(T), {id_of(v)}, p, sizeof(T));
}

}  // namespace aie::emulation

// Count of leading sign bits: the number of leading zeros for the non-negative values the kernels pass.
template <typename T>
auto clb(const T& a) {
  using namespace aie::emulation;
  const std::int32_t v = std::int32_t(plain(a));
  const std::uint32_t bits = std::uint32_t(v < 0 ? ~v : v);
  return scalar<int>{bits == 0 ? 32 : __builtin_clz(bits), record("clb", 1, 32, {id_of(a)})};
}
