#include "hccs_tile_kernel.hpp"

#include "hccs_parameters.hpp"

// Every tile has its own memory, so every kernel object its own scratch arrays.
static hccs::tile_scratch tile_scratch;

void hccs_tile_kernel::run(adf::input_buffer<int8_t> &in, adf::output_buffer<@output@_t> &out) {
    hccs::run_tile(in.data(), out.data(), unsigned(first_), tile_scratch);
}
