#include "common/bindings.hpp"

#include <nanobind/nanobind.h>

#include <cstring>
#include <vector>

#include "attention/operands.hpp"
#include "common/instruction_sets.hpp"
#include "common/signals.hpp"

namespace hccs {
namespace {

using namespace arrays;

// Where each group's rows and parameters lie.
Status take_groups(const AttentionOperands& of, std::vector<AttentionGroup>& groups) {
  int64_t count = 1;
  for (int d = 0; d < of.lead; ++d) count *= of.logits[d];
  groups.resize(count);
  using Group = AttentionGroup;
  const auto each = [&](const Buffer& array, int own_ndim, auto assign) {
    size_t group = 0;
    return of.for_heads(array, own_ndim, [&](const char* at) { assign(groups[group++], at); });
  };
  const auto starts = [&](const Buffer& array, int64_t sharing, const int8_t* Group::* start) {
    size_t group = 0;
    of.for_own_heads(array, [&](const int8_t* at) {
      for (int64_t j = 0; j < sharing; ++j) groups[group++].*start = at;
    });
  };
  starts(of.q, 1, &Group::q);
  starts(of.k, of.sharing, &Group::k);
  starts(of.v, of.sharing, &Group::v);
  each(of.out, of.lead, [](Group& group, const char* at) { group.out = const_cast<char*>(at); });
  if (!each(of.heads, of.heads.view().ndim - 1, [&](Group& group, const char* at) {
        if (of.wide)
          group.wide_head = reinterpret_cast<const WideHead*>(at);
        else
          group.head = reinterpret_cast<const Head*>(at);
      }))
    return kThetaShape;
  if (!each(of.requant, of.requant.view().ndim - 1,
            [](Group& group, const char* at) { group.requant = reinterpret_cast<const Requant*>(at); }))
    return kRequantShape;
  return kDone;
}

// `mode` kDeferred defers normalisation; `sums` receives Z, for pairs alone. int8 output is written turned where `out`
// is uint8.
int attention(nb::handle q, nb::handle k, nb::handle v, nb::handle heads, nb::handle requant, int masking,
              nb::handle valid, bool causal, int mode, int output, nb::handle out, nb::handle sums,
              nb::handle threads) {
  const AttentionOperands of(q, k, v, heads, requant, causal, mode, output, out, PyBUF_STRIDES | PyBUF_FORMAT);
  const Py_buffer& results = of.out.view();

  AttentionJob job{};
  job.queries = of.queries;
  job.keys = of.keys;
  job.dim = of.dim;
  job.rows = of.rows();
  job.q_stride = of.row_stride(of.q);
  job.k_stride = of.row_stride(of.k);
  job.v_stride = of.row_stride(of.v);
  job.out_stride = of.row_stride(of.out) / results.itemsize;
  job.before = kUnlimited;
  job.after = causal ? 0 : kUnlimited;
  job.masking = masking_of(masking);
  job.probabilities_first = of.probabilities_first;
  job.mode = of.mode;
  job.softmax = in_use().softmax;
  job.output = of.output;
  job.turned = job.output == AttentionOutput::kInt8 && results.format && std::strcmp(results.format, "B") == 0;

  std::vector<AttentionGroup> groups;
  if (const Status status = take_groups(of, groups); status != kDone) return status;
  job.groups = groups.data();
  ValidRows selection;
  if (const Status status = selection.take(valid, job.masking, of.logits, of.ndim); status != kDone) return status;
  job.valid = selection.rows;
  const Sums Z(job.output, sums, job.rows);
  job.sums = Z.data();
  if (job.rows == 0) return kDone;
  const int most = threads_of(threads);
  run_interruptibly([&](Interruption& interruption) { run_attention(job, *in_use().attention, most, interruption); });
  return kDone;
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("heads"), nb::arg("requant"),
        nb::arg("masking"), nb::arg("valid").none(), nb::arg("causal"), nb::arg("mode"), nb::arg("output"),
        nb::arg("out"), nb::arg("sums").none(), nb::arg("threads"));
}

}  // namespace hccs
