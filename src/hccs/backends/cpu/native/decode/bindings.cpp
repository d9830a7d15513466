#include <nanobind/nanobind.h>

#include <cstring>
#include <iterator>
#include <vector>

#include "common/arrays.hpp"
#include "common/bindings.hpp"
#include "common/instruction_sets.hpp"
#include "common/signals.hpp"
#include "decode/job.hpp"
#include "softmax/rows.hpp"

namespace hccs {
namespace {

using namespace arrays;

const DecodeKernel& kernel_in_use() {
  const InstructionSet& set = in_use();
#ifdef HCCS_X86
  if (set.attention == &attention_avx512) return decode_avx512;
  if (set.attention == &attention_avx2) return decode_avx2;
#endif
#ifdef HCCS_NEON
  if (set.attention == &attention_neon) return decode_neon;
#endif
  return decode_scalar;
}

// Calls assign(row, pointer) for the rows of every head, in order, of an array that broadcasts over the heads.
template <class Assign>
bool for_heads(std::vector<DecodeRow>& rows, const Buffer& array, int own_ndim, const Py_ssize_t* lead_shape, int lead,
               int64_t queries, Assign assign) {
  const Py_buffer& view = array.view();
  const Broadcast all(view.buf, own_ndim, view.shape, view.strides, lead_shape, lead);
  if (!all.possible) return false;
  size_t at = 0;
  all.for_each(lead, [&](const char* head) {
    for (int64_t i = 0; i < queries; ++i) assign(rows[at++], head, i);
  });
  return true;
}

// As the function `attention` of the module, for few queries: heads may have three or six fields, and k and v fewer
// heads than q.
int decode(nb::handle q_array, nb::handle k_array, nb::handle v_array, nb::handle heads, nb::handle requant,
           int masking, nb::handle valid, bool causal, int mode, int output, nb::handle out_array, nb::handle sums,
           nb::handle threads) {
  const Buffer qs(q_array, PyBUF_STRIDES), ks(k_array, PyBUF_STRIDES), vs(v_array, PyBUF_STRIDES);
  const Py_buffer &q = qs.view(), &k = ks.view(), &v = vs.view();
  const Buffer theta(heads, PyBUF_C_CONTIGUOUS), factors(requant, PyBUF_C_CONTIGUOUS);
  const Buffer results(out_array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  const Py_buffer& out = results.view();
  const int ndim = q.ndim, lead = ndim - 2;
  require(ndim >= 2 && ndim <= StridedRows::kMaxDims && k.ndim == ndim && v.ndim == ndim && out.ndim == ndim,
          "wrong number of dimensions");
  Py_ssize_t logits[StridedRows::kMaxDims];
  for (int d = 0; d < lead; ++d) {
    logits[d] = q.shape[d];
    const bool shared = d == lead - 1 && k.shape[d] > 0 && logits[d] % k.shape[d] == 0;
    require((k.shape[d] == logits[d] || shared) && v.shape[d] == k.shape[d] && out.shape[d] == logits[d],
            "q, k, v and out differ in groups");
  }
  const int64_t queries = logits[lead] = q.shape[lead];
  const int64_t sharing = lead && k.shape[lead - 1] ? logits[lead - 1] / k.shape[lead - 1] : 1;

  DecodeJob job{};
  job.keys = logits[lead + 1] = k.shape[lead];
  job.dim = q.shape[lead + 1];
  job.k_stride = k.strides[lead];
  job.v_stride = v.strides[lead];
  job.rows = sharing * queries;
  job.probabilities_first = mode != kDeferred;
  job.mode = job.probabilities_first ? mode_of(mode) : Mode{};
  require(!job.probabilities_first || is_u8(job.mode), "probabilities that come first are uint8");
  require(output >= 0 && output < static_cast<int>(std::size(kAttentionOutputNames)), "no such output");
  job.output = static_cast<AttentionOutput>(output);
  for (const Py_buffer* rows : {&q, &k, &v})
    require(rows->itemsize == 1 && rows->shape[lead + 1] == job.dim && (job.dim <= 1 || rows->strides[lead + 1] == 1),
            "q, k and v must be int8 with contiguous rows of one length");
  require(v.shape[lead] == job.keys && (!causal || queries <= job.keys), "wrong number of keys");
  require(out.itemsize == (job.output == AttentionOutput::kInt8 ? 1 : 4) && out.shape[lead] == queries &&
              out.shape[lead + 1] == job.dim,
          "out must have as many rows as q, as long");
  job.wide = holds(theta.view(), 6);
  require((job.wide || holds(theta.view(), 3)) && holds(factors.view(), 5), "wrong heads or requant");
  if (q.len == 0) return kDone;

  std::vector<DecodeRow> rows(q.len / job.dim);
  for_heads(rows, qs, lead, logits, lead, queries, [&](DecodeRow& row, const char* at, int64_t query) {
    row.q = reinterpret_cast<const int8_t*>(at) + query * q.strides[lead];
    row.keys = causal ? query + 1 + job.keys - queries : job.keys;
  });
  if (!for_heads(rows, theta, theta.view().ndim - 1, logits, lead, queries,
                 [](DecodeRow& row, const char* at, int64_t) { row.head = reinterpret_cast<const int32_t*>(at); }))
    return kThetaShape;
  if (!for_heads(rows, factors, factors.view().ndim - 1, logits, lead, queries,
                 [](DecodeRow& row, const char* at, int64_t) { row.requant = reinterpret_cast<const Requant*>(at); }))
    return kRequantShape;
  ValidRows selection;
  const Masking kind = masking_of(masking);
  if (const Status status = selection.take(valid, kind, logits, ndim); status != kDone) return status;
  if (kind != Masking::kNone) {
    RowCursor cursor(selection.rows, 0);
    for (DecodeRow& row : rows) {
      if (kind == Masking::kMask) {
        row.on = reinterpret_cast<const uint8_t*>(cursor.at());
      } else {
        int32_t length;
        std::memcpy(&length, cursor.at(), sizeof length);
        if (length < row.keys) row.keys = length;
      }
      cursor.advance(1);
    }
  }
  const int64_t row_bytes = job.dim * out.itemsize;
  for (size_t i = 0; i < rows.size(); ++i) rows[i].out = results.data<char>() + i * row_bytes;

  std::vector<DecodeGroup> groups(rows.size() / job.rows);
  const int8_t* DecodeGroup::* const starts[] = {&DecodeGroup::k, &DecodeGroup::v};
  for (int i = 0; i < 2; ++i) {
    const Py_buffer& view = i ? v : k;
    size_t group = 0;
    Broadcast(view.buf, lead, view.shape, view.strides, view.shape, lead).for_each(lead, [&](const char* at) {
      groups[group++].*starts[i] = reinterpret_cast<const int8_t*>(at);
    });
  }
  for (size_t i = 0; i < groups.size(); ++i) groups[i].rows = rows.data() + i * job.rows;
  job.groups = groups.data();
  job.group_count = static_cast<int64_t>(groups.size());

  const auto run = [&] {
    const int most = threads_of(threads);
    run_interruptibly([&](Interruption& interruption) { run_decode(job, kernel_in_use(), most, interruption); });
  };
  if (job.output == AttentionOutput::kPair) {
    const Buffer Z(sums, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    require(Z.view().itemsize == 4 && Z.elements() == static_cast<int64_t>(rows.size()), "sums has the wrong size");
    for (size_t i = 0; i < rows.size(); ++i) rows[i].sum = Z.data<int32_t>() + i;
    run();
  } else {
    run();
  }
  return kDone;
}

}  // namespace

void bind_decode(nb::module_& m) {
  m.def("decode", &decode, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("heads"), nb::arg("requant"),
        nb::arg("masking"), nb::arg("valid").none(), nb::arg("causal"), nb::arg("mode"), nb::arg("output"),
        nb::arg("out"), nb::arg("sums").none(), nb::arg("threads"));
}

}  // namespace hccs
