#include "linear/avx512.hpp"

namespace hccs {

constinit const LinearKernel linear_avx512 = LinearRows<Avx512>::kernel();

}  // namespace hccs
