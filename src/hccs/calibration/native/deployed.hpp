// KL in the deployed mode. Floors and saturation act on every element, so no sum over rows stands for them: this needs
// the rows themselves, and serves to compare, not to search the whole region.
#pragma once

#include <vector>

#include "common/reciprocal.hpp"
#include "search.hpp"

namespace hccs::calibration {

// By division, by the leading bit of Z, or by a line in Z between two powers of two.
enum class Reciprocal { kDivision, kLeadingBit, kLine };

struct Deployment {
  bool u8;
  Reciprocal reciprocal;
  int T() const { return u8 ? 255 : kT; }
};

// Heads of one group with their exp tables; every row must still be kept.
struct KeptRows {
  const HeadState* head;
  const int64_t* exp_table;
};

// Mean KL(softmax || p_hat / sum p_hat) of each triple: the leading-bit modes hand out more than 1, which a KL that is
// not renormalised would take for a virtue. A zero output counts as half a step, since softmax is never zero.
std::vector<double> deployed_objectives(const std::vector<KeptRows>& heads, const Deployment& mode,
                                        const std::vector<Candidate>& triples);

}  // namespace hccs::calibration
