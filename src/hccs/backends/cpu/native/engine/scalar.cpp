// Portable C++: LayerNorm in 64-bit integers.
#include "engine/row_loops.hpp"

namespace hccs {

const RowKernels rows_scalar = kRowLoops<PlainNorm>;

}  // namespace hccs
