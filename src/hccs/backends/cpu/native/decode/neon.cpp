#include "decode/plain.hpp"

namespace hccs {
const DecodeKernel decode_neon = kPlainDecode;
}  // namespace hccs
