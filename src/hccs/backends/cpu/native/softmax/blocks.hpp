// The vector kernel, written once. `Isa` supplies the instructions; each <isa>.hpp defines one.
//
// Rows go in blocks of Isa::kRows through three passes over data that stays in the L1 cache: maxima,
// distance sums, output. A row's reductions have long latency and little work, so the block's rows are
// reduced together (a transpose folded into the reduction), and one vector division serves them all.
//
// The sum needs no multiply per lane: Z = n_valid * B - S * sum(delta), and sum(delta) is a byte sum. In the wide form
// it is what every column loses against the row's maximum: Z = n_valid * (B >> f) - sum((B >> f) - s).
#pragma once

#include "softmax/normaliser.hpp"
#include "softmax/rows.hpp"

namespace hccs {
namespace {

// A full vector of columns, or the row's last few.
struct Full {};
struct Tail {
  int count;
};

// The parameters of a block's rows.
template <class Isa>
struct BlockHeads {
  static constexpr int kRows = Isa::kRows;
  using Kind = typename Isa::HeadKind;
  alignas(64) int32_t B[kRows];  // of the wide form: B >> f
  alignas(64) int32_t S[kRows];
  const typename Isa::HeadTable* table[kRows];

  // Loads the next `live` rows' parameters and says whether they are one head's. They mostly are, and
  // mostly the head of the block before: then nothing is to do.
  bool load(HeadCursor& cursor, int live) {
    if (cursor.left() >= live) {
      if (&cursor.head<Kind>() != common_) {
        common_ = &cursor.head<Kind>();
        tables_[0] = typename Isa::HeadTable(*common_);
        for (int r = 0; r < kRows; ++r) set(r, *common_, &tables_[0]);
      }
      cursor.advance(live);
      return true;
    }
    common_ = nullptr;
    for (int r = 0; r < live; ++r, cursor.advance(1)) {
      tables_[r] = typename Isa::HeadTable(cursor.head<Kind>());
      set(r, cursor.head<Kind>(), &tables_[r]);
    }
    for (int r = live; r < kRows; ++r) set(r, {}, &tables_[0]);
    return false;
  }

 private:
  void set(int r, const Kind& head, const typename Isa::HeadTable* head_table) {
    if constexpr (std::is_same_v<Kind, WideHead>)
      B[r] = head.B >> head.f;
    else
      B[r] = head.B;
    S[r] = head.S;
    table[r] = head_table;
  }
  const Kind* common_ = nullptr;
  typename Isa::HeadTable tables_[kRows];
};

// The columns that take part in a block's rows: all; the first so many, or those a mask names, the same in
// every row (padding) or other ones in each row (causal).
enum class Columns { kAll, kCommonLength, kCommonMask, kLengths, kMask };

// One block of rows, any number of them live, and what is known of it between the passes.
template <class Isa, Width kWidth>
struct Block {
  using Out = typename Output<kWidth>::type;
  static constexpr int kRows = Isa::kRows;
  const int8_t* x;
  Out* out;  // where the passes write: the result, or a stage from which it is copied past the caches
  Out* result;
  int64_t columns;
  Mode mode;
  int live;
  Columns kind;
  BlockHeads<Isa> heads;
  const uint8_t* mask;  // of the first row; the others follow at mask_stride
  int64_t mask_stride;
  alignas(64) int32_t length[kRows];
  alignas(64) uint32_t length_bytes[kRows];  // the length in all four bytes, for rows of fewer than 256 columns
  alignas(64) uint32_t m[kRows];             // the maximum in all four bytes
  typename Isa::Bytes kept[kRows * (Isa::kKeptVectors ? Isa::kKeptVectors : 1)];  // distances, of short rows
  typename Isa::template Normaliser<kWidth> norm;

