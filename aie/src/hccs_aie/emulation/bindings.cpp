// hccs_aie._emulation: run a kernel on aligned arrays, with or without a trace. Python refuses bad arguments in words;
// the checks here keep every access inside the arrays whatever comes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
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

void require(bool holds, const char* what) {
  if (!holds) throw nb::value_error(what);
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

void require_sizes(unsigned rows, unsigned n, unsigned dim) {
  require(n >= 32 && n <= max_attention_keys && n % 32 == 0, "n must be a multiple of 32 up to 256");
  require(dim == 32 || dim == 64, "the head size must be 32 or 64");
  require(rows >= 32 && rows <= attention_rows(n, dim) && rows % 32 == 0, "rows must be 32, or 64 where they fit");
}

nb::object attention_kernel(Array<const std::int8_t> q, Array<const std::int8_t> k, Array<const std::int8_t> v,
                            Array<std::int32_t> N, Array<std::int16_t> Z, unsigned rows, unsigned n, unsigned dim,
                            int shift, int B, int S, int D, bool record) {
  require_sizes(rows, n, dim);
  require(q.size() == rows * dim && k.size() == n * dim && v.size() == n * dim, "q, k and v must fill their tiles");
  require(N.size() == rows * dim && Z.size() == 2 * rows, "N and Z must fill their tiles");
  require(shift >= 0 && shift <= 23, "shift must lie in 0 to 23");
  require(1 <= D && D <= 127 && 0 <= S && S <= 127 && 1 <= B && S * D <= B && B <= 32767 / int(n),
          "no kernel runs these parameters");
  Aligned queries(q.size()), keys(k.size()), values(v.size()), sums(4 * N.size()), totals(2 * Z.size());
  queries.from(q.data());
  keys.from(k.data());
  values.from(v.data());
  Heads heads{};
  heads.stage = Stage::whole;
  heads.q = queries.as<std::int8_t>();
  heads.k = keys.as<std::int8_t>();
  heads.v = values.as<std::int8_t>();
  heads.N = sums.as<std::int32_t>();
  heads.Z = totals.as<std::int16_t>();
  heads.rows = rows, heads.n = n, heads.dim = dim, heads.shift = shift;
  heads.B = B, heads.S = S, heads.D = D;
  nb::object trace = traced(record, [&] { run_attention(heads); });
  sums.to(N.data());
  totals.to(Z.data());
  return trace;
}

nb::object logits_kernel(Array<const std::int8_t> q, Array<const std::int8_t> k, Array<std::int8_t> x, unsigned rows,
                         unsigned n, unsigned dim, int shift, bool record) {
  require_sizes(rows, n, dim);
  require(q.size() == rows * dim && k.size() == n * dim && x.size() == rows * n, "q, k and x must fill their tiles");
  require(shift >= 0 && shift <= 23, "shift must lie in 0 to 23");
  Aligned queries(q.size()), keys(k.size()), logits(x.size());
  queries.from(q.data());
  keys.from(k.data());
  Heads heads{};
  heads.stage = Stage::logits;
  heads.q = queries.as<std::int8_t>();
  heads.k = keys.as<std::int8_t>();
  heads.x = logits.as<std::int8_t>();
  heads.rows = rows, heads.n = n, heads.dim = dim, heads.shift = shift;
  nb::object trace = traced(record, [&] { run_attention(heads); });
  logits.to(x.data());
  return trace;
}

nb::object values_kernel(Array<const std::uint8_t> p, Array<const std::int8_t> v, Array<std::int32_t> N, unsigned rows,
                         unsigned n, unsigned dim, bool record) {
  require_sizes(rows, n, dim);
  require(p.size() == rows * n && v.size() == n * dim && N.size() == rows * dim, "p, v and N must fill their tiles");
  Aligned weights(p.size()), values(v.size()), sums(4 * N.size());
  weights.from(p.data());
  values.from(v.data());
  Heads heads{};
  heads.stage = Stage::values;
  heads.p = weights.as<std::uint8_t>();
  heads.v = values.as<std::int8_t>();
  heads.N = sums.as<std::int32_t>();
  heads.rows = rows, heads.n = n, heads.dim = dim;
  nb::object trace = traced(record, [&] { run_attention(heads); });
  sums.to(N.data());
  return trace;
}

}  // namespace

NB_MODULE(_emulation, m) {
  m.def("integer_kernel", &integer_kernel, nb::arg("by_row"), nb::arg("mode"), nb::arg("x"), nb::arg("lengths").none(),
        nb::arg("out"), nb::arg("n"), nb::arg("B"), nb::arg("S"), nb::arg("D"), nb::arg("S2"), nb::arg("D2"),
        nb::arg("record"));
  m.def("bf16_kernel", &bf16_kernel, nb::arg("native_exp"), nb::arg("x"), nb::arg("out"), nb::arg("n"),
        nb::arg("record"));
  m.def("attention_rows", &attention_rows, nb::arg("n"), nb::arg("dim"));
  m.def("attention_kernel", &attention_kernel, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("N"), nb::arg("Z"),
        nb::arg("rows"), nb::arg("n"), nb::arg("dim"), nb::arg("shift"), nb::arg("B"), nb::arg("S"), nb::arg("D"),
        nb::arg("record"));
  m.def("logits_kernel", &logits_kernel, nb::arg("q"), nb::arg("k"), nb::arg("x"), nb::arg("rows"), nb::arg("n"),
        nb::arg("dim"), nb::arg("shift"), nb::arg("record"));
  m.def("values_kernel", &values_kernel, nb::arg("p"), nb::arg("v"), nb::arg("N"), nb::arg("rows"), nb::arg("n"),
        nb::arg("dim"), nb::arg("record"));
}
