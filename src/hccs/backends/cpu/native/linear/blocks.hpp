// The linear kernel, written once. `Isa` supplies the instructions; each linear/<isa>.cpp defines one.
//
// Weights are packed in blocks of outputs, which a tile of rows reads from the first byte to the last: one vector load
// feeds Isa::kLanes sums with Isa::kStep products each. A block serves a whole chunk of rows before the next does: it
// stays in the L1 cache, and the chunk in the L2 cache.
#pragma once

#include "linear/channels.hpp"

namespace hccs {
namespace {

// What memory is asked for while products are made: so many bytes further in each step.
struct Ahead {
  static constexpr int64_t kBytes = 4096;  // weights that are needed so much later
  const std::byte* from;
  int64_t step;
};

template <class Isa>
class LinearRows {
  using Element = typename Isa::Element;
  static constexpr int kLanes = Isa::kLanes, kStep = Isa::kStep, kPanels = Isa::kPanels, kRows = Isa::kRows;
  static constexpr int kWidth = kLanes * kPanels;  // outputs of a block
  // Products of 16 rows at a time in the tiles of AMX, whose sums come back by way of memory.
  static constexpr bool kInTiles = requires { Isa::kTiledRows; };
  // Of x, beside which weights and outputs have room in the L2 cache, which is twice as large where there are tiles.
  static constexpr int64_t kChunkBytes = (kInTiles ? 256 : 96) * 1024;
  static constexpr int64_t kLocalBytes = (kInTiles ? 1280 : 640) * 1024;  // of an engine's values, likewise
  using Block = Channels<kWidth>;

 public:
  static constexpr LinearKernel kernel() {
    return {Isa::kBytes, kRows, kWidth, kLocalBytes, packed_bytes, pack, workspace, run};
  }

 private:
  static size_t packed_bytes(int64_t inputs, int64_t outputs, int exponents) noexcept {
    return static_cast<size_t>((outputs + kWidth - 1) / kWidth * block_bytes(inputs, exponents));
  }
  static void pack(const int8_t* weight, const int32_t* bias, const int32_t* multiplier, int64_t inputs,
                   int64_t outputs, int exponents, std::byte* packed) noexcept {
    for (int64_t c = 0; c < outputs; c += kWidth, packed += block_bytes(inputs, exponents))
      pack_block(weight + c * inputs, bias + c, multiplier ? multiplier + c : nullptr, inputs,
                 outputs - c < kWidth ? outputs - c : kWidth, exponents, packed);
  }
  static size_t workspace(int64_t inputs) noexcept {
    return static_cast<size_t>(
        whole(chunk_rows(inputs) * staged_width(inputs) * static_cast<int64_t>(sizeof(Element)), 64));
  }
  static void run(const LinearJob& job, int64_t row, int64_t row_end, int64_t block, int64_t block_end,
                  std::byte* memory) noexcept {
    const LinearRows rows(job, reinterpret_cast<Element*>(memory));
    const auto as = [&]<LinearOutput kOutput> { rows.template chunks<kOutput>(row, row_end, block, block_end); };
    switch (job.output) {
      case LinearOutput::kInt32: return as.template operator()<LinearOutput::kInt32>();
      case LinearOutput::kInt8: return as.template operator()<LinearOutput::kInt8>();
      case LinearOutput::kInt8Table: return as.template operator()<LinearOutput::kInt8Table>();
      case LinearOutput::kInt16: return as.template operator()<LinearOutput::kInt16>();
      case LinearOutput::kSumInt32: return as.template operator()<LinearOutput::kSumInt32>();
      case LinearOutput::kSumInt16: return as.template operator()<LinearOutput::kSumInt16>();
      case LinearOutput::kLong: return as.template operator()<LinearOutput::kLong>();
    }
  }

  const LinearJob& job_;
  const int64_t padded_;   // inputs in whole steps
  const int64_t width_;    // of a staged row
  Element* const staged_;  // [chunk_rows][width]
  const bool direct_;      // x is read where it lies

  LinearRows(const LinearJob& job, Element* staged)
      : job_(job),
        padded_(whole(job.inputs, kStep)),
        width_(staged_width(job.inputs)),
        staged_(staged),
        direct_(Isa::kTail == 0 && sizeof(Element) == 1 && job.x_bytes == Isa::kBytes && padded_ == job.inputs) {}

