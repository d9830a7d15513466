#include <nanobind/nanobind.h>

#include "bindings.hpp"
#include "search.hpp"
#include "statistics.hpp"

NB_MODULE(_native, m) {
  using namespace hccs::calibration;
  bind_statistics(m);
  bind_search(m);
  // Python reads the numbers of the native code here, so that they are written once.
  m.attr("DISTANCES") = kDistances;
  m.attr("EXP_BITS") = kExpBits;
  m.attr("MASS_BITS") = kMassBits;
  m.attr("TIE") = kTie;
}
