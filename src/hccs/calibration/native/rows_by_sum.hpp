// For one D: how many rows of a group of heads have length c and a sum of clamped distances of at least a.
#pragma once

#include <vector>

#include "statistics.hpp"

namespace hccs::calibration {

// A group of heads that share one theta: a head, a layer or all.
struct Group {
  std::vector<const HeadState*> heads;
  std::vector<double> mass;     // P(d): mean softmax mass at distance d, 256 numbers
  double negative_entropy = 0;  // mean over rows of sum p log p
};

// What the row sums Z = c*B - S*A contribute to the objective.
struct RowSumTerms {
  double log_rho = 0;  // mean of log(floor(T/Z) / T)
  double log_Z = 0;    // mean of log(Z)
  double total = 0;    // mean of Z * floor(T/Z) / T: the probability that is handed out
};

class RowsBySum {
 public:
  // `space` is memory to work in: a caller that takes one D after the other hands over the same.
  RowsBySum(const Group& group, int D, std::vector<double>& space);

  struct Length {
    int c, lowest, highest;  // A lies in lowest..highest
    double weight;
    const double* at_least;  // at_least[a - lowest]: rows with A >= a, for a = lowest..highest + 1
    double rows(int a) const { return at_least[a - lowest] - at_least[a + 1 - lowest]; }
  };
  const std::vector<Length>& lengths() const { return lengths_; }
  double weight() const { return weight_; }

  RowSumTerms terms(int B, int S) const;

 private:
  double weight_ = 0;
  std::vector<Length> lengths_;
};

// Tables of natural logarithms that every evaluation reads.
struct Logarithms {
  std::vector<double> of;        // log i, i = 0..T (of[0] unused)
  std::vector<double> of_rho;    // log floor(T/Z), Z = 1..T
  std::vector<double> step;      // log k - log(k-1)
  std::vector<int32_t> largest;  // largest[k]: the largest Z with floor(T/Z) >= k
  Logarithms();
};
const Logarithms& logarithms();

}  // namespace hccs::calibration