  static int64_t staged_width(int64_t inputs) { return whole(inputs, kStep) + Isa::kTail; }
  static int64_t weight_bytes(int64_t inputs) {
    return whole(kWidth * whole(inputs, kStep) * static_cast<int64_t>(sizeof(Element)), 64);
  }
  // Behind the weights: the channels, with row exponents once for each.
  static int64_t block_bytes(int64_t inputs, int exponents) {
    return weight_bytes(inputs) + static_cast<int64_t>(sizeof(Block)) * (exponents ? exponents : 1);
  }
  static int64_t chunk_rows(int64_t inputs) {
    const int64_t tiles = kChunkBytes / (kRows * (staged_width(inputs) + 1) * static_cast<int64_t>(sizeof(Element)));
    return kRows * (tiles < 1 ? 1 : tiles > 64 ? 64 : tiles);
  }

  static void pack_block(const int8_t* weight, const int32_t* bias, const int32_t* multiplier, int64_t inputs,
                         int64_t have, int exponents, std::byte* packed) {
    std::memset(packed, 0, static_cast<size_t>(block_bytes(inputs, exponents)));
    Element* const elements = reinterpret_cast<Element*>(packed);
    Block* const channels = reinterpret_cast<Block*>(packed + weight_bytes(inputs));
    const int forms = exponents ? exponents : 1;
    for (int e = 0; e < forms; ++e) {
      channels[e].shift = exponents ? kRowShift - e : kShift;
      channels[e].small = 1;
    }
    for (int64_t c = 0; c < have; ++c) {
      int64_t magnitude = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        const int w = weight[c * inputs + i];
        magnitude += w < 0 ? -w : w;
        elements[Isa::place(c, i, whole(inputs, kStep))] = static_cast<Element>(w);
      }
      const int64_t reach = 128 * magnitude + (bias[c] < 0 ? -int64_t{bias[c]} : bias[c]);
      const int64_t excess = Isa::excess(weight + c * inputs, inputs);
      for (int e = 0; e < forms; ++e) {
        if (reach >= 1 << 24) channels[e].small = 0;
        // What the channel's products are too large by comes off again, modulo 2^32 as the sums are.
        channels[e].bias[c] = static_cast<int32_t>(static_cast<uint32_t>(shifted_half_even(bias[c], e) - excess));
        channels[e].multiplier[c] = multiplier ? multiplier[c] : 0;
        channels[e].factor[c] =
            static_cast<float>(channels[e].multiplier[c]) / static_cast<float>(1 << channels[e].shift);
      }
    }
  }

  template <LinearOutput kOutput>
  void chunks(int64_t row, int64_t row_end, int64_t block, int64_t block_end) const {
    const int64_t most = chunk_rows(job_.inputs);
    for (int64_t rows; row < row_end; row += rows) {
      rows = row_end - row < most ? row_end - row : most;
      if constexpr (kInTiles)
        if (rows >= Isa::kFewestRows) {
          in_tiles<kOutput>(row, rows, block, block_end);
          continue;
        }
      if (!direct_)
        for (int64_t r = 0; r < rows; ++r) stage(row + r, staged_ + r * width_);
      const Element* const x = direct_ ? static_cast<const Element*>(job_.x) + row * job_.x_stride : staged_;
      const int64_t stride = direct_ ? job_.x_stride : width_;
      for (int64_t b = block; b < block_end; ++b) one_block<kOutput>(x, stride, row, rows, b, b == block);
    }
  }
  void stage(int64_t row, Element* to) const {
    const uint8_t* const from = static_cast<const uint8_t*>(job_.x) + row * job_.x_stride;
    Isa::stage(from, job_.x_bytes == Isa::kBytes ? 0 : 0x80, job_.inputs, to);
  }

