#include "hccs_tile_kernel.hpp"

#include "hccs_parameters.hpp"

// Every tile has its own memory, so every kernel object its own scratch arrays.
static hccs::scratch_of<hccs::layer::theta> tile_scratch;

void hccs_tile_kernel::run(adf::input_buffer<int8_t> &in, adf::output_buffer<@output@_t> &out) {
    hccs::softmax_tile<hccs::layer>(in.data(), out.data(), unsigned(first_row_), hccs::layer::rows_per_tile,
                                    tile_scratch);
}
