#include "lines.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "bound.hpp"

namespace hccs::calibration {

namespace {

struct SampledRow {
  std::array<int16_t, kScores> counts;
  double weight;
  const int64_t* exp_table;
  double tail;
  std::array<float, kScores> mass;
  double squares;
};

// A product of this many row sums below 2^24 is far from overflow, and needs one logarithm.
constexpr int kFactors = 32;

std::array<int16_t, kScores> scores_of(const Lines& theta) {
  std::array<int16_t, kScores> scores;
  for (int d = 0; d < kScores; ++d) scores[d] = static_cast<int16_t>(theta.score(d));
  return scores;
}

int32_t row_sum(const int16_t* counts, const std::array<int16_t, kScores>& scores) {
  int32_t Z = 0;
  for (int d = 0; d < kScores; ++d) Z += int32_t(counts[d]) * scores[d];
  return Z;
}

}  // namespace

bool LinesRegion::contains(const Lines& theta) const {
  return theta.f == f && theta.D >= 1 && theta.D <= kMaxD && theta.D2 >= 1 && theta.D2 <= theta.D && theta.S >= 0 &&
         theta.S <= 127 && theta.S2 >= 0 && theta.S2 <= 127 && theta.B <= max_base && (lines > 1 || theta.S2 == 0) &&
         theta.B - theta.S * theta.D - theta.S2 * theta.D2 >= floor << f;
}

SampledRows::SampledRows(const std::vector<const HeadState*>& heads, const std::vector<const int64_t*>& exp_tables,
                         const std::vector<double>& extra_mass, double extra_entropy)
    : mass_(kScores), extra_mass_(kScores), extra_entropy_(extra_entropy) {
  std::vector<SampledRow> rows;
  double everything = 0;
  for (const HeadState* head : heads) everything += static_cast<double>(head->weight());
  for (size_t h = 0; h < heads.size(); ++h) {
    double sampled = 0;
    for (const auto& [key, weight] : heads[h]->sample.rows()) sampled += static_cast<double>(weight);
    const double share = static_cast<double>(heads[h]->weight()) / everything / sampled;
    for (const auto& [key, weight] : heads[h]->sample.rows()) {
      SampledRow row{{}, static_cast<double>(weight) * share, exp_tables[h], 0.0, {}, 0.0};
      for (uint8_t delta : key.row) ++row.counts[std::min<int>(delta, kMaxD)];
      double total = 0;
      for (uint8_t delta : key.row) {
        total += static_cast<double>(row.exp_table[delta]);
        if (delta >= kMaxD) row.tail += static_cast<double>(row.exp_table[delta]);
      }
      for (uint8_t delta : key.row) {
        const double p = static_cast<double>(row.exp_table[delta]) / total;
        mass_[std::min<int>(delta, kMaxD)] += row.weight * p;
        row.mass[std::min<int>(delta, kMaxD)] += static_cast<float>(p);
        row.squares += p * p;
        if (p > 0) entropy_ += row.weight * p * std::log(p);
      }
      rows.push_back(row);
    }
  }
  for (int d = 0; d < kDistances; ++d) extra_mass_[std::min(d, kMaxD)] += extra_mass[d];
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.weight < b.weight; });
  counts_.reserve(rows.size() * kScores);
  for (const SampledRow& row : rows) {
    counts_.insert(counts_.end(), row.counts.begin(), row.counts.end());
    weights_.push_back(row.weight);
    exp_tables_.push_back(row.exp_table);
    tails_.push_back(row.tail);
    row_mass_.insert(row_mass_.end(), row.mass.begin(), row.mass.end());
    squares_.push_back(row.squares);
  }
}

double SampledRows::score_term(const std::array<int16_t, kScores>& scores, const std::vector<double>& mass) const {
  const std::vector<double>& log_of = logarithms().of;
  double sum = 0;
  for (int d = 0; d < kScores; ++d) sum += mass[d] * log_of[scores[d]];
  return sum;
}

