#include "common/bindings.hpp"

#include <nanobind/nanobind.h>

#include <vector>

#include "common/arrays.hpp"
#include "common/instruction_sets.hpp"
#include "common/signals.hpp"

namespace hccs {
namespace {

using namespace arrays;

bool overlap(const Py_buffer& a, const Py_buffer& b) {
  const char *a_begin = static_cast<const char*>(a.buf), *b_begin = static_cast<const char*>(b.buf);
  return a_begin < b_begin + b.len && b_begin < a_begin + a.len;
}

// x and out are contiguous; heads is int32 [..., 3], or [..., 6] of the wide form; `valid` is booleans (kMask) or
// integers (kLengths).
int softmax(nb::handle x_array, nb::handle heads, int mode, int masking, nb::handle valid, nb::handle out_array,
            nb::handle threads) {
  const Buffer x(x_array, PyBUF_C_CONTIGUOUS), theta(heads, PyBUF_C_CONTIGUOUS);
  const Buffer out(out_array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  const int ndim = x.view().ndim, lead = ndim < 2 ? 0 : ndim - 2;
  const Py_ssize_t* const shape = x.view().shape;
  require(ndim >= 1 && ndim <= StridedRows::kMaxDims, "x has the wrong number of dimensions");
  const bool wide = holds(theta.view(), 6);
  require(x.view().itemsize == 1 && (wide || holds(theta.view(), 3)), "x must be int8 and heads int32 [..., 3 or 6]");

  SoftmaxJob job{};
  job.mode = mode_of(mode);
  job.masking = masking_of(masking);
  job.x = x.data<int8_t>();
  job.out = out.data<void>();
  job.columns = shape[ndim - 1];
  if (wide)
    job.wide_heads = theta.data<WideHead>();
  else
    job.heads = theta.data<Head>();
  job.rows_per_group = ndim < 2 ? 1 : shape[ndim - 2];
  require(out.view().itemsize == (is_u8(job.mode) ? 1 : 2) && out.elements() == x.elements(),
          "out differs from x in size, or has the wrong item size");

  std::vector<int32_t> head_of_group;
  const int theta_ndim = theta.view().ndim - 1;
  if (theta_ndim > 0) {
    const Broadcast one_each(theta.view().buf, theta_ndim, theta.view().shape, theta.view().strides, shape, lead);
    if (!one_each.possible) return kThetaShape;
    one_each.for_each(lead, [&](const char* at) {
      const int64_t bytes = at - theta.data<char>();
      head_of_group.push_back(static_cast<int32_t>(bytes / (wide ? sizeof(WideHead) : sizeof(Head))));
    });
    job.head_of_group = head_of_group.data();
  }

  ValidRows selection;
  if (const Status status = selection.take(valid, job.masking, shape, ndim); status != kDone) return status;
  job.valid = selection.rows;
  if (overlap(x.view(), out.view()) && x.elements()) return kOverlap;
  if (x.elements() == 0) return kDone;
  job.rows = x.elements() / job.columns;

  const int most = threads_of(threads);
  run_interruptibly([&](Interruption& interruption) { run_softmax(job, in_use().softmax, most, interruption); });
  return kDone;
}

}  // namespace

void bind_softmax(nb::module_& m) {
  m.def("softmax", &softmax, nb::arg("x"), nb::arg("heads"), nb::arg("mode"), nb::arg("masking"),
        nb::arg("valid").none(), nb::arg("out"), nb::arg("threads"));
}

}  // namespace hccs
