// hls4ml's own softmax on rows of COLUMNS logits read as text: what C++ simulation of a design computes.
#include <cstdio>

#include "ap_fixed.h"
#include "nnet_utils/nnet_activation.h"

struct config : nnet::activ_config {
  static const unsigned n_in = COLUMNS;
  static const unsigned n_slice = COLUMNS;
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
  typedef ap_ufixed<15, INTEGER_BITS - 1> inp_norm_t;
};

int main() {
  ap_fixed<16, INTEGER_BITS> in[COLUMNS];
  ap_fixed<16, 6> out[COLUMNS];
  double value;
  unsigned i = 0;
  while (std::scanf("%lf", &value) == 1) {
    in[i++] = value;
    if (i == COLUMNS) {
      i = 0;
      nnet::softmax<ap_fixed<16, INTEGER_BITS>, ap_fixed<16, 6>, config>(in, out);
      for (unsigned j = 0; j < COLUMNS; ++j) std::printf("%d\n", (int)(out[j].to_double() * 1024));
    }
  }
}
