// The loops and the packing of AMX on any processor, for tests: tiles and all else in plain C++.
#include "common/tile_model.hpp"
#include "linear/amx.hpp"
#include "linear/portable.hpp"

namespace hccs {
namespace {

struct Portable : DotProducts<Portable> {
  using Element = uint8_t;
  struct Sums {
    int32_t lanes[16];
  };
  struct Panel {
    uint8_t bytes[64];
  };
  static constexpr Bytes kBytes = Bytes::kTurned;
  static constexpr int kLanes = 16, kStep = 4, kRows = 4, kPanels = 2;

  static Sums add(Sums sums, const int32_t* from) {
    for (int i = 0; i < 16; ++i)
      sums.lanes[i] = static_cast<int32_t>(static_cast<uint32_t>(sums.lanes[i]) + static_cast<uint32_t>(from[i]));
    return sums;
  }
  static Panel panel(const uint8_t* from) {
    Panel all;
    std::memcpy(all.bytes, from, sizeof all.bytes);
    return all;
  }
  static Panel broadcast(const uint8_t* from) {
    Panel all;
    for (int i = 0; i < 64; ++i) all.bytes[i] = from[i % 4];
    return all;
  }
  static Sums dot(Sums sums, Panel weights, Panel x) {
    for (int i = 0; i < 64; ++i)
      sums.lanes[i / 4] =
          static_cast<int32_t>(static_cast<uint32_t>(sums.lanes[i / 4]) +
                               static_cast<uint32_t>(x.bytes[i] * static_cast<int8_t>(weights.bytes[i])));
    return sums;
  }
  template <LinearOutput kOutput, bool, int kTileRows>
  static void finish(const Sums (&sums)[kTileRows][2], const Channels<32>& channels, const Target<kOutput>& to) {
    for (int r = 0; r < kTileRows; ++r)
      for (int c = 0; c < 32; ++c) finish_one(sums[r][c / 16].lanes[c % 16], channels, r, c, to);
  }
};

}  // namespace

constinit const LinearKernel linear_amx_model = LinearRows<Amx<TileModel, Portable>>::kernel();

}  // namespace hccs
