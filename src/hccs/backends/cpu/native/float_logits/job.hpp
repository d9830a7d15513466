// Float logits in training: quantise, HCCS and back to float in one pass over a row, and its backward pass.
#pragma once

#include "quantise/job.hpp"
#include "softmax/job.hpp"

namespace hccs {

struct LogitsJob {
  SoftmaxJob rows;      // x, out unused; `valid` is a mask or absent
  const float* scales;  // one per head
  const float* input;   // forward: logits z; backward: dL/dp
  int16_t* rounded;     // z / scale rounded half to even and clamped to int16 only: written forward, read backward
  float* output;        // forward: p_hat / T; backward: dL/dz
  float* parameters;    // backward: dL/d(B, S, D, scale) of every row [rows, 4], of the wide form [rows, 7], or null
};

// Computes rows begin..end-1; false when a logit is NaN.
using LogitsRows = bool (*)(const LogitsJob&, int64_t begin, int64_t end);

struct LogitsKernels {
  LogitsRows forward;
  LogitsRows backward;
  Quantise quantise;
};

extern const LogitsKernels logits_scalar, logits_avx2, logits_avx512;

// Runs a kernel over all rows on up to `threads` threads; false when any of them returned false.
bool run_logits(const LogitsJob& job, LogitsRows kernel, int threads, Interruption& interruption);

}  // namespace hccs
