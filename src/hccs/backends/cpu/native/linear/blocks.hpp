// The linear kernel, written once. `Isa` supplies the instructions; each linear/<isa>.cpp defines one.
//
// Weights are packed in blocks of outputs, which a tile of rows reads from the first byte to the last: one vector load
// feeds Isa::kLanes sums with Isa::kStep products each. A block serves a whole chunk of rows before the next does: it
// stays in the L1 cache, and the chunk in the L2 cache.
#pragma once

#include "linear/channels.hpp"

namespace hccs {
namespace {

template <class Isa>
class LinearRows {
  using Element = typename Isa::Element;
  static constexpr int kLanes = Isa::kLanes, kStep = Isa::kStep, kPanels = Isa::kPanels, kRows = Isa::kRows;
  static constexpr int kWidth = kLanes * kPanels;     // outputs of a block
  static constexpr int64_t kChunkBytes = 192 * 1024;  // of x, beside which weights still have room in the L2 cache
  using Block = Channels<kWidth>;

 public:
  static constexpr LinearKernel kernel() {
    return {Isa::kBytes, kRows, kWidth, packed_bytes, pack, workspace, run};
  }

 private:
  static size_t packed_bytes(int64_t inputs, int64_t outputs) noexcept {
    return static_cast<size_t>((outputs + kWidth - 1) / kWidth * block_bytes(inputs));
  }
  static void pack(const int8_t* weight, const int32_t* bias, const int32_t* multiplier, int64_t inputs,
                   int64_t outputs, std::byte* packed) noexcept {
    for (int64_t c = 0; c < outputs; c += kWidth, packed += block_bytes(inputs))
      pack_block(weight + c * inputs, bias + c, multiplier ? multiplier + c : nullptr, inputs,
                 outputs - c < kWidth ? outputs - c : kWidth, packed);
  }
  static size_t workspace(int64_t inputs) noexcept {
    return static_cast<size_t>(whole(chunk_rows(inputs) * row_bytes(inputs), 64));
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
    }
  }

  const LinearJob& job_;
  const int64_t padded_;   // inputs in whole steps
  Element* const staged_;  // [chunk_rows][padded]
  const bool direct_;      // x is read where it lies

  LinearRows(const LinearJob& job, Element* staged)
      : job_(job),
        padded_(whole(job.inputs, kStep)),
        staged_(staged),
        direct_(sizeof(Element) == 1 && job.x_bytes == Isa::kBytes && padded_ == job.inputs) {}

  static int64_t row_bytes(int64_t inputs) { return whole(inputs, kStep) * static_cast<int64_t>(sizeof(Element)); }
  static int64_t weight_bytes(int64_t inputs) { return whole(kWidth * row_bytes(inputs), 64); }
  static int64_t block_bytes(int64_t inputs) {
    return weight_bytes(inputs) + static_cast<int64_t>(sizeof(Block));
  }
  static int64_t chunk_rows(int64_t inputs) {
    const int64_t tiles = kChunkBytes / (kRows * (row_bytes(inputs) + 1));
    return kRows * (tiles < 1 ? 1 : tiles > 64 ? 64 : tiles);
  }

  static void pack_block(const int8_t* weight, const int32_t* bias, const int32_t* multiplier, int64_t inputs,
                         int64_t have, std::byte* packed) {
    constexpr int64_t kOffset = Isa::kBytes == Bytes::kTurned ? 128 : 0;
    std::memset(packed, 0, static_cast<size_t>(block_bytes(inputs)));
    Element* const elements = reinterpret_cast<Element*>(packed);
    Block& channels = *reinterpret_cast<Block*>(packed + weight_bytes(inputs));
    channels.small = 1;
    for (int64_t c = 0; c < have; ++c) {
      int64_t sum = 0, magnitude = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        const int w = weight[c * inputs + i];
        sum += w;
        magnitude += w < 0 ? -w : w;
        elements[Isa::place(c, i, whole(inputs, kStep))] = static_cast<Element>(w);
      }
      const int64_t reach = 128 * magnitude + (bias[c] < 0 ? -int64_t{bias[c]} : bias[c]);
      if (reach >= 1 << 24) channels.small = 0;
      // Turned bytes are x + 128; what that adds comes off again modulo 2^32, as the sums are.
      channels.bias[c] = static_cast<int32_t>(static_cast<uint32_t>(bias[c] - kOffset * sum));
      channels.multiplier[c] = multiplier ? multiplier[c] : 0;
      channels.factor[c] = static_cast<float>(channels.multiplier[c]) / 65536.0f;
    }
  }

  template <LinearOutput kOutput>
  void chunks(int64_t row, int64_t row_end, int64_t block, int64_t block_end) const {
    const int64_t most = chunk_rows(job_.inputs);
    for (int64_t rows; row < row_end; row += rows) {
      rows = row_end - row < most ? row_end - row : most;
      if (!direct_)
        for (int64_t r = 0; r < rows; ++r) stage(row + r, staged_ + r * padded_);
      const Element* const x = direct_ ? static_cast<const Element*>(job_.x) + row * job_.x_stride : staged_;
      for (int64_t b = block; b < block_end; ++b)
        one_block<kOutput>(x, direct_ ? job_.x_stride : padded_, row, rows, b);
    }
  }
  void stage(int64_t row, Element* to) const {
    const uint8_t* const from = static_cast<const uint8_t*>(job_.x) + row * job_.x_stride;
    const int turn = job_.x_bytes == Isa::kBytes ? 0 : 0x80;
    for (int64_t i = 0; i < job_.inputs; ++i)
      to[i] = static_cast<Element>(static_cast<typename Isa::Input>(from[i] ^ turn));
    for (int64_t i = job_.inputs; i < padded_; ++i) to[i] = Element{0};
  }

