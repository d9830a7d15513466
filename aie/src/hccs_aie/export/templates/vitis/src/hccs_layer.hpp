// The layer's shape, in plain C++ so that the graph can be compiled for the host as well.
#pragma once

namespace hccs_layer {

constexpr unsigned tiles = @tiles@;
constexpr unsigned in_elements = @in_elements@, out_elements = @out_elements@;  // of a tile
constexpr unsigned step = @step@;  // from a tile's first to the next one's

}  // namespace hccs_layer
