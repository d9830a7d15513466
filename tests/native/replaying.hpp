// Replaying a file of recorded cases on one instruction set.
#pragma once

#include <cstring>

#include "common/instruction_sets.hpp"
#include "recorded.hpp"

// Calls replay(file, isa) for every case of the file argv[1] on the instruction set argv[2], and says how many agree,
// with kernel(isa) behind it.
template <class Replay, class Kernel>
int replay_all(int argc, char** argv, Replay replay, Kernel kernel) {
  if (argc != 3) return 2;
  const hccs::InstructionSet* chosen = nullptr;
  for (const hccs::InstructionSet& isa : hccs::instruction_sets())
    if (isa.supported && std::strcmp(isa.name, argv[2]) == 0) chosen = &isa;
  std::FILE* file = std::fopen(argv[1], "rb");
  if (!chosen || !file) return 2;
  const int64_t cases = read_array<int64_t>(file, 1)[0];
  for (int64_t i = 0; i < cases; ++i)
    if (!replay(file, *chosen)) {
      std::printf("case %lld differs\n", static_cast<long long>(i));
      return 1;
    }
  std::printf("%lld cases agree%s\n", static_cast<long long>(cases), kernel(*chosen));
  return 0;
}
