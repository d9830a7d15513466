// Emulated AIE API operations against plain C++ written another way. Prints what differs; exit code 0 when nothing
// does.
#include <cmath>
#include <cstdio>
#include <random>

#include "hccs_reciprocals.hpp"

static int failures = 0;
static std::mt19937 generator(7);

static void expect(bool ok, const char* what) {
  if (ok) return;
  if (failures++ < 20) std::printf("differs: %s\n", what);
}

template <typename T, unsigned N>
static aie::vector<T, N> random_vector() {
  aie::vector<T, N> v;
  for (auto& x : v.data) {
    const unsigned edge = generator() % 8;
    x = edge == 0 ? std::numeric_limits<T>::min() : edge == 1 ? std::numeric_limits<T>::max() : T(generator());
  }
  return v;
}

// Shift-round by exact double arithmetic: 32-bit numerators over powers of two are exact doubles.
static double by_definition(aie::rounding_mode mode, double x) {
  const double low = std::floor(x), tie = x - low;
  switch (mode) {
    case aie::rounding_mode::floor: return low;
    case aie::rounding_mode::ceil: return std::ceil(x);
    case aie::rounding_mode::positive_inf: return std::floor(x + 0.5);
    case aie::rounding_mode::negative_inf: return std::ceil(x - 0.5);
    case aie::rounding_mode::symmetric_inf: return x < 0 ? std::ceil(x - 0.5) : std::floor(x + 0.5);
    case aie::rounding_mode::symmetric_zero: return x < 0 ? std::floor(x + 0.5) : std::ceil(x - 0.5);
    case aie::rounding_mode::conv_even: return tie == 0.5 ? 2 * std::floor(x / 2 + 0.5) : std::floor(x + 0.5);
    case aie::rounding_mode::conv_odd: return tie == 0.5 ? (std::fmod(low, 2) ? low : low + 1) : std::floor(x + 0.5);
  }
  return 0;
}

template <typename T>
static T fitted(double x, aie::saturation_mode mode) {
  const double high = double(std::numeric_limits<T>::max()), low = double(std::numeric_limits<T>::min());
  if (mode == aie::saturation_mode::none) return T(std::int64_t(x));
  const double floor = mode == aie::saturation_mode::symmetric && low < 0 ? -high : low;
  return T(std::fmin(std::fmax(x, floor), high));
}

template <typename T>
static void check_srs() {
  for (int r = 0; r <= int(aie::rounding_mode::conv_odd); ++r)
    for (int s = 0; s <= int(aie::saturation_mode::symmetric); ++s) {
      aie::set_rounding(aie::rounding_mode(r));
      aie::set_saturation(aie::saturation_mode(s));
      for (int shift = 0; shift < 24; ++shift) {
        aie::accum<acc32, 32> acc;
        for (auto& x : acc.data) {
          x = std::int32_t(generator());
          if (generator() % 2) x >>= generator() % 31;
          if (shift && generator() % 3 == 0) x = (x >> shift << shift) + (1 << (shift - 1));  // ties
        }
        const auto v = acc.template to_vector<T>(shift);
        for (unsigned i = 0; i < 32; ++i) {
          const double x = std::ldexp(double(acc.data[i]), -shift);
          expect(v.data[i] == fitted<T>(by_definition(aie::rounding_mode(r), x), aie::saturation_mode(s)), "srs");
        }
      }
    }
  aie::set_rounding(aie::rounding_mode::floor);
  aie::set_saturation(aie::saturation_mode::saturate);
}

template <typename T, unsigned N>
static void check_lanes() {
  const auto a = random_vector<T, N>(), b = random_vector<T, N>();
  const auto sum = aie::add(a, b), difference = aie::sub(a, b), most = aie::max(a, b), least = aie::min(a, b);
  using U = std::make_unsigned_t<T>;
  long long total = 0;
  T best = a.data[0];
  for (unsigned i = 0; i < N; ++i) {
    expect(U(sum.data[i]) == U(U(a.data[i]) + U(b.data[i])), "add wraps");
    expect(U(difference.data[i]) == U(U(a.data[i]) - U(b.data[i])), "sub wraps");
    expect(most.data[i] == std::max(a.data[i], b.data[i]) && least.data[i] == std::min(a.data[i], b.data[i]),
           "max, min");
    total += a.data[i];
    best = std::max(best, a.data[i]);
  }
  expect(T(aie::reduce_add(a)) == T(total), "reduce_add");
  expect(T(aie::reduce_max(a)) == best, "reduce_max");
  const auto chosen = aie::select(a, b, aie::lt(a, b));
  expect(chosen.data == most.data, "select by lt is max");
}

template <typename T, unsigned N>
static void check_shuffles() {
  const auto a = random_vector<T, N>(), b = random_vector<T, N>();
  for (unsigned step = 1; step < N; step *= 2) {
    const auto [zip0, zip1] = aie::interleave_zip(a, b, step);
    std::vector<T> expected;
    for (unsigned i = 0; i < N; i += step) {
      expected.insert(expected.end(), a.data.begin() + i, a.data.begin() + i + step);
      expected.insert(expected.end(), b.data.begin() + i, b.data.begin() + i + step);
    }
    for (unsigned i = 0; i < N; ++i) expect(zip0.data[i] == expected[i] && zip1.data[i] == expected[N + i], "zip");
    const auto [even, odd] = aie::interleave_unzip(zip0, zip1, step);
    expect(even.data == a.data && odd.data == b.data, "unzip undoes zip");
    const auto rotated = aie::shuffle_down_rotate(a, step);
    for (unsigned i = 0; i < N; ++i) expect(rotated.data[i] == a.data[(i + step) % N], "rotate");
    const auto turned = aie::transpose(a, step, N / step);
    for (unsigned r = 0; r < step; ++r)
      for (unsigned c = 0; c < N / step; ++c)
        expect(turned.data[c * step + r] == a.data[r * (N / step) + c], "transpose");
    const auto kept = aie::filter_even(a, step);
    for (unsigned i = 0; i < N / 2; ++i) expect(kept.data[i] == a.data[i / step * 2 * step + i % step], "filter_even");
  }
}

