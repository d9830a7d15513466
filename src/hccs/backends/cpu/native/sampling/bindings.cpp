// The choice of next tokens: the functions of exported C, which need no more of this machine.
#include "hccs_sample.h"

#include "common/arrays.hpp"
#include "common/bindings.hpp"

namespace hccs {
namespace {

using namespace arrays;

// int32 scores [rows, tokens]; uint32 powers [1024]; uint64 seeds and positions [rows]; int64 chosen [rows] is written.
void sample(nb::handle scores, nb::handle powers, uint32_t factor, uint32_t shift, uint32_t top_k, uint32_t share,
            nb::handle seeds, nb::handle positions, nb::handle chosen) {
  const Buffer rows(scores, PyBUF_C_CONTIGUOUS), table(powers, PyBUF_C_CONTIGUOUS);
  const Buffer keys(seeds, PyBUF_C_CONTIGUOUS), places(positions, PyBUF_C_CONTIGUOUS);
  const Buffer out(chosen, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  require(rows.view().ndim == 2 && rows.view().itemsize == 4, "scores are int32 [rows, tokens]");
  const int64_t count = rows.view().shape[0], tokens = rows.view().shape[1];
  require(tokens >= 1 && tokens <= (1 << 20), "1 to 2^20 scores");
  require(table.view().itemsize == 4 && table.elements() == 1024, "1024 powers");
  require(factor >> 31 == 0 && shift >= 1 && shift <= 62 && share >= 1 && share <= 65536, "wrong sampling");
  for (const Buffer* each : {&keys, &places, &out})
    require(each->view().itemsize == 8 && each->elements() == count, "one seed, position and token for each row");
  const hccs_sampling how{table.data<uint32_t>(), factor, shift, top_k, share};
  for (int64_t i = 0; i < count; ++i)
    out.data<int64_t>()[i] = hccs_sample(rows.data<int32_t>() + i * tokens, static_cast<uint32_t>(tokens), &how,
                                         keys.data<uint64_t>()[i], places.data<uint64_t>()[i]);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("sample", &sample, nb::arg("scores"), nb::arg("powers"), nb::arg("factor"), nb::arg("shift"), nb::arg("top_k"),
        nb::arg("share"), nb::arg("seeds"), nb::arg("positions"), nb::arg("chosen"));
}

}  // namespace hccs
