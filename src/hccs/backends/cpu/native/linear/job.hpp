// What a linear kernel is given: y = rq(W x + b). The arithmetic is docs/spec.md, "A whole encoder";
// reference/linear.py and table.py are its readable form.
//
// Weights are packed once, for one instruction set; then any rectangle of rows and of blocks of outputs can be asked
// for, on any thread. What follows the sums is done while they are in registers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hccs {

class Interruption;

// How an int8 value x is stored: as it is, or turned, x ^ 0x80, which is the unsigned byte x + 128.
enum class Bytes { kPlain, kTurned };

// What becomes of acc = W x + b.
enum class LinearOutput {
  kInt32,      // acc itself
  kInt8,       // clamp(rhe(acc * M / 2^16), -127, 127)
  kInt8Table,  // table[that + 128]
  kInt16,      // clamp(rhe(acc * M / 2^16), -32767, 32767)
  kSumInt32,   // that + stream
  kSumInt16,   // clamp(that + stream, -32767, 32767)
  kLong,       // clamp(rhe(acc * M / 2^16), -limit, limit) as int32
};
constexpr const char* kLinearOutputNames[] = {"int32", "int8", "int8_table", "int16", "sum_int32", "sum_int16", "long"};

// Rows may carry an exponent e, 0 to 16, in one more byte: x stands for x * 2^e, and
//   acc = W x + rhe(b / 2^e), multiplied by M / 2^(23 - e) instead of M / 2^16.
constexpr int kMostExponents = 17, kRowShift = 23, kShift = 16;

struct LinearJob {
  const std::byte* packed;  // by the same kernel
  int64_t inputs, outputs;
  // Rows of x have `inputs` bytes and one of so many exponents, at most kMostExponents; 0: none. Not with tables and
  // streams.
  int row_exponents;
  // Rows of `inputs` bytes; nothing beyond them is read. Strides count elements from row to row, any number >= 0 for x.
  // Kernels that multiply bytes (AVX-512 VNNI and AMX: turned; NEON: plain) read x where it lies if it has their form
  // and `inputs` is a multiple of 4, of 64 for AMX. Otherwise, and always on AVX2 and in plain C++, which widen x, the
  // workspace takes a copy of some rows at a time; that costs about one product in `outputs`.
  const void* x;
  int64_t x_stride;
  Bytes x_bytes;
  // Rows of `outputs` elements: int32 for kInt32, kSumInt32 and kLong, int16 for kInt16 and kSumInt16, bytes otherwise.
  LinearOutput output;
  void* out;
  int64_t out_stride;
  Bytes out_bytes;        // of the int8 outputs
  int32_t limit;          // kLong: up to 2^30 - 1, so that float64 holds every product that is not clamped
  const int8_t* table;    // kInt8Table: 256 plain entries
  const int16_t* stream;  // kSum*: rows of `outputs`; may be `out` itself for kSumInt16
  int64_t stream_stride;
};

struct LinearKernel {
  Bytes x_bytes;        // the form of x that costs nothing
  int block_rows;       // rows go in tiles of so many: parts of the work should be multiples of it
  int block_outputs;    // outputs go in blocks of so many; the last of the ceil(outputs / block_outputs) may be
                        // incomplete
  int64_t local_bytes;  // of the values of rows that go through several layers: what the L2 cache holds beside weights
  // Bytes that a packed layer takes; they start at a multiple of 64.
  size_t (*packed_bytes)(int64_t inputs, int64_t outputs, int row_exponents);
  // weight [outputs][inputs], -127..127; bias and multiplier [outputs]. The multiplier, 1 to 2^24 - 1, may be null if
  // only kInt32 is asked for; with row exponents it is 2^7 or more, so that int8 clips what float32 does not hold.
  // |acc| must stay below 2^31 for every x, as LinearParams sees to.
  void (*pack)(const int8_t* weight, const int32_t* bias, const int32_t* multiplier, int64_t inputs, int64_t outputs,
               int row_exponents, std::byte* packed);
  // Bytes of working memory for one thread; it starts at a multiple of 64. It does not depend on the number of rows.
  size_t (*workspace)(int64_t inputs);
  // Computes rows row..row_end-1 of the outputs of blocks block..block_end-1. No allocation, no exceptions, safe on
  // several threads with a workspace each.
  void (*run)(const LinearJob&, int64_t row, int64_t row_end, int64_t block, int64_t block_end, std::byte* workspace);
};

extern const LinearKernel linear_scalar, linear_avx2, linear_avx512, linear_amx, linear_neon, linear_i8mm;
// AMX with a model of its tiles, for tests: all in plain C++, and with what is AVX-512's.
extern const LinearKernel linear_amx_model, linear_amx_model_avx512;

// Runs the kernel over all outputs of so many rows, on up to `threads` threads.
void run_linear(const LinearJob& job, const LinearKernel& kernel, int64_t rows, int threads,
                Interruption& interruption);

}  // namespace hccs
