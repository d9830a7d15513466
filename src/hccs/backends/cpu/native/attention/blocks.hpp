// The attention kernel, written once. `Isa` supplies the instructions; each attention_<isa>.cpp defines one.
//
// k and v of a head are packed once into panels. Query rows go in blocks: logits of the block, then scores, then the
// product with v, which leaves the registers as output; nothing larger than a block's rows times the keys is ever
// stored.
//
// Two identities save most of the work between the products (all of it modulo 2^32, where N fits):
//   N = B * sum(v) - S * sum(delta * v), sums over the attended keys: weights are distances, which fit 7 bits for
//       every B, and sum(v) of keys that a whole block attends to is a prefix sum, known from packing;
//   Z = B * count - S * sum(delta).
// Two lines have no such identity with one product: there weights are the scores themselves, N = sum(s * v). Scores of
// 8 bits fit a byte product as they are; those of 16 go through it as two bytes, unless the elements hold them. One
// line does the same where rows attend to keys of their own, whose sum(v) would be another product.
#pragma once

#include "attention/panels.hpp"
#include "common/interruption.hpp"

namespace hccs {
namespace {

template <class Isa>
class AttentionRows {
  using Element = typename Isa::Element;
  using Sums = typename Isa::Sums;
  using Ints = typename Isa::Ints;
  static constexpr int kLanes = Isa::kLanes, kStep = Isa::kStep;
  static constexpr int kVector = kLanes * kStep;
  static constexpr int kRows = kBlockRows;
  static constexpr int kBlock = kKeyBlock;
  static constexpr int64_t kUnseen = 1 << 24;  // products after which an interruption must have been looked for
  static constexpr int kChunk = 256;           // keys whose part of a value panel stays in the L1 cache
  static constexpr int64_t kNone = -1;
  static constexpr bool kRoundsWide = requires { typename Isa::WideFactor; };

 public:
  static size_t workspace(const AttentionJob& job) {
    return static_cast<size_t>(AttentionRows(job, nullptr).memory_.used());
  }
  static void run(const AttentionJob& job, int64_t begin, int64_t end, std::byte* memory) {
    if constexpr (Isa::kTiledRows != 0) Isa::begin();
    AttentionRows(job, memory).all_rows(begin, end);
    if constexpr (Isa::kTiledRows != 0) Isa::end();
  }

 private:
  const AttentionJob& job_;
  Allotment memory_;
  PackedHead<Isa> head_;
  const int64_t columns_, width_;  // keys that a block may reach in whole blocks, columns of v in whole panels
  // Of the block at hand, one row after the other.
  Element* queries_;         // [kRows][dim_steps][kStep]
  int8_t* x_;                // [kRows][columns]
  uint8_t* on_;              // [kRows][columns]: 1 for attended keys; only where KeySelection spells them out
  uint8_t* bytes_;           // [kRows][columns]: probabilities
  Element* weights_;         // the same as elements, or distances
  Element* upper_;           // upper bytes of scores
  Element* chosen_;          // on_ as elements
  int32_t* products_;        // [kRows][width]: weights times v, then N
  int32_t* selected_;        // [kRows][width]: sums of v over the attended keys of partly attended blocks
  int32_t* lower_products_;  // [kRows][width]: lower bytes of scores times v, as a base
  int32_t* common_;          // [width]: B times the sums of v over the last number of keys that all rows had in common
  int8_t* staged_;           // [kRows][width]: output on its way to rows that are no whole panels
  RowSums sums_{};           // of rows that a block does not have, those of the one before
  RowSums upper_sums_{};
  RowScaling scaling_;
  // Of the group at hand.
  WideHead parameters_;         // one line among them
  bool by_scores_, two_bytes_;  // weights are scores; of two bytes
  const ScoreTables* tables_;
  ScoreTables own_tables_;
  // N = base + slope * products
  const int32_t* base_;
  int64_t base_stride_;
  int32_t slope_;
  int64_t common_keys_;  // of common_
  int64_t first_ = 0;    // key of the block's first column
  const AttentionGroup* group_ = nullptr;
  int8_t* out_;  // int8 output of the block: to where it belongs, or staged
  int64_t out_stride_;
  bool wide_;    // sums are too large for Isa::Factor
  bool rounds_;  // int8 output leaves the registers as such

