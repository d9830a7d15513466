// One tile's kernel object: the share of rows that begins at first_row.
#pragma once

#include <adf.h>

#include "hccs_parameters.hpp"

class hccs_tile_kernel {
  public:
    explicit hccs_tile_kernel(int first_row) : first_row_(first_row) {}
    void run(adf::input_buffer<int8> &in, adf::output_buffer<@output@> &out);
    static void registerKernelClass() { REGISTER_FUNCTION(hccs_tile_kernel::run); }

  private:
    int first_row_;
    hccs::scratch scratch_;
};
