// NEON: the loops in its vectors, LayerNorm in float64 that fuses multiplication and addition.
#include "engine/row_loops.hpp"

namespace hccs {

const RowKernels rows_neon = kRowLoops<PlainNorm>;

}  // namespace hccs
