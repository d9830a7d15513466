#include "decode/plain.hpp"

namespace hccs {
const DecodeKernel decode_scalar = kPlainDecode;
}  // namespace hccs