  HCCS_INLINE void set_lengths(const char* lengths, int64_t stride) {
    if (live == kRows && stride == sizeof(int32_t)) {
      std::memcpy(length, lengths, sizeof length);
    } else {
      for (int r = 0; r < kRows; ++r) length[r] = 0;
      for (int r = 0; r < live; ++r) std::memcpy(&length[r], lengths + r * stride, sizeof(int32_t));
    }
    for (int r = 0; r < kRows; ++r) length_bytes[r] = static_cast<uint32_t>(length[r]) * 0x01010101u;
  }
};

// The three passes. With kOneHead the rows' common parameters stay in registers. With kVectors > 0 also every
// row is exactly that many vectors long and all rows are live, so that loops unroll; with 0 anything goes.
template <class Isa, Width kWidth, Columns kColumns, bool kOneHead, int kVectors>
class BlockPasses {
 public:
  HCCS_INLINE explicit BlockPasses(Block<Isa, kWidth>& data)
      : block(data), heads(data.heads), x(data.x), out(data.out) {
    if constexpr (kCommon)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) common_lanes[v] = lanes(0, v * Isa::kBytes, Full{});
  }

  HCCS_INLINE void find_maxima() {
    Bytes maxima[kRows];
    for_rows([&](int r) HCCS_INLINE_LAMBDA {
      maxima[r] = Isa::splat(-128);
      if (kColumns != Columns::kLengths) block.norm.valid[r] = 0;
      if (r >= live()) return;
      const int32_t valid = maximum(r, maxima[r]);
      if (kColumns != Columns::kLengths) block.norm.valid[r] = valid;
    });
    if (kColumns == Columns::kLengths) std::memcpy(block.norm.valid, block.length, sizeof block.length);
    Isa::reduce_max(maxima, block.m);
    through_memory();
  }

  HCCS_INLINE void sum_distances() {
    const HeadVectors common(*heads.table[0]);
    const auto sum_rows = [&](const HeadVectors& head) HCCS_INLINE_LAMBDA {
      typename Isa::Sums sums[kRows];
      for_rows([&](int r) HCCS_INLINE_LAMBDA {
        sums[r] = Isa::no_sums();
        if (r < live()) distances(r, kOneHead ? head : HeadVectors(*heads.table[r]), sums[r]);
      });
      Isa::template reduce_sum<kOneHead>(sums, block.norm.sum, head);
    };
    with_head(common, sum_rows);
    block.norm.solve(heads.B, heads.S, block.mode);
    through_memory();
  }

  // False when an unrolled block met a row of the short-row rule, and left the block to the general one.
  HCCS_INLINE bool emit() {
    const HeadVectors common(*heads.table[0]);
    const bool short_rows = kWidth == Width::kU8 && Isa::any(block.norm.e);
    if (kVectors && short_rows) return false;
    with_head(common, [&](const HeadVectors& head) HCCS_INLINE_LAMBDA {
      for_rows([&](int r) HCCS_INLINE_LAMBDA {
        if (r < live()) emit_row(r, kOneHead ? head : HeadVectors(*heads.table[r]), !kVectors && short_rows);
      });
    });
    return true;
  }

 private:
  using Bytes = typename Isa::Bytes;
  using HeadVectors = typename Isa::template HeadVectors<kWidth>;
  static constexpr int kRows = Isa::kRows;
  static constexpr bool kByLength = kColumns == Columns::kCommonLength || kColumns == Columns::kLengths;
  static constexpr bool kByMask = kColumns == Columns::kCommonMask || kColumns == Columns::kMask;
  // Lanes that all rows share are found once per pass.
  static constexpr bool kCommon = kVectors && (kColumns == Columns::kCommonLength || kColumns == Columns::kCommonMask);

  Block<Isa, kWidth>& block;
  const BlockHeads<Isa>& heads;
  const int8_t* const x;
  typename Block<Isa, kWidth>::Out* const out;
  typename Isa::Lanes common_lanes[kCommon ? kVectors : 1];

