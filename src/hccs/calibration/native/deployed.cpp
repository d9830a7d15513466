#include "deployed.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace hccs::calibration {

namespace {

// One row as runs of equal distance: how many logits lie there, and their softmax mass together.
struct Run {
  int delta, count;
  double mass;
};
struct Row {
  std::vector<Run> runs;
  double weight, negative_entropy;
};

Row runs_of(const uint8_t* delta, int length, const int64_t* exp_table, double weight) {
  std::array<int, kDistances> counts{};
  for (int i = 0; i < length; ++i) ++counts[delta[i]];
  double total = 0;
  for (int d = 0; d < kDistances; ++d) total += double(counts[d]) * double(exp_table[d]);
  Row row{{}, weight, 0.0};
  for (int d = 0; d < kDistances; ++d) {
    if (counts[d] == 0) continue;
    const double p = double(exp_table[d]) / total;
    row.runs.push_back({d, counts[d], p * counts[d]});
    if (p > 0) row.negative_entropy += p * counts[d] * std::log(p);
  }
  return row;
}

int leading_bit(int Z) { return std::bit_width(static_cast<unsigned>(Z)) - 1; }

double row_kl(const Row& row, const Deployment& mode, const Candidate& theta, const std::vector<double>& log_of_twice) {
  int Z = 0;
  for (const Run& run : row.runs) Z += run.count * (theta.B - theta.S * std::min(run.delta, theta.D));
  // As hccs.reference.softmax_row: short rows of the u8 modes are scaled up to Z >= 256.
  const int e = mode.u8 ? std::max(8 - leading_bit(Z), 0) : 0;
  Z <<= e;
  const int numerator = mode.u8 ? 255 << 15 : kT;
  const int k = leading_bit(Z);
  const int rho = mode.reciprocal == Reciprocal::kLeadingBit ? numerator >> k
                  : mode.reciprocal == Reciprocal::kLine     ? linear_reciprocal(Z, k) << (15 - k)
                                                             : numerator / Z;
  double kl = row.negative_entropy;
  int64_t total = 0;
  for (const Run& run : row.runs) {
    const int64_t s = int64_t(theta.B - theta.S * std::min(run.delta, theta.D)) << e;
    const int64_t p = std::min<int64_t>(mode.u8 ? (s * rho) >> 15 : s * rho, mode.T());
    const int64_t twice = std::max<int64_t>(2 * p, 1);
    kl -= run.mass * log_of_twice[twice];
    total += run.count * twice;
  }
  return kl + std::log(double(total));
}

}  // namespace

std::vector<double> deployed_objectives(const std::vector<KeptRows>& heads, const Deployment& mode,
                                        const std::vector<Candidate>& triples) {
  std::vector<Row> rows;
  double weight = 0;
  for (const auto& [head, exp_table] : heads)
    for (const auto& [length, bucket] : head->lengths)
      for (int64_t r = 0; r < bucket.pending(); ++r) {
        rows.push_back(runs_of(bucket.row(r), length, exp_table, double(bucket.row_weight(r))));
        weight += rows.back().weight;
      }
  std::vector<double> log_of_twice(2 * kT + 1);
  for (size_t i = 1; i < log_of_twice.size(); ++i) log_of_twice[i] = std::log(double(i));
  std::vector<double> kl;
  for (const Candidate& theta : triples) {
    double sum = 0;
    for (const Row& row : rows) sum += row.weight * row_kl(row, mode, theta, log_of_twice);
    kl.push_back(sum / weight);
  }
  return kl;
}

}  // namespace hccs::calibration