double SampledRows::objective(const Lines& theta) const {
  const std::array<int16_t, kScores> scores = scores_of(theta);
  double kl = entropy_ + extra_entropy_ - score_term(scores, mass_) - score_term(scores, extra_mass_);
  for (int first = 0; first < rows();) {
    double product = 1;
    int r = first;
    for (; r < rows() && r < first + kFactors && weights_[r] == weights_[first]; ++r)
      product *= row_sum(counts(r), scores);
    kl += weights_[first] * std::log(product);
    first = r;
  }
  return kl;
}

double SampledRows::output_error(const Lines& theta) const {
  // In float32, scores as shares of the largest, eight sums side by side.
  constexpr int kLanes = 8;
  static_assert(kScores % kLanes == 0);
  const std::array<int16_t, kScores> whole = scores_of(theta);
  std::array<float, kScores> s;
  for (int d = 0; d < kScores; ++d) s[d] = static_cast<float>(whole[d]) / whole[0];
  double error = 0;
  for (int r = 0; r < rows(); ++r) {
    const int16_t* c = counts(r);
    const float* p = &row_mass_[size_t(r) * kScores];
    float sums[kLanes] = {}, crossed[kLanes] = {}, squared[kLanes] = {};
    for (int d = 0; d < kScores; d += kLanes)
      for (int i = 0; i < kLanes; ++i) {
        const float score = s[d + i], many = static_cast<float>(c[d + i]) * score;
        sums[i] += many;
        crossed[i] += p[d + i] * score;
        squared[i] += many * score;
      }
    const double Z = std::accumulate(sums, sums + kLanes, 0.0), cross = std::accumulate(crossed, crossed + kLanes, 0.0);
    error += weights_[r] * (squares_[r] + (std::accumulate(squared, squared + kLanes, 0.0) / Z - 2 * cross) / Z);
  }
  return error;
}

Fidelity SampledRows::deployed(const Lines& theta, const Deployment& mode) const {
  const std::array<int16_t, kScores> scores = scores_of(theta);
  const int T = mode.T(), spare = mode.u8 ? 7 : 0;
  const double beyond = extra_entropy_ - score_term(scores, extra_mass_);
  Fidelity found{beyond + entropy_, beyond + entropy_, 1.0};
  for (int r = 0; r < rows(); ++r) {
    // As hccs.reference.softmax.wide_row.
    const int32_t Z = row_sum(counts(r), scores);
    const int k = std::bit_width(static_cast<unsigned>(Z)) - 1, h = std::max(k - 15, 0);
    const int32_t divisor = (Z + (1 << h) - 1) >> h;
    const int32_t rho = mode.reciprocal == Reciprocal::kLeadingBit ? T << spare
                        : mode.reciprocal == Reciprocal::kLine     ? linear_reciprocal(Z, k) << spare
                                                                   : (T << (k - h + spare)) / divisor;
    double exponentials = 0, logs = 0;
    int64_t total = 0, twice_total = 0;
    for (int d = 0; d < kScores; ++d) {
      if (counts(r)[d] == 0) continue;
      const int32_t p = std::min((int32_t(scores[d]) * rho) >> (k + spare), T);
      const double mass = d < kMaxD ? counts(r)[d] * static_cast<double>(exp_tables_[r][d]) : tails_[r];
      exponentials += mass;
      logs += mass * std::log(p > 0 ? double(p) : 0.5);
      total += int64_t(counts(r)[d]) * p;
      twice_total += int64_t(counts(r)[d]) * std::max(2 * p, 1);
    }
    const double mean_log = logs / exponentials;
    found.kl -= weights_[r] * (mean_log - std::log(double(T)));
    found.kl_renormalised -= weights_[r] * (mean_log - std::log(double(twice_total) / 2));
    found.mass_deficit -= weights_[r] * double(total) / T;
  }
  return found;
}

namespace {

// --- in real numbers: s = 1 - a min(d, D) - b min(d, D2) ------------------------------------------------------------

// Some of the rows, with the mean of their distances clamped at every D.
class MeanDistances {
 public:
  static constexpr int kMost = 1024;

