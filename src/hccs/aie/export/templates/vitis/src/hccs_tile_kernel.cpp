#include "hccs_tile_kernel.hpp"

void hccs_tile_kernel::run(adf::input_buffer<int8> &in, adf::output_buffer<@output@> &out) {
    hccs::softmax_tile<hccs::layer>(in.data(), out.data(), unsigned(first_row_), hccs::layer::rows_per_tile, scratch_);
}
