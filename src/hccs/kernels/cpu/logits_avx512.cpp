#include "logits_rows.hpp"

namespace hccs {
const LogitsKernels logits_avx512{forward_rows, backward_rows};
}  // namespace hccs