  explicit MeanDistances(const SampledRows& rows) {
    const int step = (rows.rows() + kMost - 1) / kMost;
    double total = 0;
    for (int r = 0; r < rows.rows(); r += step) total += rows.weight(r);
    const int count = (rows.rows() + step - 1) / step;
    means_.assign(size_t(kMaxD + 1) * count, 0.0);
    mass_.assign(kScores, 0.0);
    for (int r = 0; r < rows.rows(); r += step) {
      const int16_t* counts = rows.counts(r);
      const double length = std::accumulate(counts, counts + kScores, 0.0);
      double farther = length, sum = 0;
      for (int D = 1; D <= kMaxD; ++D) {
        farther -= counts[D - 1];
        sum += farther;
        means_[size_t(D) * count + weights_.size()] = sum / length;
      }
      weights_.push_back(rows.weight(r) / total);
    }
    mass_ = rows.mass();
  }

  int rows() const { return static_cast<int>(weights_.size()); }
  const double* of(int D) const { return &means_[size_t(D) * rows()]; }
  const std::vector<double>& weights() const { return weights_; }
  const std::vector<double>& mass() const { return mass_; }

 private:
  std::vector<double> means_, weights_, mass_;
};

// The objective without its constants, its gradient and second derivatives, and those of its convex part alone.
struct Expansion {
  double value = 0, a = 0, b = 0, aa = 0, ab = 0, bb = 0;
  double convex_aa = 0, convex_ab = 0, convex_bb = 0;
};

Expansion expand(const MeanDistances& rows, int D, int D2, double a, double b) {
  Expansion at;
  for (int d = 1; d < kScores; ++d) {
    const double mass = rows.mass()[d];
    if (mass <= 0) continue;
    const double x = std::min(d, D), y = std::min(d, D2), s = 1 - a * x - b * y, by = mass / s;
    at.value -= mass * std::log(s);
    at.a += by * x;
    at.b += by * y;
    at.convex_aa += by / s * x * x;
    at.convex_ab += by / s * x * y;
    at.convex_bb += by / s * y * y;
  }
  const double *first = rows.of(D), *second = rows.of(D2), *weights = rows.weights().data();
  double g_a = 0, g_b = 0, h_aa = 0, h_ab = 0, h_bb = 0;
  for (int r = 0; r < rows.rows(); ++r) {
    const double inverse = 1 / (1 - a * first[r] - b * second[r]), by = weights[r] * inverse;
    const double x = first[r] * inverse, y = second[r] * inverse;
    g_a += by * first[r];
    g_b += by * second[r];
    h_aa += weights[r] * x * x;
    h_ab += weights[r] * x * y;
    h_bb += weights[r] * y * y;
    at.value += weights[r] * -std::log(inverse);
  }
  at.a -= g_a;
  at.b -= g_b;
  at.aa = at.convex_aa - h_aa;
  at.ab = at.convex_ab - h_ab;
  at.bb = at.convex_bb - h_bb;
  return at;
}

struct Slopes {
  double a = 0, b = 0, value = HUGE_VAL;
};

// Which of the slopes may move.
enum class Free { kFirst, kSecond, kBoth };

// What of the largest score the lines may take away: a D + b D2 <= most - kept * (the steep slope, b or the only a).
struct Room {
  double most, kept;
};

// Newton's steps inside a, b >= 0 and the room, kept descending by halving.
Slopes best_slopes(const MeanDistances& rows, int D, int D2, Free free, Room room, Slopes from) {
  constexpr int kSteps = 24;
  constexpr double kEnough = 1e-9;
  const double most = room.most, first = D + (free == Free::kFirst ? room.kept : 0), second = D2 + room.kept;
  const auto inside = [&](double& a, double& b) {
    a = std::max(a, 0.0);
    b = std::max(b, 0.0);
    const double used = a * first + b * second;
    if (used <= most) return;
    if (free == Free::kSecond) {
      b = std::max(0.0, (most - a * first) / second);
    } else {
      a *= most / used;
      b *= most / used;
    }
  };
  inside(from.a, from.b);
  Expansion at = expand(rows, D, D2, from.a, from.b);
  Slopes here{from.a, from.b, at.value};
  for (int step = 0; step < kSteps; ++step) {
    const bool a_free = free != Free::kSecond && !(here.a <= 0 && at.a > 0);
    const bool b_free = free != Free::kFirst && !(here.b <= 0 && at.b > 0);
    double da = 0, db = 0;
    const auto solve = [&](double aa, double ab, double bb) {
      if (a_free && b_free) {
        const double det = aa * bb - ab * ab;
        if (!(aa > 0 && det > 1e-12 * aa * bb)) return false;
        da = -(bb * at.a - ab * at.b) / det;
        db = -(aa * at.b - ab * at.a) / det;
      } else if (a_free) {
        if (!(aa > 0)) return false;
        da = -at.a / aa;
      } else if (b_free) {
        if (!(bb > 0)) return false;
        db = -at.b / bb;
      }
      return true;
    };
    if (!solve(at.aa, at.ab, at.bb) && !solve(at.convex_aa, at.convex_ab, at.convex_bb)) {
      da = a_free ? -at.a / (at.convex_aa + 1e-30) / 2 : 0;
      db = b_free ? -at.b / (at.convex_bb + 1e-30) / 2 : 0;
    }
    bool moved = false;
    for (double size = 1; size > 1e-3 && !moved; size /= 2) {
      double a = here.a + size * da, b = here.b + size * db;
      inside(a, b);
      const Expansion next = expand(rows, D, D2, a, b);
      if (!(next.value < here.value)) continue;
      moved = here.value - next.value > kEnough;
      here = {a, b, next.value};
      at = next;
      if (!moved) return here;
    }
    if (!moved) break;
  }
  return here;
}

// A pair of knees and the best slopes for it.
struct Shape {
  int D, D2;
  Slopes slopes;
};

bool better(const Shape& x, const Shape& y) { return x.slopes.value < y.slopes.value; }

// Slopes are integers of at most kMaxSlope, so a steep line has a base far below a large max_base, and its lowest score
// a share of that. Up to kFineBase the room disregards it: there, integers alone tell.
constexpr int kMaxSlope = 127, kFineBase = 2047;

class RealSearch {
 public:
  RealSearch(const SampledRows& rows, const LinesRegion& region)
      : rows_(rows),
        two_(region.lines > 1),
        room_{1 - double(region.floor << region.f) / region.max_base,
              region.max_base > kFineBase ? double(region.floor << region.f) / kMaxSlope : 0.0},
        seen_(size_t(kScores) * kScores, Shape{0, 0, {}}) {}

