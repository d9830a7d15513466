// The Python module `hccs.backends.cpu._native`. Arguments arrive checked by hccs.ops; what is checked again
// here is what would otherwise read or write outside an array.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "common/arrays.hpp"
#include "dispatch.hpp"

namespace nb = nanobind;
using namespace hccs::arrays;

namespace {

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

  Selection selection;
  if (const Status status = selection.take(valid, job.masking, shape, ndim); status != kDone) return status;
  job.valid = selection.rows;
  if (overlap(x.view(), out.view()) && x.elements()) return kOverlap;
  if (x.elements() == 0) return kDone;
  job.rows = x.elements() / job.columns;

  nb::gil_scoped_release release;
  hccs::run_softmax(job, selected->softmax, threads);
  return kDone;
}

// Where each group's rows and parameters lie: heads int32 [..., 3] and requant [..., 5] broadcast over the leading
// dimensions, which q, k and v share.
Status take_groups(const Buffer (&qkv)[3], const Buffer& heads, const Buffer& requant, const Py_ssize_t* lead_shape,
                   int lead, std::vector<hccs::AttentionGroup>& groups) {
  const auto each = [&](const Buffer& array, int own_ndim, auto assign) {
    const Py_buffer& view = array.view();
    const Broadcast all(view.buf, own_ndim, view.shape, view.strides, lead_shape, lead);
    size_t group = 0;
    if (all.possible) all.for_each(lead, [&](const char* at) { assign(groups[group++], at); });
    return all.possible;
  };
  int64_t count = 1;
  for (int d = 0; d < lead; ++d) count *= lead_shape[d];
  groups.resize(count);
  using Group = hccs::AttentionGroup;
  const int8_t* Group::* const starts[] = {&Group::q, &Group::k, &Group::v};
  for (int i = 0; i < 3; ++i)
    each(qkv[i], lead, [&](Group& group, const char* at) { group.*starts[i] = reinterpret_cast<const int8_t*>(at); });
  const auto holds = [](const Py_buffer& view, int fields) {
    return view.itemsize == 4 && view.ndim >= 1 && view.shape[view.ndim - 1] == fields;
  };
  require(holds(heads.view(), 3) && holds(requant.view(), 5), "wrong heads or requant");
  if (!each(heads, heads.view().ndim - 1,
            [](Group& group, const char* at) { group.head = reinterpret_cast<const hccs::Head*>(at); }))
    return kThetaShape;
  if (!each(requant, requant.view().ndim - 1,
            [](Group& group, const char* at) { group.requant = reinterpret_cast<const hccs::Requant*>(at); }))
    return kRequantShape;
  return kDone;
}

