#include "common/bindings.hpp"

#include <nanobind/nanobind.h>

#include <cstring>
#include <iterator>
#include <vector>

#include "common/arrays.hpp"
#include "common/instruction_sets.hpp"
#include "common/signals.hpp"

namespace hccs {
namespace {

using namespace arrays;

// Where each group's rows and parameters lie: heads int32 [..., 3], or [..., 6] of the wide form, and requant [..., 5]
// broadcast over the leading dimensions, which q, k and v share.
Status take_groups(const Buffer (&qkv)[3], const Buffer& out, const Buffer& heads, const Buffer& requant,
                   const Py_ssize_t* lead_shape, int lead, std::vector<AttentionGroup>& groups) {
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
  using Group = AttentionGroup;
  const int8_t* Group::* const starts[] = {&Group::q, &Group::k, &Group::v};
  for (int i = 0; i < 3; ++i)
    each(qkv[i], lead, [&](Group& group, const char* at) { group.*starts[i] = reinterpret_cast<const int8_t*>(at); });
  each(out, lead, [](Group& group, const char* at) { group.out = const_cast<char*>(at); });
  const bool wide = holds(heads.view(), 6);
  require((wide || holds(heads.view(), 3)) && holds(requant.view(), 5), "wrong heads or requant");
  if (!each(heads, heads.view().ndim - 1, [&](Group& group, const char* at) {
        if (wide)
          group.wide_head = reinterpret_cast<const WideHead*>(at);
        else
          group.head = reinterpret_cast<const Head*>(at);
      }))
    return kThetaShape;
  if (!each(requant, requant.view().ndim - 1,
            [](Group& group, const char* at) { group.requant = reinterpret_cast<const Requant*>(at); }))
    return kRequantShape;
  return kDone;
}

// q and out [..., nq, d], k and v [..., nk, d] with contiguous rows; `mode` kDeferred defers normalisation; `sums`
// receives Z, for pairs alone. int8 output is written turned where `out` is uint8.
int attention(nb::handle q_array, nb::handle k_array, nb::handle v_array, nb::handle heads, nb::handle requant,
              int masking, nb::handle valid, bool causal, int mode, int output, nb::handle out_array, nb::handle sums,
              nb::handle threads) {
  const Buffer qkv[3] = {{q_array, PyBUF_STRIDES}, {k_array, PyBUF_STRIDES}, {v_array, PyBUF_STRIDES}};
  const Py_buffer &q = qkv[0].view(), &k = qkv[1].view(), &v = qkv[2].view();
  const Buffer theta(heads, PyBUF_C_CONTIGUOUS), factors(requant, PyBUF_C_CONTIGUOUS);
  const Buffer results(out_array, PyBUF_STRIDES | PyBUF_FORMAT | PyBUF_WRITABLE);
  const Py_buffer& out = results.view();
  const int ndim = q.ndim, lead = ndim - 2;
  require(ndim >= 2 && ndim <= StridedRows::kMaxDims && k.ndim == ndim && v.ndim == ndim && out.ndim == ndim,
          "wrong number of dimensions");
  Py_ssize_t logits[StridedRows::kMaxDims];
  for (int d = 0; d < lead; ++d) {
    logits[d] = q.shape[d];
    require(k.shape[d] == logits[d] && v.shape[d] == logits[d] && out.shape[d] == logits[d],
            "q, k, v and out differ in groups");
  }

  AttentionJob job{};
  job.queries = logits[lead] = q.shape[lead];
  job.keys = logits[lead + 1] = k.shape[lead];
  job.dim = q.shape[lead + 1];
  job.rows = job.dim ? q.len / job.dim : 0;
  job.q_stride = q.strides[lead];
  job.k_stride = k.strides[lead];
  job.v_stride = v.strides[lead];
  job.out_stride = out.strides[lead] / out.itemsize;
  job.causal = causal;
  job.masking = masking_of(masking);
  job.probabilities_first = mode != kDeferred;
  job.mode = job.probabilities_first ? mode_of(mode) : Mode{};
  require(!job.probabilities_first || is_u8(job.mode), "probabilities that come first are uint8");
  job.softmax = in_use().softmax;
  require(output >= 0 && output < static_cast<int>(std::size(kAttentionOutputNames)), "no such output");
  job.output = static_cast<AttentionOutput>(output);
  job.turned = job.output == AttentionOutput::kInt8 && out.format && std::strcmp(out.format, "B") == 0;
  for (const Py_buffer* rows : {&q, &k, &v})
    require(rows->itemsize == 1 && rows->shape[lead + 1] == job.dim && (job.dim <= 1 || rows->strides[lead + 1] == 1),
            "q, k and v must be int8 with contiguous rows of one length");
  require(v.shape[lead] == job.keys && (!causal || job.queries <= job.keys), "wrong number of keys");
  require(out.itemsize == (job.output == AttentionOutput::kInt8 ? 1 : 4) && out.shape[lead] == job.queries &&
              out.shape[lead + 1] == job.dim && (job.dim <= 1 || out.strides[lead + 1] == out.itemsize),
          "out must have contiguous rows, as many and as long as q's");

  std::vector<AttentionGroup> groups;
  if (const Status status = take_groups(qkv, results, theta, factors, logits, lead, groups); status != kDone)
    return status;
  job.groups = groups.data();
  ValidRows selection;
  if (const Status status = selection.take(valid, job.masking, logits, ndim); status != kDone) return status;
  job.valid = selection.rows;
  const auto run = [&] {
    if (job.rows == 0) return;
    const int most = threads_of(threads);
    run_interruptibly([&](Interruption& interruption) { run_attention(job, *in_use().attention, most, interruption); });
  };
  if (job.output == AttentionOutput::kPair) {
    const Buffer Z(sums, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    require(Z.view().itemsize == 4 && Z.elements() == job.rows, "sums has the wrong size");
    job.sums = Z.data<int32_t>();
    run();
  } else {
    run();
  }
  return kDone;
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("heads"), nb::arg("requant"),
        nb::arg("masking"), nb::arg("valid").none(), nb::arg("causal"), nb::arg("mode"), nb::arg("output"),
        nb::arg("out"), nb::arg("sums").none(), nb::arg("threads"));
}

}  // namespace hccs
