// Vectors, accumulators and their conversions: aie::vector, aie::accum, aie::mask, SRS and UPS.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "scalar.hpp"

using int8 = std::int8_t;
using uint8 = std::uint8_t;
using int16 = std::int16_t;
using uint16 = std::uint16_t;
using int32 = std::int32_t;
using uint32 = std::uint32_t;

// Round to nearest even, as the hardware's conversion from fp32 does.
struct bfloat16 {
  std::uint16_t bits = 0;
  bfloat16() = default;
  bfloat16(float f) {
    std::uint32_t u = std::bit_cast<std::uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
      u = 0x7fc00000u;
    else
      u += 0x7fffu + ((u >> 16) & 1u);
    bits = std::uint16_t(u >> 16);
  }
  operator float() const { return std::bit_cast<float>(std::uint32_t(bits) << 16); }
};

struct acc32 {};
struct acc64 {};
struct accfloat {};

namespace aie {

enum class rounding_mode {
  floor,
  ceil,
  positive_inf,
  negative_inf,
  symmetric_inf,
  symmetric_zero,
  conv_even,
  conv_odd
};
enum class saturation_mode { none, saturate, symmetric };

namespace emulation {

struct Modes {
  rounding_mode rounding = rounding_mode::floor;
  saturation_mode saturation = saturation_mode::none;
};
inline thread_local Modes modes;

template <typename T>
inline constexpr unsigned bits_of = 8 * sizeof(T);

// Shift, round, saturate: what happens to every lane on its way from an accumulator to a vector.
inline std::int64_t rounded(std::int64_t v, int shift) {
  if (shift <= 0) return v << -shift;
  const std::int64_t low = v >> shift, rest = v - (low << shift), half = std::int64_t(1) << (shift - 1);
  switch (modes.rounding) {
    case rounding_mode::floor: return low;
    case rounding_mode::ceil: return low + (rest != 0);
    case rounding_mode::positive_inf: return low + (rest >= half);
    case rounding_mode::negative_inf: return low + (rest > half);
    case rounding_mode::symmetric_inf: return low + (v >= 0 ? rest >= half : rest > half);
    case rounding_mode::symmetric_zero: return low + (v >= 0 ? rest > half : rest >= half);
    case rounding_mode::conv_even: return low + (rest > half || (rest == half && (low & 1)));
    case rounding_mode::conv_odd: return low + (rest > half || (rest == half && !(low & 1)));
  }
  return low;
}

template <typename T>
T narrowed(std::int64_t v) {
  if (modes.saturation == saturation_mode::none) return T(v);
  constexpr std::int64_t high = std::numeric_limits<T>::max();
  constexpr std::int64_t low = std::numeric_limits<T>::min();
  const std::int64_t floor = modes.saturation == saturation_mode::symmetric && low < 0 ? -high : low;
  return T(v > high ? high : v < floor ? floor : v);
}

}  // namespace emulation

inline void set_rounding(rounding_mode m) { emulation::modes.rounding = m; }
inline void set_saturation(saturation_mode m) { emulation::modes.saturation = m; }

template <typename T, unsigned N>
struct vector {
  using value_type = T;
  std::array<T, N> data{};
  emulation::value id = 0;

  static constexpr unsigned size() { return N; }
  static constexpr unsigned bits() { return N * emulation::bits_of<T>; }

  // Sub-registers: no instruction moves.
  template <unsigned M>
  vector<T, M> extract(unsigned index) const {
    static_assert(N % M == 0);
    vector<T, M> out;
    for (unsigned i = 0; i < M; ++i) out.data[i] = data[index * M + i];
    out.id = emulation::record_with(index, "extract", M, emulation::bits_of<T>, {id});
    return out;
  }
  template <unsigned M>
  vector<T, M> grow() const {
    static_assert(M % N == 0);
    vector<T, M> out;
    for (unsigned i = 0; i < N; ++i) out.data[i] = data[i];
    out.id = emulation::record("extract", M, emulation::bits_of<T>, {id});
    return out;
  }
  template <typename U>
  auto cast_to() const {
    vector<U, N * sizeof(T) / sizeof(U)> out;
    std::memcpy(out.data.data(), data.data(), sizeof(T) * N);
    out.id = id;
    return out;
  }
  auto unpack() const {
    static_assert(sizeof(T) == 1);
    using Wide = std::conditional_t<std::is_signed_v<T>, int16, uint16>;
    vector<Wide, N> out;
    for (unsigned i = 0; i < N; ++i) out.data[i] = data[i];
    out.id = emulation::record("unpack", N, 8, {id});
    return out;
  }
  // Half as wide, saturated as the mode says.
  auto pack() const {
    static_assert(sizeof(T) == 2);
    using Narrow = std::conditional_t<std::is_signed_v<T>, int8, uint8>;
    vector<Narrow, N> out;
    for (unsigned i = 0; i < N; ++i) out.data[i] = emulation::narrowed<Narrow>(data[i]);
    out.id = emulation::record("pack", N, 16, {id});
    return out;
  }
  auto get(unsigned i) const {
    return emulation::scalar<T>{data[i], emulation::record_with(i, "get", 1, emulation::bits_of<T>, {id})};
  }
  auto operator[](unsigned i) const { return get(i); }
};

template <unsigned N>
struct mask {
  std::array<bool, N> data{};
  emulation::value id = 0;
  bool test(unsigned i) const { return data[i]; }
};

template <typename Tag>
struct accum_element;
template <>
struct accum_element<acc32> {
  using type = std::int32_t;
};
template <>
struct accum_element<acc64> {
  using type = std::int64_t;
};
template <>
struct accum_element<accfloat> {
  using type = float;
};

template <typename Tag, unsigned N>
struct accum {
  using element = typename accum_element<Tag>::type;
  std::array<element, N> data{};
  emulation::value id = 0;

