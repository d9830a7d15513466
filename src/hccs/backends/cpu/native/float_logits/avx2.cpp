#include "float_logits/rows.hpp"
#include "quantise/rows.hpp"

namespace hccs {
const LogitsKernels logits_avx2{forward_rows, backward_rows, quantise_rows};
}  // namespace hccs
