#include "bound.hpp"

#include <algorithm>
#include <cmath>

namespace hccs::calibration {

namespace {

constexpr int kSegments = 64;
constexpr int kNodes = 128;

// Rounding may lift a computed bound above the true one by some 1e-13; this is far more.
constexpr double kSlack = 1e-9;

struct Point {
  double t, f, f_slope, h;
};

// The weight of the rows, shared between the nodes a_j = D*j/kNodes that enclose each row's a = A/c.
std::vector<double> node_weights(const RowsBySum& rows, int D) {
  std::vector<double> nodes(kNodes + 2, 0.0);
  for (const RowsBySum::Length& length : rows.lengths()) {
    const double to_node = double(kNodes) / (double(D) * length.c);
    for (int a = length.lowest; a <= length.highest; ++a) {
      const double position = a * to_node, weight = length.rows(a);
      const int node = static_cast<int>(position);
      nodes[node + 1] += weight * (position - node);
      nodes[node] += weight * (1 - (position - node));
    }
  }
  for (double& node : nodes) node /= rows.weight();
  return nodes;
}

}  // namespace

ShapeBound::ShapeBound(const Group& group, const RowsBySum& rows, int D, const AdmissibleBand& band) : D_(D) {
  const std::vector<double> nodes = node_weights(rows, D);
  double constant = group.negative_entropy;
  for (const RowsBySum::Length& length : rows.lengths())
    constant += length.weight / rows.weight() * std::log(double(length.c));

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
    for (int j = 1; j <= kNodes; ++j)
      if (nodes[j] != 0) p.h += nodes[j] * std::log(1 - t * (double(D) * j / kNodes));
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
    segments_.push_back({before.t, here.t, base + before.f + before.h, before.f_slope + chord,
                         base + here.f + here.h, here.f_slope + chord});
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
