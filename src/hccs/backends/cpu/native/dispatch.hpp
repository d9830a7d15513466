// Which instruction sets this build has, which of them this machine runs, and work over threads.
#pragma once

#include <vector>

#include "attention/job.hpp"
#include "float_logits/job.hpp"
#include "softmax/job.hpp"

namespace hccs {

struct Isa {
  const char* name;
  bool supported;
  SoftmaxRows softmax;
  LogitsKernels logits;
  const AttentionKernel* attention;
};

// Every instruction set of this build, the fastest last.
const std::vector<Isa>& isas();

// Runs the kernel over all rows of the job, on up to `threads` threads.
void run_softmax(SoftmaxJob& job, SoftmaxRows kernel, int threads);

}  // namespace hccs
