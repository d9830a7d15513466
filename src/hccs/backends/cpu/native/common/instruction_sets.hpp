// Which instruction sets this build has, which of them this machine runs, and the one in use.
#pragma once

#include <string>
#include <vector>

#include "attention/job.hpp"
#include "engine/rows.hpp"
#include "float_logits/job.hpp"
#include "linear/job.hpp"
#include "softmax/job.hpp"
#include "top_k/job.hpp"

namespace hccs {

struct InstructionSet {
  const char* name;
  bool supported;  // by this machine
  SoftmaxRows softmax;
  LogitsKernels logits;
  const AttentionKernel* attention;
  const LinearKernel* linear;
  const RowKernels* rows = nullptr;
  DotRows dots = dot_rows_scalar;
  bool automatic = true;  // in use without being named, where it is the fastest
};

// Every instruction set of this build, the fastest last.
const std::vector<InstructionSet>& instruction_sets();

// The one in use: the fastest, until another is named.
const InstructionSet& in_use();

// Uses the one of this name, or the fastest for ""; a name that this machine does not run changes nothing.
const InstructionSet& use(const std::string& name);

}  // namespace hccs
