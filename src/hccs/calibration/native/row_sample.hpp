// Rows of a head as they are, chosen by their content alone: what the row sums of two lines are computed from.
//
// Every row has a place in an order that looks random and depends on nothing but the row. The sample is the first so
// many different rows of that order, each with the weight of all its occurrences. Neither the order of the data nor
// its split over machines changes it: a row that once fell out of the sample can never belong to it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace hccs::calibration {

class RowSample {
 public:
  struct Key {
    uint64_t place;
    std::vector<uint8_t> row;  // distances, sorted
    auto operator<=>(const Key&) const = default;
  };
  using Rows = std::map<Key, int64_t>;  // with weights

  // As many rows as take half a megabyte, within bounds: more would only cost time.
  static int most_rows(int n);

  explicit RowSample(int most = 0) : most_(most) {}

  // `total` is the row's sum of exponentials, an integer that the caller has at hand.
  static uint64_t place(const uint8_t* delta, int length, int64_t total);
  void offer(const uint8_t* delta, int length, uint64_t place, int64_t weight);
  void merge(const RowSample& other);

  // Rows were counted, and lost, before a sample was kept.
  void lose() { complete_ = false; }
  bool complete() const { return complete_; }

  int most() const { return most_; }
  const Rows& rows() const { return rows_; }
  int64_t bytes() const;

 private:
  void add(Key key, int64_t weight);

  int most_;
  bool complete_ = true;
  Rows rows_;
};

}  // namespace hccs::calibration