  // One block of outputs for the rows of a chunk.
  struct Tiles {
    const Element* weights;
    const Block* channels;     // with row exponents one for each
    const uint8_t* exponents;  // of the rows; null: none
    int64_t exponent_stride;
    const Element* x;
    int64_t x_stride;
    int64_t padded;
    int64_t have;              // outputs, at most kWidth
    bool fresh;                // the chunk's rows have not been read yet
    int64_t rows = 0, of = 0;  // of the chunk, and how many tiles share asking memory for the next block's weights
  };
  template <LinearOutput kOutput>
  Target<kOutput> target_of(int64_t row, int64_t column) const {
    Target<kOutput> target{static_cast<typename Target<kOutput>::Out*>(job_.out) + row * job_.out_stride + column,
                           job_.out_stride,
                           nullptr,
                           job_.stream_stride,
                           job_.table,
                           job_.out_bytes == Bytes::kTurned ? 128 : 0,
                           job_.limit};
    if (adds_stream(kOutput)) target.stream = job_.stream + row * job_.stream_stride + column;
    return target;
  }
  Tiles tiles_of(const Element* x, int64_t x_stride, int64_t row, int64_t block, bool fresh) const {
    const std::byte* const packed = job_.packed + block * block_bytes(job_.inputs, job_.row_exponents);
    const uint8_t* const given = static_cast<const uint8_t*>(job_.x) + row * job_.x_stride;
    const int64_t left = job_.outputs - block * kWidth;
    return {reinterpret_cast<const Element*>(packed),
            reinterpret_cast<const Block*>(packed + weight_bytes(job_.inputs)),
            job_.row_exponents ? given + job_.inputs : nullptr,
            job_.x_stride,
            x,
            x_stride,
            padded_,
            left < kWidth ? left : kWidth,
            fresh};
  }
  // Sums that float32 might not hold, and incomplete blocks, are rare. int8 does not mind large sums: what they give
  // is clipped; nor does int32, which comes from float64.
  template <LinearOutput kOutput>
  static bool needs_care(const Tiles& tiles) {
    constexpr bool kMinds = kOutput != LinearOutput::kInt32 && kOutput != LinearOutput::kLong && !is_int8(kOutput);
    return tiles.have < kWidth || (kMinds && !tiles.channels->small);
  }
  template <LinearOutput kOutput>
  void one_block(const Element* x, int64_t x_stride, int64_t row, int64_t rows, int64_t block, bool fresh) const {
    Tiles tiles = tiles_of(x, x_stride, row, block, fresh);
    tiles.rows = rows;
    tiles.of = (rows + kRows - 1) / kRows;
    const Target<kOutput> target = target_of<kOutput>(row, block * kWidth);
    const auto tiled = [&]<bool kExponent> {
      if (needs_care<kOutput>(tiles))
        all_tiles<kOutput, true, kExponent>(tiles, target, rows);
      else
        all_tiles<kOutput, false, kExponent>(tiles, target, rows);
    };
    if constexpr (may_have_exponents(kOutput))
      if (job_.row_exponents) return tiled.template operator()<true>();
    tiled.template operator()<false>();
  }

