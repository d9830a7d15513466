// Runs recorded cases through one instruction set and compares with the recorded outputs. For machines that
// are only emulated here: built by a cross compiler, run under an emulator. Prints the number of cases.
#include <cstring>

#include "common/instruction_sets.hpp"
#include "common/interruption.hpp"
#include "recorded.hpp"

namespace {

bool replay(std::FILE* file, const std::vector<int64_t>& header, hccs::SoftmaxRows kernel) {
  const int64_t rows = header[0], columns = header[1], heads = header[4], rows_per_group = header[5];
  const int64_t selection_rows = header[6];  // 1: all rows share it
  const int64_t fields = header[7];          // of a head: 3, or 6 of the wide form
  hccs::SoftmaxJob job{};
  job.rows = rows;
  job.columns = columns;
  job.mode = static_cast<hccs::Mode>(header[2]);
  job.masking = static_cast<hccs::Masking>(header[3]);
  job.rows_per_group = rows_per_group;
  const auto x = read_array<int8_t>(file, rows * columns);
  const auto theta = read_array<int32_t>(file, heads * fields);
  const auto groups = read_array<int32_t>(file, rows / rows_per_group);
  const bool lengths = job.masking == hccs::Masking::kLengths, mask = job.masking == hccs::Masking::kMask;
  const auto selection = read_array<char>(file, selection_rows * (lengths ? 4 : mask ? columns : 0));
  const int64_t out_bytes = rows * columns * (hccs::is_u8(job.mode) ? 1 : 2);
  const auto expected = read_array<char>(file, out_bytes);
  std::vector<char> out(out_bytes, 0x55);
  job.x = x.data();
  job.out = out.data();
  if (fields == 6)
    job.wide_heads = reinterpret_cast<const hccs::WideHead*>(theta.data());
  else
    job.heads = reinterpret_cast<const hccs::Head*>(theta.data());
  job.head_of_group = groups.data();
  if (lengths || mask) {
    job.valid.base = selection.data();
    job.valid.ndim = 1;
    job.valid.shape[0] = rows;
    job.valid.stride[0] = selection_rows == 1 ? 0 : (lengths ? 4 : columns);
  }
  hccs::Interruption never;
  hccs::run_softmax(job, kernel, 1, never);
  return std::memcmp(out.data(), expected.data(), out_bytes) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  hccs::SoftmaxRows kernel = nullptr;
  for (const hccs::InstructionSet& isa : hccs::instruction_sets())
    if (isa.supported && std::strcmp(isa.name, argv[2]) == 0) kernel = isa.softmax;
  std::FILE* file = std::fopen(argv[1], "rb");
  if (!kernel || !file) return 2;
  const int64_t cases = read_array<int64_t>(file, 1)[0];
  for (int64_t i = 0; i < cases; ++i)
    if (!replay(file, read_array<int64_t>(file, 8), kernel)) {
      std::printf("case %lld differs\n", static_cast<long long>(i));
      return 1;
    }
  std::printf("%lld cases agree\n", static_cast<long long>(cases));
}
