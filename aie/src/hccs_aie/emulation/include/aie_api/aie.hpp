// The part of AMD's AIE API (aie_api/aie.hpp) that the kernels use, on the host. Every operation computes the exact
// result and, while a trace is being recorded, notes what it read and made. Put this folder on the include path in
// place of the AI Engine compiler's and the kernel sources compile unchanged.
#pragma once

#define HCCS_AIE_EMULATION

#include "floating.hpp"
#include "operations.hpp"
