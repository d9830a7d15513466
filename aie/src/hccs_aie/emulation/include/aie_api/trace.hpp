// What ran: one record per AIE API operation, with the values it read and the value it made.
//
// The kernels never see this file by name. Values carry a number; an operation that makes one takes the next
// number, and number 0 stands for a constant. From these records hccs_aie.cycles rebuilds the dependence graph.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace aie::emulation {

using value = std::uint32_t;

inline constexpr unsigned max_operands = 4;

struct Operation {
  const char* name;
  const char* label;  // loop name, empty otherwise
  std::uint32_t lanes, bits;
  value result;
  value operands[max_operands];
  std::uint64_t address;  // memory operations; of others, the immediate that tells two of one name apart
  std::uint32_t bytes;    // 0 unless memory is touched
};

struct Trace {
  std::vector<Operation> operations;
  value next = 1;
};

inline thread_local Trace* recording = nullptr;

// Whether kernels run as a compiler sees them that does not pipeline their loops.
inline thread_local bool long_bodies = false;

inline value record(const char* name, unsigned lanes, unsigned bits, std::initializer_list<value> reads = {},
                    const void* address = nullptr, unsigned bytes = 0, const char* label = "") {
  if (!recording) return 0;
  Operation op{name, label, lanes, bits, recording->next++, {}, reinterpret_cast<std::uintptr_t>(address), bytes};
  unsigned i = 0;
  for (value v : reads) op.operands[i++] = v;
  recording->operations.push_back(op);
  return op.result;
}

// An operation with an immediate: shuffle mode, shift amount, sign.
inline value record_with(std::uint64_t immediate, const char* name, unsigned lanes, unsigned bits,
                         std::initializer_list<value> reads) {
  const value result = record(name, lanes, bits, reads);
  if (result) recording->operations.back().address = immediate;
  return result;
}

// Marks a counted loop, so that the cycle model knows what repeats, and (`fixed`) whether a compiler knows the count.
class loop {
 public:
  loop(const char* label, unsigned count, bool fixed) : label_(label), count_(count) {
    record("loop_begin", count, fixed, {}, nullptr, 0, label_);
  }
  bool next() {
    if (started_) ++index_;
    started_ = true;
    const bool more = index_ < count_;
    record(more ? "iteration" : "loop_end", index_, 0, {}, nullptr, 0, label_);
    return more;
  }
  unsigned index() const { return index_; }

 private:
  const char* label_;
  unsigned count_, index_ = 0;
  bool started_ = false;
};

}  // namespace aie::emulation