  AttentionRows(const AttentionJob& job, std::byte* memory)
      : job_(job), memory_(memory), head_(job, memory_), columns_(reached(job)), width_(head_.width) {
    memory_.take(queries_, kRows * head_.dim_steps * kStep);
    memory_.take(x_, kRows * columns_);
    memory_.take(on_, kRows * columns_);
    memory_.take(bytes_, kRows * columns_);
    if constexpr (sizeof(Element) == 1) {
      weights_ = reinterpret_cast<Element*>(bytes_);
      chosen_ = reinterpret_cast<Element*>(on_);
    } else {
      memory_.take(weights_, kRows * columns_);
      memory_.take(chosen_, kRows * columns_);
    }
    memory_.take(upper_, Isa::kWordScores ? 0 : kRows * columns_);
    memory_.take(products_, kRows * width_);
    memory_.take(selected_, kRows * width_);
    memory_.take(lower_products_, kRows * width_);
    memory_.take(common_, width_);
    memory_.take(staged_, kRows * width_);
  }

  static int64_t reached(const AttentionJob& job) {
    const int64_t window = kBlock - 1 + job.before + kRows + job.after;
    return round_up(window < job.keys ? window : job.keys, kBlock);
  }
  bool sees_all() const { return job_.before >= job_.keys - 1 && job_.after >= job_.queries - 1; }

  void all_rows(int64_t begin, int64_t end) {
    KeySelection<kRows> selection(job_, begin, on_, columns_);
    // The last block's columns without a panel are read, if not used.
    if (head_.key_panels * kLanes < head_.blocks * kBlock) std::memset(x_, 0, kRows * columns_);
    head_.begin();
    const bool all_alike = sees_all() && job_.masking == Masking::kNone;
    Attended attended{};
    if (all_alike) attended = selection.next(0, static_cast<int>(job_.queries < kRows ? job_.queries : kRows));
    int64_t unseen = 0;
    while (begin < end) {
      const int64_t query = begin % job_.queries;
      if (const AttentionGroup* group = &job_.groups[begin / job_.queries]; group != group_) begin_group(*group);
      int64_t rows = end - begin < kRows ? end - begin : kRows;
      if (rows > job_.queries - query) rows = job_.queries - query;
      if (!all_alike) attended = selection.next(query, static_cast<int>(rows));
      block(begin, query, static_cast<int>(rows), attended, selection.lengths());
      begin += rows;
      if (unseen += rows* job_.keys* job_.dim; unseen < kUnseen) continue;
      unseen = 0;
      if (job_.interruption && job_.interruption->poll()) return;
    }
  }

  void begin_group(const AttentionGroup& group) {
    // Heads that share keys follow one another.
    if (!group_ || group.k != group_->k || group.v != group_->v) head_.pack(group);
    group_ = &group;
    common_keys_ = kNone;
    const WideHead wide = parameters_ = wide_form(group);
    two_bytes_ = !Isa::kWordScores && wide.B >> wide.f > 255;
    const bool rows_differ = !sees_all() || job_.masking == Masking::kMask;
    by_scores_ =
        group.by_distance || wide.S2 != 0 || wide.f != 0 || (rows_differ && !two_bytes_ && Isa::kWeightOffset == 0);
    if (!by_scores_ || job_.probabilities_first || Isa::kWeightOffset != 0) head_.sum_values();
    tables_ = group.tables;
    if (!by_scores_ || Isa::kWordScores || tables_) return;
    tabulate_scores(wide, own_tables_);
    tables_ = &own_tables_;
  }

