// The kernel that the design calls: one tile's share of rows.
#include "hccs_parameters.hpp"

static hccs::scratch_of<hccs::layer::theta> tile_scratch;

extern "C" void hccs_tile(const int8 *in, @output@ *out, int32 first_row) {
    hccs::softmax_tile<hccs::layer>(in, out, unsigned(first_row), hccs::layer::rows_per_tile, tile_scratch);
}
