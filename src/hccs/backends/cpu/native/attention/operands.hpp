// The arrays of one call, as attention and decode take them apart.
#pragma once

#include <iterator>
#include <optional>

#include "attention/job.hpp"
#include "common/arrays.hpp"

namespace hccs::arrays {

// q and out [..., nq, d], k and v [..., nk, d] with contiguous rows, where k and v have fewer heads if neighbouring
// ones share them; heads int32 [..., 3], or [..., 6] of the wide form, and requant [..., 5] broadcast over the leading
// dimensions, those of q.
class AttentionOperands {
 public:
  const Buffer q, k, v, heads, requant, out;
  const int ndim, lead;
  Py_ssize_t logits[StridedRows::kMaxDims];  // the shape of q.k
  int64_t queries, keys, dim;
  int64_t sharing;  // heads of q to one of k and v
  bool wide;
  bool probabilities_first;
  Mode mode;
  AttentionOutput output;

  AttentionOperands(nb::handle q_array, nb::handle k_array, nb::handle v_array, nb::handle heads_array,
                    nb::handle requant_array, bool causal, int mode_number, int output_number, nb::handle out_array,
                    int out_flags)
      : q(q_array, PyBUF_STRIDES),
        k(k_array, PyBUF_STRIDES),
        v(v_array, PyBUF_STRIDES),
        heads(heads_array, PyBUF_C_CONTIGUOUS),
        requant(requant_array, PyBUF_C_CONTIGUOUS),
        out(out_array, out_flags | PyBUF_WRITABLE),
        ndim(q.view().ndim),
        lead(ndim - 2) {
    const Py_buffer &of_q = q.view(), &of_k = k.view(), &of_v = v.view(), &of_out = out.view();
    require(ndim >= 2 && ndim <= StridedRows::kMaxDims && of_k.ndim == ndim && of_v.ndim == ndim && of_out.ndim == ndim,
            "wrong number of dimensions");
    for (int d = 0; d < lead; ++d) {
      logits[d] = of_q.shape[d];
      const bool shared = d == lead - 1 && of_k.shape[d] > 0 && logits[d] % of_k.shape[d] == 0;
      require((of_k.shape[d] == logits[d] || shared) && of_v.shape[d] == of_k.shape[d] && of_out.shape[d] == logits[d],
              "q, k, v and out differ in groups");
    }
    queries = logits[lead] = of_q.shape[lead];
    keys = logits[lead + 1] = of_k.shape[lead];
    dim = of_q.shape[lead + 1];
    sharing = lead && of_k.shape[lead - 1] ? logits[lead - 1] / of_k.shape[lead - 1] : 1;
    probabilities_first = mode_number != kDeferred;
    mode = probabilities_first ? mode_of(mode_number) : Mode{};
    require(!probabilities_first || is_u8(mode), "probabilities that come first are uint8");
    require(output_number >= 0 && output_number < static_cast<int>(std::size(kAttentionOutputNames)), "no such output");
    output = static_cast<AttentionOutput>(output_number);
    for (const Py_buffer* rows : {&of_q, &of_k, &of_v})
      require(rows->itemsize == 1 && rows->shape[lead + 1] == dim && (dim <= 1 || rows->strides[lead + 1] == 1),
              "q, k and v must be int8 with contiguous rows of one length");
    require(of_v.shape[lead] == keys && (!causal || queries <= keys), "wrong number of keys");
    require(of_out.itemsize == (output == AttentionOutput::kInt8 ? 1 : 4) && of_out.shape[lead] == queries &&
                of_out.shape[lead + 1] == dim && (dim <= 1 || of_out.strides[lead + 1] == of_out.itemsize),
            "out must have contiguous rows, as many and as long as q's");
    wide = holds(heads.view(), 6);
    require((wide || holds(heads.view(), 3)) && holds(requant.view(), 5), "wrong heads or requant");
  }

  int64_t rows() const { return dim ? q.view().len / dim : 0; }
  int64_t row_stride(const Buffer& array) const { return array.view().strides[lead]; }

  // Calls visit(pointer) for every head of q, in order, with where an array that broadcasts over them has it; false
  // where it does not broadcast. The array's first `own_ndim` dimensions are of heads.
  template <class Visit>
  bool for_heads(const Buffer& array, int own_ndim, Visit visit) const {
    const Py_buffer& view = array.view();
    const Broadcast all(view.buf, own_ndim, view.shape, view.strides, logits, lead);
    if (all.possible) all.for_each(lead, visit);
    return all.possible;
  }
  // The same for every head that q, k or v has itself.
  template <class Visit>
  void for_own_heads(const Buffer& array, Visit visit) const {
    const Py_buffer& view = array.view();
    Broadcast(view.buf, lead, view.shape, view.strides, view.shape, lead).for_each(lead, [&](const char* at) {
      visit(reinterpret_cast<const int8_t*>(at));
    });
  }
};

// Where Z of every row goes, for pairs alone; held while the kernel writes it.
class Sums {
 public:
  Sums(AttentionOutput output, nb::handle array, int64_t rows) {
    if (output != AttentionOutput::kPair) return;
    array_.emplace(array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    require(array_->view().itemsize == 4 && array_->elements() == rows, "sums has the wrong size");
  }
  int32_t* data() const { return array_ ? array_->data<int32_t>() : nullptr; }

 private:
  std::optional<Buffer> array_;
};

}  // namespace hccs::arrays
