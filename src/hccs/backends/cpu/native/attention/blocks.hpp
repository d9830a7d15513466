// The attention kernel, written once. `Isa` supplies the instructions; each attention_<isa>.cpp defines one.
//
// k and v of a head are packed once into panels, from which one vector load feeds Isa::kLanes sums with Isa::kStep
// products each. Query rows go in blocks: logits of the block, then scores, then the product with v; nothing larger
// than a block's rows times the keys is ever stored.
//
// Two identities save most of the work between the products (all of it modulo 2^32, where N fits):
//   N = B * sum(v) - S * sum(delta * v), sums over the attended keys: weights are distances, which fit 7 bits for
//       every B, and sum(v) of keys that a whole block attends to is a prefix sum, known from packing;
//   Z = B * count - S * sum(delta).
#pragma once

#include <cstring>

#include "attention/keys.hpp"
#include "attention/steps.hpp"
#include "common/interruption.hpp"

namespace hccs {
namespace {

template <class Isa>
class AttentionRows {
  using Element = typename Isa::Element;
  using Sums = typename Isa::Sums;
  static constexpr int kLanes = Isa::kLanes, kStep = Isa::kStep;
  static constexpr int kVector = kLanes * kStep;
  static constexpr int kRows = 16;  // query rows of a block
  static constexpr int kBlock = kKeyBlock;
  static constexpr int64_t kUnseen = 1 << 24;  // products after which an interruption must have been looked for
  static constexpr int kChunk = 256;           // keys whose part of a value panel stays in the L1 cache

 public:
  static size_t workspace(const AttentionJob& job) { return static_cast<size_t>(AttentionRows(job, nullptr).used_); }
  static void run(const AttentionJob& job, int64_t begin, int64_t end, std::byte* memory) {
    AttentionRows(job, memory).all_rows(begin, end);
  }

 private:
  const AttentionJob& job_;
  const int64_t dim_steps_, key_steps_;    // groups of kStep that hold a row of q, a column of v
  const int64_t key_panels_, dim_panels_;  // groups of kLanes keys, columns
  const int64_t columns_, width_;          // keys in whole blocks, columns in whole panels
  std::byte* const memory_;
  int64_t used_ = 0;
  // Packed once per group.
  Element* keys_;    // [key_panels][dim_steps][kLanes][kStep]
  Element* values_;  // [dim_panels][key_steps][kLanes][kStep]
  int32_t* prefix_;  // [blocks + 1][width]: sums of v over the first blocks of keys
  int8_t* staged_;   // rows with zeros where the array ends: of k or v while packing, then of the output
  // Of the block at hand, one row after the other.
  Element* queries_;   // [kRows][dim_steps][kStep]
  int8_t* x_;          // [kRows][columns]
  uint8_t* on_;        // [kRows][columns]: 1 for attended keys; only from the first partly attended block on
  uint8_t* bytes_;     // [kRows][columns]: distances, or probabilities
  Element* weights_;   // the same as elements
  Element* chosen_;    // on_ as elements
  int32_t* products_;  // [kRows][width]: weights times v
  int32_t* selected_;  // [kRows][width]: sums of v over the attended keys of partly attended blocks
  int32_t* common_;    // [width]: sums of v over the last number of keys that all rows had in common
  int32_t bias_[kRows];
  RowSums sums_[kRows];
  const int32_t* whole_;  // sums of v over keys that all rows attend to
  bool partly_;           // selected_ adds to them
  int64_t common_keys_;   // whose sums common_ holds
  const AttentionGroup* group_ = nullptr;

  AttentionRows(const AttentionJob& job, std::byte* memory)
      : job_(job),
        dim_steps_(round_up(job.dim, kStep) / kStep),
        key_steps_(round_up(job.keys, kBlock) / kStep),
        key_panels_(round_up(job.keys, kLanes) / kLanes),
        dim_panels_(round_up(job.dim, kLanes) / kLanes),
        columns_(round_up(job.keys, kBlock)),
        width_(dim_panels_ * kLanes),
        memory_(memory) {
    take(keys_, key_panels_ * dim_steps_ * kVector);
    take(values_, dim_panels_ * key_steps_ * kVector);
    take(prefix_, (columns_ / kBlock + 1) * width_);
    take(staged_, kLanes * round_up(job.dim, kVector));
    take(queries_, kRows * dim_steps_ * kStep);
    take(x_, kRows * columns_);
    take(on_, kRows * columns_);
    take(bytes_, kRows * columns_);
    if constexpr (sizeof(Element) == 1) {
      weights_ = reinterpret_cast<Element*>(bytes_);
      chosen_ = reinterpret_cast<Element*>(on_);
    } else {
      take(weights_, kRows * columns_);
      take(chosen_, kRows * columns_);
    }
    take(products_, kRows * width_);
    take(selected_, kRows * width_);
    take(common_, width_);
  }
  template <class T>
  void take(T*& part, int64_t count) {
    part = memory_ ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
  }

