// Each operator adds its function to the module from a file of its own.
#pragma once

#include <nanobind/nanobind.h>

namespace hccs {

void bind_softmax(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_decode(nanobind::module_& m);
void bind_float_logits(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_quantise(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_top_k(nanobind::module_& m);

}  // namespace hccs