  void block(int64_t first, int64_t query, int rows, const Attended& attended, const int32_t* lengths) {
    const int64_t padded = head_.dim_steps * kStep;
    for (int r = 0; r < rows; ++r)
      Isa::stage_query(group_->q + (query + r) * job_.q_stride, job_.dim, padded, queries_ + r * padded);
    first_ = attended.first;
    logits(rows, attended.keys);
    int64_t steps = round_up(attended.keys, kStep) / kStep;
    const Element* weights = weights_;
    if (job_.probabilities_first) {
      probabilities(rows, attended, lengths);
      scaling_.set_sums(255);
      scale_total();
      if (Isa::kWeightOffset) steps = head_.key_steps;
    } else if (by_scores_) {
      weights = scores(rows, attended, steps);
    } else {
      Isa::distances(x_, on_, columns_, rows, attended, parameters_.D, weights_, sums_);
      scaling_.set_sums(0);
      scaling_.add_sums(parameters_.B, -parameters_.S, sums_);
      scale_selected(rows, attended, parameters_.B);
      slope_ = -parameters_.S;
    }
    int8_t* const own = static_cast<int8_t*>(group_->out) + query * job_.out_stride;
    const bool staged = width_ != job_.dim;
    out_ = staged ? staged_ : own;
    out_stride_ = staged ? width_ : job_.out_stride;
    const bool bytes = job_.output == AttentionOutput::kInt8;
    if (bytes) scaling_.solve(*group_->requant);
    wide_ = scaling_.largest() > Isa::kLargestSum;
    rounds_ = bytes && (!wide_ || kRoundsWide);
    multiply<Sink::kFinish>(rows, weights, 0, steps, products_);
    if (!rounds_)
      for (int r = 0; r < rows; ++r) write(first + r, query + r, r);
    else if (staged)
      for (int r = 0; r < rows; ++r) std::memcpy(own + r * job_.out_stride, staged_ + r * width_, job_.dim);
  }

  void logits(int rows, int64_t keys) {
    static_assert(kBlock % (Isa::kPanels * kLanes) == 0, "a block begins with a group of panels");
    const typename Isa::Factor factor(group_->requant->multiplier, group_->requant->shift);
    if constexpr (Isa::kTiledRows != 0)
      if (rows == Isa::kTiledRows) return logits_in_tiles(keys, factor);
    in_parts<Isa::kPanels>(
        head_.key_panels,
        [&]<int kGroup>(int64_t panel) HCCS_INLINE_LAMBDA {
          if (panel * kLanes < first_ + keys)
            in_tiles<Isa>(rows, [&]<int kTileRows>(int64_t r)
                                    HCCS_INLINE_LAMBDA { logits_tile<kTileRows, kGroup>(panel, r, factor); });
        },
        first_ / kLanes);
  }
  // Functions of their own: what the callers keep in registers would push sums out of them.
  template <int kTileRows, int kPanels>
  __attribute__((noinline)) void logits_tile(int64_t panel, int64_t first, const typename Isa::Factor& factor) {
    Sums sums[kTileRows][kPanels], start[kPanels];
#pragma GCC unroll 8
    for (int c = 0; c < kPanels; ++c)
      start[c] = Isa::kQueryOffset ? Isa::sums(head_.bias + (panel + c) * kLanes) : Isa::splat(0);
    const int64_t panel_stride = head_.dim_steps * kVector, row_stride = head_.dim_steps * kStep;
    const Element *const panels = head_.keys + panel * panel_stride, *const rows = queries_ + first * row_stride;
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < kPanels; ++c) sums[r][c] = start[c];
    tile<Isa>(sums, panels, panel_stride, rows, row_stride, head_.dim_steps);
    store_logits(sums, panel, first, factor);
  }
  template <int kTileRows, int kPanels>
  HCCS_INLINE void store_logits(const Sums (&sums)[kTileRows][kPanels], int64_t panel, int64_t first,
                                const typename Isa::Factor& factor) {
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      Ints whole[kPanels];
#pragma GCC unroll 8
      for (int c = 0; c < kPanels; ++c) whole[c] = Isa::whole(sums[r][c]);
      Isa::template store_bytes<kPanels>(whole, factor, false, x_ + (first + r) * columns_ + panel * kLanes - first_);
    }
  }
  // Sums leave the tiles by way of memory: one group of panels becomes logits while the next is multiplied.
  __attribute__((noinline)) void logits_in_tiles(int64_t keys, const typename Isa::Factor& factor) {
    alignas(64) Sums sums[2][Isa::kTiledRows * Isa::kPanels];
    int64_t waiting = 0, wait_panel = 0;  // panels of the group before, the first of them
    int at = 0;
    const auto finish = [&]() HCCS_INLINE_LAMBDA {
      const Sums* const from = sums[1 - at];
      if (waiting)
        in_parts<Isa::kPanels>(waiting, [&]<int kGroup>(int64_t) HCCS_INLINE_LAMBDA {
          store_logits(reinterpret_cast<const Sums(&)[Isa::kTiledRows][kGroup]>(*from), wait_panel, 0, factor);
        });
    };
    const int64_t panel_stride = head_.dim_steps * kVector;
    const auto multiply = [&]<int kGroup>(int64_t panel) HCCS_INLINE_LAMBDA {
      if (panel * kLanes >= first_ + keys) return;
      Isa::tile_products(reinterpret_cast<Sums(&)[Isa::kTiledRows][kGroup]>(sums[at]), head_.bias + panel * kLanes,
                         head_.keys + panel * panel_stride, panel_stride, queries_, head_.dim_steps * kStep,
                         head_.dim_steps);
      finish();
      waiting = kGroup;
      wait_panel = panel;
      at = 1 - at;
    };
    in_parts<Isa::kPanels>(head_.key_panels, multiply, first_ / kLanes);
    finish();
  }