template <typename A, typename B>
static void check_products() {
  const auto a = random_vector<A, 32>();
  const auto b = random_vector<B, 32>();
  aie::accum<acc32, 32> start;
  for (auto& x : start.data) x = std::int32_t(generator());
  const auto product = aie::mul<acc32>(a, b), more = aie::mac(start, a, b), less = aie::msc(start, a, b);
  for (unsigned i = 0; i < 32; ++i) {
    const long long p = (long long)a.data[i] * b.data[i];
    expect(product.data[i] == std::int32_t(p), "mul");
    expect(more.data[i] == std::int32_t(start.data[i] + p) && less.data[i] == std::int32_t(start.data[i] - p),
           "mac, msc");
  }
}

static void check_matrix() {
  const auto a = random_vector<int8, 32>();
  const auto b = random_vector<int8, 64>();
  aie::mmul<4, 8, 8, int8, int8> m;
  m.mul(a, b);
  m.mac(a, b);
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned j = 0; j < 8; ++j) {
      long dot = 0;
      for (unsigned k = 0; k < 8; ++k) dot += long(a.data[i * 8 + k]) * b.data[k * 8 + j];
      expect(m.to_accum().data[i * 8 + j] == 2 * dot, "mmul");
    }
  const auto start = random_vector<int16, 32>();
  aie::mmul<4, 8, 8, int8, int8> started(start, 0);
  started.mac(a, b);
  aie::mmul<4, 8, 8, int8, int8> fresh;
  fresh.mul(a, b);
  for (unsigned i = 0; i < 32; ++i)
    expect(started.to_accum().data[i] == start.data[i] + fresh.to_accum().data[i], "mmul from a vector");
}

static void check_layouts() {
  // Sixteen rows' numbers, periodic: as the totals come out, and as the matrices that spread them.
  hccs::halves periodic;
  for (unsigned i = 0; i < 32; ++i) periodic.data[i] = int16(100 + i % 16);
  alignas(64) int16 copies[16 * hccs::total_columns], fours[64];
  hccs::store_copies(copies, periodic);
  hccs::store_fours(fours, periodic);
  for (unsigned i = 0; i < 16 * hccs::total_columns; ++i)
    expect(copies[i] == int16(100 + i / hccs::total_columns), "store_copies");
  for (unsigned i = 0; i < 64; ++i) expect(fours[i] == int16(100 + i / 16 * 4 + i % 4), "store_fours");
  const hccs::halves two = hccs::two_copies<hccs::total_columns>(copies);
  for (unsigned i = 0; i < 32; ++i) expect(two.data[i] == int16(100 + i / 2), "two_copies");
  for (int z = 1; z < 600; ++z) {
    int lifted = z;
    while (lifted < 256) lifted *= 2;
    using hccs::raised;
    const auto v = aie::broadcast<int16, 16>(int16(z));
    expect(raised(raised(raised(raised(v, 16, 16), 64, 4), 128, 2), 256, 2).data[5] == lifted, "raised");
  }
}

static void check_division() {
  for (int z = 1; z <= 32767; z += 1 + z / 97) {
    const auto divisor = aie::broadcast<int16, 16>(int16(z));
    expect(hccs::divide(uint32(32767) << 2, divisor, 15).data[3] == 32767 / z, "15-bit division");
    if (z >= 256) expect(hccs::divide(uint32(255) << 17, divisor, 15).data[0] == (255 << 15) / z, "u8 division");
  }
}

static void check_scalars_and_bf16() {
  for (int i = 0; i < 1000; ++i) {
    const std::int32_t v = std::int32_t(generator()) >> (generator() % 31);
    int leading = 0;
    for (int bit = 31; bit >= 0 && ((v >> bit) & 1) == ((v >> 31) & 1); --bit) ++leading;
    expect(int(clb(v)) == leading, "clb counts leading sign bits");
    const float f = std::ldexp(float(v), -20);
    const float below = std::bit_cast<float>(std::bit_cast<std::uint32_t>(f) & 0xffff0000u);
    const float above = std::bit_cast<float>((std::bit_cast<std::uint32_t>(f) & 0xffff0000u) + 0x10000u);
    const float got = float(bfloat16(f));
    expect(got == below || got == above, "bf16 is a neighbour");
    expect(std::fabs(got - f) <= std::fmin(std::fabs(below - f), std::fabs(above - f)), "bf16 is the nearest");
  }
  const auto bytes = random_vector<int8, 32>();
  const auto wide = bytes.unpack();
  for (unsigned i = 0; i < 32; ++i) expect(wide.data[i] == bytes.data[i], "unpack keeps the sign");
}

int main() {
  for (int round = 0; round < 50; ++round) {
    check_lanes<int8, 64>();
    check_lanes<uint8, 32>();
    check_lanes<int16, 32>();
    check_lanes<uint32, 16>();
    check_shuffles<int8, 64>();
    check_shuffles<int16, 32>();
    check_shuffles<int16, 16>();
    check_products<int8, int8>();
    check_products<int16, int16>();
    check_products<int16, uint16>();
    check_matrix();
    check_layouts();
  }
  check_srs<int8>();
  check_srs<uint8>();
  check_srs<int16>();
  check_srs<uint16>();
  check_division();
  check_scalars_and_bf16();
  std::printf("%d differences\n", failures);
  return failures != 0;
}