// q [..., nq, d], k and v [..., nk, d] with contiguous rows; `mode` -1 defers normalisation; `sums` receives Z, for
// pairs alone.
int attention(nb::handle q_array, nb::handle k_array, nb::handle v_array, nb::handle heads, nb::handle requant,
              int masking, nb::handle valid, bool causal, int mode, int output, nb::handle out_array, nb::handle sums,
              int threads) {
  const Buffer qkv[3] = {{q_array, PyBUF_STRIDES}, {k_array, PyBUF_STRIDES}, {v_array, PyBUF_STRIDES}};
  const Py_buffer &q = qkv[0].view(), &k = qkv[1].view(), &v = qkv[2].view();
  const Buffer theta(heads, PyBUF_C_CONTIGUOUS), factors(requant, PyBUF_C_CONTIGUOUS);
  const Buffer out(out_array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  const int ndim = q.ndim, lead = ndim - 2;
  require(ndim >= 2 && ndim <= hccs::StridedRows::kMaxDims && k.ndim == ndim && v.ndim == ndim,
          "wrong number of dimensions");
  Py_ssize_t logits[hccs::StridedRows::kMaxDims];
  for (int d = 0; d < lead; ++d) {
    logits[d] = q.shape[d];
    require(k.shape[d] == logits[d] && v.shape[d] == logits[d], "q, k and v differ in groups");
  }

  hccs::AttentionJob job{};
  job.queries = logits[lead] = q.shape[lead];
  job.keys = logits[lead + 1] = k.shape[lead];
  job.dim = q.shape[lead + 1];
  job.rows = job.dim ? q.len / job.dim : 0;
  job.q_stride = q.strides[lead];
  job.k_stride = k.strides[lead];
  job.v_stride = v.strides[lead];
  job.causal = causal;
  job.masking = static_cast<hccs::Masking>(masking);
  job.probabilities_first = mode >= 0;
  job.mode = static_cast<hccs::Mode>(mode < 0 ? 0 : mode);
  job.softmax = selected->softmax;
  job.output = static_cast<hccs::AttentionOutput>(output);
  job.out = out.data<void>();
  for (const Py_buffer* rows : {&q, &k, &v})
    require(rows->itemsize == 1 && rows->shape[lead + 1] == job.dim && (job.dim <= 1 || rows->strides[lead + 1] == 1),
            "q, k and v must be int8 with contiguous rows of one length");
  require(v.shape[lead] == job.keys && (!causal || job.queries <= job.keys), "wrong number of keys");
  require(out.view().itemsize == (job.output == hccs::AttentionOutput::kInt8 ? 1 : 4) &&
              out.elements() == job.rows * job.dim,
          "out has the wrong size");

  std::vector<hccs::AttentionGroup> groups;
  if (const Status status = take_groups(qkv, theta, factors, logits, lead, groups); status != kDone) return status;
  job.groups = groups.data();
  Selection selection;
  if (const Status status = selection.take(valid, job.masking, logits, ndim); status != kDone) return status;
  job.valid = selection.rows;
  const auto run = [&] {
    if (job.rows == 0) return;
    nb::gil_scoped_release release;
    hccs::run_attention(job, *selected->attention, threads);
  };
  if (job.output == hccs::AttentionOutput::kPair) {
    const Buffer Z(sums, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    require(Z.view().itemsize == 4 && Z.elements() == job.rows, "sums has the wrong size");
    job.sums = Z.data<int32_t>();
    run();
  } else {
    run();
  }
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

// Floats [batch, heads, n, d] to int8 of the same shape, both with contiguous rows; `factors` float32 [heads].
bool quantise(nb::handle input_array, nb::handle factor_array, nb::handle output_array) {
  const Buffer input(input_array, PyBUF_STRIDES), factors(factor_array, PyBUF_C_CONTIGUOUS);
  const Buffer output(output_array, PyBUF_STRIDES | PyBUF_WRITABLE);
  const Py_buffer &in = input.view(), &out = output.view();
  require(in.ndim == 4 && out.ndim == 4 && in.itemsize == 4 && out.itemsize == 1,
          "float32 and int8 of four dimensions");
  require(factors.view().itemsize == 4 && factors.elements() == in.shape[1], "one factor per head");
  hccs::QuantiseJob job{input.data<float>(),
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
  return selected->logits.quantise(job);
}

}  // namespace

NB_MODULE(_native, m) {
  select_isa("");
  m.def("softmax", &softmax, nb::arg("x"), nb::arg("heads"), nb::arg("mode"), nb::arg("masking"),
        nb::arg("valid").none(), nb::arg("out"), nb::arg("threads"));
  m.def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("heads"), nb::arg("requant"),
        nb::arg("masking"), nb::arg("valid").none(), nb::arg("causal"), nb::arg("mode"), nb::arg("output"),
        nb::arg("out"), nb::arg("sums").none(), nb::arg("threads"));
  m.def("logits", &logits, nb::arg("forward"), nb::arg("input"), nb::arg("heads"), nb::arg("scales"),
        nb::arg("head_of_group"), nb::arg("rows_per_group"), nb::arg("mode"), nb::arg("valid").none(),
        nb::arg("rounded"), nb::arg("output"), nb::arg("parameters").none(), nb::arg("threads"));
  m.def("quantise", &quantise, nb::arg("input"), nb::arg("factors"), nb::arg("output"));
  m.def("select", &select_isa, "Use this instruction set ('' for the fastest); returns the one in use.");
  m.def("in_use", [] { return selected->name; }, "The instruction set in use.");
  m.def("known_isas", &known_isas, "(name, whether this machine runs it), the fastest last.");
  m.def("empty", [] {}, "Does nothing: the floor of a call's cost, for benchmarks.");
}
