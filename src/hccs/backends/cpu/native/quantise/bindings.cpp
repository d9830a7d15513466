#include "common/bindings.hpp"

#include <nanobind/nanobind.h>

#include "common/arrays.hpp"
#include "common/instruction_sets.hpp"

namespace hccs {
namespace {

using namespace arrays;

// Floats [batch, heads, n, d] to int8 of the same shape, both with contiguous rows; `factors` float32 [heads].
bool quantise(nb::handle input_array, nb::handle factor_array, nb::handle output_array) {
  const Buffer input(input_array, PyBUF_STRIDES), factors(factor_array, PyBUF_C_CONTIGUOUS);
  const Buffer output(output_array, PyBUF_STRIDES | PyBUF_WRITABLE);
  const Py_buffer &in = input.view(), &out = output.view();
  require(in.ndim == 4 && out.ndim == 4 && in.itemsize == 4 && out.itemsize == 1,
          "float32 and int8 of four dimensions");
  require(factors.view().itemsize == 4 && factors.elements() == in.shape[1], "one factor per head");
  QuantiseJob job{input.data<float>(),
                  output.data<int8_t>(),
                  factors.data<float>(),
                  in.shape[0],
                  in.shape[1],
                  in.shape[2],
                  in.shape[3],
                  {},
                  {}};
  for (int d = 0; d < 4; ++d) require(in.shape[d] == out.shape[d], "input and output differ in shape");
  require(job.d <= 1 || (in.strides[3] == 4 && out.strides[3] == 1), "rows must be contiguous");
  for (int d = 0; d < 3; ++d) {
    job.input_stride[d] = in.strides[d] / in.itemsize;
    job.output_stride[d] = out.strides[d];
  }
  nb::gil_scoped_release release;
  return in_use().logits.quantise(job);
}

}  // namespace

void bind_quantise(nb::module_& m) {
  m.def("quantise", &quantise, nb::arg("input"), nb::arg("factors"), nb::arg("output"));
}

}  // namespace hccs
