// hls4ml's own softmax on rows of logits read as text: what C++ simulation of a design computes.
// CASES is a list of CASE(columns, integer bits); the program's argument is the place of one in it.
#include <cstdio>
#include <cstdlib>

#include "ap_fixed.h"
#include "nnet_utils/nnet_activation.h"

template <unsigned columns, int integer_bits>
struct config : nnet::activ_config {
  static const unsigned n_in = columns;
  static const unsigned n_slice = columns;
  static const unsigned n_outer = 1;
  static const unsigned n_inner = 1;
  static const unsigned parallelization_factor = -1;
  static const unsigned exp_table_size = 1024;
  static const unsigned inv_table_size = 1024;
  static const nnet::softmax_implementation implementation = nnet::softmax_implementation::stable;
  static constexpr float exp_scale = 1.0;
  typedef ap_fixed<18, 8, AP_RND, AP_SAT> exp_table_t;
  typedef ap_fixed<18, 8, AP_RND, AP_SAT> inv_table_t;
  typedef ap_fixed<18, 8, AP_RND, AP_SAT> accum_t;
  typedef ap_fixed<18, 8, AP_RND, AP_SAT> inv_inp_t;
  typedef ap_ufixed<15, integer_bits - 1> inp_norm_t;
};

template <unsigned columns, int integer_bits>
void rows() {
  ap_fixed<16, integer_bits> in[columns];
  ap_fixed<16, 6> out[columns];
  double value;
  unsigned i = 0;
  while (std::scanf("%lf", &value) == 1) {
    in[i++] = value;
    if (i == columns) {
      i = 0;
      nnet::softmax<ap_fixed<16, integer_bits>, ap_fixed<16, 6>, config<columns, integer_bits>>(in, out);
      for (unsigned j = 0; j < columns; ++j) std::printf("%d\n", (int)(out[j].to_double() * 1024));
    }
  }
}

int main(int, char** arguments) {
#define CASE(columns, integer_bits) rows<columns, integer_bits>,
  void (*const cases[])() = {CASES};
  cases[std::atoi(arguments[1])]();
}
