// As replay.cpp, for linear layers: runs recorded cases through one instruction set and compares the outputs.
#include <cstring>

#include "common/instruction_sets.hpp"
#include "common/interruption.hpp"
#include "recorded.hpp"

namespace {

enum Field { kRows, kInputs, kOutputs, kOutput, kXTurned, kOutTurned, kTable, kStream, kOutputBytes, kFields };

bool replay(std::FILE* file, const hccs::LinearKernel& kernel) {
  const auto header = read_array<int64_t>(file, kFields);
  const int64_t rows = header[kRows], inputs = header[kInputs], outputs = header[kOutputs];
  const auto weight = read_array<int8_t>(file, outputs * inputs);
  const auto bias = read_array<int32_t>(file, outputs), multiplier = read_array<int32_t>(file, outputs);
  const auto x = read_array<int8_t>(file, rows * inputs);
  const auto table = read_array<int8_t>(file, header[kTable] ? 256 : 0);
  const auto stream = read_array<int16_t>(file, header[kStream] ? rows * outputs : 0);
  const auto expected = read_array<char>(file, header[kOutputBytes]);
  std::vector<char> out(expected.size(), 0x55);

  // Vectors whose type says that they start at a multiple of 64.
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> packed((kernel.packed_bytes(inputs, outputs) + 63) / 64);
  kernel.pack(weight.data(), bias.data(), multiplier.data(), inputs, outputs, packed[0].bytes);
  hccs::LinearJob job{};
  job.packed = packed[0].bytes;
  job.inputs = job.x_stride = inputs;
  job.outputs = job.out_stride = job.stream_stride = outputs;
  job.x = x.data();
  job.x_bytes = header[kXTurned] ? hccs::Bytes::kTurned : hccs::Bytes::kPlain;
  job.output = static_cast<hccs::LinearOutput>(header[kOutput]);
  job.out = out.data();
  job.out_bytes = header[kOutTurned] ? hccs::Bytes::kTurned : hccs::Bytes::kPlain;
  job.table = table.data();
  job.stream = stream.data();
  hccs::Interruption never;
  hccs::run_linear(job, kernel, rows, 1, never);
  return out == expected;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const hccs::InstructionSet* chosen = nullptr;
  for (const hccs::InstructionSet& isa : hccs::instruction_sets())
    if (isa.supported && std::strcmp(isa.name, argv[2]) == 0) chosen = &isa;
  std::FILE* file = std::fopen(argv[1], "rb");
  if (!chosen || !file) return 2;
  const int64_t cases = read_array<int64_t>(file, 1)[0];
  for (int64_t i = 0; i < cases; ++i)
    if (!replay(file, *chosen->linear)) {
      std::printf("case %lld differs\n", static_cast<long long>(i));
      return 1;
    }
  const bool portable = chosen->linear == &hccs::linear_scalar;
  std::printf("%lld cases agree, %s\n", static_cast<long long>(cases), portable ? "portable" : "vector");
}
