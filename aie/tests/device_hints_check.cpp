// The kernels with the loop hints of the device compilers instead of the emulation's: they must still compile, and give
// what Algorithm 1 gives. The emulation only lends its vector types here. Exit code 0 when every output agrees.
#include <aie_api/aie.hpp>
#undef HCCS_AIE_EMULATION

#include <cstdio>
#include <random>

#include "hccs_tile.hpp"

static std::mt19937 generator(3);

static int leading_bit(long z) { return 63 - __builtin_clzl(z); }

template <hccs::mode M>
static void algorithm_1(const int8* x, int length, int n, const hccs::head& theta, std::vector<long>& p) {
  constexpr bool u8 = M == hccs::mode::u8_div || M == hccs::mode::u8_clb;
  constexpr bool clb = M == hccs::mode::i16_clb || M == hccs::mode::u8_clb;
  p.assign(n, 0);
  if (length == 0) return;
  const int most = *std::max_element(x, x + length);
  long sum = 0;
  for (int i = 0; i < length; ++i) sum += p[i] = theta.B - theta.S * std::min(most - x[i], int(theta.D));
  const int up = u8 ? std::max(8 - leading_bit(sum), 0) : 0;
  const long numerator = u8 ? 255l << 15 : 32767;
  const long rho = clb ? numerator >> leading_bit(sum << up) : numerator / (sum << up);
  for (int i = 0; i < length; ++i) p[i] = std::min(((p[i] << up) * rho) >> (u8 ? 15 : 0), u8 ? 255l : 32767l);
}

template <hccs::mode M, unsigned Chunks, bool Masked>
static long differences(unsigned n) {
  constexpr unsigned rows = 96;
  alignas(64) static int8 x[rows * 512];
  alignas(64) static typename hccs::output<M>::type out[rows * 512];
  alignas(64) static int16 lengths[rows];
  static hccs::scratch scratch;
  const int most_base = int(32767 / n), D = 1 + int(generator() % 127);
  const int S = int(generator() % (std::min(127, most_base / D) + 1));
  const int least_base = std::max(1, S * D);
  const hccs::head theta{least_base + int(generator() % (most_base - least_base + 1)), S, D};
  for (auto& v : x) v = int8(int(generator() % 160) - 128);
  for (auto& v : lengths) v = int16(Masked ? generator() % (n + 1) : n);
  hccs::softmax<M, Chunks, Masked>(x, out, theta, lengths, rows, n, scratch);
  long wrong = 0;
  std::vector<long> expected;
  for (unsigned r = 0; r < rows; ++r) {
    algorithm_1<M>(x + r * n, lengths[r], int(n), theta, expected);
    for (unsigned i = 0; i < n; ++i) wrong += out[r * n + i] != expected[i];
  }
  return wrong;
}

template <hccs::mode M>
static long all() {
  long wrong = 0;
  for (int round = 0; round < 5; ++round)
    wrong += differences<M, 1, false>(32) + differences<M, 2, true>(64) + differences<M, 3, false>(96) +
             differences<M, 4, true>(128) + differences<M, 0, false>(160) + differences<M, 0, true>(480);
  return wrong;
}

int main() {
  const long wrong =
      all<hccs::mode::i16_div>() + all<hccs::mode::i16_clb>() + all<hccs::mode::u8_div>() + all<hccs::mode::u8_clb>();
  std::printf("%ld outputs differ\n", wrong);
  return wrong != 0;
}
