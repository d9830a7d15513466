#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <thread>

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

void add_row(HeadState& head, MassSums& sums, const int64_t* exp_table, const int8_t* x, int length, int64_t weight) {
  int8_t m = -128;
  for (int i = 0; i < length; ++i) m = std::max(m, x[i]);
  uint8_t* delta = head.bucket(length).append(weight);
  for (int i = 0; i < length; ++i) delta[i] = static_cast<uint8_t>(m - x[i]);  // eq. 1, before the clamp
  int64_t total = 0;
  for (int i = 0; i < length; ++i) total += exp_table[delta[i]];
  const double sum = static_cast<double>(total);
  sums.add(delta, length, std::llrint(std::ldexp(1.0, kExpBits + kMassBits) / sum), weight);
  sums.add_logarithm(std::log(std::ldexp(sum, -kExpBits)), weight);
}

void add_float_row(HeadState& head, MassSums& sums, double scale, const float* z, int length, int64_t weight,
                   std::vector<double>& p) {
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
}

}  // namespace

Statistics::Statistics(int n, std::vector<double> scale, bool from_float)
    : n_(n), from_float_(from_float), scale_(std::move(scale)), exp_(scale_.size()), heads_(scale_.size()) {
  for (size_t h = 0; h < scale_.size(); ++h)
    for (int d = 0; d < kDistances; ++d) exp_[h][d] = std::llrint(std::ldexp(std::exp(-d * scale_[h]), kExpBits));
}

void Statistics::update(const Batch& batch, int threads) {
  // A head belongs to one thread, so that nothing is shared.
  const auto work = [&](int thread) {
    std::vector<int8_t> space(batch.columns);
    std::vector<float> float_space(batch.z ? batch.columns : 0);
    std::vector<double> p(batch.z ? batch.columns : 0);
    for (int64_t g = 0; g < batch.groups; ++g) {
      const int h = batch.head_of_group[g];
      if (h % threads != thread) continue;
      MassSums sums(heads_[h].sums);
      for (int64_t row = g * batch.rows; row < (g + 1) * batch.rows; ++row) {
        const int64_t at = row * batch.columns, weight = batch.weights ? batch.weights[row] : 1;
        int length = static_cast<int>(batch.columns);
        const int8_t* x = batch.x ? batch.x + at : nullptr;
        const float* z = batch.z ? batch.z + at : nullptr;
        if (batch.selection == Selection::kLengths) length = batch.lengths[row];
        if (batch.selection == Selection::kMask) {
          if (x)
            x = compress(x, batch.mask + at, batch.columns, space.data(), length);
          else
            z = compress(z, batch.mask + at, batch.columns, float_space.data(), length);
        }
        if (length == 0 || weight == 0) continue;
        if (x)
          add_row(heads_[h], sums, exp_[h].data(), x, length, weight);
        else
          add_float_row(heads_[h], sums, scale_[h], z, length, weight, p);
      }
    }
  };
  // Memory may run out in any thread; the caller hears of it once all have stopped.
  std::vector<std::exception_ptr> failures(threads);
  const auto guarded = [&](int thread) noexcept {
    try {
      work(thread);
    } catch (...) {
      failures[thread] = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (int t = 1; t < threads; ++t) workers.emplace_back(guarded, t);
  guarded(0);
  for (std::thread& worker : workers) worker.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

void Statistics::merge(const Statistics& other) {
  for (size_t h = 0; h < heads_.size(); ++h) {
    const HeadState& from = other.heads_[h];
    for (int d = 0; d < kDistances; ++d) heads_[h].sums.mass[d] += from.sums.mass[d];
    heads_[h].sums.logarithm += from.sums.logarithm;
    for (const auto& [length, bucket] : from.lengths) heads_[h].bucket(length).merge(bucket);
  }
}

void Statistics::count_pending() {
  for (HeadState& head : heads_)
    for (auto& [length, bucket] : head.lengths) bucket.count_pending();
}

void Statistics::settle() {
  for (HeadState& head : heads_)
    for (auto& [length, bucket] : head.lengths) bucket.settle();
}

}  // namespace hccs::calibration
