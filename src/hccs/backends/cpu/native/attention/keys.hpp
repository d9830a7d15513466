// Which keys a block of query rows attends to.
#pragma once

#include <cstring>

#include "attention/job.hpp"
#include "softmax/rows.hpp"

namespace hccs {
namespace {

constexpr int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

constexpr int kKeyBlock = 64;  // keys in units of which rows attend as a whole

struct Attended {
  int64_t first;  // in whole blocks of keys: no row attends to a key before it, and keys are counted from there
  int64_t full;   // blocks of keys that every row attends to as a whole
  int64_t keys;   // no row attends to a key from here on
  bool alike;     // every row attends to all keys before
  bool masked;    // a row skips keys before its last one
};

// Steps through a job's rows, up to kRows at a time.
template <int kRows>
class KeySelection {
 public:
  // `on` [kRows][columns] receives 1 for attended keys and 0 for others, from the first block on that is not attended
  // to as a whole; only its first row where all rows are alike. Its columns are counted as keys are.
  KeySelection(const AttentionJob& job, int64_t first, uint8_t* on, int64_t columns)
      : job_(job), valid_(job.valid, job.masking == Masking::kNone ? 0 : first), on_(on), columns_(columns) {}

  // The next rows, the first of which is the group's `query`.
  Attended next(int64_t query, int rows) {
    const int64_t position = query + job_.keys - job_.queries, begin = position - job_.before;
    const int64_t first = begin > 0 ? begin / kKeyBlock * kKeyBlock : 0;
    int64_t least = job_.keys, most = 0, given = 0;
    bool masked = false;
    for (int r = 0; r < rows; ++r) {
      int64_t length = job_.after < job_.keys - 1 - position - r ? position + r + 1 + job_.after : job_.keys;
      if (job_.masking != Masking::kNone) {
        masks_[r] = reinterpret_cast<const uint8_t*>(valid_.at());
        if (r == 0 || masks_[r] != masks_[r - 1]) given = given_length(masks_[r]);
        masked |= given == kNoPrefix;
        if (given != kNoPrefix && given < length) length = given;
        valid_.advance(1);
      }
      length = length > first ? length - first : 0;
      lengths_[r] = static_cast<int32_t>(length);
      if (length < least) least = length;
      if (length > most) most = length;
    }
    const bool late = begin + rows > 1;  // a row skips the first key
    const int64_t full = masked || late ? 0 : least / kKeyBlock;
    // The softmax kernel reads a mask's whole rows.
    const int64_t end = masked ? columns_ : round_up(most, kKeyBlock);
    const bool alike = !masked && !late && least == most;
    for (int r = 0; r < (alike ? 1 : rows); ++r) {
      spell_out(r, full * kKeyBlock, end, masked ? masks_[r] + first : nullptr);
      if (late && begin + r > first) std::memset(on_ + r * columns_, 0, begin + r - first);
    }
    return {first, full, most, alike, masked};
  }
  // Of each row of the last block: how many keys it attends to, or to which end where it is masked.
  const int32_t* lengths() const { return lengths_; }

 private:
  // A mask that is true up to some key, as padding makes it, is worth knowing as a length.
  static constexpr int64_t kNoPrefix = -1;
  int64_t given_length(const uint8_t* given) const {
    if (job_.masking == Masking::kLengths) {
      int32_t length;
      std::memcpy(&length, given, sizeof length);
      return length;
    }
    int64_t length = 0, others = 0;
    while (length < job_.keys && given[length]) ++length;
    for (int64_t j = length; j < job_.keys; ++j) others |= given[j];
    return others ? kNoPrefix : length;
  }

  void spell_out(int r, int64_t begin, int64_t end, const uint8_t* mask) {
    uint8_t* const on = on_ + r * columns_;
    const int64_t length = lengths_[r] > begin ? lengths_[r] : begin;
    if (begin >= end) return;
    if (mask) {
      for (int64_t j = begin; j < length; ++j) on[j] = mask[j] != 0;
    } else {
      std::memset(on + begin, 1, length - begin);
    }
    std::memset(on + length, 0, end - length);
  }

  const AttentionJob& job_;
  RowCursor valid_;
  uint8_t* const on_;
  const int64_t columns_;
  const uint8_t* masks_[kRows];
  int32_t lengths_[kRows];
};

}  // namespace
}  // namespace hccs