  // The paper's form: p_hat of the block's rows by the softmax kernel.
  void probabilities(int rows, const Attended& attended, const int32_t* lengths) {
    SoftmaxJob softmax{};
    softmax.x = x_;
    softmax.out = bytes_;
    softmax.rows = rows;
    softmax.columns = columns_;
    softmax.mode = job_.mode;
    softmax.heads = group_->head;
    softmax.wide_heads = group_->wide_head;
    softmax.rows_per_group = rows;
    softmax.masking = attended.masked ? Masking::kMask : Masking::kLengths;
    softmax.valid.base = attended.masked ? reinterpret_cast<const char*>(on_) : reinterpret_cast<const char*>(lengths);
    softmax.valid.ndim = 1;
    softmax.valid.shape[0] = rows;
    softmax.valid.stride[0] = attended.masked ? columns_ : static_cast<int64_t>(sizeof(int32_t));
    if (columns_) job_.softmax(softmax, 0, rows);
    as_elements(bytes_, weights_, rows, 0, columns_, Isa::kWeightOffset);
  }

  void as_elements(const uint8_t* bytes, Element* elements, int rows, int64_t begin, int64_t end, int offset) {
    if (sizeof(Element) == 1 && offset == 0) return;  // they share memory
    for (int r = 0; r < rows; ++r)
      for (int64_t j = r * columns_ + begin; j < r * columns_ + end; ++j)
        elements[j] = static_cast<Element>(bytes[j] - offset);
  }

  // What the offset of probabilities takes from N.
  void scale_total() {
    slope_ = 1;
    base_ = common_;
    base_stride_ = 0;
    if (common_keys_ == job_.keys) return;
    scale(common_, head_.prefix + head_.blocks * width_, Isa::kWeightOffset);
    common_keys_ = job_.keys;
  }

