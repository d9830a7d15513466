// The tiles of AMX: eight registers of up to 16 rows of 64 bytes.
//
// A product's loops take the instructions as a parameter, `Tiles`: TileInstructions are the processor's, TileModel
// (common/tile_model.hpp) computes the same on any processor, so that tests run the loops and the packing everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/inline.hpp"

namespace hccs {

// Whether this process may use the tiles of this processor for bytes. Linux asks for a request, which it may refuse.
bool may_use_tiles();

// Internal linkage, for the reason given in softmax/rows.hpp.
namespace {

constexpr int kTileCount = 8, kTileHeight = 16, kTileWidth = 64;

// What LDTILECFG reads: the shape of every tile.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void shape(int tile, int64_t tile_rows) {
    row_bytes[tile] = kTileWidth;
    rows[tile] = static_cast<uint8_t>(tile_rows);
  }
};
static_assert(sizeof(TileConfiguration) == 64);

#if defined(__x86_64__)
// Written as assembly: compilers' intrinsics do not say that a load reads memory.
struct TileInstructions {
  static HCCS_INLINE void configure(const TileConfiguration& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
  static HCCS_INLINE void release() { asm volatile("tilerelease"); }
  template <int kTile>
  static HCCS_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static HCCS_INLINE void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static HCCS_INLINE void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // sums[m][n] += sum over k of unsigned rows[m][k] times signed panel[k / 4][4 n + k % 4]
  template <int kSums, int kOfRows, int kOfPanel>
  static HCCS_INLINE void dot() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kOfRows), "i"(kOfPanel));
  }
};
#endif

}  // namespace
}  // namespace hccs
