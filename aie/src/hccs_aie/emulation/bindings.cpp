// hccs_aie._emulation: run a kernel on aligned arrays, with or without a trace. Python refuses bad arguments in words;
// the checks here keep every access inside the arrays whatever comes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <deque>
#include <map>
#include <new>

#include "aie_api/trace.hpp"
#include "kernels.hpp"

namespace nb = nanobind;
using namespace hccs::emulated;

namespace {

template <typename T>
using Array = nb::ndarray<T, nb::device::cpu, nb::c_contig>;

// The vector loads of a real tile need 64-byte alignment; NumPy promises 16.
class Aligned {
 public:
  explicit Aligned(std::size_t bytes) : bytes_(bytes), data_(::operator new(bytes + 64, std::align_val_t(64))) {
    std::memset(data_, 0, bytes + 64);
  }
  ~Aligned() { ::operator delete(data_, std::align_val_t(64)); }
  Aligned(const Aligned&) = delete;
  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }
  void from(const void* source) { std::memcpy(data_, source, bytes_); }
  void to(void* target) const { std::memcpy(target, data_, bytes_); }

 private:
  std::size_t bytes_;
  void* data_;
};

nb::list as_list(const aie::emulation::Trace& trace) {
  nb::list out;
  for (const auto& op : trace.operations) {
    nb::list operands;
    for (auto v : op.operands)
      if (v) operands.append(v);
    out.append(nb::make_tuple(op.name, op.label, op.lanes, op.bits, op.result, operands, op.address, op.bytes));
  }
  return out;
}

// The kernels count rows and elements in 32 bits.
constexpr std::size_t max_elements = std::size_t(1) << 30;

template <typename F>
nb::object traced(bool record, F run) {
  aie::emulation::Trace trace;
  struct Recording {
    explicit Recording(aie::emulation::Trace* t) { aie::emulation::recording = t; }
    ~Recording() { aie::emulation::recording = nullptr; }
  } recording(record ? &trace : nullptr);
  run();
  return record ? nb::object(as_list(trace)) : nb::none();
}

nb::object integer_kernel(bool by_row, int mode, Array<const std::int8_t> x, nb::object lengths,
                          Array<std::uint8_t> out, unsigned n, int B, int S, int D, int S2, int D2, bool record) {
  require(mode >= 0 && mode < mode_count, "no such mode");
  require(n >= 32 && n <= 512 && n % 32 == 0, "n must be a multiple of 32 up to 512");
  const std::size_t batch = std::size_t(by_row ? 1 : rows_multiple(n)) * n;
  require(x.size() > 0 && x.size() % batch == 0 && x.size() <= max_elements, "x must hold whole batches of rows");
  require(out.size() == x.size() * output_bytes(mode), "out must hold one output for every logit");
  require(1 <= D && D <= 127 && 0 <= S && S <= 127 && 1 <= B && S * D <= B && B <= 32767 / int(n),
          "no kernel runs these parameters");
  require(S2 == -1 || (!by_row && 1 <= D2 && D2 <= D && 0 <= S2 && S + S2 <= 127 && S * D + S2 * D2 <= B),
          "no kernel runs this second line");
  const unsigned rows = unsigned(x.size() / n);
  Aligned in(x.size()), result(out.size()), sizes(2 * rows);
  in.from(x.data());
  Rows r{in.as<std::int8_t>(), nullptr, rows, n, B, S, D, S2, D2};
  if (!lengths.is_none()) {
    const auto given = nb::cast<Array<const std::int16_t>>(lengths);
    require(given.size() == rows, "lengths must hold one number a row");
    for (unsigned row = 0; row < rows; ++row)
      require(given.data()[row] >= 0 && unsigned(given.data()[row]) <= n, "lengths must lie inside the rows");
    sizes.from(given.data());
    r.lengths = sizes.as<std::int16_t>();
  }
  nb::object trace = traced(
      record, [&] { by_row ? run_by_row(mode, r, result.as<void>()) : run_blocked(mode, r, result.as<void>()); });
  result.to(out.data());
  return trace;
}

nb::object bf16_kernel(bool native_exp, Array<const std::uint16_t> x, Array<std::uint16_t> out, unsigned n,
                       bool record) {
  require(n >= 16 && n % 16 == 0, "n must be a multiple of 16");
  require(x.size() > 0 && x.size() % n == 0 && x.size() <= max_elements, "x must hold whole rows");
  require(out.size() == x.size(), "out must hold one output for every logit");
  Aligned in(2 * x.size()), result(2 * out.size());
  in.from(x.data());
  nb::object trace = traced(record, [&] {
    run_bf16(native_exp, in.as<std::uint16_t>(), result.as<std::uint16_t>(), unsigned(x.size() / n), n);
  });
  result.to(out.data());
  return trace;
}

// A kernel of the encoder layer by its name: copies of the arrays go in, and all of them come back.
nb::object tile_kernel(const std::string& name, const std::vector<Array<std::uint8_t>>& arrays,
                       const std::vector<std::int64_t>& numbers, bool record) {
  static const std::map<std::string, void (*)(const Call&)> kernels = {{"attention", run_attention},
                                                                       {"logits", run_logits},
                                                                       {"values", run_values},
                                                                       {"linear", run_linear},
                                                                       {"layer_norm", run_layer_norm}};
  const auto kernel = kernels.find(name);
  require(kernel != kernels.end(), "no such kernel");
  std::deque<Aligned> copies;
  Call call{{}, {}, numbers};
  for (const auto& array : arrays) {
    require(array.size() <= max_elements, "too large an array");
    copies.emplace_back(array.size()).from(array.data());
    call.buffers.push_back(copies.back().as<void>());
    call.bytes.push_back(array.size());
  }
  nb::object trace = traced(record, [&] { kernel->second(call); });
  for (std::size_t i = 0; i < arrays.size(); ++i) copies[i].to(arrays[i].data());
  return trace;
}

}  // namespace

NB_MODULE(_emulation, m) {
  m.def("integer_kernel", &integer_kernel, nb::arg("by_row"), nb::arg("mode"), nb::arg("x"), nb::arg("lengths").none(),
        nb::arg("out"), nb::arg("n"), nb::arg("B"), nb::arg("S"), nb::arg("D"), nb::arg("S2"), nb::arg("D2"),
        nb::arg("record"));
  m.def("bf16_kernel", &bf16_kernel, nb::arg("native_exp"), nb::arg("x"), nb::arg("out"), nb::arg("n"),
        nb::arg("record"));
  m.def("long_bodies", [](bool chosen) { aie::emulation::long_bodies = chosen; }, nb::arg("chosen"));
  m.def("attention_rows", &attention_rows, nb::arg("n"), nb::arg("dim"));
  m.def("tile_kernel", &tile_kernel, nb::arg("name"), nb::arg("arrays"), nb::arg("numbers"), nb::arg("record"));
}