  // Rows are unrolled, except for those that are rare, or unrolled themselves and long: they would take long to
  // compile.
  template <class Action>
  static HCCS_INLINE void for_rows(Action action) {
    if constexpr (kOneHead && !(kCommon && kVectors > 4)) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) action(r);
    } else {
#pragma GCC unroll 1
      for (int r = 0; r < kRows; ++r) action(r);
    }
  }

  // Unrolled rows of one head have loops of their own for heads with a shift and for those without.
  template <class Action>
  static HCCS_INLINE void with_head(const HeadVectors& common, Action action) {
    if constexpr (Isa::kShifts && kOneHead && kVectors) {
      HeadVectors head = common;
      if (common.shifted) {
        head.shifted = true;
        action(head);
      } else {
        head.shifted = false;
        action(head);
      }
    } else {
      action(common);
    }
  }

  // Distances of short rows stay in memory between the passes: where two are weighed to be summed, which heads with a
  // shift do without, finding them again takes longer than loading them.
  static constexpr bool kKeeps = kVectors && kVectors <= Isa::kKeptVectors;
  static HCCS_INLINE bool keeps(const HeadVectors& head) {
    if constexpr (kKeeps) return !head.shifted;
    return false;
  }
  HCCS_INLINE Bytes& kept(int r, int64_t k) const { return block.kept[r * kVectors + k / Isa::kBytes]; }

  HCCS_INLINE int live() const { return kVectors ? kRows : block.live; }
  HCCS_INLINE int64_t columns() const { return kVectors ? kVectors * Isa::kBytes : block.columns; }
  HCCS_INLINE int32_t length(int r) const { return block.length[kColumns == Columns::kCommonLength ? 0 : r]; }
  // Columns of row r to look at. Unrolled rows look at all and switch lanes off.
  HCCS_INLINE int64_t extent(int r) const { return kByLength && !kVectors ? length(r) : columns(); }

  // Calls step(k, on, part) for each vector of row r: first column, lanes that take part, and how much of the
  // vector is the row's memory.
  template <class Step>
  HCCS_INLINE void for_columns(int r, Step step) const {
    if constexpr (kCommon) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) step(v * Isa::kBytes, common_lanes[v], Full{});
    } else if constexpr (kVectors) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) step(v * Isa::kBytes, lanes(r, v * Isa::kBytes, Full{}), Full{});
    } else {
      const int64_t end = extent(r);
      int64_t k = 0;
      for (; k + Isa::kBytes <= end; k += Isa::kBytes) step(k, lanes(r, k, Full{}), Full{});
      if (k == end) return;
      const Tail tail{static_cast<int>(end - k)};
      if (kByLength && k + Isa::kBytes <= columns())
        step(k, Isa::lanes(tail), Full{});  // the row goes on: no need to take care at its end
      else
        step(k, lanes(r, k, tail), tail);
    }
  }
  // Rows of their own lanes find them anew in every pass: one comparison, from memory.
  template <class Part>
  HCCS_INLINE auto lanes(int r, int64_t k, Part part) const {
    if constexpr (kByMask)
      return Isa::lanes(block.mask + r * block.mask_stride + k, part);
    else if constexpr (kColumns == Columns::kLengths && kVectors)
      return Isa::lanes_below(block.length_bytes[r], static_cast<int>(k));
    else if constexpr (kColumns == Columns::kCommonLength && kVectors)
      return Isa::lanes(Tail{between(0, length(0) - static_cast<int>(k), Isa::kBytes)});
    else
      return Isa::lanes(part);
  }
  static int between(int low, int value, int high) { return value < low ? low : value > high ? high : value; }

  // Returns the number of valid columns.
  HCCS_INLINE int32_t maximum(int r, Bytes& top) const {
    int32_t counted = 0;
    for_columns(r, [&](int64_t k, auto on, auto part) HCCS_INLINE_LAMBDA {
      top = Isa::max(on, top, Isa::load(x + r * columns() + k, part));
      if constexpr (kByMask) counted += Isa::count(on);
    });
    if constexpr (kByMask) return counted;
    return kByLength ? length(r) : static_cast<int32_t>(columns());
  }

  HCCS_INLINE void distances(int r, const HeadVectors& head, typename Isa::Sums& sum) const {
    const Bytes top = Isa::splat_word(block.m[r]);
    for_columns(r, [&](int64_t k, auto on, auto part) HCCS_INLINE_LAMBDA {
      const Bytes delta = Isa::distance(on, top, Isa::load(x + r * columns() + k, part), head.D);
      if (keeps(head)) kept(r, k) = delta;
      sum = Isa::add_lost(sum, delta, head);
    });
  }

  HCCS_INLINE void emit_row(int r, const HeadVectors& head, bool short_rows) const {
    const typename Isa::template Emitter<kWidth> emitter(head, block.norm, r, short_rows);
    const Bytes top = Isa::splat_word(block.m[r]);
    for_columns(r, [&](int64_t k, auto on, auto part) HCCS_INLINE_LAMBDA {
      const int64_t at = r * columns() + k;
      if (keeps(head))
        emitter.store(out + at, kept(r, k), on, part);
      else
        emitter.store(out + at, Isa::distance(Isa::lanes(Full{}), top, Isa::load(x + at, part), head.D), on, part);
    });
    if constexpr (kByLength && !kVectors) zeros_behind(r);
  }

  // Zeros behind the vectors that emit_row wrote. A call of memset would cost as much as a short row.
  HCCS_INLINE void zeros_behind(int r) const {
    constexpr int kStep = Isa::kBytes / static_cast<int>(sizeof(*out));
    const int64_t written = (extent(r) + Isa::kBytes - 1) / Isa::kBytes * Isa::kBytes;
    int64_t k = written < columns() ? written : extent(r);
    for (; k + kStep <= columns(); k += kStep) Isa::store_zeros(out + r * columns() + k);
    for (; k < columns(); ++k) out[r * columns() + k] = 0;
  }
};