  // Rows in tiles of kMost; what is left at the end is shared evenly, as a tile of few rows waits for its weights.
  template <LinearOutput kOutput, bool kCareful, bool kExponent>
  static void all_tiles(const Tiles& tiles, const Target<kOutput>& target, int64_t rows) {
    constexpr int kMost = most_vector_rows(kCareful), kHalf = kMost > 8 ? 8 : kMost;
    for (int64_t row = 0, now; row < rows; row += now) {
      const int64_t left = rows - row;
      now = left == kMost || left >= 2 * kHalf ? kMost : left > kHalf ? (left + 1) / 2 : left;
      tile_of<kOutput, kCareful, kExponent, kMost>(tiles, target, row, now);
    }
  }
  template <LinearOutput kOutput, bool kCareful, bool kExponent, int kTileRows>
  static HCCS_INLINE void tile_of(const Tiles& tiles, const Target<kOutput>& target, int64_t row, int64_t rows) {
    if (rows == kTileRows) return tile<kOutput, kCareful, kExponent, kTileRows>(tiles, target, row);
    if constexpr (kTileRows > 1)
      tile_of<kOutput, kCareful, kExponent, kTileRows - 1 < 8 ? kTileRows - 1 : 8>(tiles, target, row, rows);
  }
  template <int kTileRows>
  using RowSums = typename Isa::Sums[kTileRows][kPanels];
  template <LinearOutput kOutput>
  static HCCS_INLINE Target<kOutput> from_row(Target<kOutput> target, int64_t row) {
    target.out += row * target.stride;
    if (adds_stream(kOutput)) target.stream += row * target.stream_stride;
    return target;
  }
  template <bool kExponent>
  static HCCS_INLINE const Block& channels_of(const Tiles& tiles, int64_t row) {
    return kExponent ? tiles.channels[tiles.exponents[row * tiles.exponent_stride]] : *tiles.channels;
  }
  // One or two tiles ask for the weights that they are about to need; more have time for the next block's.
  static Ahead ahead_of(const Tiles& tiles, int64_t row) {
    constexpr int64_t kStepBytes = kWidth * kStep * static_cast<int64_t>(sizeof(Element));
    if (tiles.of <= 2) return {reinterpret_cast<const std::byte*>(tiles.weights) + Ahead::kBytes, kStepBytes};
    const int64_t share = (kStepBytes + tiles.of - 1) / tiles.of, before = row * tiles.of / tiles.rows;
    return {reinterpret_cast<const std::byte*>(tiles.channels) + before * share * (tiles.padded / kStep), share};
  }
  // A function of its own: what the callers keep in registers would push sums out of them.
  template <LinearOutput kOutput, bool kCareful, bool kExponent, int kTileRows>
  static __attribute__((noinline)) void tile(const Tiles& tiles, const Target<kOutput>& all, int64_t row) {
    const Target<kOutput> target = from_row(all, row);
    const Element* const x = tiles.x + row * tiles.x_stride;
    typename Isa::Sums sums[kTileRows][kPanels];
    const auto bias = [&](int r) HCCS_INLINE_LAMBDA { return channels_of<kExponent>(tiles, row + r).bias; };
    const Ahead ahead = ahead_of(tiles, row);
    Isa::products(sums, bias, tiles.weights, x, tiles.x_stride, tiles.padded, ahead, [&] HCCS_INLINE_LAMBDA {
      prefetch_outputs(target, kTileRows);
      if (tiles.fresh) prefetch_rows(x + kTileRows * tiles.x_stride, tiles.x_stride, kTileRows, tiles.padded);
    });
    finish_rows<kOutput, kCareful, kExponent>(sums, tiles, target, row);
  }
  template <LinearOutput kOutput, bool kCareful, bool kExponent, int kTileRows>
  static HCCS_INLINE void finish_rows(const typename Isa::Sums (&sums)[kTileRows][kPanels], const Tiles& tiles,
                                      Target<kOutput> target, int64_t row) {
    if constexpr (kExponent) {
      // Row by row: each has channels of its own.
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) {
        finish_tile<kOutput, kCareful>(reinterpret_cast<const RowSums<1>&>(sums[r]),
                                       channels_of<kExponent>(tiles, row + r), tiles.have, target);
        target.out += target.stride;
      }
    } else {
      finish_tile<kOutput, kCareful>(sums, *tiles.channels, tiles.have, target);
    }
  }

  static constexpr int most_vector_rows(bool careful) {
    if constexpr (kInTiles) return Isa::kFewestRows - 1;
    return careful && kRows > 4 ? 4 : kRows;
  }

