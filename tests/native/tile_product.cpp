// One TDPBUSD of the model of AMX's tiles. Reads the three tiles' rows and bytes per row (sums, left, right), then
// their content row by row without gaps; writes all 16 rows of 64 bytes of the sums, which were filled with 0xff
// before.
#include "common/tile_model.hpp"
#include "recorded.hpp"

int main() {
  const auto shapes = read_array<int64_t>(stdin, 6);
  hccs::TileConfiguration configuration;
  for (int tile = 0; tile < 3; ++tile) {
    configuration.rows[tile] = static_cast<uint8_t>(shapes[2 * tile]);
    configuration.row_bytes[tile] = static_cast<uint16_t>(shapes[2 * tile + 1]);
  }
  using Tiles = hccs::TileModel;
  Tiles::configure(configuration);
  std::vector<uint8_t> contents[3];
  for (int tile = 0; tile < 3; ++tile)
    contents[tile] = read_array<uint8_t>(stdin, shapes[2 * tile] * shapes[2 * tile + 1]);
  Tiles::load<0>(contents[0].data(), shapes[1]);
  Tiles::load<1>(contents[1].data(), shapes[3]);
  Tiles::load<2>(contents[2].data(), shapes[5]);
  Tiles::dot<0, 1, 2>();
  std::vector<uint8_t> out(hccs::kTileHeight * hccs::kTileWidth, 0xff);
  Tiles::store<0>(out.data(), hccs::kTileWidth);
  std::fwrite(out.data(), 1, out.size(), stdout);
  Tiles::release();
}
