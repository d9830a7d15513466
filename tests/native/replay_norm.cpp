// As replay.cpp, for LayerNorm between a sum and a narrowing: runs recorded cases through one instruction set.
#include <cmath>
#include <cstring>

#include "replaying.hpp"

namespace {

enum Field { kRows, kChannels, kGainBits, kEpsilon, kRoot, kRootShift, kLimit, kBits, kTurned, kFields };

bool replay(std::FILE* file, const hccs::RowKernels& kernels) {
  const auto header = read_array<int64_t>(file, kFields);
  const int64_t rows = header[kRows], h = header[kChannels];
  const int gain_bits = static_cast<int>(header[kGainBits]);
  const auto gain = read_array<int32_t>(file, h), bias = read_array<int32_t>(file, h);
  const auto a = read_array<int16_t>(file, rows * h), b = read_array<int16_t>(file, rows * h);
  const auto clamped = read_array<int16_t>(file, header[kLimit] ? rows * h : 0);
  const auto out = read_array<int16_t>(file, rows * h);
  const int bits = static_cast<int>(header[kBits]);
  const int64_t narrowed_width = h + (bits == hccs::kRowExponent);
  const auto narrowed = read_array<int8_t>(file, rows * narrowed_width);
  std::vector<double> real_gain, real_bias;
  for (int64_t i = 0; i < h; ++i) {
    real_gain.push_back(std::ldexp(gain[i], -(20 + gain_bits)));
    real_bias.push_back(std::ldexp(bias[i], -gain_bits));
  }
  const hccs::NormConstants norm{h,
                                 h,
                                 true,
                                 static_cast<uint64_t>(header[kRoot]),
                                 static_cast<int>(header[kRootShift]),
                                 static_cast<uint64_t>(header[kEpsilon]),
                                 gain_bits,
                                 gain.data(),
                                 bias.data(),
                                 real_gain.data(),
                                 real_bias.data()};
  std::vector<int16_t> found_clamped(clamped.size()), found(out.size());
  std::vector<int8_t> found_narrowed(narrowed.size());
  hccs::NormJob job{};
  job.norm = &norm;
  job.source = hccs::NormSource::kSum;
  job.a = a.data();
  job.b = b.data();
  job.limit = static_cast<int32_t>(header[kLimit]);
  job.clamped = header[kLimit] ? found_clamped.data() : nullptr;
  job.out = found.data();
  job.a_stride = job.b_stride = job.clamped_stride = job.out_stride = 2 * h;
  job.narrowed = found_narrowed.data();
  job.narrowed_stride = narrowed_width;
  job.bits = bits;
  job.turn = header[kTurned] ? 0x80 : 0;
  kernels.norm(job, rows);
  return found == out && found_narrowed == narrowed && found_clamped == clamped;
}

}  // namespace

int main(int argc, char** argv) {
  return replay_all(
      argc, argv, [](std::FILE* file, const hccs::InstructionSet& isa) { return replay(file, *isa.rows); },
      [](const hccs::InstructionSet&) { return ""; });
}
