// The Python module `hccs.kernels._native`. Arguments arrive checked by hccs.kernels; what is checked again
// here is what would otherwise read or write outside an array.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "dispatch.hpp"

namespace nb = nanobind;

namespace {

// The buffer protocol directly: a call on one short row is dominated by how its arrays are taken apart.
class Buffer {
 public:
  Buffer(nb::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) nb::raise_python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  const Py_buffer& view() const { return view_; }
  template <class T>
  T* data() const {
    return static_cast<T*>(view_.buf);
  }
  int64_t elements() const { return view_.len / view_.itemsize; }

 private:
  Py_buffer view_;
};

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// The first `ndim` dimensions of an array, dropped or merged where the stride allows: fewer to step through.
hccs::StridedRows strided_rows(const Py_buffer& view, int ndim) {
  require(ndim <= hccs::StridedRows::kMaxDims, "too many dimensions");
  hccs::StridedRows rows;
  rows.base = static_cast<const char*>(view.buf);
  for (int d = 0; d < ndim; ++d) {
    const int64_t extent = view.shape[d], stride = view.strides[d];
    if (extent == 1) continue;
    const int last = rows.ndim - 1;
    if (last >= 0 && rows.stride[last] == extent * stride) {
      rows.shape[last] *= extent;
      rows.stride[last] = stride;
    } else {
      rows.shape[rows.ndim] = extent;
      rows.stride[rows.ndim++] = stride;
    }
  }
  return rows;
}

const hccs::Isa* selected = nullptr;

std::string select_isa(const std::string& name) {
  for (const hccs::Isa& isa : hccs::isas())
    if (isa.supported && (name.empty() || name == isa.name)) selected = &isa;
  return selected->name;
}

nb::list known_isas() {
  nb::list names;
  for (const hccs::Isa& isa : hccs::isas()) names.append(nb::make_tuple(isa.name, isa.supported));
  return names;
}

// masking: 0 none, 1 lengths (int32, broadcast to x.shape[:-1]), 2 a mask (bool, broadcast to x.shape, last
// dimension contiguous).
void softmax(nb::handle x_array, nb::handle heads, nb::handle head_of_group, int64_t rows_per_group, int mode,
             int masking, nb::handle valid, nb::handle out_array, int threads) {
  const Buffer x(x_array, PyBUF_C_CONTIGUOUS), theta(heads, PyBUF_C_CONTIGUOUS);
  const Buffer out(out_array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  const int64_t size = x.elements();
  if (size == 0) return;

  hccs::SoftmaxJob job{};
  job.mode = static_cast<hccs::Mode>(mode);
  job.masking = static_cast<hccs::Masking>(masking);
  job.x = x.data<int8_t>();
  job.out = out.data<void>();
  job.columns = x.view().shape[x.view().ndim - 1];
  job.rows = size / job.columns;
  job.heads = theta.data<hccs::Head>();
  job.rows_per_group = rows_per_group;
  require(x.view().itemsize == 1 && out.elements() == size, "x and out differ in size");
  require(out.view().itemsize == (hccs::is_u8(job.mode) ? 1 : 2), "out has the wrong item size");
  require(theta.view().itemsize == 4 && theta.elements() % 3 == 0, "heads must be int32 [..., 3]");
  require(rows_per_group > 0 && job.rows % rows_per_group == 0, "rows do not divide into groups");

  const auto run = [&] {
    nb::gil_scoped_release release;
    hccs::run_softmax(job, selected->softmax, threads);
  };
  const auto with_valid = [&] {
    if (job.masking == hccs::Masking::kNone) return run();
    const bool lengths = job.masking == hccs::Masking::kLengths;
    const Buffer selection(valid, PyBUF_STRIDES);
    const Py_buffer& view = selection.view();
    require(view.ndim == x.view().ndim - (lengths ? 1 : 0), "valid has the wrong number of dimensions");
    require(view.itemsize == (lengths ? 4 : 1), "valid has the wrong item size");
    for (int d = 0; d < view.ndim; ++d) require(view.shape[d] == x.view().shape[d], "valid has the wrong shape");
    require(lengths || view.strides[view.ndim - 1] == 1 || job.columns == 1, "mask rows must be contiguous");
    job.valid = strided_rows(view, x.view().ndim - 1);
    run();
  };
  if (head_of_group.is_none()) return with_valid();
  const Buffer groups(head_of_group, PyBUF_C_CONTIGUOUS);
  require(groups.view().itemsize == 4 && groups.elements() * rows_per_group == job.rows, "wrong number of groups");
  job.head_of_group = groups.data<int32_t>();
  with_valid();
}

// Forward (input z, output p, rounded written) and backward (input dL/dp, output dL/dz, rounded read) of the
// training kernels. `heads` int32 [H, 3], `scales` float32 [H]; `parameters` float32 [rows, 4] or None.
bool logits(bool forward, nb::handle input_array, nb::handle heads, nb::handle scales_array, nb::handle head_of_group,
            int64_t rows_per_group, int mode, nb::handle valid, nb::handle rounded_array, nb::handle output_array,
            nb::handle parameters, int threads) {
  const Buffer input(input_array, PyBUF_C_CONTIGUOUS), theta(heads, PyBUF_C_CONTIGUOUS);
  const Buffer scales(scales_array, PyBUF_C_CONTIGUOUS), groups(head_of_group, PyBUF_C_CONTIGUOUS);
  const Buffer rounded(rounded_array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  const Buffer output(output_array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  const Py_buffer& view = input.view();
  const int64_t size = input.elements();
  if (size == 0) return true;

  hccs::LogitsJob job{};
  job.rows.columns = view.shape[view.ndim - 1];
  job.rows.rows = size / job.rows.columns;
  job.rows.mode = static_cast<hccs::Mode>(mode);
  job.rows.heads = theta.data<hccs::Head>();
  job.rows.head_of_group = groups.data<int32_t>();
  job.rows.rows_per_group = rows_per_group;
  job.scales = scales.data<float>();
  job.input = input.data<float>();
  job.rounded = rounded.data<int16_t>();
  job.output = output.data<float>();
  require(view.itemsize == 4 && output.view().itemsize == 4 && rounded.view().itemsize == 2, "wrong item size");
  require(output.elements() == size && rounded.elements() == size, "arrays differ in size");
  require(theta.view().itemsize == 4 && theta.elements() == 3 * scales.elements(), "heads and scales differ");
  require(rows_per_group > 0 && groups.elements() * rows_per_group == job.rows.rows, "wrong number of groups");

  const auto run = [&] {
    nb::gil_scoped_release release;
    return hccs::run_logits(job, forward ? selected->logits.forward : selected->logits.backward, threads);
  };
  const auto with_valid = [&] {
    if (valid.is_none()) return run();
    const Buffer selection(valid, PyBUF_STRIDES);
    const Py_buffer& mask = selection.view();
    require(mask.ndim == view.ndim && mask.itemsize == 1, "valid must be booleans of the logits' shape");
    for (int d = 0; d < mask.ndim; ++d) require(mask.shape[d] == view.shape[d], "valid has the wrong shape");
    require(mask.strides[mask.ndim - 1] == 1 || job.rows.columns == 1, "mask rows must be contiguous");
    job.rows.masking = hccs::Masking::kMask;
    job.rows.valid = strided_rows(mask, mask.ndim - 1);
    return run();
  };
  if (parameters.is_none()) return with_valid();
  const Buffer learn(parameters, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  require(learn.view().itemsize == 4 && learn.elements() == 4 * job.rows.rows, "parameters must be float32 [rows, 4]");
  job.parameters = learn.data<float>();
  return with_valid();
}

}  // namespace

NB_MODULE(_native, m) {
  select_isa("");
  m.def("softmax", &softmax, nb::arg("x"), nb::arg("heads"), nb::arg("head_of_group").none(), nb::arg("rows_per_group"),
        nb::arg("mode"), nb::arg("masking"), nb::arg("valid").none(), nb::arg("out"), nb::arg("threads"));
  m.def("logits", &logits, nb::arg("forward"), nb::arg("input"), nb::arg("heads"), nb::arg("scales"),
        nb::arg("head_of_group"), nb::arg("rows_per_group"), nb::arg("mode"), nb::arg("valid").none(), nb::arg("rounded"),
        nb::arg("output"), nb::arg("parameters").none(), nb::arg("threads"));
  m.def("select", &select_isa, "Use this instruction set ('' for the fastest); returns the one in use.");
  m.def("in_use", [] { return selected->name; }, "The instruction set in use.");
  m.def("known_isas", &known_isas, "(name, whether this machine runs it), the fastest last.");
  m.def("empty", [] {}, "Does nothing: the floor of a call's cost, for benchmarks.");
}