  void all_rows(int64_t begin, int64_t end) {
    KeySelection<kRows> selection(job_, begin, on_, columns_);
    std::memset(x_, 0, kRows * columns_);  // the last block's columns without a key are read, if not used
    int64_t unseen = 0;
    while (begin < end) {
      const int64_t query = begin % job_.queries;
      if (const AttentionGroup* group = &job_.groups[begin / job_.queries]; group != group_) pack(group);
      int64_t rows = end - begin < kRows ? end - begin : kRows;
      if (rows > job_.queries - query) rows = job_.queries - query;
      block(begin, query, static_cast<int>(rows), selection);
      begin += rows;
      if (unseen += rows* job_.keys* job_.dim; unseen < kUnseen) continue;
      unseen = 0;
      if (job_.interruption && job_.interruption->poll()) return;
    }
  }

  void pack(const AttentionGroup* group) {
    group_ = group;
    common_keys_ = 0;
    pack_keys();
    pack_values();
  }

  // The last panel's missing keys, and every row's missing columns, become zeros on the way.
  void pack_keys() {
    const int64_t padded = dim_steps_ * kStep;
    for (int64_t panel = 0; panel < key_panels_; ++panel) {
      const int8_t* rows = group_->k + panel * kLanes * job_.k_stride;
      int64_t stride = job_.k_stride;
      const int64_t left = job_.keys - panel * kLanes;
      if (left < kLanes || padded != job_.dim) {
        stage(rows, stride, left < kLanes ? left : kLanes, job_.dim, kLanes, padded);
        rows = staged_;
        stride = padded;
      }
      Isa::pack_keys(rows, stride, dim_steps_, keys_ + panel * dim_steps_ * kVector);
    }
  }
  void pack_values() {
    for (int64_t step = 0; step < key_steps_; ++step) {
      const int64_t first = step * kStep < job_.keys ? step * kStep : job_.keys;
      const int64_t left = job_.keys - first;
      const int8_t* rows = group_->v + first * job_.v_stride;
      int64_t stride = job_.v_stride;
      if (left < kStep || width_ != job_.dim) {
        stage(rows, stride, left < kStep ? left : kStep, job_.dim, kStep, width_);
        rows = staged_;
        stride = width_;
      }
      for (int64_t panel = 0; panel < dim_panels_; ++panel)
        Isa::pack_values(rows + panel * kLanes, stride, values_ + (panel * key_steps_ + step) * kVector);
    }
    // Prefix sums are the product with a row of ones, block after block.
    Element ones[kBlock];
    for (Element& one : ones) one = Element{1};
    std::memset(prefix_, 0, width_ * sizeof(int32_t));
    for (int64_t block = 0; block < columns_ / kBlock; ++block) {
      int32_t* const sums = prefix_ + (block + 1) * width_;
      std::memcpy(sums, sums - width_, width_ * sizeof(int32_t));
      const Element* const from = values_ + block * (kBlock / kStep) * kVector;
      values_tiles<1>(from, ones, 0, kBlock / kStep, sums);
    }
  }
  void stage(const int8_t* rows, int64_t stride, int64_t have, int64_t width, int64_t want, int64_t padded) {
    std::memset(staged_, 0, want * padded);
    for (int64_t r = 0; r < have; ++r) std::memcpy(staged_ + r * padded, rows + r * stride, width);
  }

  void block(int64_t first, int64_t query, int rows, KeySelection<kRows>& selection) {
    const Attended attended = selection.next(query, rows);
    const int64_t blocks = round_up(attended.keys, kBlock) / kBlock;
    const int64_t steps = round_up(attended.keys, kStep) / kStep;
    stage_queries(query, rows);
    logits(rows, attended.keys);
    if (job_.probabilities_first) {
      probabilities(rows, attended, selection.lengths());
      multiply(rows, weights_, 0, Isa::kWeightOffset ? key_steps_ : steps, products_);
    } else {
      for (int r = 0; r < rows; ++r) {
        const int64_t at = r * columns_;
        sums_[r] = Isa::distances(x_ + at, on_ + at, attended.full, blocks, group_->head->D, bytes_ + at);
      }
      as_elements(bytes_, weights_, rows, 0, blocks * kBlock, 0);
      multiply(rows, weights_, 0, steps, products_);
      select(rows, attended, blocks);
    }
    for (int r = 0; r < rows; ++r) finish(first + r, query + r, r);
  }

