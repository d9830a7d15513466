#include <nanobind/nanobind.h>

#include <cstring>
#include <vector>

#include "attention/operands.hpp"
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
  if (set.attention == &attention_avx512 || set.attention == &attention_amx || set.attention == &attention_amx_model)
    return decode_avx512;
  if (set.attention == &attention_avx2) return decode_avx2;
#endif
#ifdef HCCS_NEON
  if (set.attention == &attention_neon || set.attention == &attention_i8mm) return decode_neon;
#endif
  return decode_scalar;
}

// As the function `attention` of the module, for few queries.
int decode(nb::handle q, nb::handle k, nb::handle v, nb::handle heads, nb::handle requant, int masking,
           nb::handle valid, bool causal, int mode, int output, nb::handle out, nb::handle sums, nb::handle threads) {
  const AttentionOperands of(q, k, v, heads, requant, causal, mode, output, out, PyBUF_C_CONTIGUOUS);

  DecodeJob job{};
  job.keys = of.keys;
  job.dim = of.dim;
  job.k_stride = of.row_stride(of.k);
  job.v_stride = of.row_stride(of.v);
  job.rows = of.sharing * of.queries;
  job.wide = of.wide;
  job.probabilities_first = of.probabilities_first;
  job.mode = of.mode;
  job.output = of.output;
  if (of.q.view().len == 0) return kDone;

  std::vector<DecodeRow> rows(of.rows());
  const auto each = [&](const Buffer& array, int own_ndim, auto assign) {
    size_t row = 0;
    return of.for_heads(array, own_ndim, [&](const char* at) {
      for (int64_t query = 0; query < of.queries; ++query) assign(rows[row++], at, query);
    });
  };
  each(of.q, of.lead, [&](DecodeRow& row, const char* at, int64_t query) {
    row.q = reinterpret_cast<const int8_t*>(at) + query * of.row_stride(of.q);
    row.keys = causal ? query + 1 + of.keys - of.queries : of.keys;
  });
  if (!each(of.heads, of.heads.view().ndim - 1,
            [](DecodeRow& row, const char* at, int64_t) { row.head = reinterpret_cast<const int32_t*>(at); }))
    return kThetaShape;
  if (!each(of.requant, of.requant.view().ndim - 1,
            [](DecodeRow& row, const char* at, int64_t) { row.requant = reinterpret_cast<const Requant*>(at); }))
    return kRequantShape;
  ValidRows selection;
  const Masking kind = masking_of(masking);
  if (const Status status = selection.take(valid, kind, of.logits, of.ndim); status != kDone) return status;
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
  const Sums Z(job.output, sums, static_cast<int64_t>(rows.size()));
  const int64_t row_bytes = of.dim * of.out.view().itemsize;
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].out = of.out.data<char>() + i * row_bytes;
    if (Z.data()) rows[i].sum = Z.data() + i;
  }

  std::vector<DecodeGroup> groups(rows.size() / job.rows);
  const auto starts = [&](const Buffer& array, const int8_t* DecodeGroup::* start) {
    size_t group = 0;
    of.for_own_heads(array, [&](const int8_t* at) { groups[group++].*start = at; });
  };
  starts(of.k, &DecodeGroup::k);
  starts(of.v, &DecodeGroup::v);
  for (size_t i = 0; i < groups.size(); ++i) groups[i].rows = rows.data() + i * job.rows;
  job.groups = groups.data();
  job.group_count = static_cast<int64_t>(groups.size());
  const int most = threads_of(threads);
  run_interruptibly([&](Interruption& interruption) { run_decode(job, kernel_in_use(), most, interruption); });
  return kDone;
}

}  // namespace

void bind_decode(nb::module_& m) {
  m.def("decode", &decode, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("heads"), nb::arg("requant"),
        nb::arg("masking"), nb::arg("valid").none(), nb::arg("causal"), nb::arg("mode"), nb::arg("output"),
        nb::arg("out"), nb::arg("sums").none(), nb::arg("threads"));
}

}  // namespace hccs
