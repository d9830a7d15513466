// A model of the tile instructions: what Intel's manual ("Intel AMX Instruction Set Reference") says that they do, the
// shapes that it refuses included. Where a processor would raise #GP or #UD, the model ends the process by a trap.
#pragma once

#include <cstring>

#include "common/tiles.hpp"

namespace hccs {
namespace {

struct ModelledTile {
  int rows = 0, row_bytes = 0;  // 0: not configured
  uint8_t bytes[kTileHeight][kTileWidth] = {};
};

struct TileModel {
  using Tile = ModelledTile;
  static inline thread_local Tile tiles[kTileCount];
  static inline thread_local bool configured = false;

  static void require(bool allowed) {
    if (!allowed) __builtin_trap();
  }

  // LDTILECFG. Every tile is zero afterwards.
  static void configure(const TileConfiguration& shapes) {
    require(shapes.palette == 1 && shapes.start_row == 0);
    for (const uint8_t byte : shapes.reserved) require(byte == 0);
    for (int i = 0; i < 16; ++i) {
      const int rows = shapes.rows[i], row_bytes = shapes.row_bytes[i];
      require(i < kTileCount || (rows == 0 && row_bytes == 0));
      require(rows <= kTileHeight && row_bytes <= kTileWidth && (rows == 0) == (row_bytes == 0));
      if (i < kTileCount) tiles[i] = Tile{rows, row_bytes};
    }
    configured = true;
  }
  static void release() {
    for (Tile& tile : tiles) tile = Tile{};
    configured = false;
  }

  template <int kTile>
  static void zero() {
    Tile& tile = valid(kTile);
    std::memset(tile.bytes, 0, sizeof tile.bytes);
  }
  // Bytes and rows beyond the tile's shape become zero.
  template <int kTile>
  static void load(const void* from, int64_t stride) {
    Tile& tile = valid(kTile);
    zero<kTile>();
    for (int r = 0; r < tile.rows; ++r)
      std::memcpy(tile.bytes[r], static_cast<const uint8_t*>(from) + r * stride, tile.row_bytes);
  }
  template <int kTile>
  static void store(void* to, int64_t stride) {
    const Tile& tile = valid(kTile);
    for (int r = 0; r < tile.rows; ++r)
      std::memcpy(static_cast<uint8_t*>(to) + r * stride, tile.bytes[r], tile.row_bytes);
  }
  // TDPBUSD
  template <int kSums, int kOfRows, int kOfPanel>
  static void dot() {
    static_assert(kSums != kOfRows && kSums != kOfPanel && kOfRows != kOfPanel);
    Tile& sums = valid(kSums);
    const Tile &left = valid(kOfRows), &right = valid(kOfPanel);
    require(sums.row_bytes % 4 == 0 && left.row_bytes % 4 == 0 && right.row_bytes % 4 == 0);
    require(left.row_bytes / 4 == right.rows && sums.rows == left.rows && sums.row_bytes == right.row_bytes);
    for (int m = 0; m < sums.rows; ++m)
      for (int k = 0; k < left.row_bytes / 4; ++k)
        for (int n = 0; n < sums.row_bytes / 4; ++n) {
          uint32_t sum;
          std::memcpy(&sum, &sums.bytes[m][4 * n], sizeof sum);
          for (int i = 0; i < 4; ++i)
            sum += static_cast<uint32_t>(left.bytes[m][4 * k + i] * static_cast<int8_t>(right.bytes[k][4 * n + i]));
          std::memcpy(&sums.bytes[m][4 * n], &sum, sizeof sum);
        }
    for (int m = sums.rows; m < kTileHeight; ++m) std::memset(sums.bytes[m], 0, kTileWidth);
  }

 private:
  static Tile& valid(int tile) {
    require(configured && tiles[tile].rows > 0);
    return tiles[tile];
  }
};

}  // namespace
}  // namespace hccs
