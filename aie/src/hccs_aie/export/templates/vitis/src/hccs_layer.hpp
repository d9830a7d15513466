// The layer's shape, in plain C++ so that the graph can be compiled for the host as well.
#pragma once

namespace hccs_layer {

constexpr unsigned columns = @columns@;
constexpr unsigned tiles = @tiles@;
constexpr unsigned rows_per_tile = @rows_per_tile@;

}  // namespace hccs_layer
