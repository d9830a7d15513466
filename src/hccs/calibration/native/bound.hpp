// A lower bound of the objective that depends on (S/B, D) only, and so excludes most triples unevaluated.
//
// floor(T/Z) <= T/Z gives  objective >= -H - sum_d P(d) log(B - S*min(d,D)) + mean log Z.  With t = S/B and the mean
// clamped distance a = A/c of a row, B cancels:
//
//     g_D(t) = -H + f(t) + mean log c + h(t),   f(t) = -sum_d P(d) log(1 - t*min(d,D)),   h(t) = mean log(1 - t*a).
//
// f is convex: it lies above its tangents. h is concave: it lies above its chords. And log(1 - t*a) is concave in a, so
// sharing each row's weight between two neighbouring nodes of a grid over a lowers the mean, for all t at once.
#pragma once

#include <cstddef>
#include <vector>

#include "search.hpp"

namespace hccs::calibration {

// The admissible (B, S) of each D for rows of up to n columns: hccs.spec.Region.
class AdmissibleBand {
 public:
  explicit AdmissibleBand(int n) : floor_((256 + n - 1) / n), max_base_(kT / n) {}
  int floor() const { return floor_; }
  int max_base() const { return max_base_; }
  int min_base(int S, int D) const { return S * D + floor_; }
  int max_slope(int D) const {
    const int room = max_base_ - floor_;
    return room < 0 ? -1 : room / D < 127 ? room / D : 127;
  }

 private:
  int floor_, max_base_;
};

inline void stop_if_requested(const Interruption& interruption) {
  if (interruption.requested()) throw Interrupted();
}

class SumBins;

// The weight of the rows at nodes a_j = D*j/kNodes, for every D: each row shared between the nodes around its a.
class NodeWeights {
 public:
  static constexpr int kNodes = 128;

  NodeWeights(const Group& group, const Interruption& interruption);
  double at(int D, int node) const { return nodes_[D * kStride + node]; }
  double mean_log_length() const { return mean_log_length_; }

 private:
  static constexpr int kStride = kNodes + 2;
  void share(const SumBins& bins, int length);

  std::vector<double> nodes_;
  double mean_log_length_ = 0;
};

class ShapeBound {
 public:
  ShapeBound(const Group& group, const NodeWeights& nodes, int D, const AdmissibleBand& band);

  int D() const { return D_; }
  double least() const { return least_; }

  // Reads the bound at rising values of t.
  class Cursor {
   public:
    explicit Cursor(const ShapeBound& bound) : bound_(bound) {}
    double at(double t) {
      while (segment_ + 1 < bound_.segments_.size() && t > bound_.segments_[segment_].to) ++segment_;
      return bound_.segments_[segment_].at(t);
    }

   private:
    const ShapeBound& bound_;
    size_t segment_ = 0;
  };

 private:
  // Over [from, to]: the larger of two lines.
  struct Segment {
    double from, to;
    double left, left_slope;    // tangent of f at `from`, plus the chord of h
    double right, right_slope;  // tangent of f at `to`, plus the chord of h
    double at(double t) const {
      const double a = left + left_slope * (t - from), b = right + right_slope * (t - to);
      return a > b ? a : b;
    }
    double least() const;
  };

  int D_;
  double least_;
  std::vector<Segment> segments_;
};

}  // namespace hccs::calibration
