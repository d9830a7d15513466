// Two lines, or one with wide sums: the calibration objective over a sample of rows, and its minimum.
//
// s(d) = (B - S min(d, D) - S2 min(d, D2)) >> f and Z = sum s over a row. The reciprocal of the wide form keeps 15
// bits, so that p_hat / T is s / Z but for rounding, and the objective is the divergence from that:
//
//     mean KL = mean sum p log p - sum_d P(d) log s(d) + mean log Z.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "common/reciprocal.hpp"
#include "search.hpp"
#include "statistics.hpp"

namespace hccs::calibration {

// By division, by the leading bit of Z, or by a line in Z between two powers of two.
enum class Reciprocal { kDivision, kLeadingBit, kLine };

struct Deployment {
  bool u8;
  Reciprocal reciprocal;
  int T() const { return u8 ? 255 : kT; }
};

struct Lines {
  int B = 1, S = 0, D = 1, S2 = 0, D2 = 1, f = 0;
  auto operator<=>(const Lines&) const = default;
  int score(int d) const { return (B - S * std::min(d, D) - S2 * std::min(d, D2)) >> f; }
};

// What the search may choose among: B up to max_base, scores of at least `floor`, f as given, S2 only with two lines.
struct LinesRegion {
  int max_base, floor, f, lines;
  bool contains(const Lines& theta) const;
};

// What a search makes small: KL, or the squared error of attention's outputs.
enum class Measure { kDivergence, kOutput };

// Distances from kMaxD on have one score.
constexpr int kScores = kMaxD + 1;

// The sampled rows of a group of heads, each head's as heavy as all its rows.
class SampledRows {
 public:
  // `extra_mass` [256] and `extra_entropy`: what the means over all rows have beyond those of the rows' int8 softmax.
  SampledRows(const std::vector<const HeadState*>& heads, const std::vector<const int64_t*>& exp_tables,
              const std::vector<double>& extra_mass, double extra_entropy);

  int rows() const { return static_cast<int>(weights_.size()); }
  double weight(int r) const { return weights_[r]; }
  const int16_t* counts(int r) const { return &counts_[size_t(r) * kScores]; }
  const std::vector<double>& mass() const { return mass_; }

  // Mean KL from s / Z.
  double objective(const Lines& theta) const;

  // Mean of sum (p - s / Z)^2 over a row: the squared error of its output for values of unit variance that have
  // nothing to do with each other. Of the rows' int8 softmax.
  double output_error(const Lines& theta) const;
  double value(const Lines& theta, Measure measure) const {
    return measure == Measure::kDivergence ? objective(theta) : output_error(theta);
  }

  // In a mode, with the rounding of every output: as it is (a zero output counting as half a step), renormalised, and
  // what is missing to 1. Without a mode's name, that of i16_div.
  Fidelity deployed(const Lines& theta, const Deployment& mode) const;

 private:
  double score_term(const std::array<int16_t, kScores>& scores, const std::vector<double>& mass) const;

  std::vector<int16_t> counts_;             // [rows][kScores]: logits at each distance
  std::vector<double> weights_;             // sum to 1; equal ones side by side
  std::vector<const int64_t*> exp_tables_;  // by row
  std::vector<double> tails_;               // by row: the exponentials of distances from kMaxD on, together
  std::vector<float> row_mass_;             // [rows][kScores]: softmax's mass at each distance
  std::vector<double> squares_;             // by row: sum of p^2
  std::vector<double> mass_;                // P(d)
  std::vector<double> extra_mass_;
  double entropy_ = 0, extra_entropy_ = 0;
};

struct LinesResult {
  Lines best, runner_up;
  double kl = 0, runner_up_kl = 0;  // or the error of outputs
  int64_t evaluated = 0;
};

// Knees and slopes in real numbers, then a descent in integers. Throws Interrupted once that is requested.
LinesResult search_lines(const SampledRows& rows, const LinesRegion& region, Measure measure,
                         const Interruption& interruption);

}  // namespace hccs::calibration
