#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "clamped_sums.hpp"
#include "statistics.hpp"

namespace hccs::calibration {

namespace {

template <class Visit>
void visit_mutable(Cells& cells, Visit visit) {
  std::visit(
      [&](auto& of) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(of)>, std::monostate>) visit(of);
      },
      cells);
}

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

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
  for (int D = 1; D <= kMaxD; ++D)
    spans_[D] = {std::min(spans_[D].lowest, other.spans_[D].lowest),
                 std::max(spans_[D].highest, other.spans_[D].highest)};
  other.visit_cells([&](const auto& from) {
    visit_mutable(cells_, [&](auto& to) {
      for (size_t i = 0; i < from.size(); ++i)
        to[i] += static_cast<typename std::decay_t<decltype(to)>::value_type>(from[i]);
    });
  });
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
  widen();
  visit_mutable(cells_, [&](auto& cells) {
    using Cell = typename std::decay_t<decltype(cells)>::value_type;
    for_each_clamped_sum(rows_.data(), pending(), length_, [&](int D, int64_t first, int count, const uint32_t* A) {
      Cell* of_D = &cells[cells_before(length_, D)];
      const auto [least, most] = std::minmax_element(A, A + count);
      spans_[D] = {std::min(spans_[D].lowest, *least), std::max(spans_[D].highest, *most)};
      if (weights_.empty())
        for (int r = 0; r < count; ++r) ++of_D[A[r]];
      else
        for (int r = 0; r < count; ++r) of_D[A[r]] += static_cast<Cell>(weights_[first + r]);
    });
  });
  rows_.clear();
  weights_.clear();
  sorted_ = true;
}

void LengthBucket::find_spans() {
  visit_cells([&](const auto& cells) {
    for (int D = 1; D <= kMaxD; ++D) {
      const auto* of_D = cells.data() + cells_before(length_, D);
      for (uint32_t a = 0; a <= uint32_t(length_ - 1) * D; ++a)
        if (of_D[a] != 0) spans_[D] = {std::min(spans_[D].lowest, a), a};
    }
  });
}

void LengthBucket::widen() {
  spans_.resize(kMaxD + 1);
  const auto to = [&]<class Cell>(Cell) {
    if (std::holds_alternative<std::vector<Cell>>(cells_)) return;
    std::vector<Cell> wider(cell_count(length_));
    visit_cells([&](const auto& from) { std::copy(from.begin(), from.end(), wider.begin()); });
    cells_ = std::move(wider);
  };
  switch (cell_bytes(weight_)) {
    case 2: return to(uint16_t());
    case 4: return to(uint32_t());
    default: return to(uint64_t());
  }
}

LengthBucket LengthBucket::restore(int length, int64_t count, int64_t weight, std::vector<uint8_t> rows,
                                   std::vector<int64_t> weights, const std::vector<uint8_t>& cells) {
  require(length >= 1 && length <= kMaxLength, "length out of range");
  require(count >= 1 && weight >= count, "fewer weights than rows");
  require(cells.empty() || static_cast<int64_t>(cells.size()) == cell_count(length) * cell_bytes(weight),
          "wrong number of cells");
  LengthBucket bucket(length);
  bucket.count_ = count;
  bucket.weight_ = weight;
  bucket.sorted_ = false;
  bucket.rows_ = std::move(rows);
  bucket.weights_ = std::move(weights);
  if (!cells.empty()) {
    bucket.widen();
    visit_mutable(bucket.cells_, [&](auto& to) { std::memcpy(to.data(), cells.data(), cells.size()); });
    bucket.find_spans();
  }
  bucket.require_consistent();
  return bucket;
}

// Everything that indices and sums rely on later.
void LengthBucket::require_consistent() const {
  const int64_t kept = pending();
  require(kept * length_ == static_cast<int64_t>(rows_.size()), "rows of another length");
  require(weights_.empty() || static_cast<int64_t>(weights_.size()) == kept, "one weight for each kept row");
  require(kept <= kRowsKept && (counted() ? kept < count_ : kept == count_), "wrong number of rows");
  int64_t counted_weight = weight_;
  for (int64_t r = 0; r < kept; ++r) {
    // The maximum is at distance 0: without it A(D) could reach length * D, past the cells.
    require(std::memchr(row(r), 0, length_) != nullptr, "a row without its maximum");
    require(row_weight(r) >= 1 && row_weight(r) <= counted_weight, "a row's weight out of range");
    counted_weight -= row_weight(r);
  }
  require(counted_weight >= count_ - kept && (counted() || counted_weight == 0), "weights that differ from their sum");
  visit_cells([&](const auto& cells) {
    for (int D = 1; D <= kMaxD; ++D) {
      Int128 sum = 0;
      for (int64_t i = cells_before(length_, D); i < cells_before(length_, D + 1); ++i) sum += cells[i];
      require(sum == counted_weight, "cells that differ from the rows");
    }
  });
}

std::vector<uint8_t> LengthBucket::raw_cells() const {
  std::vector<uint8_t> raw;
  visit_cells([&](const auto& cells) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(cells.data());
    raw.assign(bytes, bytes + cells.size() * sizeof(cells[0]));
  });
  return raw;
}

int64_t LengthBucket::bytes() const {
  size_t total = rows_.capacity() + weights_.capacity() * sizeof(int64_t) + spans_.capacity() * sizeof(Span);
  visit_cells([&](const auto& cells) { total += cells.capacity() * sizeof(cells[0]); });
  return static_cast<int64_t>(total);
}

}  // namespace hccs::calibration