  // The sums of v over the attended keys: those of whole blocks are known, the others are the product with on_. Rows
  // that attend to the same number of keys, as with padding, share it with the next blocks of rows.
  void select(int rows, const Attended& attended, int64_t blocks) {
    const int64_t full = attended.full, keys = attended.keys;
    whole_ = prefix_ + full * width_;
    partly_ = full < blocks && !attended.alike;
    if (full == blocks) return;
    const int64_t from = full * kBlock / kStep, to = round_up(keys, kStep) / kStep;
    if (partly_) {
      as_elements(on_, chosen_, rows, full * kBlock, blocks * kBlock, 0);
      multiply(rows, chosen_, from, to, selected_);
      return;
    }
    if (keys != common_keys_) {
      as_elements(on_, chosen_, 1, full * kBlock, blocks * kBlock, 0);
      multiply(1, chosen_, from, to, common_);
      add_scaled(common_, 1, whole_);
      common_keys_ = keys;
    }
    whole_ = common_;
  }

  void stage_queries(int64_t query, int rows) {
    const int64_t padded = dim_steps_ * kStep;
    for (int r = 0; r < rows; ++r) {
      const int8_t* const from = group_->q + (query + r) * job_.q_stride;
      bias_[r] = -Isa::kKeyOffset * Isa::stage_query(from, job_.dim, padded, queries_ + r * padded);
    }
  }

  // A tile: kTileRows rows times kPanels panels, all their sums in registers.
  enum class Product { kLogits, kValues };
  template <Product kProduct, int kTileRows, int kPanels>
  static HCCS_INLINE void tile(Sums (&sums)[kTileRows][kPanels], const Element* panels, int64_t panel_stride,
                               const Element* rows, int64_t row_stride, int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      typename Isa::Panel panel[kPanels];
#pragma GCC unroll 8
      for (int c = 0; c < kPanels; ++c) panel[c] = Isa::panel(panels + c * panel_stride + step * kVector);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
        const typename Isa::Panel row = Isa::broadcast(rows + r * row_stride + step * kStep);
#pragma GCC unroll 8
        for (int c = 0; c < kPanels; ++c)
          sums[r][c] = kProduct == Product::kLogits ? Isa::dot_keys(sums[r][c], panel[c], row)
                                                    : Isa::dot_values(sums[r][c], panel[c], row);
      }
    }
  }

