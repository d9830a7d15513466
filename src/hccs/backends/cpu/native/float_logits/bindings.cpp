#include "common/bindings.hpp"

#include <nanobind/nanobind.h>

#include "common/arrays.hpp"
#include "common/instruction_sets.hpp"
#include "common/signals.hpp"

namespace hccs {
namespace {

using namespace arrays;

// Forward (input z, output p, rounded written) and backward (input dL/dp, output dL/dz, rounded read) of the
// training kernels. `heads` int32 [H, 3] or, wide, [H, 6], `scales` float32 [H]; `parameters` float32 [rows, 4 or 7] or
// None.
bool logits(bool forward, nb::handle input_array, nb::handle heads, nb::handle scales_array, nb::handle head_of_group,
            int64_t rows_per_group, int mode, nb::handle valid, nb::handle rounded_array, nb::handle output_array,
            nb::handle parameters, nb::handle threads) {
  const Buffer input(input_array, PyBUF_C_CONTIGUOUS), theta(heads, PyBUF_C_CONTIGUOUS);
  const Buffer scales(scales_array, PyBUF_C_CONTIGUOUS), groups(head_of_group, PyBUF_C_CONTIGUOUS);
  const Buffer rounded(rounded_array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  const Buffer output(output_array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  const Py_buffer& view = input.view();
  const int64_t size = input.elements();
  if (size == 0) return true;

  LogitsJob job{};
  job.rows.columns = view.shape[view.ndim - 1];
  job.rows.rows = size / job.rows.columns;
  job.rows.mode = mode_of(mode);
  const bool wide = holds(theta.view(), 6);
  const int fields = wide ? 6 : 3;
  if (wide)
    job.rows.wide_heads = theta.data<WideHead>();
  else
    job.rows.heads = theta.data<Head>();
  job.rows.head_of_group = groups.data<int32_t>();
  job.rows.rows_per_group = rows_per_group;
  job.scales = scales.data<float>();
  job.input = input.data<float>();
  job.rounded = rounded.data<int16_t>();
  job.output = output.data<float>();
  require(view.itemsize == 4 && output.view().itemsize == 4 && rounded.view().itemsize == 2, "wrong item size");
  require(output.elements() == size && rounded.elements() == size, "arrays differ in size");
  require(theta.view().itemsize == 4 && scales.view().itemsize == 4 && theta.elements() == fields * scales.elements(),
          "heads and scales differ");
  require(groups.view().itemsize == 4 && rows_per_group > 0 && groups.elements() * rows_per_group == job.rows.rows,
          "wrong number of groups");
  for (int64_t g = 0; g < groups.elements(); ++g)
    require(job.rows.head_of_group[g] >= 0 && job.rows.head_of_group[g] < scales.elements(), "no such head");
  const int most = threads_of(threads);

  const auto run = [&] {
    const LogitsRows kernel = forward ? in_use().logits.forward : in_use().logits.backward;
    bool finite = true;
    run_interruptibly([&](Interruption& interruption) { finite = run_logits(job, kernel, most, interruption); });
    return finite;
  };
  const auto with_valid = [&] {
    if (valid.is_none()) return run();
    const Buffer selection(valid, PyBUF_STRIDES);
    const Py_buffer& mask = selection.view();
    const Broadcast rows(mask.buf, mask.ndim, mask.shape, mask.strides, view.shape, view.ndim);
    require(rows.possible && mask.itemsize == 1, "valid must be booleans that broadcast to the logits' shape");
    require(rows.stride[view.ndim - 1] == 1 || job.rows.columns == 1, "mask rows must be contiguous");
    job.rows.masking = Masking::kMask;
    job.rows.valid = rows.rows(view.ndim - 1);
    return run();
  };
  if (parameters.is_none()) return with_valid();
  const Buffer learn(parameters, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  require(learn.view().itemsize == 4 && learn.elements() == (fields + 1) * job.rows.rows, "wrong number of parameters");
  job.parameters = learn.data<float>();
  return with_valid();
}

}  // namespace

void bind_float_logits(nb::module_& m) {
  m.def("logits", &logits, nb::arg("forward"), nb::arg("input"), nb::arg("heads"), nb::arg("scales"),
        nb::arg("head_of_group"), nb::arg("rows_per_group"), nb::arg("mode"), nb::arg("valid").none(),
        nb::arg("rounded"), nb::arg("output"), nb::arg("parameters").none(), nb::arg("threads"));
}

}  // namespace hccs
