#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <stdexcept>

#include "common/parallel_for.hpp"

namespace hccs::calibration {

namespace {

// Adds w/sum(exp) at the distance of every logit of a row. 64-bit sums carry over into 128 bits before they can
// overflow: a row adds at most length * 2^kMassBits to any of them.
class MassSums {
 public:
  explicit MassSums(HeadSums& sums) : sums_(sums) {}
  ~MassSums() { carry(); }

  void add(const uint8_t* delta, int length, int64_t share, int64_t weight) {
    const Int128 room = Int128(length) * weight;
    if (room > kRoom) {
      for (int i = 0; i < length; ++i) sums_.mass[delta[i]] += Int128(share) * weight;
      return;
    }
    reserve(static_cast<int64_t>(room));
    share *= weight;
    for (int i = 0; i < length; ++i) short_[delta[i]] += share;
  }
  void add_each(const uint8_t* delta, const double* p, int length, int64_t weight) {
    for (int i = 0; i < length; ++i) sums_.mass[delta[i]] += Int128(std::llrint(std::ldexp(p[i], kMassBits))) * weight;
  }
  void add_logarithm(double value, int64_t weight) {
    sums_.logarithm += Int128(std::llrint(std::ldexp(value, kMassBits))) * weight;
  }

 private:
  static constexpr int64_t kRoom = int64_t(1) << (62 - kMassBits);
  void reserve(int64_t room) {
    if (used_ + room > kRoom) carry();
    used_ += room;
  }
  void carry() {
    for (int d = 0; d < kDistances; ++d) {
      sums_.mass[d] += short_[d];
      short_[d] = 0;
    }
    used_ = 0;
  }

