#include "bound.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "clamped_sums.hpp"

namespace hccs::calibration {

namespace {

constexpr int kSegments = 64;

// Rounding may lift a computed bound above the true one by some 1e-13; this is far more.
constexpr double kSlack = 1e-9;

struct Point {
  double t, f, f_slope, h;
};

}  // namespace

// Rows of one length, for every D in bins of 2^shift values of A: their weight and the sum of A beyond the bin's start.
// That is all that sharing them between the ends of a bin needs, and one pass of integer work finds it.
class SumBins {
 public:
  struct Bin {
    double weight = 0, beyond = 0;
  };
  static constexpr int kMost = 64;  // bins of one D, at most

  SumBins() : bins_(size_t(kMaxD + 1) * kMost), packed_(size_t(kMaxD + 1) * kMost), ramp_(size_t(1) << 16) {
    std::iota(ramp_.begin(), ramp_.end(), uint16_t(0));
  }

  // Replaces what was there.
  void take(const LengthBucket& bucket) {
    length_ = bucket.length();
    for (int D = 1; D <= kMaxD; ++D) {
      for (shift_[D] = 0; (highest(D) >> shift_[D]) >= kMost; ++shift_[D]) {
      }
      std::fill_n(&bins_[size_t(D) * kMost], count(D), Bin{});
    }
    bucket.visit_cells([&](const auto& cells) { add_cells(cells, bucket); });
    if (bucket.weights().empty())
      add_rows(bucket);
    else
      add_weighted_rows(bucket);
  }

  int shift(int D) const { return shift_[D]; }
  int highest(int D) const { return (length_ - 1) * D; }
  int count(int D) const { return (highest(D) >> shift_[D]) + 1; }
  const Bin& at(int D, int bin) const { return bins_[size_t(D) * kMost + bin]; }

 private:
  template <class Cell>
  void add_cells(const std::vector<Cell>& cells, const LengthBucket& bucket) {
    // A bin spans at most 2^16 values: its sums take 16 bits more than the cells, which hold all rows together.
    using Wide = std::conditional_t<sizeof(Cell) == 4, uint64_t, unsigned __int128>;
    using Sum = std::conditional_t<sizeof(Cell) == 2, uint32_t, Wide>;
    for (int D = 1; D <= kMaxD; ++D) {
      const Cell* of_D = cells.data() + LengthBucket::cells_before(length_, D);
      const auto [lowest, highest_seen] = bucket.span(D);
      for (int bin = lowest >> shift_[D]; bin <= int(highest_seen >> shift_[D]); ++bin) {
        const int low = bin << shift_[D], values = std::min(highest(D) + 1 - low, 1 << shift_[D]);
        Sum weight = 0, beyond = 0;
        for (int i = 0; i < values; ++i) {
          weight += of_D[low + i];
          beyond += Sum(of_D[low + i]) * Sum(ramp_[i]);
        }
        if (weight != 0) add(D, bin, static_cast<double>(weight), static_cast<double>(beyond));
      }
    }
  }

  // One addition per row and D: the number of rows above bit 40, the sum of A below.
  void add_rows(const LengthBucket& bucket) {
    constexpr int kCountShift = 40;
    constexpr uint64_t kOne = uint64_t(1) << kCountShift;
    static_assert(kRowsKept * int64_t(kT) * kMaxD < int64_t(kOne));
    for_each_clamped_sum(bucket.rows().data(), bucket.pending(), length_,
                         [&](int D, int64_t, int rows, const uint32_t* A) {
                           uint64_t* of_D = &packed_[size_t(D) * kMost];
                           const int shift = shift_[D];
                           const uint32_t within = (uint32_t(1) << shift) - 1;
                           for (int r = 0; r < rows; ++r) of_D[A[r] >> shift] += kOne + (A[r] & within);
                         });
    for (int D = 1; D <= kMaxD; ++D)
      for (int bin = 0; bin < count(D); ++bin) {
        uint64_t& value = packed_[size_t(D) * kMost + bin];
        if (value == 0) continue;
        add(D, bin, static_cast<double>(value >> kCountShift), static_cast<double>(value & (kOne - 1)));
        value = 0;
      }
  }

  void add_weighted_rows(const LengthBucket& bucket) {
    for_each_clamped_sum(bucket.rows().data(), bucket.pending(), length_,
                         [&](int D, int64_t first, int rows, const uint32_t* A) {
                           for (int r = 0; r < rows; ++r) {
                             const double weight = static_cast<double>(bucket.row_weight(first + r));
                             const uint32_t bin = A[r] >> shift_[D];
                             add(D, bin, weight, weight * (A[r] - (bin << shift_[D])));
                           }
                         });
  }

