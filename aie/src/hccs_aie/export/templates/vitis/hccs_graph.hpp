// Rows are independent, so every tile has a stream in and a stream out of its own (paper, eq. 12).
#pragma once

#include <adf.h>

#include <string>

#include "hccs_tile_kernel.hpp"

class hccs_graph : public adf::graph {
  public:
    adf::input_plio in[hccs_layer::tiles];
    adf::output_plio out[hccs_layer::tiles];

    hccs_graph() {
        for (unsigned t = 0; t < hccs_layer::tiles; ++t) {
            const std::string number = std::to_string(t);
            tiles_[t] = adf::kernel::create_object<hccs_tile_kernel>(int(t * hccs_layer::step));
            adf::source(tiles_[t]) = "src/hccs_tile_kernel.cpp";
            adf::runtime<adf::ratio>(tiles_[t]) = 0.9;
            in[t] = adf::input_plio::create("in" + number, adf::plio_64_bits, "data/in" + number + ".txt");
            out[t] = adf::output_plio::create("out" + number, adf::plio_64_bits, "data/out" + number + ".txt");
            adf::connect(in[t].out[0], tiles_[t].in[0]);
            adf::connect(tiles_[t].out[0], out[t].in[0]);
            adf::dimensions(tiles_[t].in[0]) = {hccs_layer::in_elements};
            adf::dimensions(tiles_[t].out[0]) = {hccs_layer::out_elements};
        }
    }

  private:
    adf::kernel tiles_[hccs_layer::tiles];
};
