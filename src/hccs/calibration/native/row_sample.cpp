#include "row_sample.hpp"

#include <algorithm>

namespace hccs::calibration {

namespace {

// The finalising steps of MurmurHash3: every bit of the input moves every bit of the result.
uint64_t mixed(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

}  // namespace

int RowSample::most_rows(int n) { return std::clamp((1 << 19) / n, 1024, 4096); }

uint64_t RowSample::place(const uint8_t* delta, int length, int64_t total) {
  uint32_t sum = 0;
  for (int i = 0; i < length; ++i) sum += delta[i];
  return mixed(static_cast<uint64_t>(total) + mixed((static_cast<uint64_t>(length) << 32) + sum + 1));
}

void RowSample::offer(const uint8_t* delta, int length, uint64_t place, int64_t weight) {
  if (static_cast<int>(rows_.size()) == most_ && place > rows_.rbegin()->first.place) return;
  Key key{place, {delta, delta + length}};
  std::sort(key.row.begin(), key.row.end());
  add(std::move(key), weight);
}

void RowSample::merge(const RowSample& other) {
  complete_ = complete_ && other.complete_;
  for (const auto& [key, weight] : Rows(other.rows_)) add(key, weight);
}

void RowSample::add(Key key, int64_t weight) {
  rows_[std::move(key)] += weight;
  if (static_cast<int>(rows_.size()) > most_) rows_.erase(std::prev(rows_.end()));
}

int64_t RowSample::bytes() const {
  constexpr int64_t kNode = 4 * sizeof(void*) + sizeof(Rows::value_type);
  int64_t total = 0;
  for (const auto& [key, weight] : rows_) total += kNode + static_cast<int64_t>(key.row.capacity());
  return total;
}

}  // namespace hccs::calibration
