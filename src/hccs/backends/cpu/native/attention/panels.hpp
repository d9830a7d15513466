// k and v of a head as the products read them, and the tiles of these products.
//
// One vector load of a panel feeds Isa::kLanes sums with Isa::kStep products each.
#pragma once

#include <cstring>

#include "attention/steps.hpp"

namespace hccs {
namespace {

// Parts of a thread's working memory, each on a cache line of its own. Without memory they are only counted.
class Allotment {
 public:
  explicit Allotment(std::byte* memory) : memory_(memory) {}
  template <class T>
  void take(T*& part, int64_t count) {
    part = memory_ ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* const memory_;
  int64_t used_ = 0;
};

// Calls action<size>(first) for parts of kSize, then of half as many, until all of `count` had their turn.
template <int kSize, class Action>
HCCS_INLINE void in_parts(int64_t count, const Action& action, int64_t first = 0) {
  for (; first + kSize <= count; first += kSize) action.template operator()<kSize>(first);
  if constexpr (kSize > 1)
    if (first < count) in_parts<kSize / 2>(count, action, first);
}

// Calls action<size>(first) for rows as the products take them.
template <class Isa, class Action>
HCCS_INLINE void in_tiles(int rows, const Action& action) {
  if constexpr (Isa::kTiledRows != 0)
    if (rows == Isa::kTiledRows) return action.template operator()<Isa::kTiledRows>(0);
  in_parts<Isa::kRows>(rows, action);
}

// kTileRows rows times kPanels panels, all their sums in registers.
template <class Isa, int kTileRows, int kPanels>
HCCS_INLINE void tile(typename Isa::Sums (&sums)[kTileRows][kPanels], const typename Isa::Element* panels,
                      int64_t panel_stride, const typename Isa::Element* rows, int64_t row_stride, int64_t steps) {
  if constexpr (Isa::kOwnTile)
    Isa::tile(sums, panels, panel_stride, rows, row_stride, steps);
  else
    for (int64_t step = 0; step < steps; ++step) {
      typename Isa::Panel panel[kPanels];
#pragma GCC unroll 8
      for (int c = 0; c < kPanels; ++c)
        panel[c] = Isa::panel(panels + c * panel_stride + step * Isa::kLanes * Isa::kStep);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
        const typename Isa::Panel row = Isa::broadcast(rows + r * row_stride + step * Isa::kStep);
#pragma GCC unroll 8
        for (int c = 0; c < kPanels; ++c) sums[r][c] = Isa::dot(sums[r][c], panel[c], row);
      }
    }
}

template <class Isa>
class PackedHead {
  using Element = typename Isa::Element;
  static constexpr int kLanes = Isa::kLanes, kStep = Isa::kStep, kVector = kLanes * kStep;

 public:
  PackedHead(const AttentionJob& job, Allotment& memory)
      : dim_steps(round_up(job.dim, Isa::kDepth) / kStep),
        key_steps(round_up(job.keys, Isa::kDepth) / kStep),
        key_panels(round_up(job.keys, kLanes) / kLanes),
        dim_panels(round_up(job.dim, kLanes) / kLanes),
        width(dim_panels * kLanes),
        blocks(round_up(job.keys, kKeyBlock) / kKeyBlock),
        job_(job) {
    memory.take(keys, key_panels * dim_steps * kVector);
    memory.take(values, dim_panels * key_steps * kVector);
    memory.take(bias, Isa::kQueryOffset ? key_panels * kLanes : 0);
    memory.take(prefix, (blocks + 1) * width);
    memory.take(zeros_, job.dim);
  }

  const int64_t dim_steps, key_steps;    // groups of kStep that hold a row of q, a column of v
  const int64_t key_panels, dim_panels;  // groups of kLanes keys, columns
  const int64_t width, blocks;           // columns in whole panels, blocks of keys
  Element* keys;                         // [key_panels][dim_steps][kLanes][kStep]
  Element* values;                       // [dim_panels][key_steps][kLanes][kStep]
  int32_t* bias;                         // [key_panels][kLanes]: what kQueryOffset adds to the logits, negative
  int32_t* prefix;                       // [blocks + 1][width]: sums of v over the first blocks of keys

