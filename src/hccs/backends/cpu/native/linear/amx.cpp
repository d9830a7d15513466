#include "linear/amx.hpp"

#include "common/tile_model.hpp"
#include "linear/avx512.hpp"

namespace hccs {

constinit const LinearKernel linear_amx = LinearRows<Amx<TileInstructions, Avx512>>::kernel();
constinit const LinearKernel linear_amx_model_avx512 = LinearRows<Amx<TileModel, Avx512>>::kernel();

}  // namespace hccs