  // The best slopes for a pair of knees, found once.
  const Shape& at(int D, int D2, const Slopes& from) {
    Shape& shape = seen_[size_t(D) * kScores + D2];
    if (shape.D == 0) shape = {D, D2, best_slopes(rows_, D, D2, two_ ? Free::kBoth : Free::kFirst, room_, from)};
    return shape;
  }

  // The best second slope beside a first one that stays.
  Shape beside(double a, int D, int D2, double b) const {
    return {D, D2, best_slopes(rows_, D, D2, Free::kSecond, room_, {a, b})};
  }
  bool two() const { return two_; }

  // Calls visit(shape) for the pairs of knees that lie `step` away, slopes found from those of the shape.
  template <class Visit>
  void for_neighbours(const Shape& shape, int step, const Visit& visit) {
    for (int move = 0; move < 9; ++move) {
      const int D = shape.D + (move / 3 - 1) * step, D2 = two_ ? shape.D2 + (move % 3 - 1) * step : 1;
      if (move == 4 || D < 1 || D > kMaxD || D2 < 1 || D2 > D || (!two_ && move % 3 != 1)) continue;
      visit(at(D, D2, shape.slopes));
    }
  }

  // The best shapes of a coarse grid of knees, each brought to where no neighbour is better.
  std::vector<Shape> shapes(const Interruption& interruption) {
    constexpr int kKnees[] = {2, 4, 7, 11, 16, 22, 29, 37, 47, 58, 71, 86, 104, 127};
    constexpr size_t kKept = 3;
    std::vector<Shape> found;
    for (int D : kKnees) {
      stop_if_requested(interruption);
      if (!two_) {
        found.push_back(at(D, 1, {0.5 * room_.most / D, 0}));
        continue;
      }
      for (int D2 : kKnees)
        if (D2 <= D) found.push_back(at(D, D2, {0.1 * room_.most / D, 0.8 * room_.most / D2}));
    }
    std::sort(found.begin(), found.end(), better);
    if (found.size() > kKept) found.resize(kKept);
    for (Shape& shape : found)
      for (int step = 4; step >= 1;) {
        stop_if_requested(interruption);
        Shape best = shape;
        for_neighbours(shape, step, [&](const Shape& next) {
          if (better(next, best)) best = next;
        });
        if (better(best, shape))
          shape = best;
        else
          step /= 2;
      }
    std::sort(found.begin(), found.end(), better);
    return found;
  }

