#include "decode/plain.hpp"

namespace hccs {
const DecodeKernel decode_avx2 = kPlainDecode;
}  // namespace hccs
