// Every kernel, compiled for the host against the emulation header: one entry per kernel, rows and traces out.
#include "kernels.hpp"

#include <memory>
#include <stdexcept>
#include <utility>

#include "bf16_softmax.hpp"
#include "hccs_normalise.hpp"
#include "row_softmax.hpp"

namespace hccs::emulated {

namespace {

template <mode M, bool Masked, typename Theta>
void by_chunks(const Rows& r, const Theta& theta, typename output<M>::type* out, scratch_of<Theta>& s) {
  switch (r.n / lanes) {
    case 1: return softmax<M, 1, Masked>(r.x, out, theta, r.lengths, r.rows, r.n, s);
    case 2: return softmax<M, 2, Masked>(r.x, out, theta, r.lengths, r.rows, r.n, s);
    case 3: return softmax<M, 3, Masked>(r.x, out, theta, r.lengths, r.rows, r.n, s);
    case 4: return softmax<M, 4, Masked>(r.x, out, theta, r.lengths, r.rows, r.n, s);
    case 8: return softmax<M, 8, Masked>(r.x, out, theta, r.lengths, r.rows, r.n, s);
    case 16: return softmax<M, 16, Masked>(r.x, out, theta, r.lengths, r.rows, r.n, s);
    default: return softmax<M, 0, Masked>(r.x, out, theta, r.lengths, r.rows, r.n, s);
  }
}

template <mode M, typename Theta>
void blocked_of(const Rows& r, const Theta& theta, void* out) {
  auto s = std::make_unique<scratch_of<Theta>>();
  auto* typed = static_cast<typename output<M>::type*>(out);
  if (r.lengths)
    by_chunks<M, true>(r, theta, typed, *s);
  else
    by_chunks<M, false>(r, theta, typed, *s);
}
template <mode M>
void blocked(const Rows& r, void* out) {
  if (r.S2 < 0)
    blocked_of<M>(r, head{r.B, r.S, r.D}, out);
  else
    blocked_of<M>(r, two_lines{r.B, r.S, r.D, r.S2, r.D2}, out);
}

// Every row length that the kernels take is a kernel of its own.
template <mode M, unsigned... Chunks>
void by_row_of(const Rows& r, void* out, std::integer_sequence<unsigned, Chunks...>) {
  alignas(64) int16 scores[512];
  auto* typed = static_cast<typename output<M>::type*>(out);
  ((r.n == (Chunks + 1) * lanes ? softmax_by_row<M, Chunks + 1>(r.x, typed, {r.B, r.S, r.D}, r.rows, scores) : void()),
   ...);
}

template <mode M>
void by_row(const Rows& r, void* out) {
  by_row_of<M>(r, out, std::make_integer_sequence<unsigned, 16>());
}

}  // namespace

unsigned output_bytes(int m) {
  return mode(m) == mode::i16_div || mode(m) == mode::i16_clb ? sizeof(int16) : sizeof(uint8);
}

unsigned rows_multiple(unsigned n) { return hccs::rows_multiple(n); }

void run_blocked(int m, const Rows& r, void* out) {
  switch (mode(m)) {
    case mode::i16_div: return blocked<mode::i16_div>(r, out);
    case mode::i16_clb: return blocked<mode::i16_clb>(r, out);
    case mode::u8_div: return blocked<mode::u8_div>(r, out);
    case mode::u8_clb: return blocked<mode::u8_clb>(r, out);
    case mode::u8_lin: return blocked<mode::u8_lin>(r, out);
  }
}

void run_by_row(int m, const Rows& r, void* out) {
  switch (mode(m)) {
    case mode::i16_div: return by_row<mode::i16_div>(r, out);
    case mode::i16_clb: return by_row<mode::i16_clb>(r, out);
    case mode::u8_div: return by_row<mode::u8_div>(r, out);
    case mode::u8_clb: return by_row<mode::u8_clb>(r, out);
    case mode::u8_lin: return by_row<mode::u8_lin>(r, out);
  }
}

namespace {

constexpr unsigned table_entries = 256, line = 16 / sizeof(bfloat16);

// Each 128-bit line of the table twice, as aie::lut<4> reads it.
template <typename F>
std::vector<bfloat16> doubled_lines(F value) {
  std::vector<bfloat16> table(2 * table_entries);
  for (unsigned i = 0; i < table_entries; ++i)
    for (unsigned copy = 0; copy < 2; ++copy)
      table[(i / line) * 2 * line + copy * line + i % line] = bfloat16(value(i));
  return table;
}

}  // namespace

void run_bf16(bool native_exp, const std::uint16_t* x, std::uint16_t* out, unsigned rows, unsigned n) {
  static const auto whole = doubled_lines([](unsigned i) { return std::exp(float(std::int8_t(i))); });
  static const auto fraction = doubled_lines([](unsigned i) { return std::exp(float(i) / 256.0f); });
  const auto* in = reinterpret_cast<const bfloat16*>(x);
  auto* to = reinterpret_cast<bfloat16*>(out);
  if (native_exp)
    softmax_bf16(in, to, rows, n, exp_native{});
  else
    softmax_bf16(in, to, rows, n,
                 exp_by_table(exp_tables{whole.data(), whole.data(), fraction.data(), fraction.data()}));
}

}  // namespace hccs::emulated
