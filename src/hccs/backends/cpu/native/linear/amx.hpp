// AMX: one instruction adds 64 products of unsigned by signed bytes to each of 16 x 16 sums. Weights are packed as
// `Vectors`, another instruction set, packs them, in whole tiles; it multiplies rows that are too few for tiles, and
// makes outputs of all sums.
#pragma once

#include "common/tiles.hpp"
#include "linear/blocks.hpp"

namespace hccs {
namespace {

template <class Tiles, class Vectors>
struct Amx : Vectors {
  static_assert(Vectors::kLanes == 16 && Vectors::kPanels == 2 && Vectors::kStep == 4);
  static constexpr int kStep = kTileWidth, kTiledRows = kTileHeight, kRows = 2 * kTiledRows;
  static constexpr int kTileBytes = kTileHeight * kTileWidth;
  static constexpr int kFewestRows = 4;  // below, vectors take as long for a line of weights as a tile does

  static void stage(const uint8_t* from, int turn, int64_t inputs, uint8_t* to) {
    Vectors::stage(from, turn, inputs, to);
    for (int64_t i = inputs; i < whole(inputs, kStep); ++i) to[i] = 0;
  }
  // [steps][rows of a tile][kStep], zeros behind the inputs.
  static void stage_tiles(const uint8_t* from, int64_t stride, int64_t rows, int turn, int64_t inputs, uint8_t* to) {
    const int64_t full = inputs / kStep * kStep;
    for (int64_t r = 0; r < rows; ++r, from += stride, to += kStep) {
      uint8_t* tile = to;
      int64_t i = 0;
      for (; i < full; i += kStep, tile += kTileBytes)
        for (int j = 0; j < kStep; ++j) tile[j] = static_cast<uint8_t>(from[i + j] ^ turn);
      for (int j = 0; j < kStep && full < inputs; ++j)
        tile[j] = i + j < inputs ? static_cast<uint8_t>(from[i + j] ^ turn) : 0;
    }
  }

  // Sums of 32 rows by 32 outputs in tiles 0 to 3, of the first 16 rows in 0 and 1; rows in 4 and 5, weights in 6
  // and 7.
  static void begin(int64_t rows) {
    TileConfiguration shapes;
    for (int tile = 0; tile < kTileCount; ++tile) shapes.shape(tile, tile < 6 && rows < kTiledRows ? rows : kTiledRows);
    Tiles::configure(shapes);
  }
  static void end() { Tiles::release(); }

  using typename Vectors::Sums;
  // Of 32 rows, or of the 16 or fewer that the tiles were configured for; `between` is done after every step.
  template <bool kBias, class Between>
  static HCCS_INLINE void tile_products(Sums (*sums)[2], bool pair, const int32_t* bias, const uint8_t* weights,
                                        const uint8_t* x, int64_t padded, const Between& between) {
    constexpr int64_t kSumsStride = 2 * sizeof(Sums), kWeightsStride = 2 * 64, kTileOfWeights = 16 * kWeightsStride;
    begin_sums<kBias, 0>(bias);
    begin_sums<kBias, 1>(bias + 16);
    if (pair) {
      const uint8_t* lower = x + kTiledRows * padded;
      begin_sums<kBias, 2>(bias);
      begin_sums<kBias, 3>(bias + 16);
      for (int64_t i = 0; i < padded; i += kStep, weights += kTileOfWeights, x += kTileBytes, lower += kTileBytes) {
        Tiles::template load<6>(weights, kWeightsStride);
        Tiles::template load<4>(x, kStep);
        Tiles::template dot<0, 4, 6>();
        Tiles::template load<7>(weights + 64, kWeightsStride);
        Tiles::template dot<1, 4, 7>();
        Tiles::template load<5>(lower, kStep);
        Tiles::template dot<2, 5, 6>();
        Tiles::template dot<3, 5, 7>();
        between();
      }
      Tiles::template store<2>(sums[kTiledRows], kSumsStride);
      Tiles::template store<3>(&sums[kTiledRows][1], kSumsStride);
    } else {
      for (int64_t i = 0; i < padded; i += kStep, weights += kTileOfWeights, x += kTileBytes) {
        // Few rows leave little time between one line of weights and the next.
        for (int64_t line = 0; line < kTileOfWeights; line += 64)
          __builtin_prefetch(weights + Ahead::kBytes + line, 0, 3);
        Tiles::template load<6>(weights, kWeightsStride);
        Tiles::template load<4>(x, kStep);
        Tiles::template dot<0, 4, 6>();
        Tiles::template load<7>(weights + 64, kWeightsStride);
        Tiles::template dot<1, 4, 7>();
        between();
      }
    }
    Tiles::template store<0>(sums[0], kSumsStride);
    Tiles::template store<1>(&sums[0][1], kSumsStride);
  }
  template <bool kBias, int kTile>
  static HCCS_INLINE void begin_sums(const int32_t* bias) {
    if constexpr (kBias)
      Tiles::template load<kTile>(bias, 0);  // all rows the same
    else
      Tiles::template zero<kTile>();
  }
};

}  // namespace
}  // namespace hccs
