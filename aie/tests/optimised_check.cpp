// One kernel over the opaque stand-ins, for an optimiser to look at. The loop hint that only AI Engine compilers know
// is left out; HCCS_MODE, HCCS_CHUNKS, HCCS_MASKED and HCCS_LONG choose the kernel.
#include "hints.hpp"

#undef HCCS_LONG_BODIES
#define HCCS_LONG_BODIES HCCS_LONG
#undef HCCS_LOOP
#define HCCS_LOOP(name, i, count, least)  \
  HCCS_PRAGMA(clang loop unroll(disable)) \
  for (unsigned i = 0; i < (count); ++i)

#include "hccs_tile.hpp"

template void hccs::softmax<hccs::mode::HCCS_MODE, HCCS_CHUNKS, HCCS_MASKED>(
    const int8* __restrict, hccs::output<hccs::mode::HCCS_MODE>::type* __restrict, const hccs::head&,
    const int16* __restrict, unsigned, unsigned, hccs::scratch& __restrict);
