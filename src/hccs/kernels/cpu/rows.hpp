// Walking over rows: where each row's data, mask and parameters lie. Shared by all instruction sets.
//
// Everything here has internal linkage: each translation unit is compiled for another instruction set,
// and a function shared between them would let the linker keep a copy that this machine cannot run.
#pragma once

#include "softmax.hpp"

namespace hccs {
namespace {

// Steps through StridedRows one row at a time without divisions.
class RowCursor {
 public:
  RowCursor(const StridedRows& rows, int64_t first) : rows_(rows), at_(rows.base) {
    for (int d = rows.ndim - 1; d >= 0; --d) {
      index_[d] = rows.shape[d] ? first % rows.shape[d] : 0;
      first = rows.shape[d] ? first / rows.shape[d] : 0;
      at_ += index_[d] * rows.stride[d];
    }
  }
  const char* next() {
    const char* here = at_;
    for (int d = rows_.ndim - 1; d >= 0; --d) {
      at_ += rows_.stride[d];
      if (++index_[d] < rows_.shape[d]) break;
      at_ -= rows_.shape[d] * rows_.stride[d];
      index_[d] = 0;
    }
    return here;
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
      : job_(job), group_(first / job.rows_per_group), row_(first % job.rows_per_group) {}
  const Head& next() {
    const Head& head = job_.heads[job_.head_of_group ? job_.head_of_group[group_] : 0];
    if (++row_ == job_.rows_per_group) {
      row_ = 0;
      ++group_;
    }
    return head;
  }

 private:
  const SoftmaxJob& job_;
  int64_t group_, row_;
};

// Calls fn<mode, masking>(job, begin, end) for the job's mode and masking.
template <template <Mode, Masking> class Fn>
void for_job(const SoftmaxJob& job, int64_t begin, int64_t end) {
  auto with_mode = [&]<Mode kMode>() {
    switch (job.masking) {
      case Masking::kNone: return Fn<kMode, Masking::kNone>::run(job, begin, end);
      case Masking::kLengths: return Fn<kMode, Masking::kLengths>::run(job, begin, end);
      case Masking::kMask: return Fn<kMode, Masking::kMask>::run(job, begin, end);
    }
  };
  switch (job.mode) {
    case Mode::kI16Div: return with_mode.template operator()<Mode::kI16Div>();
    case Mode::kI16Clb: return with_mode.template operator()<Mode::kI16Clb>();
    case Mode::kU8Div: return with_mode.template operator()<Mode::kU8Div>();
    case Mode::kU8Clb: return with_mode.template operator()<Mode::kU8Clb>();
  }
}

}  // namespace
}  // namespace hccs
