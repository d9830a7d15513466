// Entries to the emulated kernels, free of the AIE API so that the bindings need not know it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace hccs::emulated {

// One head's rows: aligned to 64 bytes, rows a multiple of rows_multiple(n), n a multiple of 32 up to 512.
struct Rows {
  const std::int8_t* x;
  const std::int16_t* lengths;  // null for full rows
  unsigned rows, n;
  int B, S, D;
  int S2 = -1, D2 = 0;  // of a second line, or -1: the paper's form
};

// Modes are counted as hccs.Mode declares them.
inline constexpr int mode_count = 5;
unsigned output_bytes(int m);
unsigned rows_multiple(unsigned n);

void run_blocked(int m, const Rows& rows, void* out);
void run_by_row(int m, const Rows& rows, void* out);
void run_bf16(bool native_exp, const std::uint16_t* x, std::uint16_t* out, unsigned rows, unsigned n);

unsigned attention_rows(unsigned n, unsigned dim);

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// A kernel's arrays, aligned to 64 bytes, and its numbers, as the kernel's own file lists them. The kernels check both,
// so that every access stays inside the arrays whatever comes. Arrays are tiled as kernels/ says.
struct Call {
  std::vector<void*> buffers;
  std::vector<std::size_t> bytes;
  std::vector<std::int64_t> numbers;

  template <typename T>
  T* as(unsigned i) const {
    return static_cast<T*>(buffers[i]);
  }
  void require_bytes(const std::vector<std::size_t>& expected) const {
    require(bytes == expected, "the arrays must fill their tiles");
  }
};

void run_attention(const Call& call);
void run_logits(const Call& call);
void run_values(const Call& call);
void run_linear(const Call& call);
void run_layer_norm(const Call& call);

}  // namespace hccs::emulated
