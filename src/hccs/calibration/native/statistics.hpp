// Sufficient statistics of the calibration objective (eq. 10) for many heads, streamed row by row.
//
// Of a row only two things matter to one line. Its softmax mass at each distance from the maximum: 256 sums per head.
// And, for every D, the pair (c, A(D)) of its valid length c and its sum of clamped distances A(D) = sum_i min(delta_i,
// D): a count per pair. Two lines need both clamped sums of a row at once: a sample of the rows themselves serves them.
// Everything is kept in integers, so neither order nor split of the data changes a bit.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <type_traits>
#include <variant>
#include <vector>

#include "common/valid.hpp"
#include "row_sample.hpp"

namespace hccs::calibration {

using Int128 = __int128;

constexpr int kMaxD = 127;
constexpr int kDistances = 256;
constexpr int kT = 32767;

// Rows longer than this have no admissible parameters; shorter ones keep every index and sum within its type.
constexpr int kMaxLength = kT;

// Fraction bits of exp(-d * scale) in the tables, and of the sums of masses and of logarithms.
constexpr int kExpBits = 47;
constexpr int kMassBits = 48;

// A length of a head keeps its rows as they are until it has this many; from then on it keeps their counts.
constexpr int64_t kRowsKept = 1024;

// Number of rows at each (D, A(D)), D-major; as narrow as the weight of all rows together allows, so that no cell can
// overflow and equal rows give equal bytes.
using Cells = std::variant<std::monostate, std::vector<uint16_t>, std::vector<uint32_t>, std::vector<uint64_t>>;

constexpr int cell_bytes(int64_t weight) { return weight >> 16 == 0 ? 2 : weight >> 32 == 0 ? 4 : 8; }

// Rows of one length c: their distances while they are few, then the number of rows at each (D, A(D)).
class LengthBucket {
 public:
  explicit LengthBucket(int length) : length_(length) {}

  int length() const { return length_; }
  int64_t count() const { return count_; }
  int64_t weight() const { return weight_; }
  bool counted() const { return cells_.index() != 0; }

  // Space for the distances of one more row, which the caller fills before the next call.
  uint8_t* append(int64_t weight);
  void merge(const LengthBucket& other);

  // One form for one multiset of rows: rows sorted while they are kept, nothing pending once they are counted.
  void settle();

  // Rows that arrived since the last count, once rows are counted at all.
  void count_pending() {
    if (counted() && pending() > 0) count_rows();
  }

  int64_t pending() const { return static_cast<int64_t>(rows_.size()) / length_; }
  const uint8_t* row(int64_t r) const { return rows_.data() + r * length_; }
  int64_t row_weight(int64_t r) const { return weights_.empty() ? 1 : weights_[r]; }
  const std::vector<uint8_t>& rows() const { return rows_; }
  const std::vector<int64_t>& weights() const { return weights_; }

  // Counted rows lie in lowest..highest, for each D: what lies outside need not be read.
  struct Span {
    uint32_t lowest = UINT32_MAX, highest = 0;
  };
  Span span(int D) const { return spans_[D]; }

  // Calls visit(cells), a vector of 16, 32 or 64 bits; not at all while rows are kept.
  template <class Visit>
  void visit_cells(Visit visit) const {
    std::visit(
        [&](const auto& cells) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(cells)>, std::monostate>) visit(cells);
        },
        cells_);
  }

  // Number of cells before those of D, and in all: A(D) lies in 0..(c-1)*D, since the maximum itself adds 0.
  static int64_t cells_before(int length, int D) { return int64_t(length - 1) * D * (D - 1) / 2 + (D - 1); }
  static int64_t cell_count(int length) { return cells_before(length, kMaxD + 1); }

  // What a file holds; throws std::invalid_argument where it is not what rows of this length leave behind.
  static LengthBucket restore(int length, int64_t count, int64_t weight, std::vector<uint8_t> rows,
                              std::vector<int64_t> weights, const std::vector<uint8_t>& cells);
  std::vector<uint8_t> raw_cells() const;

  int64_t bytes() const;

 private:
  void count_rows();
  void widen();
  void find_spans();
  void require_consistent() const;

  int length_;
  int64_t count_ = 0, weight_ = 0;
  bool sorted_ = true;
  std::vector<uint8_t> rows_;
  std::vector<int64_t> weights_;  // empty while every row weighs 1
  Cells cells_;
  std::vector<Span> spans_;  // by D, once rows are counted
};