  // Weights are scores, of two bytes in two products: the lower bytes' goes to the base of the other. Returns the
  // weights of the last product.
  const Element* scores(int rows, const Attended& attended, int64_t steps) {
    slope_ = 1;
    scaling_.set_sums(0);
    if constexpr (Isa::kWordScores) {
      if (group_->by_distance)
        Isa::scores(x_, on_, columns_, rows, attended, *tables_, weights_, sums_);
      else
        Isa::scores(x_, on_, columns_, rows, attended, parameters_, weights_, sums_);
      scaling_.add_sums(0, 1, sums_);
      scale_selected(rows, attended, 0);
      return weights_;
    } else {
      const auto look_up = [&](const uint8_t* table, Element* weights, RowSums& sums) {
        Isa::scores(x_, on_, columns_, rows, attended, table, weights, sums);
      };
      if constexpr (Isa::kPairsOfScores)
        if (two_bytes_) Isa::scores(x_, on_, columns_, rows, attended, *tables_, weights_, sums_, upper_, upper_sums_);
      if (!Isa::kPairsOfScores || !two_bytes_) look_up(tables_->low, weights_, sums_);
      scaling_.add_sums(0, 1, sums_);
      scale_selected(rows, attended, Isa::kWeightOffset * (two_bytes_ ? 257 : 1));
      if (!two_bytes_) return weights_;
      multiply<Sink::kKeep>(rows, weights_, 0, steps, lower_products_);
      for (int r = 0; Isa::kWeightOffset != 0 && r < rows; ++r)
        for (int64_t c = 0; c < width_; ++c) lower_products_[r * width_ + c] += base_[r * base_stride_ + c];
      base_ = lower_products_;
      base_stride_ = width_;
      slope_ = 256;
      if (!Isa::kPairsOfScores) look_up(tables_->high, upper_, upper_sums_);
      scaling_.add_sums(0, 256, upper_sums_);
      return upper_;
    }
  }

  // B times the sums of v over the attended keys: those of whole blocks are known, the others are the product with on_.
  // Rows that attend to the same number of keys, as with padding, share it with the next blocks of rows.
  void scale_selected(int rows, const Attended& attended, int32_t B) {
    const int64_t full = attended.full, keys = attended.keys;
    const int64_t from = full * kBlock / kStep, to = round_up(keys, kStep) / kStep;
    const bool common = attended.alike || B == 0;
    base_ = common ? common_ : selected_;
    base_stride_ = common ? 0 : width_;
    if (common && common_keys_ == (B ? keys : 0)) return;
    if (B == 0) {
      std::memset(common_, 0, width_ * sizeof(int32_t));
      common_keys_ = 0;
      return;
    }
    if (attended.alike) common_keys_ = keys;
    if (attended.alike && keys == job_.keys) return scale(common_, head_.prefix + head_.blocks * width_, B);
    const int32_t* const whole = head_.prefix + full * width_;
    if (attended.alike && keys == full * kBlock) return scale(common_, whole, B);
    const int distinct = attended.alike ? 1 : rows;
    as_elements(on_, chosen_, distinct, full * kBlock, round_up(keys, kBlock), 0);
    multiply<Sink::kKeep>(distinct, chosen_, from, to, selected_);
    for (int r = 0; r < distinct; ++r) {
      int32_t* const sums = selected_ + r * width_;
      for (int64_t c = 0; c < width_; ++c) sums[c] += whole[c];
      scale(attended.alike ? common_ : sums, sums, B);
    }
  }
  void scale(int32_t* to, const int32_t* sums, int32_t by) {
    for (int64_t c = 0; c < width_; ++c) to[c] = by * sums[c];
  }