  // One block of outputs for rows of a chunk.
  struct Tiles {
    const Element* weights;
    const Block* channels;
    const Element* x;
    int64_t x_stride;
    int64_t steps;
    int64_t have;  // outputs, at most kWidth
  };
  template <LinearOutput kOutput>
  void one_block(const Element* x, int64_t x_stride, int64_t row, int64_t rows, int64_t block) const {
    const std::byte* const packed = job_.packed + block * block_bytes(job_.inputs);
    const int64_t column = block * kWidth, left = job_.outputs - column;
    const Tiles tiles{reinterpret_cast<const Element*>(packed),
                      reinterpret_cast<const Block*>(packed + weight_bytes(job_.inputs)),
                      x,
                      x_stride,
                      padded_ / kStep,
                      left < kWidth ? left : kWidth};
    using Out = typename Target<kOutput>::Out;
    Target<kOutput> target{static_cast<Out*>(job_.out) + row * job_.out_stride + column, job_.out_stride, nullptr,
                           job_.stream_stride, job_.table, job_.out_bytes == Bytes::kTurned ? 128 : 0};
    if (adds_stream(kOutput)) target.stream = job_.stream + row * job_.stream_stride + column;
    // Sums that float32 might not hold are rare; int8 does not mind them, as what they give is clipped.
    constexpr bool kMinds = kOutput != LinearOutput::kInt32 && !is_int8(kOutput);
    if (kMinds && !tiles.channels->small)
      tiles_of<kOutput, kMinds, 4>(tiles, target, 0, rows);
    else
      tiles_of<kOutput, false, kRows>(tiles, target, 0, rows);
  }
  // Tiles of kTileRows rows as long as they last, then smaller ones.
  template <LinearOutput kOutput, bool kWide, int kTileRows>
  static void tiles_of(const Tiles& tiles, const Target<kOutput>& target, int64_t row, int64_t rows) {
    for (; row + kTileRows <= rows; row += kTileRows) tile<kOutput, kWide, kTileRows>(tiles, target, row);
    if constexpr (kTileRows > 1) {
      constexpr int kSmaller = kTileRows > 8 ? 8 : kTileRows > 4 ? 4 : kTileRows / 2;
      tiles_of<kOutput, kWide, kSmaller>(tiles, target, row, rows);
    }
  }
  // A function of its own: what the callers keep in registers would push sums out of them.
  template <LinearOutput kOutput, bool kWide, int kTileRows>
  static __attribute__((noinline)) void tile(const Tiles& tiles, Target<kOutput> target, int64_t row) {
    typename Isa::Sums sums[kTileRows][kPanels];
    Isa::products(sums, tiles.channels->bias, tiles.weights, tiles.x + row * tiles.x_stride, tiles.x_stride,
                  tiles.steps);
    target.out += row * target.stride;
    if (adds_stream(kOutput)) target.stream += row * target.stream_stride;
    if (tiles.have == kWidth) {
      Isa::template finish<kOutput, kWide, kTileRows>(sums, *tiles.channels, target);
    } else {
      typename Isa::Sums copy[kTileRows][kPanels];  // sums whose address is known elsewhere would live in memory
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < kPanels; ++c) copy[r][c] = sums[r][c];
      finish_part<kOutput, kWide, kTileRows>(copy, tiles, target);
    }
  }
  // The last block may be incomplete: its outputs take a way round.
  template <LinearOutput kOutput, bool kWide, int kTileRows>
  static __attribute__((noinline)) void finish_part(const typename Isa::Sums (&sums)[kTileRows][kPanels],
                                                    const Tiles& tiles, const Target<kOutput>& target) {
    typename Target<kOutput>::Out out[kTileRows][kWidth];
    int16_t stream[kTileRows][kWidth] = {};
    if (adds_stream(kOutput))
      for (int r = 0; r < kTileRows; ++r)
        std::memcpy(stream[r], target.stream + r * target.stream_stride, tiles.have * sizeof(int16_t));
    const Target<kOutput> here{out[0], kWidth, stream[0], kWidth, target.table, target.offset};
    Isa::template finish<kOutput, kWide, kTileRows>(sums, *tiles.channels, here);
    for (int r = 0; r < kTileRows; ++r)
      std::memcpy(target.out + r * target.stride, out[r], tiles.have * sizeof(out[r][0]));
  }
};

// Isa::place and Isa::products for vectors: [steps][kPanels][kLanes][kStep] elements.
template <class Isa>
struct VectorProducts {
  static constexpr int64_t place(int64_t output, int64_t input, int64_t) {
    return (input / Isa::kStep * Isa::kPanels * Isa::kLanes + output) * Isa::kStep + input % Isa::kStep;
  }
  template <int kTileRows, int kPanels, class Sums, class Element>
  static HCCS_INLINE void products(Sums (&sums)[kTileRows][kPanels], const int32_t* bias, const Element* weights,
                                   const Element* x, int64_t stride, int64_t steps) {
    constexpr int kVector = Isa::kLanes * Isa::kStep;
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c) sums[r][c] = Isa::load(bias + c * Isa::kLanes);
    for (int64_t step = 0; step < steps; ++step, weights += kPanels * kVector, x += Isa::kStep) {
      typename Isa::Panel panel[kPanels];
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c) panel[c] = Isa::panel(weights + c * kVector);
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