  void logits(int rows, int64_t keys) {
    const int64_t panels = round_up(keys, kLanes) / kLanes;
    const typename Isa::Factor factor(group_->requant->multiplier, group_->requant->shift);
    logits_from<Isa::kPanels>(0, panels, rows, factor);
  }
  // Tiles of kPanels panels as long as they last, then narrower ones.
  template <int kPanels>
  void logits_from(int64_t panel, int64_t panels, int rows, const typename Isa::Factor& factor) {
    for (; panel + kPanels <= panels; panel += kPanels) logits_of<kPanels>(panel, rows, factor);
    if constexpr (kPanels > 1) logits_from<kPanels - 1>(panel, panels, rows, factor);
  }
  template <int kPanels>
  void logits_of(int64_t panel, int rows, const typename Isa::Factor& factor) {
    int r = 0;
    for (; r + Isa::kRows <= rows; r += Isa::kRows) logits_tile<Isa::kRows, kPanels>(panel, r, factor);
    for (; r < rows; ++r) logits_tile<1, kPanels>(panel, r, factor);
  }
  // Functions of their own: what the callers keep in registers would push sums out of them.
  template <int kTileRows, int kPanels>
  __attribute__((noinline)) void logits_tile(int64_t panel, int first, const typename Isa::Factor& factor) {
    Sums sums[kTileRows][kPanels];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < kPanels; ++c) sums[r][c] = Isa::splat(bias_[first + r]);
    const int64_t panel_stride = dim_steps_ * kVector, row_stride = dim_steps_ * kStep;
    tile<Product::kLogits>(sums, keys_ + panel * panel_stride, panel_stride, queries_ + first * row_stride, row_stride,
                           dim_steps_);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < kPanels; ++c) factor.store(sums[r][c], x_ + (first + r) * columns_ + (panel + c) * kLanes);
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

  // products[r] = sum over steps begin..end-1 of weights[r] times v.
  void multiply(int rows, const Element* weights, int64_t begin, int64_t end, int32_t* products) {
    std::memset(products, 0, rows * width_ * sizeof(int32_t));
    for (; begin < end; begin += kChunk / kStep) {
      const int64_t steps = end - begin < kChunk / kStep ? end - begin : kChunk / kStep;
      const Element* const from = values_ + begin * kVector;
      const Element* const by = weights + begin * kStep;
      int r = 0;
      for (; r + Isa::kRows <= rows; r += Isa::kRows)
        values_tiles<Isa::kRows>(from, by + r * columns_, columns_, steps, products + r * width_);
      for (; r < rows; ++r) values_tiles<1>(from, by + r * columns_, columns_, steps, products + r * width_);
    }
  }
  template <int kTileRows, int kPanels = Isa::kPanels>
  void values_tiles(const Element* from, const Element* by, int64_t row_stride, int64_t steps, int32_t* products,
                    int64_t panel = 0) {
    for (; panel + kPanels <= dim_panels_; panel += kPanels)
      values_tile<kTileRows, kPanels>(from, panel, by, row_stride, steps, products);
    if constexpr (kPanels > 1) values_tiles<kTileRows, kPanels - 1>(from, by, row_stride, steps, products, panel);
  }
  template <int kTileRows, int kPanels>
  __attribute__((noinline)) void values_tile(const Element* from, int64_t panel, const Element* by, int64_t row_stride,
                                             int64_t steps, int32_t* products) {
    Sums sums[kTileRows][kPanels];
    const int64_t panel_stride = key_steps_ * kVector;
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < kPanels; ++c) sums[r][c] = Isa::splat(0);
    tile<Product::kValues>(sums, from + panel * panel_stride, panel_stride, by, row_stride, steps);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < kPanels; ++c) Isa::add_to(products + r * width_ + (panel + c) * kLanes, sums[r][c]);
  }

  // From a row's products to N, Z and the output.
  void finish(int64_t row, int64_t query, int r) {
    int32_t* const N = products_ + r * width_;
    int32_t Z = 255;
    if (job_.probabilities_first) {
      if (Isa::kWeightOffset) add_scaled(N, Isa::kWeightOffset, prefix_ + columns_ / kBlock * width_);
    } else {
      const Head& head = *group_->head;
      int32_t* const sums = selected_ + r * width_;
      if (partly_) add_scaled(sums, 1, whole_);
      const int32_t* const attended = partly_ ? sums : whole_;
      const uint32_t B = head.B, S = head.S;
      for (int64_t c = 0; c < width_; ++c)
        N[c] = static_cast<int32_t>(B * static_cast<uint32_t>(attended[c]) - S * static_cast<uint32_t>(N[c]));
      Z = head.B * sums_[r].count - head.S * sums_[r].distances;  // eq. 5
    }
    write(row, query, N, Z);
  }
  void add_scaled(int32_t* N, int32_t by, const int32_t* sums) {
    for (int64_t c = 0; c < width_; ++c) N[c] += by * sums[c];
  }
  void write(int64_t row, int64_t query, const int32_t* N, int32_t Z) {
    const int64_t at = query * job_.out_stride;
    if (job_.output == AttentionOutput::kPair) {
      std::memcpy(static_cast<int32_t*>(group_->out) + at, N, job_.dim * sizeof(int32_t));
      job_.sums[row] = Z;
      return;
    }
    if (Z == 0) Z = 1;  // nothing attended: N is 0
    const Requant& requant = *group_->requant;
    if (job_.output == AttentionOutput::kFloat32) {
      float* const out = static_cast<float*>(group_->out) + at;
      const float divisor = static_cast<float>(Z), v_scale = requant.v_scale;
      for (int64_t c = 0; c < job_.dim; ++c) out[c] = (static_cast<float>(N[c]) / divisor) * v_scale;
    } else {
      const int k = 31 - __builtin_clz(static_cast<uint32_t>(Z));
      const auto R = static_cast<int32_t>((static_cast<int64_t>(requant.out_multiplier) << k) / Z);
      const typename Isa::Factor factor(R, requant.out_shift + k);
      for (int64_t c = 0; c < width_; c += kLanes) factor.store(Isa::load(N + c), staged_ + c);
      if (job_.turned)
        for (int64_t c = 0; c < job_.dim; ++c) staged_[c] = static_cast<int8_t>(staged_[c] ^ 0x80);
      std::memcpy(static_cast<int8_t*>(group_->out) + at, staged_, job_.dim);
    }
  }
};

}  // namespace
}  // namespace hccs
