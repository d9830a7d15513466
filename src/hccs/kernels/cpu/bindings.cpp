// The Python module `hccs.kernels._native`. Arguments arrive checked by hccs.kernels; what is checked again
// here is what would otherwise read or write outside an array.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

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

// What a call is refused for, beside its dtypes; hccs.kernels.door makes errors of it.
enum Status { kDone, kThetaShape, kSelectionShape, kLengthRange, kMaskLayout, kOverlap };

// An array seen as broadcast to a target shape: NumPy's rule, without making an array for it.
struct Broadcast {
  bool possible = false;
  const char* base = nullptr;
  int ndim = 0;
  int64_t shape[hccs::StridedRows::kMaxDims];
  int64_t stride[hccs::StridedRows::kMaxDims];

  // `own` holds ndim extents and byte strides of the array.
  Broadcast(const void* data, int own_ndim, const Py_ssize_t* own_shape, const Py_ssize_t* own_stride,
            const Py_ssize_t* target, int target_ndim)
      : base(static_cast<const char*>(data)), ndim(target_ndim) {
    if (own_ndim > target_ndim) return;
    for (int d = 0; d < target_ndim; ++d) {
      const int own = d - (target_ndim - own_ndim);
      shape[d] = target[d];
      stride[d] = own >= 0 && own_shape[own] != 1 ? own_stride[own] : 0;
      if (own >= 0 && own_shape[own] != 1 && own_shape[own] != target[d]) return;
    }
    possible = true;
  }

  // The first `dims` dimensions, dropped or merged where the stride allows: fewer to step through.
  hccs::StridedRows rows(int dims) const {
    hccs::StridedRows rows;
    rows.base = base;
    for (int d = 0; d < dims; ++d) {
      if (shape[d] == 1) continue;
      const int last = rows.ndim - 1;
      if (last >= 0 && rows.stride[last] == shape[d] * stride[d]) {
        rows.shape[last] *= shape[d];
        rows.stride[last] = stride[d];
      } else {
        rows.shape[rows.ndim] = shape[d];
        rows.stride[rows.ndim++] = stride[d];
      }
    }
    return rows;
  }

  // Calls visit(pointer) for every element of the first `dims` dimensions, in order.
  template <class Visit>
  void for_each(int dims, Visit visit) const {
    int64_t index[hccs::StridedRows::kMaxDims] = {}, count = 1;
    for (int d = 0; d < dims; ++d) count *= shape[d];
    const char* at = base;
    for (int64_t i = 0; i < count; ++i) {
      visit(at);
      for (int d = dims - 1; d >= 0; --d) {
        at += stride[d];
        if (++index[d] < shape[d]) break;
        at -= shape[d] * stride[d];
        index[d] = 0;
      }
    }
  }
};

