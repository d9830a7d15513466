#include "logits_rows.hpp"

namespace hccs {
const LogitsKernels logits_scalar{forward_rows, backward_rows};
}  // namespace hccs