 private:
  const MeanDistances rows_;
  const bool two_;
  const Room room_;
  std::vector<Shape> seen_;
};

// --- in integers ----------------------------------------------------------------------------------------------------

class Descent {
 public:
  Descent(const SampledRows& rows, const LinesRegion& region, Measure measure)
      : rows_(rows), region_(region), measure_(measure) {}

  double at(const Lines& theta) {
    const auto [entry, is_new] = seen_.try_emplace(theta, 0.0);
    if (is_new) best_ = std::min(best_, entry->second = rows_.value(theta, measure_));
    return entry->second;
  }

  // Of two lines the gentle one has a small integer slope: for each that comes into question the knees move, and the
  // steep slope follows them.
  void from(const Shape& shape, RealSearch& real, const Interruption& interruption) {
    if (!real.two()) {
      for (int D = std::max(shape.D - 8, 1); D <= std::min(shape.D + 8, kMaxD); ++D)
        polish(nearest(real.at(D, 1, shape.slopes)).first, interruption);
      return;
    }
    const int B = base(shape), first = static_cast<int>(shape.slopes.a * B);
    for (int S = std::max(first - 1, 0); S <= first + 2; ++S) {
      Shape at = real.beside(double(S) / B, shape.D, shape.D2, shape.slopes.b);
      auto [theta, kl] = nearest(at);
      for (bool moved = true; moved;) {
        stop_if_requested(interruption);
        moved = false;
        Shape best = at;
        for (int move = 0; move < 49; ++move) {
          const int D = at.D + move / 7 - 3, D2 = at.D2 + move % 7 - 3;
          if (D < 1 || D > kMaxD || D2 < 1 || D2 > D) continue;
          const Shape next = real.beside(double(S) / B, D, D2, at.slopes.b);
          const auto [there, value] = nearest(next);
          if (!(value < kl - kTie)) continue;
          theta = there;
          kl = value;
          best = next;
          moved = true;
        }
        at = best;
      }
      if (kl <= best_ + kPromising) polish(theta, interruption);
    }
  }

  // Single numbers, and pairs of them, move until none gains.
  void polish(Lines theta, const Interruption& interruption) {
    if (!region_.contains(theta)) return;
    double kl = at(theta);
    for (bool moved = true; moved;) {
      stop_if_requested(interruption);
      moved = false;
      Lines best = theta;
      for_neighbours(theta, [&](const Lines& next) {
        if (!region_.contains(next)) return;
        const double value = at(next);
        if (!(value < kl - kTie)) return;
        kl = value;
        best = next;
        moved = true;
      });
      theta = best;
    }
  }

  // Slopes, knees and the lowest score move, by much and then by less, and B follows; then all are polished.
  // From shapes of the least KL it is a long way to the least error of outputs.
  void reshape(const Shape& shape, const Interruption& interruption) {
    constexpr int Lines::* kMoved[] = {&Lines::S, &Lines::S2, &Lines::D, &Lines::D2};
    auto [theta, kl] = nearest(shape);
    if (!region_.contains(theta)) return;
    int end = theta.B - theta.S * theta.D - theta.S2 * theta.D2;
    const auto tried = [&, &theta = theta, &kl = kl](Lines next, int next_end) {
      next.B = next.S * next.D + next.S2 * next.D2 + next_end;
      if (!region_.contains(next)) return false;
      const double value = at(next);
      if (!(value < kl - kTie)) return false;
      theta = next;
      end = next_end;
      kl = value;
      return true;
    };
    for (int step = 16; step >= 1;) {
      stop_if_requested(interruption);
      bool moved = tried(theta, std::max(end - step * region_.floor, region_.floor << region_.f)) |
                   tried(theta, end + step * region_.floor);
      for (int i = 0; i < 4; ++i)
        for (int by : {step, -step}) {
          Lines one = theta;
          one.*kMoved[i] += by;
          moved |= tried(one, end);
          for (int j = i + 1; j < 4; ++j)
            for (int other : {step, -step}) {
              Lines both = one;
              both.*kMoved[j] += other;
              moved |= tried(both, end);
            }
        }
      if (!moved) step /= 2;
    }
    polish(theta, interruption);
  }