// The passes of blocks that are not unrolled, as functions: compiled once for all maskings and lengths.
template <class Passes, class Data>
__attribute__((noinline)) void find_maxima(Data& block) {
  Passes(block).find_maxima();
}
template <class Passes, class Data>
__attribute__((noinline)) void sum_distances(Data& block) {
  Passes(block).sum_distances();
}
template <class Passes, class Data>
__attribute__((noinline)) void emit(Data& block) {
  Passes(block).emit();
}

template <class Isa, Width kWidth, Masking kMasking>
class BlockRows {
 public:
  static void run(const SoftmaxJob& job, int64_t begin, int64_t end) {
    // The lengths in use, mostly: 32 to 512 with 64-byte vectors, 32 to 256 with 32-byte ones.
    if constexpr (Isa::template kUnrolls<kWidth>) {
      if (job.columns == Isa::kBytes) return blocks<1>(job, begin, end);
      if (job.columns == 2 * Isa::kBytes) return blocks<2>(job, begin, end);
      if (job.columns == 4 * Isa::kBytes) return blocks<4>(job, begin, end);
      if (job.columns == 8 * Isa::kBytes) return blocks<8>(job, begin, end);
    }
    return blocks<0>(job, begin, end);
  }

 private:
  using Data = Block<Isa, kWidth>;

  // Unrolled blocks are pipelined: the output pass of one runs between the first two passes of the next,
  // whose reductions it hides.
  template <int kVectors>
  static void blocks(const SoftmaxJob& job, int64_t begin, int64_t end) {
    HeadCursor heads(job, begin);
    RowCursor valid(job.valid, begin);
    Data slots[2];
    Data *next = &slots[0], *pending = nullptr;
    alignas(64) typename Data::Out stages[2][kStageElements];
    const bool staged = Isa::kStreams && job.past_caches && Isa::kRows * job.columns <= kStageElements;
    for (int64_t first = begin; first < end || pending;) {
      const bool more = first < end;
      if (more) {
        const bool one_head = fill(*next, staged ? stages[next - slots] : nullptr, job, first, end, heads, valid);
        first += next->live;
        if (!one_head || next->live < Isa::kRows || !unrolled<kVectors>(next->kind)) {
          general(*next, one_head);
          continue;
        }
      }
      if constexpr (kVectors) {
        if (more)
          with_kind(*next, [&]<Columns kKind>() HCCS_INLINE_LAMBDA {
            if constexpr (unrolled<kVectors>(kKind)) Unrolled<kKind, kVectors>(*next).find_maxima();
          });
        if (pending) finish<kVectors>(*pending);
        pending = nullptr;
        if (!more) break;
        with_kind(*next, [&]<Columns kKind>() HCCS_INLINE_LAMBDA {
          if constexpr (unrolled<kVectors>(kKind)) Unrolled<kKind, kVectors>(*next).sum_distances();
        });
        pending = next;
        next = next == &slots[0] ? &slots[1] : &slots[0];
      }
    }
    if constexpr (Isa::kStreams)
      if (staged) Isa::end_streaming();
  }

