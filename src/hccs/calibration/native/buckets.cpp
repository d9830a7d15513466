#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "statistics.hpp"

namespace hccs::calibration {

namespace {

// Rows counted at once: their counts per distance, distance-major, stay in the second-level cache.
constexpr int kBlock = 512;

}  // namespace

uint8_t* LengthBucket::append(int64_t weight) {
  if (pending() == kRowsKept) count_rows();
  if (weight != 1 && weights_.empty()) weights_.assign(pending(), 1);
  const size_t at = rows_.size();
  rows_.resize(at + length_);
  if (weight != 1 || !weights_.empty()) weights_.push_back(weight);
  ++count_;
  weight_ += weight;
  sorted_ = false;
  return rows_.data() + at;
}

void LengthBucket::merge(const LengthBucket& other) {
  for (int64_t r = 0; r < other.pending(); ++r) {
    uint8_t* to = append(other.row_weight(r));
    std::memcpy(to, other.row(r), length_);
  }
  if (!other.counted()) return;
  count_ += other.count_ - other.pending();
  for (int64_t r = 0; r < other.pending(); ++r) weight_ -= other.row_weight(r);
  weight_ += other.weight_;
  count_rows();
  if (other.is_wide()) widen();
  const auto add = [](auto& to, const auto& from) {
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  };
  if (is_wide() && other.is_wide()) add(wide_, other.wide_);
  else if (is_wide()) add(wide_, other.narrow_);
  else add(narrow_, other.narrow_);
}

void LengthBucket::settle() {
  if (count_ >= kRowsKept) return count_rows();
  if (sorted_) return;
  const int64_t rows = pending();
  for (int64_t r = 0; r < rows; ++r) std::sort(&rows_[r * length_], &rows_[r * length_] + length_);
  std::vector<int64_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const int by_row = std::memcmp(row(a), row(b), length_);
    return by_row != 0 ? by_row < 0 : row_weight(a) < row_weight(b);
  });
  std::vector<uint8_t> sorted(rows_.size());
  std::vector<int64_t> weights(weights_.size());
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(&sorted[r * length_], row(order[r]), length_);
    if (!weights.empty()) weights[r] = weights_[order[r]];
  }
  rows_ = std::move(sorted);
  weights_ = std::move(weights);
  sorted_ = true;
}

void LengthBucket::count_rows() {
  // No cell can hold more than the bucket's whole weight.
  if (weight_ > std::numeric_limits<uint32_t>::max()) widen();
  if (!counted()) narrow_.assign(cells(length_), 0);
  if (is_wide()) count_into(wide_);
  else count_into(narrow_);
  rows_.clear();
  weights_.clear();
  sorted_ = true;
}

void LengthBucket::widen() {
  if (is_wide()) return;
  if (narrow_.empty()) wide_.assign(cells(length_), 0);
  else wide_.assign(narrow_.begin(), narrow_.end());
  narrow_ = {};
}

template <class Cell>
void LengthBucket::count_into(std::vector<Cell>& cells) {
  // A(D) = A(D-1) + (number of distances >= D), for a block of rows at once: elementwise work on arrays of rows.
  std::vector<uint16_t> at_distance(size_t(kMaxD + 1) * kBlock);
  std::array<uint16_t, kBlock> farther;
  std::array<uint32_t, kBlock> A;
  const int64_t rows = pending();
  for (int64_t first = 0; first < rows; first += kBlock) {
    const int block = static_cast<int>(std::min<int64_t>(kBlock, rows - first));
    std::fill(at_distance.begin(), at_distance.end(), 0);
    for (int r = 0; r < block; ++r) {
      const uint8_t* delta = row(first + r);
      for (int i = 0; i < length_; ++i) ++at_distance[std::min<int>(delta[i], kMaxD) * kBlock + r];
    }
    farther.fill(static_cast<uint16_t>(length_));
    A.fill(0);
    for (int D = 1; D <= kMaxD; ++D) {
      const uint16_t* nearest = &at_distance[size_t(D - 1) * kBlock];
      for (int r = 0; r < kBlock; ++r) {
        farther[r] -= nearest[r];
        A[r] += farther[r];
      }
      Cell* of_D = &cells[cells_before(length_, D)];
      if (weights_.empty())
        for (int r = 0; r < block; ++r) ++of_D[A[r]];
      else
        for (int r = 0; r < block; ++r) of_D[A[r]] += static_cast<Cell>(weights_[first + r]);
    }
  }
}

LengthBucket LengthBucket::restore(int length, int64_t count, int64_t weight, std::vector<uint8_t> rows,
                                   std::vector<int64_t> weights, std::vector<uint32_t> narrow,
                                   std::vector<uint64_t> wide) {
  LengthBucket bucket(length);
  bucket.count_ = count;
  bucket.weight_ = weight;
  bucket.rows_ = std::move(rows);
  bucket.weights_ = std::move(weights);
  bucket.narrow_ = std::move(narrow);
  bucket.wide_ = std::move(wide);
  return bucket;
}

int64_t LengthBucket::bytes() const {
  return static_cast<int64_t>(rows_.capacity() + weights_.capacity() * sizeof(int64_t) +
                              narrow_.capacity() * sizeof(uint32_t) + wide_.capacity() * sizeof(uint64_t));
}

}  // namespace hccs::calibration
