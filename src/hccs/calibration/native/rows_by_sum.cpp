#include "rows_by_sum.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace hccs::calibration {

namespace {

// 16-bit lanes hold the partial sums of 512 distances of at most 127.
uint32_t clamped_sum(const uint8_t* delta, int length, int D) {
  constexpr int kChunk = 512;
  const uint8_t bound = static_cast<uint8_t>(D);
  uint32_t sum = 0;
  for (int first = 0; first < length; first += kChunk) {
    const int last = std::min(length, first + kChunk);
    uint16_t part = 0;
    for (int i = first; i < last; ++i) part = static_cast<uint16_t>(part + std::min(delta[i], bound));
    sum += part;
  }
  return sum;
}

void add_bucket(const LengthBucket& bucket, int D, double* rows) {
  bucket.visit_cells([&](const auto& cells) {
    const auto* of_D = cells.data() + LengthBucket::cells_before(bucket.length(), D);
    const auto [lowest, highest] = bucket.span(D);
    for (uint32_t a = lowest; a <= highest; ++a) rows[a] += static_cast<double>(of_D[a]);
  });
  for (int64_t r = 0; r < bucket.pending(); ++r)
    rows[clamped_sum(bucket.row(r), bucket.length(), D)] += static_cast<double>(bucket.row_weight(r));
}

}  // namespace

RowsBySum::RowsBySum(const Group& group, int D, std::vector<double>& space) {
  std::map<int, std::vector<const LengthBucket*>> buckets;
  for (const HeadState* head : group.heads)
    for (const auto& [c, bucket] : head->lengths) buckets[c].push_back(&bucket);
  size_t room = 0;
  for (const auto& entry : buckets) room += size_t(entry.first - 1) * D + 2;
  space.assign(room, 0.0);

  double* at = space.data();
  for (const auto& [c, of_length] : buckets) {
    double* rows = at;
    const int cells = (c - 1) * D + 1;
    at += cells + 1;
    for (const LengthBucket* bucket : of_length) add_bucket(*bucket, D, rows);
    Length length{c, 0, cells - 1, 0.0, nullptr};
    while (length.lowest < length.highest && rows[length.lowest] == 0) ++length.lowest;
    while (length.highest > length.lowest && rows[length.highest] == 0) --length.highest;
    // Counts of rows are integers: sums of them in doubles are exact below 2^53.
    for (int a = length.highest - 1; a >= length.lowest; --a) rows[a] += rows[a + 1];
    length.at_least = rows + length.lowest;
    length.weight = *length.at_least;
    weight_ += length.weight;
    lengths_.push_back(length);
  }
  // The longest rows first: they lose most by the integer reciprocal.
  std::reverse(lengths_.begin(), lengths_.end());
}

RowSumTerms RowsBySum::terms(int B, int S) const {
  RowSumTerms sum;
  const Logarithms& logs = logarithms();
  for (const Length& length : lengths_)
    for (int a = length.lowest; a <= length.highest; ++a) {
      const double rows = length.rows(a);
      const int Z = length.c * B - S * a;  // eq. 5
      sum.log_rho += rows * logs.of_rho[Z];
      sum.log_Z += rows * logs.of[Z];
      sum.total += rows * (double(Z) * (kT / Z) / kT);
    }
  sum.log_rho = sum.log_rho / weight_ - logs.of[kT];
  sum.log_Z /= weight_;
  sum.total /= weight_;
  return sum;
}

Logarithms::Logarithms() : of(kT + 1), of_rho(kT + 1), step(kT + 1), largest(kT + 1) {
  for (int i = 1; i <= kT; ++i) of[i] = std::log(static_cast<double>(i));
  for (int i = 1; i <= kT; ++i) {
    of_rho[i] = of[kT / i];
    step[i] = i > 1 ? of[i] - of[i - 1] : 0.0;
    largest[i] = kT / i;
  }
}

const Logarithms& logarithms() {
  static const Logarithms tables;
  return tables;
}

}  // namespace hccs::calibration
