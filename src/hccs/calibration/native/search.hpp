// The exact minimum of the calibration objective (eq. 10) over every admissible triple.
#pragma once

#include <stdexcept>
#include <vector>

#include "common/interruption.hpp"
#include "rows_by_sum.hpp"

namespace hccs::calibration {

struct Candidate {
  double kl;
  int D, S, B;
};

struct Fidelity {
  double kl, kl_renormalised, mass_deficit;
};

// Thrown where a search was asked to end.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("the search was told to end") {}
};

struct SearchResult {
  Candidate best, runner_up;
  int64_t triples = 0;    // admissible
  int64_t evaluated = 0;  // not excluded by the bound
};

// Objectives closer than this are equal, and the smallest D, then S, then B is preferred: rounding must not choose.
constexpr double kTie = 1e-12;

// Throws Interrupted once that is requested, at the next length or D.
SearchResult search(const Group& group, int n, const Interruption& interruption);
Fidelity evaluate(const Group& group, int B, int S, int D);

// The objective of each triple, in order.
std::vector<double> objectives(const Group& group, const std::vector<Candidate>& triples);

}  // namespace hccs::calibration
