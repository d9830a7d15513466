// The Python module `hccs.backends.cpu._native`. Arguments arrive checked by hccs.ops; what is checked again
// in the operators' bindings is what would otherwise read or write outside an array.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "common/arrays.hpp"
#include "common/bindings.hpp"
#include "common/instruction_sets.hpp"

namespace nb = nanobind;

namespace {

template <size_t kCount>
nb::tuple tuple_of(const char* const (&names)[kCount]) {
  nb::list list;
  for (const char* name : names) list.append(name);
  return nb::tuple(list);
}

nb::list known_isas() {
  nb::list names;
  for (const hccs::InstructionSet& set : hccs::instruction_sets())
    names.append(nb::make_tuple(set.name, set.supported));
  return names;
}

// Python reads the numbers of the native code here, so that they are written once.
void export_numbers(nb::module_& m) {
  using namespace hccs::arrays;
  m.attr("DONE") = static_cast<int>(kDone);
  m.attr("THETA_SHAPE") = static_cast<int>(kThetaShape);
  m.attr("SELECTION_SHAPE") = static_cast<int>(kSelectionShape);
  m.attr("LENGTH_RANGE") = static_cast<int>(kLengthRange);
  m.attr("MASK_LAYOUT") = static_cast<int>(kMaskLayout);
  m.attr("OVERLAP") = static_cast<int>(kOverlap);
  m.attr("REQUANT_SHAPE") = static_cast<int>(kRequantShape);
  m.attr("NO_MASK") = static_cast<int>(hccs::Masking::kNone);
  m.attr("LENGTHS") = static_cast<int>(hccs::Masking::kLengths);
  m.attr("MASK") = static_cast<int>(hccs::Masking::kMask);
  m.attr("MODES") = tuple_of(hccs::kModeNames);
  m.attr("DEFERRED") = hccs::kDeferred;
  m.attr("OUTPUTS") = tuple_of(hccs::kAttentionOutputNames);
  m.attr("LINEAR_OUTPUTS") = tuple_of(hccs::kLinearOutputNames);
}

}  // namespace

NB_MODULE(_native, m) {
  hccs::bind_softmax(m);
  hccs::bind_attention(m);
  hccs::bind_decode(m);
  hccs::bind_float_logits(m);
  hccs::bind_linear(m);
  hccs::bind_quantise(m);
  hccs::bind_engine(m);
  hccs::bind_sampling(m);
  hccs::bind_top_k(m);
  export_numbers(m);
  m.def(
      "select", [](const std::string& name) { return hccs::use(name).name; },
      "Use this instruction set ('' for the fastest); returns the one in use.");
  m.def("in_use", [] { return hccs::in_use().name; }, "The instruction set in use.");
  m.def("known_isas", &known_isas, "(name, whether this machine runs it), the fastest last.");
  m.def("empty", [] {}, "Does nothing: the floor of a call's cost, for benchmarks.");
}