  // The product of rows of weights, from step begin to step end, with v: kept, or made to output.
  enum class Sink { kKeep, kFinish };
  template <Sink kSink>
  void multiply(int rows, const Element* weights, int64_t begin, int64_t end, int32_t* products) {
    constexpr int64_t kSteps = kChunk / kStep;
    Chunk chunk{nullptr, nullptr, 0, products, true, false};
    do {
      chunk.steps = end - begin < kSteps ? end - begin : kSteps;
      chunk.last = begin + kSteps >= end;
      chunk.values = head_.values + (first_ / kStep + begin) * kVector;
      chunk.weights = weights + begin * kStep;
      in_tiles<Isa>(rows, [&]<int kTileRows>(int64_t r) HCCS_INLINE_LAMBDA {
        in_parts<Isa::kPanels>(head_.dim_panels, [&]<int kGroup>(int64_t panel) HCCS_INLINE_LAMBDA {
          values_tile<kSink, kTileRows, kGroup>(chunk, r, panel);
        });
      });
      begin += kSteps;
      chunk.first = false;
    } while (begin < end);
  }
  // Keys whose values stay in the cache, and what came before them.
  struct Chunk {
    const Element *values, *weights;
    int64_t steps;
    int32_t* products;
    bool first, last;
  };
  template <Sink kSink, int kTileRows, int kPanels>
  __attribute__((noinline)) void values_tile(const Chunk& chunk, int64_t first, int64_t panel) {
    alignas(64) Sums sums[kTileRows][kPanels];
    const int64_t panel_stride = head_.key_steps * kVector;
    const Element *const panels = chunk.values + panel * panel_stride, *const rows = chunk.weights + first * columns_;
    if constexpr (kTileRows == Isa::kTiledRows) {
      Isa::tile_products(sums, nullptr, panels, panel_stride, rows, columns_, chunk.steps);
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < kPanels; ++c) sums[r][c] = Isa::splat(0);
      tile<Isa>(sums, panels, panel_stride, rows, columns_, chunk.steps);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      int32_t* const products = chunk.products + (first + r) * width_ + panel * kLanes;
      Ints whole[kPanels];
#pragma GCC unroll 8
      for (int c = 0; c < kPanels; ++c) whole[c] = Isa::whole(sums[r][c]);
      if (!chunk.first)
        for (int c = 0; c < kPanels; ++c) whole[c] = Isa::add(whole[c], Isa::load(products + c * kLanes));
      if (kSink == Sink::kKeep || !chunk.last)
        for (int c = 0; c < kPanels; ++c) Isa::store(products + c * kLanes, whole[c]);
      else
        finish<kPanels>(whole, first + r, panel, products);
    }
  }

  template <int kPanels>
  HCCS_INLINE void finish(Ints (&N)[kPanels], int64_t r, int64_t panel, int32_t* products) {
    const int32_t* const base = base_ + r * base_stride_ + panel * kLanes;
    const Ints slope = Isa::ints(slope_);
#pragma GCC unroll 8
    for (int c = 0; c < kPanels; ++c) N[c] = Isa::combine(N[c], slope, Isa::load(base + c * kLanes));
    int8_t* const out = out_ + r * out_stride_ + panel * kLanes;
    if constexpr (kRoundsWide)
      if (rounds_ && wide_)
        return Isa::template store_bytes<kPanels>(N, typename Isa::WideFactor(scaling_, r), job_.turned, out);
    if (rounds_)
      Isa::template store_bytes<kPanels>(N, typename Isa::Factor(scaling_, r), job_.turned, out);
    else
      Isa::template store_ints<kPanels>(N, products);
  }
  void write(int64_t row, int64_t query, int r) {
    const int64_t at = query * job_.out_stride;
    const int32_t* const N = products_ + r * width_;
    const int32_t Z = scaling_.Z[r];
    if (job_.output == AttentionOutput::kInt8) {  // wide sums
      round_half_up(N, scaling_.multiplier[r], scaling_.shift[r], static_cast<int8_t*>(group_->out) + at);
      return;
    }
    if (job_.output == AttentionOutput::kPair) {
      std::memcpy(static_cast<int32_t*>(group_->out) + at, N, job_.dim * sizeof(int32_t));
      job_.sums[row] = Z;
      return;
    }
    float* const out = static_cast<float*>(group_->out) + at;
    const float divisor = static_cast<float>(Z ? Z : 1),
                v_scale = group_->requant->v_scale;  // nothing attended: N is 0
    for (int64_t c = 0; c < job_.dim; ++c) out[c] = (static_cast<float>(N[c]) / divisor) * v_scale;
  }
  void round_half_up(const int32_t* N, int32_t multiplier, int shift, int8_t* out) {
    const int64_t half = int64_t{1} << (shift - 1);
    const int turn = job_.turned ? 0x80 : 0;
    for (int64_t c = 0; c < job_.dim; ++c) {
      const int64_t rounded = (static_cast<int64_t>(N[c]) * multiplier + half) >> shift;
      out[c] = static_cast<int8_t>((rounded < -128 ? -128 : rounded > 127 ? 127 : rounded) ^ turn);
    }
  }
};

}  // namespace
}  // namespace hccs