  // An output too large for the caches is better written past them: an ordinary store first reads the line
  // that it is about to overwrite, half as much traffic again.
  static constexpr int64_t kStageElements = 8192;
  static HCCS_INLINE void deliver(const Data& block) {
    if (!Isa::kStreams || block.out == block.result) return;
    const int64_t bytes = block.live * block.columns * static_cast<int64_t>(sizeof(*block.out));
    const char* from = reinterpret_cast<const char*>(block.out);
    char* const to = reinterpret_cast<char*>(block.result);
    const int64_t unaligned = -reinterpret_cast<uintptr_t>(to) % Isa::kBytes;
    int64_t i = unaligned < bytes ? unaligned : bytes;
    std::memcpy(to, from, i);
    if constexpr (Isa::kStreams)
      for (; i + Isa::kBytes <= bytes; i += Isa::kBytes) Isa::stream(to + i, Isa::load(from + i, Full{}));
    std::memcpy(to + i, from + i, bytes - i);
  }

  // Describes the next block; says whether its rows are one head's.
  static HCCS_INLINE bool fill(Data& block, typename Data::Out* stage, const SoftmaxJob& job, int64_t first,
                               int64_t end, HeadCursor& heads, RowCursor& valid) {
    const int64_t rows = end - first < Isa::kRows ? end - first : Isa::kRows;
    block.live = static_cast<int>(rows < valid.left() ? rows : valid.left());
    block.x = job.x + first * job.columns;
    block.result = static_cast<typename Data::Out*>(job.out) + first * job.columns;
    block.out = stage ? stage : block.result;
    block.columns = job.columns;
    block.mode = job.mode;
    block.kind = Columns::kAll;
    if constexpr (kMasking == Masking::kMask) {
      block.mask = reinterpret_cast<const uint8_t*>(valid.at());
      block.mask_stride = valid.stride();
      block.kind = valid.stride() == 0 ? Columns::kCommonMask : Columns::kMask;
    } else if constexpr (kMasking == Masking::kLengths) {
      if (valid.stride() == 0) {
        std::memcpy(&block.length[0], valid.at(), sizeof(int32_t));
        if (block.length[0] < job.columns) block.kind = Columns::kCommonLength;
      } else {
        block.set_lengths(valid.at(), valid.stride());
        block.kind = Columns::kLengths;
      }
    }
    if constexpr (kMasking != Masking::kNone) valid.advance(block.live);
    return block.heads.load(heads, block.live);
  }

  // Calls action<kind> for the block's kind, as far as the job's masking leaves it open.
  template <class Action>
  static HCCS_INLINE void with_kind(const Data& block, Action action) {
    if constexpr (kMasking == Masking::kNone) {
      action.template operator()<Columns::kAll>();
    } else if constexpr (kMasking == Masking::kMask) {
      if (block.kind == Columns::kCommonMask)
        action.template operator()<Columns::kCommonMask>();
      else
        action.template operator()<Columns::kMask>();
    } else {
      if (block.kind == Columns::kAll)
        action.template operator()<Columns::kAll>();
      else if (block.kind == Columns::kCommonLength)
        action.template operator()<Columns::kCommonLength>();
      else
        action.template operator()<Columns::kLengths>();
    }
  }

  // Long rows whose lanes differ lose more to finding them than they gain from unrolling.
  template <int kVectors>
  static constexpr bool unrolled(Columns kind) {
    const bool own_lanes = kind == Columns::kLengths || kind == Columns::kMask;
    return kVectors && (!own_lanes || kVectors <= 2) && (Isa::kUnrollsMasked || kind == Columns::kAll);
  }

  template <Columns kKind, int kVectors>
  using Unrolled = BlockPasses<Isa, kWidth, kKind, true, kVectors>;

  template <int kVectors>
  static HCCS_INLINE void finish(Data& block) {
    bool done = false;
    with_kind(block, [&]<Columns kKind>() HCCS_INLINE_LAMBDA {
      if constexpr (unrolled<kVectors>(kKind)) done = Unrolled<kKind, kVectors>(block).emit();
    });
    if (done)
      deliver(block);
    else
      general(block, true);
  }

  static void general(Data& block, bool one_head) {
    with_kind(block, [&]<Columns kKind>() HCCS_INLINE_LAMBDA {
      if (one_head)
        all_passes<BlockPasses<Isa, kWidth, kKind, true, 0>>(block);
      else
        all_passes<BlockPasses<Isa, kWidth, kKind, false, 0>>(block);
    });
    deliver(block);
  }
  template <class Passes>
  static HCCS_INLINE void all_passes(Data& block) {
    find_maxima<Passes>(block);
    sum_distances<Passes>(block);
    emit<Passes>(block);
  }
};

}  // namespace
}  // namespace hccs
