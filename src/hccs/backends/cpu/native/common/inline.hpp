// Kernels are small functions that must become one loop, whatever the compiler would weigh.
#pragma once

#define HCCS_INLINE inline __attribute__((always_inline))
#define HCCS_INLINE_LAMBDA __attribute__((always_inline))
