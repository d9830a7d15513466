#include "search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "bound.hpp"

namespace hccs::calibration {

namespace {

// sum_d P(d) log(B - S*min(d, D)): the score term of the objective.
double mean_log_score(const std::vector<double>& mass, double beyond, int B, int S, int D) {
  const double* log_of = logarithms().of.data() + B;
  double sum = beyond * log_of[-S * D];
  for (int d = 0; d < D; ++d) sum += mass[d] * log_of[-S * d];
  return sum;
}

double mass_beyond(const std::vector<double>& mass, int D) {
  double sum = 0;
  for (int d = kDistances - 1; d >= D; --d) sum += mass[d];
  return sum;
}

// sum over the rows of one length of log floor(T/Z), Z = c*B - S*A. Either over the values of A, or over the values k
// of the reciprocal: sum_k (log k - log(k-1)) * rows with floor(T/Z) >= k, which are those with A >= (c*B - T/k)/S.
double sum_log_rho(const RowsBySum::Length& length, int B, int S, uint64_t inverse, const Logarithms& logs) {
  const int top = length.c * B;
  if (S == 0) return length.weight * logs.of_rho[top];
  const int smallest = kT / (top - S * length.lowest), largest = kT / (top - S * length.highest);
  double sum = 0;
  if (largest - smallest > length.highest - length.lowest) {
    const double* log_rho = logs.of_rho.data() + top;
    for (int a = length.lowest; a <= length.highest; ++a) sum += length.rows(a) * log_rho[-S * a];
    return sum;
  }
  const double* at_least = length.at_least - length.lowest;
  for (int k = smallest + 1; k <= largest; ++k) {
    const uint64_t a = (uint64_t(top - logs.largest[k] + S - 1) * inverse) >> 32;  // exact: S <= 127, top <= T
    sum += logs.step[k] * at_least[a];
  }
  return sum + length.weight * logs.of[smallest];
}

double mean_log_rho(const RowsBySum& rows, int B, int S) {
  const Logarithms& logs = logarithms();
  const uint64_t inverse = S ? ((uint64_t(1) << 32) + S - 1) / S : 0;
  double sum = 0;
  for (const RowsBySum::Length& length : rows.lengths()) sum += sum_log_rho(length, B, S, inverse, logs);
  return sum / rows.weight() - logs.of[kT];
}

bool precedes(const Candidate& a, const Candidate& b) {
  return a.D != b.D ? a.D < b.D : a.S != b.S ? a.S < b.S : a.B < b.B;
}

// The best two of the candidates seen, ties decided at the end.
class Leaders {
 public:
  double threshold() const { return second_ + kTie; }
  void add(const Candidate& candidate) {
    if (!(candidate.kl <= threshold())) return;
    seen_.push_back(candidate);
    if (candidate.kl < first_) {
      second_ = first_;
      first_ = candidate.kl;
    } else {
      second_ = std::min(second_, candidate.kl);
    }
    if (seen_.size() > 2 * kept_ + 1024) drop();
  }
  Candidate take() {
    const auto least = [](const Candidate& a, const Candidate& b) { return a.kl < b.kl; };
    const double bar = std::min_element(seen_.begin(), seen_.end(), least)->kl + kTie;
    auto chosen = seen_.end();
    for (auto it = seen_.begin(); it != seen_.end(); ++it)
      if (it->kl <= bar && (chosen == seen_.end() || precedes(*it, *chosen))) chosen = it;
    const Candidate result = *chosen;
    seen_.erase(chosen);
    return result;
  }
  bool empty() const { return seen_.empty(); }

 private:
  void drop() {
    std::erase_if(seen_, [&](const Candidate& c) { return c.kl > threshold(); });
    kept_ = seen_.size();
  }
  std::vector<Candidate> seen_;
  size_t kept_ = 0;
  double first_ = std::numeric_limits<double>::infinity();
  double second_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::vector<double> objectives(const Group& group, const std::vector<Candidate>& triples) {
  std::vector<double> kl;
  kl.reserve(triples.size());
  std::vector<double> space;
  for (size_t i = 0; i < triples.size();) {
    const int D = triples[i].D;
    const RowsBySum rows(group, D, space);
    const double beyond = mass_beyond(group.mass, D);
    for (; i < triples.size() && triples[i].D == D; ++i) {
      const auto [unused, same_D, S, B] = triples[i];
      kl.push_back(group.negative_entropy - mean_log_score(group.mass, beyond, B, S, D) - mean_log_rho(rows, B, S));
    }
  }
  return kl;
}

Fidelity evaluate(const Group& group, int B, int S, int D) {
  std::vector<double> space;
  const RowSumTerms terms = RowsBySum(group, D, space).terms(B, S);
  const double fit = group.negative_entropy - mean_log_score(group.mass, mass_beyond(group.mass, D), B, S, D);
  return {fit - terms.log_rho, fit + terms.log_Z, 1.0 - terms.total};
}

SearchResult search(const Group& group, int n, const Interruption& interruption) {
  const AdmissibleBand band(n);
  const NodeWeights nodes(group, interruption);
  std::vector<ShapeBound> bounds;
  for (int D = 1; D <= kMaxD; ++D) {
    stop_if_requested(interruption);
    bounds.emplace_back(group, nodes, D, band);
  }
  std::sort(bounds.begin(), bounds.end(), [](const ShapeBound& a, const ShapeBound& b) {
    return a.least() != b.least() ? a.least() < b.least() : a.D() < b.D();
  });

  Leaders leaders;
  SearchResult result;
  std::vector<double> space;
  for (const ShapeBound& bound : bounds) {
    stop_if_requested(interruption);
    const int D = bound.D();
    for (int S = 0; S <= band.max_slope(D); ++S) result.triples += band.max_base() - band.min_base(S, D) + 1;
    if (bound.least() > leaders.threshold()) continue;
    const RowsBySum rows(group, D, space);
    const double beyond = mass_beyond(group.mass, D);
    for (int S = 0; S <= band.max_slope(D); ++S) {
      ShapeBound::Cursor lower(bound);
      for (int B = band.max_base(); B >= band.min_base(S, D); --B) {  // S/B rises: the cursor moves one way
        if (lower.at(double(S) / B) > leaders.threshold()) continue;
        ++result.evaluated;
        const double score = mean_log_score(group.mass, beyond, B, S, D);
        leaders.add({group.negative_entropy - score - mean_log_rho(rows, B, S), D, S, B});
      }
    }
  }
  result.best = leaders.take();
  result.runner_up = leaders.empty() ? result.best : leaders.take();
  return result;
}

}  // namespace hccs::calibration