  // All blocks for the rows of a chunk, in tiles. Sums leave them by way of memory, and become outputs between the
  // products that follow: tiles and vectors then work at the same time.
  template <LinearOutput kOutput>
  void in_tiles(int64_t row, int64_t rows, int64_t block, int64_t block_end) const {
    stage_tiles(row, rows);
    Isa::begin(rows);
    const auto all = [&]<bool kExponent> { in_tiles<kOutput, kExponent>(row, rows, block, block_end); };
    if constexpr (may_have_exponents(kOutput)) {
      if (job_.row_exponents)
        all.template operator()<true>();
      else
        all.template operator()<false>();
    } else {
      all.template operator()<false>();
    }
    Isa::end();
  }
  // Where fewer rows are left than a tile has, it begins with rows before them, which are multiplied once more.
  static int64_t tile_rows(int64_t rows) { return rows < Isa::kTiledRows ? rows : Isa::kTiledRows; }
  static int64_t first_row(int64_t row, int64_t rows) {
    return row + tile_rows(rows) <= rows ? row : rows - tile_rows(rows);
  }
  // Every tile's bytes together: lines a row apart would meet in few sets of the cache.
  void stage_tiles(int64_t row, int64_t rows) const {
    const uint8_t* const x = static_cast<const uint8_t*>(job_.x) + row * job_.x_stride;
    for (int64_t r = 0; r < rows; r += Isa::kTiledRows)
      Isa::stage_tiles(x + first_row(r, rows) * job_.x_stride, job_.x_stride, tile_rows(rows),
                       job_.x_bytes == Isa::kBytes ? 0 : 0x80, job_.inputs, staged_ + r * width_);
  }
  template <LinearOutput kOutput>
  struct Waiting {
    const RowSums<kRows>* sums;
    Tiles tiles;
    Target<kOutput> target;
    bool careful;
    int64_t first, row, end;  // of its rows: that of the first sums, and those without outputs
  };
  static constexpr int kTogether = 4;  // rows whose outputs are made together
  template <LinearOutput kOutput, bool kExponent>
  void in_tiles(int64_t row, int64_t rows, int64_t block, int64_t block_end) const {
    alignas(64) RowSums<kRows> sums[2];
    int at = 0;
    Waiting<kOutput> waiting{};
    const int64_t steps = padded_ / kStep;
    for (int64_t b = block; b < block_end; ++b) {
      const Tiles tiles = tiles_of(staged_, kStep, row, b, false);
      const Target<kOutput> target = target_of<kOutput>(row, b * kWidth);
      const bool careful = needs_care<kOutput>(tiles);
      for (int64_t now = 0, end; now < rows; now = end) {
        const bool pair = rows - now >= kRows;
        const int64_t first = pair ? now : first_row(now, rows);
        end = first + (pair ? kRows : tile_rows(rows));
        prefetch_outputs(from_row(target, now), end - now);
        const int64_t each = steps ? whole((waiting.end - waiting.row + steps - 1) / steps, kTogether) : 0;
        Isa::template tile_products<!kExponent>(
            sums[at], pair, tiles.channels->bias, tiles.weights, staged_ + now * width_, padded_,
            [&] HCCS_INLINE_LAMBDA { finish_some<kOutput, kExponent>(waiting, each); });
        finish_some<kOutput, kExponent>(waiting, waiting.end - waiting.row);
        waiting = {&sums[at], tiles, target, careful, first, now, end};
        at = 1 - at;
      }
    }
    finish_some<kOutput, kExponent>(waiting, waiting.end - waiting.row);
  }
  template <LinearOutput kOutput, bool kExponent>
  static HCCS_INLINE void finish_some(Waiting<kOutput>& waiting, int64_t rows) {
    const int64_t end = rows < waiting.end - waiting.row ? waiting.row + rows : waiting.end;
    while (waiting.row < end) {
      const auto finish = [&]<bool kCareful, int kTileRows> HCCS_INLINE_LAMBDA {
        from_tiles<kOutput, kCareful, kExponent, kTileRows>(*waiting.sums + (waiting.row - waiting.first),
                                                            waiting.tiles, waiting.target, waiting.row);
        waiting.row += kTileRows;
      };
      const bool together = waiting.row + kTogether <= end;
      if (waiting.careful)
        finish.template operator()<true, 1>();
      else if (together)
        finish.template operator()<false, kTogether>();
      else
        finish.template operator()<false, 1>();
    }
  }
  // With exponents each row has a bias of its own, which the tiles' sums lack.
  template <LinearOutput kOutput, bool kCareful, bool kExponent, int kTileRows>
  static HCCS_INLINE void from_tiles(const typename Isa::Sums (*products)[kPanels], const Tiles& tiles,
                                     const Target<kOutput>& all, int64_t row) {
    typename Isa::Sums sums[kTileRows][kPanels];
#pragma GCC unroll 4
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c)
        sums[r][c] = kExponent ? Isa::add(products[r][c], channels_of<kExponent>(tiles, row + r).bias + c * kLanes)
                               : products[r][c];
    finish_rows<kOutput, kCareful, kExponent>(sums, tiles, from_row(all, row), row);
  }
  template <LinearOutput kOutput, bool kCareful, int kTileRows>
  static HCCS_INLINE void finish_tile(const typename Isa::Sums (&sums)[kTileRows][kPanels], const Block& channels,
                                      int64_t have, const Target<kOutput>& target) {
    if constexpr (!kCareful)
      Isa::template finish<kOutput, false>(sums, channels, target);
    else
      finish_part<kOutput, kTileRows>(sums, channels, have, target);
  }
  // Every row of these outputs begins another line of the cache.
  template <LinearOutput kOutput>
  static HCCS_INLINE void prefetch_outputs(const Target<kOutput>& target, int64_t rows) {
    if constexpr (is_int32(kOutput) || adds_stream(kOutput))
      for (int64_t r = 0; r < rows; ++r) {
        __builtin_prefetch(target.out + r * target.stride, 1, 3);
        if (is_int32(kOutput)) __builtin_prefetch(target.out + r * target.stride + 16, 1, 3);
        if (adds_stream(kOutput)) __builtin_prefetch(target.stream + r * target.stream_stride, 0, 3);
      }
  }
  static HCCS_INLINE void prefetch_rows(const Element* x, int64_t stride, int64_t rows, int64_t elements) {
    for (int r = 0; r < rows; ++r, x += stride)
      for (int64_t i = 0; i < elements; i += 64 / sizeof(Element)) __builtin_prefetch(x + i, 0, 2);
  }
  // The outputs that there are, by way of a buffer.
  template <LinearOutput kOutput, int kTileRows>
  static void finish_part(const typename Isa::Sums (&sums)[kTileRows][kPanels], const Block& channels, int64_t have,
                          const Target<kOutput>& target) {
    typename Target<kOutput>::Out out[kTileRows][kWidth];
    int16_t stream[kTileRows][kWidth] = {};
    if (adds_stream(kOutput))
      for (int r = 0; r < kTileRows; ++r)
        std::memcpy(stream[r], target.stream + r * target.stream_stride, have * sizeof(int16_t));
    const Target<kOutput> here{out[0], kWidth, stream[0], kWidth, target.table, target.offset, target.limit};
    Isa::template finish<kOutput, true>(sums, channels, here);
    for (int r = 0; r < kTileRows; ++r) std::memcpy(target.out + r * target.stride, out[r], have * sizeof(out[r][0]));
  }
};

