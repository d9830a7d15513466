// As replay.cpp, for linear layers: runs recorded cases through one instruction set and compares the outputs.
#include <cstring>

#include "common/interruption.hpp"
#include "replaying.hpp"

namespace {

enum Field {
  kRows,
  kInputs,
  kOutputs,
  kOutput,
  kXTurned,
  kOutTurned,
  kTable,
  kStream,
  kRowExponents,
  kOutputBytes,
  kFields
};

bool replay(std::FILE* file, const hccs::LinearKernel& kernel) {
  const auto header = read_array<int64_t>(file, kFields);
  const int64_t rows = header[kRows], inputs = header[kInputs], outputs = header[kOutputs];
  const auto weight = read_array<int8_t>(file, outputs * inputs);
  const auto bias = read_array<int32_t>(file, outputs), multiplier = read_array<int32_t>(file, outputs);
  const int exponents = header[kRowExponents] ? hccs::kMostExponents : 0;  // one of them in one more byte of each row
  const int64_t columns = inputs + (exponents > 0);
  const auto x = read_array<int8_t>(file, rows * columns);
  const auto table = read_array<int8_t>(file, header[kTable] ? 256 : 0);
  const auto stream = read_array<int16_t>(file, header[kStream] ? rows * outputs : 0);
  const auto expected = read_array<char>(file, header[kOutputBytes]);
  std::vector<char> out(expected.size(), 0x55);

  // Vectors whose type says that they start at a multiple of 64.
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> packed((kernel.packed_bytes(inputs, outputs, exponents) + 63) / 64);
  kernel.pack(weight.data(), bias.data(), multiplier.data(), inputs, outputs, exponents, packed[0].bytes);
  hccs::LinearJob job{};
  job.packed = packed[0].bytes;
  job.inputs = inputs;
  job.row_exponents = exponents;
  job.x_stride = columns;
  job.outputs = job.out_stride = job.stream_stride = outputs;
  job.x = x.data();
  job.x_bytes = header[kXTurned] ? hccs::Bytes::kTurned : hccs::Bytes::kPlain;
  job.output = static_cast<hccs::LinearOutput>(header[kOutput]);
  job.out = out.data();
  job.out_bytes = header[kOutTurned] ? hccs::Bytes::kTurned : hccs::Bytes::kPlain;
  job.table = table.data();
  job.limit = (1 << 30) - 1;
  job.stream = stream.data();
  hccs::Interruption never;
  hccs::run_linear(job, kernel, rows, 1, never);
  return out == expected;
}

}  // namespace

int main(int argc, char** argv) {
  return replay_all(
      argc, argv, [](std::FILE* file, const hccs::InstructionSet& isa) { return replay(file, *isa.linear); },
      [](const hccs::InstructionSet& isa) { return isa.linear == &hccs::linear_scalar ? ", portable" : ", vector"; });
}