// A sum kept exact in 128 bits; the fast path adds into 64 bits and carries over now and then.
struct HeadSums {
  std::array<Int128, kDistances> mass{};
  Int128 logarithm = 0;
};

struct HeadState {
  HeadSums sums;
  HeadSums quantised;  // of float logits: the sums of their int8 softmax, which is all that a sample of rows knows
  std::map<int, LengthBucket> lengths;
  RowSample sample;

  LengthBucket& bucket(int length) { return lengths.try_emplace(length, length).first->second; }
  bool counted() const;  // some rows are known by their counts alone
  Int128 weight() const;
};

// A batch of rows: `groups` blocks of `rows` rows of `columns` logits, each block of one head.
struct Batch {
  const int8_t* x = nullptr;  // int8 logits, or
  const float* z = nullptr;   // float logits, quantised here
  int64_t groups = 0, rows = 0, columns = 0;
  const int32_t* head_of_group = nullptr;
  Masking masking = Masking::kNone;
  const int32_t* lengths = nullptr;  // per row
  const uint8_t* mask = nullptr;     // per logit
  const int64_t* weights = nullptr;  // per row; null: every row weighs 1
};

// The weight of a head's rows may not exceed what its counts hold: adding more throws std::overflow_error, and changes
// nothing.
//
// Safe on several threads at once. What changes the statistics takes the lock itself; who reads them holds
// lock_to_read() meanwhile. Nobody waits for the lock with Python's, which a thread that holds it may need.
class Statistics {
 public:
  // `scale`: one per head. Float statistics take float logits and compare with their softmax.
  Statistics(int n, std::vector<double> scale, bool from_float);

  void update(const Batch& batch, int threads);
  void merge(const Statistics& other);  // `other` may be this: every row counts twice
  // One form for one multiset of rows, for as long as the lock is held.
  std::unique_lock<std::shared_mutex> settle();
  void count_pending();

  // What a file holds of a head: the buckets by rising length, then the sums. Throw std::invalid_argument where they
  // are not what rows leave behind.
  void restore_bucket(int head, LengthBucket bucket);
  void restore_sums(int head, const HeadSums& sums);
  // After the buckets, wherever rows were counted: the sampled rows, which the buckets no longer have.
  void restore_sample(int head, const std::vector<int64_t>& lengths, const std::vector<int64_t>& weights,
                      const std::vector<uint8_t>& rows, const HeadSums& quantised);

  std::shared_lock<std::shared_mutex> lock_to_read() const { return std::shared_lock(mutex_); }

  int n() const { return n_; }
  bool from_float() const { return from_float_; }
  const std::vector<HeadState>& heads() const { return heads_; }
  const int64_t* exp_table(int head) const { return exp_.at(head).data(); }
  // Another number whenever other rows are in the statistics.
  int64_t version() const { return version_; }

 private:
  void require_room(const std::vector<Int128>& more) const;
  void require_sums(int head, const HeadSums& sums, bool from_float) const;
  void sample_kept_rows(int head, const LengthBucket& bucket);

  const int n_;
  const bool from_float_;
  const std::vector<double> scale_;
  std::vector<std::array<int64_t, kDistances>> exp_;
  std::vector<HeadState> heads_;
  int64_t version_ = 0;
  mutable std::shared_mutex mutex_;  // of heads_ and version_
};

}  // namespace hccs::calibration
