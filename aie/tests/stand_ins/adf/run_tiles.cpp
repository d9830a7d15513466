// Runs every tile's kernel object on its PLIO input file and compares with the expected one.
#include <cstdio>
#include <fstream>

#include "hccs_graph.hpp"

int main() {
  hccs_graph graph;
  constexpr unsigned taken = hccs_layer::in_elements, made = hccs_layer::out_elements;
  alignas(64) static int8_t in[taken];
  alignas(64) static PROBABILITY out[made];
  for (unsigned tile = 0; tile < hccs_layer::tiles; ++tile) {
    std::ifstream inputs("data/in" + std::to_string(tile) + ".txt");
    std::ifstream expected("data/expected" + std::to_string(tile) + ".txt");
    for (auto& x : in) {
      int v = 0;
      inputs >> v;
      x = int8_t(v);
    }
    hccs_tile_kernel kernel(int(tile * hccs_layer::step));
    adf::buffer<int8_t> from{in};
    adf::buffer<PROBABILITY> to{out};
    kernel.run(from, to);
    for (auto p : out) {
      int v = -1;
      expected >> v;
      if (v != p) {
        std::printf("tile %u: %d instead of %d\n", tile, int(p), v);
        return 1;
      }
    }
  }
  return adf::last_dimensions[0] != made;
}