  void add(int D, int bin, double weight, double beyond) {
    Bin& of = bins_[size_t(D) * kMost + bin];
    of.weight += weight;
    of.beyond += beyond;
  }

  int length_ = 1;
  std::array<int, kMaxD + 1> shift_{};
  std::vector<Bin> bins_;
  std::vector<uint64_t> packed_;
  std::vector<uint16_t> ramp_;  // 0, 1, 2, ...: a product of two arrays of 16 bits is what compilers vectorise
};

NodeWeights::NodeWeights(const Group& group, const Interruption& interruption) : nodes_(size_t(kMaxD + 1) * kStride) {
  double total = 0;
  SumBins bins;
  for (const HeadState* head : group.heads)
    for (const auto& [length, bucket] : head->lengths) {
      stop_if_requested(interruption);
      bins.take(bucket);
      share(bins, length);
      total += static_cast<double>(bucket.weight());
      mean_log_length_ += static_cast<double>(bucket.weight()) * std::log(double(length));
    }
  for (double& node : nodes_) node /= total;
  mean_log_length_ /= total;
}

void NodeWeights::share(const SumBins& bins, int length) {
  for (int D = 1; D <= kMaxD; ++D) {
    double* nodes = &nodes_[D * kStride];
    const double to_node = kNodes / (double(D) * length);
    const auto add = [&](int A, double weight) {
      const double position = A * to_node;
      const int node = static_cast<int>(position);
      nodes[node + 1] += weight * (position - node);
      nodes[node] += weight * (1 - (position - node));
    };
    for (int bin = 0; bin < bins.count(D); ++bin) {
      const auto [weight, beyond] = bins.at(D, bin);
      if (weight == 0) continue;
      const int low = bin << bins.shift(D), high = std::min((bin + 1) << bins.shift(D), bins.highest(D));
      const double to_high = high > low ? beyond / (high - low) : 0.0;
      add(low, weight - to_high);
      add(high, to_high);
    }
  }
}

ShapeBound::ShapeBound(const Group& group, const NodeWeights& nodes, int D, const AdmissibleBand& band) : D_(D) {
  const double constant = group.negative_entropy + nodes.mean_log_length();

  const auto point = [&](double t) {
    Point p{t, 0, 0, 0};
    double beyond = 0;
    for (int d = D; d < kDistances; ++d) beyond += group.mass[d];
    for (int d = 1; d <= D; ++d) {
      const double mass = d < D ? group.mass[d] : beyond, rest = 1 - t * d;
      if (mass == 0) continue;
      p.f -= mass * std::log(rest);
      p.f_slope += mass * d / rest;
    }
    for (int j = 1; j <= NodeWeights::kNodes; ++j) {
      const double weight = nodes.at(D, j);
      if (weight != 0) p.h += weight * std::log(1 - t * (double(D) * j / NodeWeights::kNodes));
    }
    return p;
  };

  // t = S/B <= S/(S*D + floor), so 1 - t*D >= floor/max_base. Points at equal ratios of 1 - t*D.
  const double smallest_rest = double(band.floor()) / band.max_base();
  least_ = HUGE_VAL;
  Point before = point(0);
  for (int j = 1; j <= kSegments; ++j) {
    const Point here = point((1 - std::pow(smallest_rest, double(j) / kSegments)) / D);
    if (here.t <= before.t) continue;
    const double chord = (here.h - before.h) / (here.t - before.t), base = constant - kSlack;
    segments_.push_back({before.t, here.t, base + before.f + before.h, before.f_slope + chord, base + here.f + here.h,
                         here.f_slope + chord});
    least_ = std::min(least_, segments_.back().least());
    before = here;
  }
  if (segments_.empty()) {  // only S = 0 is admissible
    segments_.push_back({0, 0, constant - kSlack, 0, constant - kSlack, 0});
    least_ = constant - kSlack;
  }
}

double ShapeBound::Segment::least() const {
  const double ends = std::min(at(from), at(to));
  if (left_slope == right_slope) return ends;
  const double crossing = (right - right_slope * to - left + left_slope * from) / (left_slope - right_slope);
  return crossing > from && crossing < to ? std::min(ends, at(crossing)) : ends;
}

}  // namespace hccs::calibration