// Bytes four at a time: [steps][kPanels][kLanes][4] weights, rows as they are.
template <class Isa>
struct DotProducts {
  static constexpr int kTail = 0;  // elements behind a staged row
  static constexpr int64_t place(int64_t output, int64_t input, int64_t) {
    return (input / Isa::kStep * Isa::kPanels * Isa::kLanes + output) * Isa::kStep + input % Isa::kStep;
  }
  // Turned bytes are x + 128.
  static int64_t excess(const int8_t* weights, int64_t inputs) {
    int64_t sum = 0;
    for (int64_t i = 0; i < inputs; ++i) sum += weights[i];
    return Isa::kBytes == Bytes::kTurned ? 128 * sum : 0;
  }
  template <class Element>
  static void stage(const uint8_t* from, int turn, int64_t inputs, Element* to) {
    for (int64_t i = 0; i < inputs; ++i) to[i] = static_cast<Element>(from[i] ^ turn);
    for (int64_t i = inputs; i < whole(inputs, Isa::kStep); ++i) to[i] = Element{0};
  }
  // The bias comes last: a tile's first products then wait for nothing but weights and x.
  template <int kTileRows, int kPanels, class Sums, class Bias, class Element, class Prefetch>
  static HCCS_INLINE void products(Sums (&sums)[kTileRows][kPanels], const Bias& bias, const Element* weights,
                                   const Element* x, int64_t stride, int64_t padded, Ahead ahead,
                                   const Prefetch& prefetch) {
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c) sums[r][c] = Sums{};
    prefetch();
    add_products(sums, weights, x, stride, padded, ahead);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c) sums[r][c] = Isa::add(sums[r][c], bias(r) + c * Isa::kLanes);
  }
  template <int kTileRows, int kPanels, class Sums, class Element>
  static HCCS_INLINE void add_products(Sums (&sums)[kTileRows][kPanels], const Element* weights, const Element* x,
                                       int64_t stride, int64_t inputs, Ahead ahead) {
    constexpr int kVector = Isa::kLanes * Isa::kStep;
    for (int64_t i = 0; i < inputs; i += Isa::kStep, weights += kPanels * kVector, x += Isa::kStep) {
      typename Isa::Panel panel[kPanels];
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c) {
        panel[c] = Isa::panel(weights + c * kVector);
        __builtin_prefetch(ahead.from + c * kVector, 0, 3);
      }
      ahead.from += ahead.step;
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) {
        const typename Isa::Panel row = Isa::broadcast(x + r * stride);
#pragma GCC unroll 4
        for (int c = 0; c < kPanels; ++c) sums[r][c] = Isa::dot(sums[r][c], panel[c], row);
      }
    }
  }
};

}  // namespace
}  // namespace hccs
