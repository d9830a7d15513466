// AMX: one instruction adds 64 products of unsigned by signed bytes to each of 16 x 16 sums. It multiplies whole blocks
// of 16 queries. All else is AVX-512's: panels, which are filled up to whole tiles, and blocks of fewer queries.
#include "attention/avx512.hpp"
#include "common/tile_model.hpp"
#include "common/tiles.hpp"

namespace hccs {
namespace {

template <class Tiles>
struct Amx : Avx512 {
  static constexpr int kDepth = kTileWidth, kTiledRows = kTileHeight;
  static_assert(kTiledRows == kBlockRows);

  // Sums in tiles 0 to 3, rows in 4, panels in 5 and 6.
  static void begin() {
    TileConfiguration shapes;
    for (int tile = 0; tile < 7; ++tile) shapes.shape(tile, kTiledRows);
    Tiles::configure(shapes);
  }
  static void end() { Tiles::release(); }

  // Weights behind the last of the `steps` are zeros up to a whole tile, and so is q. Sums start from 16 times
  // kPanels of `bias`, or from zero without.
  template <int kPanels>
  static HCCS_INLINE void tile_products(Sums (&sums)[kTiledRows][kPanels], const int32_t* bias, const uint8_t* panels,
                                        int64_t panel_stride, const uint8_t* rows, int64_t row_stride, int64_t steps) {
    constexpr int64_t kTileOfPanel = kTileHeight * 64;
    for_panels<kPanels>([&]<int c> HCCS_INLINE_LAMBDA {
      if (bias)
        Tiles::template load<c>(bias + 16 * c, 0);  // all rows the same
      else
        Tiles::template zero<c>();
    });
    for (int64_t step = 0; step < steps; step += kTileHeight, rows += kTileWidth, panels += kTileOfPanel) {
      Tiles::template load<4>(rows, row_stride);
      for_panels<kPanels>([&]<int c> HCCS_INLINE_LAMBDA {
        Tiles::template load<5 + c % 2>(panels + c * panel_stride, 64);
        Tiles::template dot<c, 4, 5 + c % 2>();
      });
    }
    for_panels<kPanels>([&]<int c> HCCS_INLINE_LAMBDA { Tiles::template store<c>(&sums[0][c], 64 * kPanels); });
  }
  template <int kPanels, int c = 0, class Action>
  static HCCS_INLINE void for_panels(const Action& action) {
    action.template operator()<c>();
    if constexpr (c + 1 < kPanels) for_panels<kPanels, c + 1>(action);
  }
};

}  // namespace

const AttentionKernel attention_amx{AttentionRows<Amx<TileInstructions>>::workspace,
                                    AttentionRows<Amx<TileInstructions>>::run};
const AttentionKernel attention_amx_model{AttentionRows<Amx<TileModel>>::workspace, AttentionRows<Amx<TileModel>>::run};

}  // namespace hccs