  HeadSums& sums_;
  int64_t used_ = 0;
  std::array<int64_t, kDistances> short_{};
};

// The valid logits of a row, side by side.
template <class T>
const T* compress(const T* x, const uint8_t* mask, int64_t columns, T* space, int& length) {
  length = 0;
  for (int64_t i = 0; i < columns; ++i) {
    space[length] = x[i];
    length += mask[i] != 0;
  }
  return space;
}

// The int8 softmax of a row given by its distances: into the sums, and into the sample.
void add_distances(MassSums& sums, RowSample& sample, const int64_t* exp_table, const uint8_t* delta, int length,
                   int64_t weight) {
  int64_t total = 0;
  for (int i = 0; i < length; ++i) total += exp_table[delta[i]];
  const double sum = static_cast<double>(total);
  sums.add(delta, length, std::llrint(std::ldexp(1.0, kExpBits + kMassBits) / sum), weight);
  sums.add_logarithm(std::log(std::ldexp(sum, -kExpBits)), weight);
  sample.offer(delta, length, RowSample::place(delta, length, total), weight);
}

void add_row(HeadState& head, MassSums& sums, const int64_t* exp_table, const int8_t* x, int length, int64_t weight) {
  int8_t m = -128;
  for (int i = 0; i < length; ++i) m = std::max(m, x[i]);
  uint8_t* delta = head.bucket(length).append(weight);
  for (int i = 0; i < length; ++i) delta[i] = static_cast<uint8_t>(m - x[i]);  // eq. 1, before the clamp
  add_distances(sums, head.sample, exp_table, delta, length, weight);
}

void add_float_row(HeadState& head, MassSums& sums, MassSums& quantised_sums, const int64_t* exp_table, double scale,
                   const float* z, int length, int64_t weight, std::vector<double>& p) {
  const auto quantised = [&](double value) {
    return static_cast<int>(std::clamp(std::nearbyint(value / scale), -128.0, 127.0));
  };
  const float top = *std::max_element(z, z + length);
  const int m = quantised(top);
  uint8_t* delta = head.bucket(length).append(weight);
  double total = 0;
  for (int i = 0; i < length; ++i) {
    delta[i] = static_cast<uint8_t>(m - quantised(z[i]));
    total += p[i] = std::exp(double(z[i]) - top);
  }
  double negative_entropy = 0;
  for (int i = 0; i < length; ++i) {
    p[i] /= total;
    if (p[i] > 0) negative_entropy += p[i] * (double(z[i]) - top);
  }
  sums.add_each(delta, p.data(), length, weight);
  sums.add_logarithm(negative_entropy - std::log(total), weight);
  add_distances(quantised_sums, head.sample, exp_table, delta, length, weight);
}

}  // namespace

bool HeadState::counted() const {
  return std::any_of(lengths.begin(), lengths.end(), [](const auto& entry) { return entry.second.counted(); });
}

Int128 HeadState::weight() const {
  Int128 sum = 0;
  for (const auto& [length, bucket] : lengths) sum += bucket.weight();
  return sum;
}

Statistics::Statistics(int n, std::vector<double> scale, bool from_float)
    : n_(n), from_float_(from_float), scale_(std::move(scale)), exp_(scale_.size()), heads_(scale_.size()) {
  if (n < 1 || n > kMaxLength) throw std::invalid_argument("n out of range");
  for (size_t h = 0; h < scale_.size(); ++h) {
    if (!(scale_[h] > 0)) throw std::invalid_argument("scale out of range");
    for (int d = 0; d < kDistances; ++d) exp_[h][d] = std::llrint(std::ldexp(std::exp(-d * scale_[h]), kExpBits));
    heads_[h].sample = RowSample(RowSample::most_rows(n));
  }
}

void Statistics::require_room(const std::vector<Int128>& more) const {
  for (size_t h = 0; h < heads_.size(); ++h)
    if (heads_[h].weight() + more[h] > INT64_MAX) throw std::overflow_error("the weight of a head's rows");
}

void Statistics::update(const Batch& batch, int threads) {
  const std::unique_lock lock(mutex_);
  std::vector<Int128> more(heads_.size());
  for (int64_t g = 0; g < batch.groups; ++g)
    for (int64_t row = g * batch.rows; row < (g + 1) * batch.rows; ++row)
      more[batch.head_of_group[g]] += batch.weights ? batch.weights[row] : 1;
  require_room(more);
  ++version_;
  // A head belongs to one part, so that nothing is shared.
  const auto work = [&](int64_t part) {
    std::vector<int8_t> space(batch.columns);
    std::vector<float> float_space(batch.z ? batch.columns : 0);
    std::vector<double> p(batch.z ? batch.columns : 0);
    for (int64_t g = 0; g < batch.groups; ++g) {
      const int h = batch.head_of_group[g];
      if (h % threads != part) continue;
      MassSums sums(heads_[h].sums), quantised(heads_[h].quantised);
      for (int64_t row = g * batch.rows; row < (g + 1) * batch.rows; ++row) {
        const int64_t at = row * batch.columns, weight = batch.weights ? batch.weights[row] : 1;
        int length = static_cast<int>(batch.columns);
        const int8_t* x = batch.x ? batch.x + at : nullptr;
        const float* z = batch.z ? batch.z + at : nullptr;
        if (batch.masking == Masking::kLengths) length = batch.lengths[row];
        if (batch.masking == Masking::kMask) {
          if (x)
            x = compress(x, batch.mask + at, batch.columns, space.data(), length);
          else
            z = compress(z, batch.mask + at, batch.columns, float_space.data(), length);
        }
        if (length == 0 || weight == 0) continue;
        if (x)
          add_row(heads_[h], sums, exp_[h].data(), x, length, weight);
        else
          add_float_row(heads_[h], sums, quantised, exp_[h].data(), scale_[h], z, length, weight, p);
      }
    }
  };
  Interruption never;
  parallel_for(threads, threads, never, work);
}

void Statistics::merge(const Statistics& other) {
  const bool itself = &other == this;
  std::unique_lock mine(mutex_, std::defer_lock);
  std::shared_lock theirs(other.mutex_, std::defer_lock);
  if (itself)
    mine.lock();
  else
    std::lock(mine, theirs);
  if (other.n_ != n_ || other.from_float_ != from_float_ || other.scale_ != scale_)
    throw std::invalid_argument("statistics of another kind");
  std::vector<Int128> more;
  for (const HeadState& head : other.heads_) more.push_back(head.weight());
  require_room(more);
  ++version_;
  for (size_t h = 0; h < heads_.size(); ++h) {
    const HeadState& from = other.heads_[h];
    for (int d = 0; d < kDistances; ++d) heads_[h].sums.mass[d] += from.sums.mass[d];
    heads_[h].sums.logarithm += from.sums.logarithm;
    for (int d = 0; d < kDistances; ++d) heads_[h].quantised.mass[d] += from.quantised.mass[d];
    heads_[h].quantised.logarithm += from.quantised.logarithm;
    heads_[h].sample.merge(from.sample);
    for (const auto& [length, bucket] : from.lengths) {
      if (itself)
        heads_[h].bucket(length).merge(LengthBucket(bucket));
      else
        heads_[h].bucket(length).merge(bucket);
    }
  }
}

void Statistics::restore_bucket(int head, LengthBucket bucket) {
  const std::unique_lock lock(mutex_);
  HeadState& state = heads_.at(head);
  const int length = bucket.length();
  if (length > n_) throw std::invalid_argument("rows longer than n");
  if (!state.lengths.empty() && state.lengths.rbegin()->first >= length)
    throw std::invalid_argument("lengths that do not rise");
  if (state.weight() + bucket.weight() > INT64_MAX) throw std::overflow_error("the weight of a head's rows");
  ++version_;
  sample_kept_rows(head, bucket);
  state.lengths.emplace(length, std::move(bucket));
}

// Rows that are still there bring themselves into the sample; of counted ones only a file's own sample tells.
void Statistics::sample_kept_rows(int head, const LengthBucket& bucket) {
  HeadState& state = heads_[head];
  if (bucket.counted()) state.sample.lose();
  HeadSums unused;
  MassSums quantised(from_float_ ? state.quantised : unused);
  for (int64_t r = 0; r < bucket.pending(); ++r)
    add_distances(quantised, state.sample, exp_[head].data(), bucket.row(r), bucket.length(), bucket.row_weight(r));
}

void Statistics::restore_sample(int head, const std::vector<int64_t>& lengths, const std::vector<int64_t>& weights,
                                const std::vector<uint8_t>& rows, const HeadSums& quantised) {
  const std::unique_lock lock(mutex_);
  HeadState& state = heads_.at(head);
  RowSample sample(state.sample.most());
  const auto require = [](bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
  };
  require(state.counted(), "a sample where every row is kept");
  require(lengths.size() == weights.size() && !lengths.empty() && int(lengths.size()) <= sample.most(),
          "a sample of another size");
  size_t at = 0;
  Int128 weight = 0;
  for (size_t r = 0; r < lengths.size(); ++r) {
    require(lengths[r] >= 1 && lengths[r] <= n_ && at + lengths[r] <= rows.size(), "a sampled row out of range");
    const uint8_t* row = rows.data() + at;
    require(row[0] == 0 && std::is_sorted(row, row + lengths[r]), "a sampled row without its maximum, or unsorted");
    require(weights[r] >= 1 && state.lengths.count(static_cast<int>(lengths[r])), "a sampled row that was not seen");
    int64_t total = 0;
    for (int64_t i = 0; i < lengths[r]; ++i) total += exp_[head][row[i]];
    const int length = static_cast<int>(lengths[r]);
    sample.offer(row, length, RowSample::place(row, length, total), weights[r]);
    weight += weights[r];
    at += lengths[r];
  }
  require(at == rows.size() && sample.rows().size() == lengths.size(), "sampled rows that repeat or are left over");
  require(weight <= state.weight(), "a sample heavier than its rows");
  if (from_float_) require_sums(head, quantised, false);
  ++version_;
  state.sample = std::move(sample);
  if (from_float_) state.quantised = quantised;
}

// Every row adds its weight to the softmax mass: exactly, but for roundings that are some 1e-10 of it at most.
void Statistics::require_sums(int head, const HeadSums& sums, bool from_float) const {
  constexpr double kRounding = 1e-9;
  const Int128 weight = heads_.at(head).weight();
  const Int128 most = weight * n_ << kMassBits;
  double total = 0;
  for (int d = 0; d < kDistances; ++d) {
    if (sums.mass[d] < 0 || sums.mass[d] > most) throw std::invalid_argument("a mass out of range");
    const double mass = std::ldexp(static_cast<double>(sums.mass[d]), -kMassBits);
    total += from_float ? mass : std::ldexp(mass * static_cast<double>(exp_[head][d]), -kExpBits);
  }
  const double rows = static_cast<double>(weight);
  if (!(std::abs(total - rows) <= kRounding * rows)) throw std::invalid_argument("masses that differ from the rows");
  // For int8 the logarithm of sum exp, in 0..log n; for float sum p log p, in -log n..0.
  const double logarithm = std::ldexp(static_cast<double>(sums.logarithm), -kMassBits) * (from_float ? -1 : 1);
  if (!(logarithm >= -kRounding * rows && logarithm <= (std::log(double(n_)) + kRounding) * rows))
    throw std::invalid_argument("logarithms out of range");
}

void Statistics::restore_sums(int head, const HeadSums& sums) {
  const std::unique_lock lock(mutex_);
  require_sums(head, sums, from_float_);
  ++version_;
  heads_.at(head).sums = sums;
}

void Statistics::count_pending() {
  const std::unique_lock lock(mutex_);
  for (HeadState& head : heads_)
    for (auto& [length, bucket] : head.lengths) bucket.count_pending();
}

std::unique_lock<std::shared_mutex> Statistics::settle() {
  std::unique_lock lock(mutex_);
  for (HeadState& head : heads_)
    for (auto& [length, bucket] : head.lengths) bucket.settle();
  return lock;
}

}  // namespace hccs::calibration