  void begin() { std::memset(zeros_, 0, job_.dim); }
  void pack(const AttentionGroup& group) {
    pack_keys(group.k);
    pack_values(group.v);
    summed_ = false;
  }
  // Prefix sums are the product with a row of ones, block after block.
  void sum_values() {
    if (summed_) return;
    summed_ = true;
    constexpr int64_t kSteps = kKeyBlock / kStep;
    Element ones[kStep];
    for (Element& one : ones) one = Element{1};
    std::memset(prefix, 0, width * sizeof(int32_t));
    in_parts<Isa::kPanels>(dim_panels, [&]<int kGroup>(int64_t panel) HCCS_INLINE_LAMBDA {
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = block * kSteps, end = first + kSteps < key_steps ? first + kSteps : key_steps;
        const Element* const from = values + panel * key_steps * kVector;
        typename Isa::Sums sums[1][kGroup];
        for (auto& sum : sums[0]) sum = Isa::splat(0);
        for (int64_t step = first; step < end; ++step)
          tile<Isa>(sums, from + step * kVector, key_steps * kVector, ones, 0, 1);
        int32_t* const total = prefix + (block + 1) * width + panel * kLanes;
        for (int c = 0; c < kGroup; ++c)
          Isa::store(total + c * kLanes, Isa::add(Isa::whole(sums[0][c]), Isa::load(total - width + c * kLanes)));
      }
    });
  }

 private:
  const AttentionJob& job_;
  int8_t* zeros_;  // a row in the place of missing ones
  bool summed_ = false;

  void pack_keys(const int8_t* k) {
    in_parts<Isa::kPanels>(key_panels, [&]<int kGroup>(int64_t panel) HCCS_INLINE_LAMBDA {
      const int8_t* rows[kGroup * kLanes];
      for (int64_t i = 0; i < kGroup * kLanes; ++i)
        rows[i] = panel * kLanes + i < job_.keys ? k + (panel * kLanes + i) * job_.k_stride : zeros_;
      Element* const out = keys + panel * dim_steps * kVector;
      Isa::template pack_keys<kGroup>(rows, job_.dim, dim_steps, out);
      if constexpr (Isa::kQueryOffset != 0) {
        Element ones[kStep];
        for (Element& one : ones) one = Element{1};
        typename Isa::Sums sums[1][kGroup];
        for (auto& sum : sums[0]) sum = Isa::splat(0);
        for (int64_t step = 0; step < dim_steps; ++step)
          tile<Isa>(sums, out + step * kVector, dim_steps * kVector, ones, 0, 1);
        for (int c = 0; c < kGroup; ++c)
          Isa::store(bias + (panel + c) * kLanes,
                     Isa::combine(Isa::whole(sums[0][c]), Isa::ints(-Isa::kQueryOffset), Isa::ints(0)));
      }
    });
  }

  void pack_values(const int8_t* v) {
    const int8_t* rows[kStep];
    for (int64_t step = 0; step < key_steps; ++step) {
      for (int64_t i = 0; i < kStep; ++i)
        rows[i] = step * kStep + i < job_.keys ? v + (step * kStep + i) * job_.v_stride : zeros_;
      in_parts<Isa::kPanels>(dim_panels, [&]<int kGroup>(int64_t panel) HCCS_INLINE_LAMBDA {
        const int8_t* columns[kStep];
        for (int i = 0; i < kStep; ++i) columns[i] = rows[i] + panel * kLanes;
        Isa::template pack_values<kGroup>(columns, job_.dim - panel * kLanes,
                                          values + (panel * key_steps + step) * kVector, key_steps * kVector);
      });
    }
  }
};

}  // namespace
}  // namespace hccs
