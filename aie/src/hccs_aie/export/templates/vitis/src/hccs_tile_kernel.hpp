// One tile's kernel object: the share that begins at `first`. The graph's host compiler reads this too, so it
// names no AIE API.
#pragma once

#include <adf.h>

#include <cstdint>

#include "hccs_layer.hpp"

class hccs_tile_kernel {
  public:
    explicit hccs_tile_kernel(int first) : first_(first) {}
    void run(adf::input_buffer<int8_t> &in, adf::output_buffer<@output@_t> &out);
    static void registerKernelClass() { REGISTER_FUNCTION(hccs_tile_kernel::run); }

  private:
    int first_;
};
