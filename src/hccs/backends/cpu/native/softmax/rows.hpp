// Walking over rows: where each row's data, mask and parameters lie. Shared by all instruction sets.
//
// Everything here has internal linkage: each translation unit is compiled for another instruction set,
// and a function shared between them would let the linker keep a copy that this machine cannot run.
#pragma once

#include <type_traits>

#include "softmax/job.hpp"

namespace hccs {
namespace {

// Steps through StridedRows in runs: rows that lie at one stride from each other.
class RowCursor {
 public:
  RowCursor(const StridedRows& rows, int64_t first) : rows_(rows), at_(rows.base) {
    for (int d = rows.ndim - 1; d >= 0; --d) {
      index_[d] = first % rows.shape[d];
      first /= rows.shape[d];
      at_ += index_[d] * rows.stride[d];
    }
  }
  const char* at() const { return at_; }
  int64_t stride() const { return rows_.ndim ? rows_.stride[rows_.ndim - 1] : 0; }
  // How many rows the run still has.
  int64_t left() const { return rows_.ndim ? rows_.shape[rows_.ndim - 1] - index_[rows_.ndim - 1] : INT64_MAX; }
  // `rows` may not exceed left().
  void advance(int64_t rows) {
    int d = rows_.ndim - 1;
    if (d < 0) return;
    at_ += rows * rows_.stride[d];
    index_[d] += rows;
    for (; d > 0 && index_[d] == rows_.shape[d]; --d) {  // carry into the outer dimensions
      at_ += rows_.stride[d - 1] - rows_.shape[d] * rows_.stride[d];
      index_[d] = 0;
      ++index_[d - 1];
    }
  }

 private:
  const StridedRows& rows_;
  const char* at_;
  int64_t index_[StridedRows::kMaxDims];
};

// The head of each successive row.
class HeadCursor {
 public:
  HeadCursor(const SoftmaxJob& job, int64_t first)
      : job_(job), group_(first / job.rows_per_group), left_(job.rows_per_group - first % job.rows_per_group) {}
  int64_t index() const { return job_.head_of_group ? job_.head_of_group[group_] : 0; }
  template <class Kind = Head>
  const Kind& head() const {
    if constexpr (std::is_same_v<Kind, WideHead>)
      return job_.wide_heads[index()];
    else
      return job_.heads[index()];
  }
  // How many rows from here on have this head, at least.
  int64_t left() const { return job_.head_of_group ? left_ : INT64_MAX; }
  void advance(int64_t rows) {
    for (left_ -= rows; left_ <= 0; left_ += job_.rows_per_group) ++group_;
  }

 private:
  const SoftmaxJob& job_;
  int64_t group_, left_;
};

// Calls fn<width, masking>(job, begin, end) for the width of the job's outputs and its masking.
template <template <Width, Masking> class Fn>
void for_job(const SoftmaxJob& job, int64_t begin, int64_t end) {
  auto with_width = [&]<Width kWidth>() {
    switch (job.masking) {
      case Masking::kNone: return Fn<kWidth, Masking::kNone>::run(job, begin, end);
      case Masking::kLengths: return Fn<kWidth, Masking::kLengths>::run(job, begin, end);
      case Masking::kMask: return Fn<kWidth, Masking::kMask>::run(job, begin, end);
    }
  };
  if (is_u8(job.mode)) return with_width.template operator()<Width::kU8>();
  with_width.template operator()<Width::kI16>();
}

}  // namespace
}  // namespace hccs
