// Entries to the emulated kernels, free of the AIE API so that the bindings need not know it.
#pragma once

#include <cstdint>

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

// Attention in one kernel, or the first and the last of three. Arrays are tiled as kernels/hccs_attention.hpp says.
enum class Stage { whole, logits, values };
inline constexpr unsigned max_attention_keys = 256;
unsigned attention_rows(unsigned n, unsigned dim);

// rows a multiple of 32 up to attention_rows, n a multiple of 32 up to 256, dim 32 or 64. What a stage does not use may
// be null.
struct Heads {
  Stage stage;
  const std::int8_t *q, *k, *v;
  const std::uint8_t* p;
  unsigned rows, n, dim;
  int shift, B, S, D;
  std::int8_t* x;
  std::int32_t* N;
  std::int16_t* Z;
};
void run_attention(const Heads& heads);

}  // namespace hccs::emulated
