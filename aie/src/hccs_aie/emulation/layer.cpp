// The kernels of an encoder layer around attention, compiled for the host.
#include "hccs_layer_norm.hpp"
#include "hccs_linear.hpp"

#include <memory>

#include "kernels.hpp"

namespace hccs::emulated {

// buffers: x, weight, bias, multiplier, table, y; numbers: rows, inputs, outputs, layout.
void run_linear(const Call& call) {
  const auto& n = call.numbers;
  require(call.buffers.size() == 6 && n.size() == 4, "six buffers and four numbers");
  require(n[0] > 0 && n[0] % 8 == 0 && n[0] <= 64 && n[1] > 0 && n[1] % 8 == 0 && n[1] <= 8192 && n[2] > 0 &&
              n[2] % 16 == 0 && n[2] <= 8192 && n[3] >= 0 && n[3] <= 2,
          "no kernel runs a layer of this shape");
  const auto rows = std::size_t(n[0]), inputs = std::size_t(n[1]), outputs = std::size_t(n[2]);
  const auto form = layout(n[3]);
  const bool large = call.bytes[3] == 32 * outputs;
  const auto bytes = form == layout::int16_rows ? 2 * rows * outputs : rows * outputs;
  const bool table = call.bytes[4] > 0;
  require(!table || form == layout::int8_rows, "a table of bytes");
  call.require_bytes(
      {rows * inputs, inputs * outputs, 32 * outputs, (large ? 32 : 16) * outputs, table ? 512u : 0u, bytes});
  const auto run = [&]<typename Multiplier>(Multiplier) {
    const linear<Multiplier> of{call.as<int8>(1), call.as<int32>(2), call.as<Multiplier>(3), unsigned(inputs),
                                unsigned(outputs)};
    const auto* x = call.as<int8>(0);
    auto* y = call.as<int8>(5);
    if (form == layout::int8_rows) return linear_rows<0, layout::int8_rows>(x, of, unsigned(rows), y);
    if (form == layout::int8_keys) return linear_rows<0, layout::int8_keys>(x, of, unsigned(rows), y);
    return linear_rows<0, layout::int16_rows>(x, of, unsigned(rows), call.as<int16>(5));
  };
  large ? run(int32()) : run(uint16());
  if (table) table_rows(call.as<int8>(5), unsigned(rows * outputs), call.as<int8>(4));
}

// buffers: x, part, gain, bias, y, narrowed; numbers: rows, channels, epsilon, root, shift, gain bits, narrow bits.
void run_layer_norm(const Call& call) {
  const auto& n = call.numbers;
  require(call.buffers.size() == 6 && n.size() == 7, "six buffers and seven numbers");
  require((n[0] == 32 || n[0] == 64) && n[1] >= 32 && n[1] <= 1024 && n[1] % 32 == 0, "no kernel runs this shape");
  require(n[2] >= 1 && n[2] < std::int64_t(1) << 62 && n[3] >= 0 && n[3] < std::int64_t(1) << 62 && n[4] >= 0 &&
              n[4] <= 60 && n[5] >= 0 && n[5] <= 16 && n[6] >= 0 && n[6] <= 16,
          "no kernel runs these numbers");
  const auto count = std::size_t(n[0] * n[1]), channels = std::size_t(n[1]);
  call.require_bytes({2 * count, 2 * count, 32 * channels, 32 * channels, 2 * count, count});
  const auto high = [](std::int64_t v) { return int32(v >> 31); };
  const auto low = [](std::int64_t v) { return int32(v & 0x7fffffff); };
  const norm of{call.as<int32>(2), call.as<int32>(3), unsigned(channels), high(n[2]), low(n[2]),
                high(n[3]),        low(n[3]),         int(n[4]),          int(n[5]),  int(n[6])};
  auto scratch = std::make_unique<norm_scratch>();
  layer_norm(call.as<int16>(0), call.as<int16>(1), of, unsigned(n[0]), *scratch, call.as<int16>(4), call.as<int8>(5));
}

}  // namespace hccs::emulated