  static constexpr unsigned size() { return N; }

  accum() = default;
  template <typename T>
  explicit accum(const vector<T, N>& v, int shift = 0) {
    from_vector(v, shift);
  }

  template <typename T>
  void from_vector(const vector<T, N>& v, int shift = 0) {
    for (unsigned i = 0; i < N; ++i) {
      if constexpr (std::is_same_v<Tag, acc32>)
        data[i] = element(std::uint32_t(std::int32_t(v.data[i])) << shift);
      else if constexpr (std::is_same_v<Tag, acc64>)
        data[i] = element(std::uint64_t(std::int64_t(v.data[i])) << shift);
      else
        data[i] = float(v.data[i]);
    }
    const char* name = std::is_same_v<T, bfloat16> ? "ups_float" : std::is_same_v<Tag, acc64> ? "ups_wide" : "ups";
    id = emulation::record_with(shift, name, N, emulation::bits_of<T>, {v.id});
  }

  template <typename T, typename Shift = int>
  vector<T, N> to_vector(const Shift& shift = 0) const {
    vector<T, N> out;
    const int by = emulation::plain(shift);
    if constexpr (std::is_same_v<Tag, accfloat>) {
      for (unsigned i = 0; i < N; ++i) out.data[i] = T(data[i]);
      out.id = emulation::record("srs_float", N, emulation::bits_of<T>, {id});
    } else {
      for (unsigned i = 0; i < N; ++i) {
        const std::int64_t v = by >= 0 && emulation::modes.rounding == rounding_mode::floor
                                   ? std::int64_t(data[i]) >> by
                                   : emulation::rounded(data[i], by);
        out.data[i] = emulation::narrowed<T>(v);
      }
      // A computed shift amount must first move to one of the shift registers.
      emulation::value amount = emulation::id_of(shift);
      if (amount) amount = emulation::record("shift_register", 1, 32, {amount});
      const char* name = std::is_same_v<Tag, acc64> ? "srs_wide" : "srs";
      out.id = emulation::record_with(by, name, N, emulation::bits_of<T>, {id, amount});
    }
    return out;
  }
  template <unsigned M>
  accum<Tag, M> extract(unsigned index) const {
    accum<Tag, M> out;
    for (unsigned i = 0; i < M; ++i) out.data[i] = data[index * M + i];
    out.id = emulation::record_with(index, "extract", M, 32, {id});
    return out;
  }
};

namespace emulation {

// AIE-ML wants vector accesses aligned to 32 bytes, AIE-MLv2 to their size: hold kernels to the stricter rule.
inline void require_aligned(const void* p, unsigned bytes) {
  if (reinterpret_cast<std::uintptr_t>(p) % (bytes < 64 ? bytes : 64) != 0)
    throw std::logic_error("a kernel reads or writes a vector at an address that no AI Engine would take");
}

}  // namespace emulation

template <unsigned N, typename T>
vector<T, N> load_v(const T* p) {
  emulation::require_aligned(p, sizeof(T) * N);
  vector<T, N> out;
  std::memcpy(out.data.data(), p, sizeof(T) * N);
  out.id = emulation::record("load", N, emulation::bits_of<T>, {}, p, sizeof(T) * N);
  return out;
}

template <typename T, unsigned N>
void store_v(T* p, const vector<T, N>& v) {
  emulation::require_aligned(p, sizeof(T) * N);
  std::memcpy(p, v.data.data(), sizeof(T) * N);
  emulation::record("store", N, emulation::bits_of<T>, {v.id}, p, sizeof(T) * N);
}

template <typename T, unsigned N>
vector<T, 2 * N> concat(const vector<T, N>& a, const vector<T, N>& b) {
  vector<T, 2 * N> out;
  for (unsigned i = 0; i < N; ++i) out.data[i] = a.data[i], out.data[N + i] = b.data[i];
  out.id = emulation::record("concat", 2 * N, emulation::bits_of<T>, {a.id, b.id});
  return out;
}

// Walks memory one vector at a time: the part of aie::begin_vector / cbegin_vector that `*it++` needs.
template <unsigned N, typename T>
class vector_iterator {
 public:
  explicit vector_iterator(T* p) : p_(p) {}
  class reference {
   public:
    explicit reference(T* p) : p_(p) {}
    operator vector<std::remove_const_t<T>, N>() const { return load_v<N>(static_cast<const T*>(p_)); }
    void operator=(const vector<std::remove_const_t<T>, N>& v) const { store_v(p_, v); }

   private:
    T* p_;
  };
  reference operator*() const { return reference(p_); }
  vector_iterator operator++(int) {
    vector_iterator old = *this;
    p_ += N;
    return old;
  }

 private:
  T* p_;
};

template <unsigned N, typename T>
auto begin_vector(T* p) {
  return vector_iterator<N, T>(p);
}
template <unsigned N, typename T>
auto cbegin_vector(const T* p) {
  return vector_iterator<N, const T>(p);
}

}  // namespace aie