// Row lengths of any integer dtype as contiguous int32, or false if one is not in 0..columns.
template <class T>
bool copy_lengths(const Py_buffer& view, int64_t columns, std::vector<int32_t>& to) {
  to.resize(view.len / sizeof(T));
  bool in_range = true;
  const auto copy = [&](const char* at, int32_t& length) {
    T value;
    std::memcpy(&value, at, sizeof value);  // the array need not be aligned
    in_range &= value >= T{0} && static_cast<uint64_t>(value) <= static_cast<uint64_t>(columns);
    length = static_cast<int32_t>(value);
  };
  if (PyBuffer_IsContiguous(&view, 'C')) {
    for (size_t i = 0; i < to.size(); ++i) copy(static_cast<const char*>(view.buf) + i * sizeof(T), to[i]);
  } else {
    size_t i = 0;
    const Broadcast all(view.buf, view.ndim, view.shape, view.strides, view.shape, view.ndim);
    all.for_each(view.ndim, [&](const char* at) { copy(at, to[i++]); });
  }
  return in_range;
}
bool copy_lengths(const Py_buffer& view, int64_t columns, std::vector<int32_t>& to) {
  const bool is_unsigned = view.format && std::strchr("BHILQ", view.format[std::strlen(view.format) - 1]);
  switch (view.itemsize) {
    case 1: return is_unsigned ? copy_lengths<uint8_t>(view, columns, to) : copy_lengths<int8_t>(view, columns, to);
    case 2: return is_unsigned ? copy_lengths<uint16_t>(view, columns, to) : copy_lengths<int16_t>(view, columns, to);
    case 4: return is_unsigned ? copy_lengths<uint32_t>(view, columns, to) : copy_lengths<int32_t>(view, columns, to);
    default: return is_unsigned ? copy_lengths<uint64_t>(view, columns, to) : copy_lengths<int64_t>(view, columns, to);
  }
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

bool overlap(const Py_buffer& a, const Py_buffer& b) {
  const char *a_begin = static_cast<const char*>(a.buf), *b_begin = static_cast<const char*>(b.buf);
  return a_begin < b_begin + b.len && b_begin < a_begin + a.len;
}

// x and out are contiguous; heads is int32 [..., 3]; `valid` is booleans (kMask) or integers (kLengths).
int softmax(nb::handle x_array, nb::handle heads, int mode, int masking, nb::handle valid, nb::handle out_array,
            int threads) {
  const Buffer x(x_array, PyBUF_C_CONTIGUOUS), theta(heads, PyBUF_C_CONTIGUOUS);
  const Buffer out(out_array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  const int ndim = x.view().ndim, lead = ndim < 2 ? 0 : ndim - 2;
  const Py_ssize_t* const shape = x.view().shape;
  require(ndim >= 1 && ndim <= hccs::StridedRows::kMaxDims, "x has the wrong number of dimensions");
  require(x.view().itemsize == 1 && theta.view().itemsize == 4, "x must be int8 and heads int32");

  hccs::SoftmaxJob job{};
  job.mode = static_cast<hccs::Mode>(mode);
  job.masking = static_cast<hccs::Masking>(masking);
  job.x = x.data<int8_t>();
  job.out = out.data<void>();
  job.columns = shape[ndim - 1];
  job.heads = theta.data<hccs::Head>();
  job.rows_per_group = ndim < 2 ? 1 : shape[ndim - 2];
  require(out.view().itemsize == (hccs::is_u8(job.mode) ? 1 : 2) && out.elements() == x.elements(),
          "out differs from x in size, or has the wrong item size");

  std::vector<int32_t> head_of_group;
  const int theta_ndim = theta.view().ndim - 1;
  if (theta_ndim > 0) {
    const Broadcast one_each(theta.view().buf, theta_ndim, theta.view().shape, theta.view().strides, shape, lead);
    if (!one_each.possible) return kThetaShape;
    one_each.for_each(lead, [&](const char* at) {
      head_of_group.push_back(static_cast<int32_t>(reinterpret_cast<const hccs::Head*>(at) - job.heads));
    });
    job.head_of_group = head_of_group.data();
  }

  std::vector<int32_t> lengths;
  std::optional<Buffer> selection;
  if (job.masking != hccs::Masking::kNone) {
    const bool by_length = job.masking == hccs::Masking::kLengths;
    selection.emplace(valid, PyBUF_STRIDES | PyBUF_FORMAT);
    const Py_buffer& view = selection->view();
    Broadcast rows(view.buf, view.ndim, view.shape, view.strides, shape, by_length ? ndim - 1 : ndim);
    if (!rows.possible) return kSelectionShape;
    if (by_length) {
      if (!copy_lengths(view, job.columns, lengths)) return kLengthRange;
      Py_ssize_t dense[hccs::StridedRows::kMaxDims], step = sizeof(int32_t);
      for (int d = view.ndim - 1; d >= 0; step *= view.shape[d--]) dense[d] = step;
      rows = Broadcast(lengths.data(), view.ndim, view.shape, dense, shape, ndim - 1);
    } else if (job.columns > 1 && rows.stride[ndim - 1] != 1) {
      return kMaskLayout;
    }
    job.valid = rows.rows(ndim - 1);
  }
  if (overlap(x.view(), out.view()) && x.elements()) return kOverlap;
  if (x.elements() == 0) return kDone;
  job.rows = x.elements() / job.columns;

  nb::gil_scoped_release release;
  hccs::run_softmax(job, selected->softmax, threads);
  return kDone;
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
    const Broadcast rows(mask.buf, mask.ndim, mask.shape, mask.strides, view.shape, view.ndim);
    require(rows.possible && mask.itemsize == 1, "valid must be booleans that broadcast to the logits' shape");
    require(rows.stride[view.ndim - 1] == 1 || job.rows.columns == 1, "mask rows must be contiguous");
    job.rows.masking = hccs::Masking::kMask;
    job.rows.valid = rows.rows(view.ndim - 1);
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
  m.def("softmax", &softmax, nb::arg("x"), nb::arg("heads"), nb::arg("mode"), nb::arg("masking"), nb::arg("valid").none(),
        nb::arg("out"), nb::arg("threads"));
  m.def("logits", &logits, nb::arg("forward"), nb::arg("input"), nb::arg("heads"), nb::arg("scales"),
        nb::arg("head_of_group"), nb::arg("rows_per_group"), nb::arg("mode"), nb::arg("valid").none(), nb::arg("rounded"),
        nb::arg("output"), nb::arg("parameters").none(), nb::arg("threads"));
  m.def("select", &select_isa, "Use this instruction set ('' for the fastest); returns the one in use.");
  m.def("in_use", [] { return selected->name; }, "The instruction set in use.");
  m.def("known_isas", &known_isas, "(name, whether this machine runs it), the fastest last.");
  m.def("empty", [] {}, "Does nothing: the floor of a call's cost, for benchmarks.");
}
