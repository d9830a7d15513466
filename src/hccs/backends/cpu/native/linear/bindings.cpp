#include "common/bindings.hpp"

#include <nanobind/nanobind.h>

#include <iterator>
#include <memory>
#include <new>
#include <optional>

#include "common/arrays.hpp"
#include "common/instruction_sets.hpp"
#include "common/signals.hpp"

namespace hccs {
namespace {

using namespace arrays;

// Rows of a matrix whose elements follow each other.
struct Rows {
  Rows(nb::handle array, int64_t columns, int flags = PyBUF_STRIDES) : buffer(array, flags | PyBUF_FORMAT) {
    const Py_buffer& view = buffer.view();
    require(view.ndim == 2 && view.shape[1] == columns && (columns <= 1 || view.strides[1] == view.itemsize) &&
                view.strides[0] >= 0 && view.strides[0] % view.itemsize == 0,
            "an array must have two dimensions and contiguous rows of the right length");
    count = view.shape[0];
    stride = view.strides[0] / view.itemsize;
  }
  bool is(char format) const { return buffer.view().format && buffer.view().format[0] == format; }
  Buffer buffer;
  int64_t count, stride;
};

// A layer packed for the instruction set that is in use when it is made, with which it runs from then on.
class PackedLinear {
 public:
  PackedLinear(nb::handle weight, nb::handle bias, nb::handle multiplier) : kernel_(*in_use().linear) {
    const Buffer w(weight, PyBUF_C_CONTIGUOUS), b(bias, PyBUF_C_CONTIGUOUS);
    require(w.view().itemsize == 1 && w.view().ndim == 2, "weights must be int8 [outputs, inputs]");
    outputs_ = w.view().shape[0];
    inputs_ = w.view().shape[1];
    std::optional<Buffer> m;
    if (!multiplier.is_none()) m.emplace(multiplier, PyBUF_C_CONTIGUOUS);
    requantises_ = m.has_value();
    const auto per_output = [&](const Buffer& array) {
      return array.view().itemsize == 4 && array.elements() == outputs_;
    };
    require(per_output(b) && (!m || per_output(*m)), "bias and multiplier must be int32, one per output");
    memory_.reset(
        static_cast<std::byte*>(::operator new[](kernel_.packed_bytes(inputs_, outputs_, 0), std::align_val_t{64})));
    const nb::gil_scoped_release release;
    kernel_.pack(w.data<int8_t>(), b.data<int32_t>(), m ? m->data<int32_t>() : nullptr, inputs_, outputs_, 0,
                 memory_.get());
  }

  // x [rows, inputs] and `out` [rows, outputs]; bytes are turned if their type is uint8.
  void run(nb::handle x_array, int output, nb::handle table, nb::handle stream_array, nb::handle out_array,
           nb::handle threads) const {
    require(output >= 0 && output < static_cast<int>(std::size(kLinearOutputNames)), "no such output");
    LinearJob job{};
    job.packed = memory_.get();
    job.inputs = inputs_;
    job.outputs = outputs_;
    job.output = static_cast<LinearOutput>(output);
    job.limit = (1 << 30) - 1;
    const bool int32 = job.output == LinearOutput::kInt32 || job.output == LinearOutput::kSumInt32 ||
                       job.output == LinearOutput::kLong;
    const bool int8 = job.output == LinearOutput::kInt8 || job.output == LinearOutput::kInt8Table;
    const bool adds = job.output == LinearOutput::kSumInt32 || job.output == LinearOutput::kSumInt16;
    require(requantises_ || job.output == LinearOutput::kInt32, "a layer without multipliers gives int32");
    const Rows x(x_array, inputs_), out(out_array, outputs_, PyBUF_STRIDES | PyBUF_WRITABLE);
    require(x.is('b') || x.is('B'), "x must be int8, or uint8 if it is turned");
    require(int32 ? out.is('i') : int8 ? out.is('b') || out.is('B') : out.is('h'), "out has the wrong type");
    require(x.count == out.count && (out.count <= 1 || out.stride >= outputs_), "out has the wrong shape");
    job.x = x.buffer.data<void>();
    job.x_stride = x.stride;
    job.x_bytes = x.is('B') ? Bytes::kTurned : Bytes::kPlain;
    job.out = out.buffer.data<void>();
    job.out_stride = out.stride;
    job.out_bytes = out.is('B') ? Bytes::kTurned : Bytes::kPlain;
    std::optional<Buffer> entries;
    if (job.output == LinearOutput::kInt8Table) {
      entries.emplace(table, PyBUF_C_CONTIGUOUS);
      require(entries->view().len == 256, "a table has 256 entries of int8");
      job.table = entries->data<int8_t>();
    }
    std::optional<Rows> stream;
    if (adds) {
      stream.emplace(stream_array, outputs_);
      require(stream->is('h') && stream->count == x.count, "the stream must be int16 of out's shape");
      job.stream = stream->buffer.data<int16_t>();
      job.stream_stride = stream->stride;
    }
    if (x.count == 0 || outputs_ == 0) return;
    const int most = threads_of(threads);
    run_interruptibly([&](Interruption& interruption) { run_linear(job, kernel_, x.count, most, interruption); });
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  const LinearKernel& kernel_;
  int64_t inputs_, outputs_;
  bool requantises_;
  std::unique_ptr<std::byte[], Free> memory_;
};

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<PackedLinear>(m, "PackedLinear")
      .def(nb::init<nb::handle, nb::handle, nb::handle>(), nb::arg("weight"), nb::arg("bias"),
           nb::arg("multiplier").none())
      .def("run", &PackedLinear::run, nb::arg("x"), nb::arg("output"), nb::arg("table").none(),
           nb::arg("stream").none(), nb::arg("out"), nb::arg("threads"));
}

}  // namespace hccs
