#include "logits_rows.hpp"
#include "quantise_rows.hpp"

namespace hccs {
const LogitsKernels logits_scalar{forward_rows, backward_rows, quantise_rows};
}  // namespace hccs
