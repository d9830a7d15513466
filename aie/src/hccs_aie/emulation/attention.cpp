// The attention kernels, compiled for the host: every number of keys and head size is a kernel of its own.
#include "hccs_attention.hpp"

#include <memory>
#include <utility>

#include "kernels.hpp"

namespace hccs::emulated {

namespace {

template <unsigned Keys, unsigned Dim>
void run_stage(const Heads& h) {
  switch (h.stage) {
    case Stage::whole: {
      auto scratch = std::make_unique<attention_scratch<Keys, Dim>>();
      const head theta{h.B, h.S, h.D};
      if (h.B <= 255) return attention<Keys, Dim, true>(h.q, h.k, h.v, theta, h.shift, h.rows, *scratch, h.N, h.Z);
      return attention<Keys, Dim, false>(h.q, h.k, h.v, theta, h.shift, h.rows, *scratch, h.N, h.Z);
    }
    case Stage::logits: return attention_logits<Dim>(h.q, h.k, h.rows, Keys, h.shift, h.x);
    case Stage::values: return weighted_values<Keys, Dim>(h.p, h.v, h.rows, h.N);
  }
}

template <unsigned Dim, unsigned... Chunks>
void by_keys(const Heads& h, std::integer_sequence<unsigned, Chunks...>) {
  ((h.n == (Chunks + 1) * lanes ? run_stage<(Chunks + 1) * lanes, Dim>(h) : void()), ...);
}

}  // namespace

unsigned attention_rows(unsigned n, unsigned dim) { return hccs::attention_rows(n, dim); }

void run_attention(const Heads& h) {
  using all = std::make_integer_sequence<unsigned, max_attention_keys / lanes>;
  if (h.dim == 32)
    by_keys<32>(h, all());
  else
    by_keys<64>(h, all());
}

}  // namespace hccs::emulated
