#include "common/instruction_sets.hpp"

#if defined(HCCS_NEON) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <atomic>

#include "common/tiles.hpp"

namespace hccs {
namespace {

std::atomic<const InstructionSet*> chosen = nullptr;

#ifdef HCCS_NEON
bool has_dot_product() {
#ifdef __linux__
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
  return true;  // every Mac with such a processor has it
#else
  return false;
#endif
}
bool has_i8mm() {
#if defined(__linux__) && defined(HWCAP2_I8MM)
  return has_dot_product() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#else
  return false;
#endif
}
#endif

// The operators between the products are small: each instruction set has one form of all of them.
const RowKernels* row_kernels(const std::string& name) {
#ifdef HCCS_X86
  const bool fma = __builtin_cpu_supports("fma");
  if (name == "avx512" && fma) return &rows_avx512;
  if (name == "avx2" && fma) return &rows_avx2;
#endif
#ifdef HCCS_NEON
  if (name == "neon" || name == "i8mm") return &rows_neon;
#endif
  return &rows_scalar;
}

DotRows dot_rows([[maybe_unused]] const std::string& name) {
#ifdef HCCS_X86
  if (name == "avx512" && __builtin_cpu_supports("avx512vnni")) return dot_rows_avx512;
  if (name != "scalar") return dot_rows_avx2;
#endif
  return dot_rows_scalar;  // compilers vectorise its loop where, as on Arm, vectors are always there
}

}  // namespace

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> all = [] {
    std::vector<InstructionSet> found{
        {"scalar", true, softmax_rows_scalar, logits_scalar, &attention_scalar, &linear_scalar}};
#ifdef HCCS_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
    const bool avx512 = avx2 && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi");
    const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    found.push_back({"avx2", avx2, softmax_rows_avx2, logits_avx2, &attention_avx2, &linear_avx2});
    found.push_back({"avx512", avx512, softmax_rows_avx512, logits_avx512, vnni ? &attention_avx512 : &attention_avx2,
                     vnni ? &linear_avx512 : &linear_avx2});
#endif
#ifdef HCCS_NEON
    const bool dot = has_dot_product();
    found.push_back({"neon", true, softmax_rows_neon, logits_scalar, dot ? &attention_neon : &attention_scalar,
                     dot ? &linear_neon : &linear_scalar});
    found.push_back({"i8mm", has_i8mm(), softmax_rows_neon, logits_scalar, &attention_i8mm, &linear_i8mm});
#endif
    for (InstructionSet& set : found) {
      set.rows = row_kernels(set.name);
      set.dots = dot_rows(set.name);
    }
    // Tests run the loops of AMX everywhere, on a model of its tiles.
    InstructionSet model = found.front();
    model.linear = &linear_amx_model;
#ifdef HCCS_X86
    if (vnni) {
      InstructionSet amx = found.back();
      amx.attention = &attention_amx_model;
      amx.linear = &linear_amx_model_avx512;
      model = amx;
      amx.name = "amx";
      amx.supported = may_use_tiles();
      amx.attention = &attention_amx;
      amx.linear = &linear_amx;
      found.push_back(amx);
    }
#endif
    model.name = "amx-model";
    model.automatic = false;
    found.push_back(model);
    return found;
  }();
  return all;
}

const InstructionSet& in_use() {
  const InstructionSet* set = chosen.load(std::memory_order_relaxed);
  return set ? *set : use("");
}

const InstructionSet& use(const std::string& name) {
  const InstructionSet* found = chosen.load(std::memory_order_relaxed);
  for (const InstructionSet& set : instruction_sets())
    if (set.supported && (name.empty() ? set.automatic : name == set.name)) found = &set;
  chosen.store(found, std::memory_order_relaxed);
  return *found;
}

}  // namespace hccs
