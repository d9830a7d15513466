#include "attention/avx512.hpp"

namespace hccs {

const AttentionKernel attention_avx512{AttentionRows<Avx512>::workspace, AttentionRows<Avx512>::run};

}  // namespace hccs