  LinesResult result() const {
    LinesResult found;
    found.kl = found.runner_up_kl = HUGE_VAL;
    for (const auto& [theta, kl] : seen_) {  // in the order of preference
      if (kl < found.kl - kTie) {
        found.runner_up = found.best;
        found.runner_up_kl = found.kl;
        found.best = theta;
        found.kl = kl;
      } else if (kl < found.runner_up_kl - kTie) {
        found.runner_up = theta;
        found.runner_up_kl = kl;
      }
    }
    if (found.runner_up_kl == HUGE_VAL) {
      found.runner_up = found.best;
      found.runner_up_kl = found.kl;
    }
    found.evaluated = static_cast<int64_t>(seen_.size());
    return found;
  }

 private:
  // What polishing gains at most, of its own experience.
  static constexpr double kPromising = 5e-4;

  // The largest base for which the slopes fit.
  int base(const Shape& shape) const {
    const double steepest = std::max({shape.slopes.a, shape.slopes.b, 1e-9});
    return static_cast<int>(std::min(double(region_.max_base), (kMaxSlope + 0.5) / steepest));
  }

  // The best of the integers around a shape's slopes.
  std::pair<Lines, double> nearest(const Shape& shape) {
    const int B = base(shape);
    std::pair<Lines, double> best{{}, HUGE_VAL};
    for (int corner = 0; corner < 4; ++corner) {
      const int S = static_cast<int>(shape.slopes.a * B + 1e-6) + corner % 2;
      const int S2 = region_.lines > 1 ? static_cast<int>(shape.slopes.b * B) + corner / 2 : 0;
      const Lines theta{B, S, shape.D, S2, shape.D2, region_.f};
      if (!region_.contains(theta)) continue;
      const double kl = at(theta);
      if (kl < best.second - kTie) best = {theta, kl};
    }
    return best;
  }

  template <class Visit>
  static void for_neighbours(const Lines& theta, const Visit& visit) {
    constexpr int Lines::* kMoved[] = {&Lines::S, &Lines::S2, &Lines::D, &Lines::D2, &Lines::B};
    for (int i = 0; i < 5; ++i)
      for (int by : {1, -1, 2, -2}) {
        Lines one = theta;
        one.*kMoved[i] += by;
        visit(one);
        for (int j = i + 1; j < 5; ++j)
          for (int other : {1, -1, 2, -2}) {
            Lines both = one;
            both.*kMoved[j] += other;
            visit(both);
          }
      }
  }

  struct Preferred {
    bool operator()(const Lines& a, const Lines& b) const {
      return std::array{a.D, a.D2, a.S, a.S2, a.B} < std::array{b.D, b.D2, b.S, b.S2, b.B};
    }
  };

  const SampledRows& rows_;
  const LinesRegion& region_;
  const Measure measure_;
  std::map<Lines, double, Preferred> seen_;
  double best_ = HUGE_VAL;
};

}  // namespace

LinesResult search_lines(const SampledRows& rows, const LinesRegion& region, Measure measure,
                         const Interruption& interruption) {
  RealSearch real(rows, region);
  Descent descent(rows, region, measure);
  descent.at({region.max_base, 0, 1, 0, 1, region.f});
  for (const Shape& shape : real.shapes(interruption))
    if (measure == Measure::kDivergence)
      descent.from(shape, real, interruption);
    else
      descent.reshape(shape, interruption);
  return descent.result();
}

}  // namespace hccs::calibration
