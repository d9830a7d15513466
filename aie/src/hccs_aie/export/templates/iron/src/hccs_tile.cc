// The kernel that the design calls: one tile's share of rows.
#include "hccs_parameters.hpp"

static hccs::tile_scratch tile_scratch;

extern "C" void hccs_tile(const int8 *in, @output@ *out, int32 first) {
    hccs::run_tile(in, out, unsigned(first), tile_scratch);
}
