#include "common/arrays.hpp"
#include "common/bindings.hpp"
#include "common/instruction_sets.hpp"
#include "common/signals.hpp"

namespace hccs {
namespace {

using namespace arrays;

// int8 vectors [rows, dims] and queries [count, dims]; int32 scores and int64 numbers [count, k] are written.
void top_k(nb::handle vectors, nb::handle queries, nb::handle scores, nb::handle numbers, nb::handle threads) {
  const Buffer v(vectors, PyBUF_C_CONTIGUOUS), q(queries, PyBUF_C_CONTIGUOUS);
  const Buffer s(scores, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE), n(numbers, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  for (const Buffer* array : {&v, &q, &s, &n}) require(array->view().ndim == 2, "arrays of two dimensions");
  require(v.view().itemsize == 1 && q.view().itemsize == 1, "vectors and queries are int8");
  require(s.view().itemsize == 4 && n.view().itemsize == 8, "scores are int32, numbers int64");
  const TopKJob job{v.data<int8_t>(),  q.data<int8_t>(),  v.view().shape[0], v.view().shape[1],
                    q.view().shape[0], s.view().shape[1], s.data<int32_t>(), n.data<int64_t>()};
  require(q.view().shape[1] == job.dims && job.dims >= 1 && job.dims <= (1 << 16), "as many channels each");
  require(s.view().shape[0] == job.count && n.view().shape[0] == job.count && n.view().shape[1] == job.k &&
              job.k <= job.rows,
          "results [queries, k]");
  if (job.count == 0 || job.k == 0) return;
  const int used = threads_of(threads);
  run_interruptibly([&](Interruption& interruption) { run_top_k(job, in_use().dots, used, interruption); });
}

}  // namespace

void bind_top_k(nb::module_& m) {
  m.def("top_k", &top_k, nb::arg("vectors"), nb::arg("queries"), nb::arg("scores"), nb::arg("numbers"),
        nb::arg("threads"));
}

}  // namespace hccs
