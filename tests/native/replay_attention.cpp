// As replay.cpp, for attention: runs recorded cases through one instruction set and compares the outputs.
#include <cstring>

#include "common/interruption.hpp"
#include "replaying.hpp"

namespace {

enum Field {
  kGroups,
  kQueries,
  kKeys,
  kDim,
  kMasking,
  kBefore,
  kAfter,
  kMode,
  kOutput,
  kOutputBytes,
  kHeadFields,
  kFields
};

bool replay(std::FILE* file, const hccs::InstructionSet& isa) {
  const auto header = read_array<int64_t>(file, kFields);
  const int64_t groups = header[kGroups], queries = header[kQueries], keys = header[kKeys], dim = header[kDim];
  hccs::AttentionJob job{};
  job.rows = groups * queries;
  job.queries = queries;
  job.keys = keys;
  job.dim = job.q_stride = job.k_stride = job.v_stride = job.out_stride = dim;
  job.masking = static_cast<hccs::Masking>(header[kMasking]);
  job.before = header[kBefore];
  job.after = header[kAfter];
  job.probabilities_first = header[kMode] >= 0;
  job.mode = static_cast<hccs::Mode>(job.probabilities_first ? header[kMode] : 0);
  job.softmax = isa.softmax;
  job.output = static_cast<hccs::AttentionOutput>(header[kOutput]);
  const auto q = read_array<int8_t>(file, groups * queries * dim), k = read_array<int8_t>(file, groups * keys * dim);
  const auto v = read_array<int8_t>(file, groups * keys * dim);
  const bool wide = header[kHeadFields] == 6;
  const auto heads = read_array<hccs::Head>(file, wide ? 0 : groups);
  const auto wide_heads = read_array<hccs::WideHead>(file, wide ? groups : 0);
  const auto requant = read_array<hccs::Requant>(file, groups);
  const bool lengths = job.masking == hccs::Masking::kLengths, mask = job.masking == hccs::Masking::kMask;
  const auto valid = read_array<char>(file, job.rows * (lengths ? 4 : mask ? keys : 0));
  const auto expected = read_array<char>(file, header[kOutputBytes]);
  const bool pair = job.output == hccs::AttentionOutput::kPair;
  const auto sums = read_array<int32_t>(file, pair ? job.rows : 0);

  std::vector<hccs::AttentionGroup> each(groups);
  std::vector<char> out(expected.size(), 0x55);
  for (int64_t g = 0; g < groups; ++g)
    each[g] = {&q[g * queries * dim],
               &k[g * keys * dim],
               &v[g * keys * dim],
               out.data() + g * out.size() / groups,
               wide ? nullptr : &heads[g],
               wide ? &wide_heads[g] : nullptr,
               &requant[g]};
  std::vector<int32_t> Z(sums.size(), 0x55);
  job.groups = each.data();
  job.sums = Z.data();
  if (lengths || mask) {
    job.valid.base = valid.data();
    job.valid.ndim = 1;
    job.valid.shape[0] = job.rows;
    job.valid.stride[0] = lengths ? 4 : keys;
  }
  hccs::Interruption never;
  hccs::run_attention(job, *isa.attention, 1, never);
  return out == expected && Z == sums;
}

}  // namespace

int main(int argc, char** argv) {
  return replay_all(
      argc, argv, [](std::FILE* file, const hccs::InstructionSet& isa) { return replay(file, isa); },
      [](const hccs::InstructionSet& isa) {
        return isa.attention == &hccs::attention_scalar ? ", portable" : ", vector";
      });
}
