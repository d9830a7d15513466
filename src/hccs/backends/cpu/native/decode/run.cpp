#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "decode/job.hpp"
#include "engine/pool.hpp"

namespace hccs {
namespace {

constexpr int64_t kAlign = 64;     // keys; pieces of them begin at its multiples
constexpr int64_t kFewKeys = 256;  // what a thread of its own is worth
constexpr int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

constexpr int64_t kMostAtOnce = 64;  // rows whose weights are multiplied together

int64_t stride_of(const DecodeJob& job) { return round_up(std::max<int64_t>(job.keys, 1), kAlign) + kAlign; }
int64_t sums_bytes(const DecodeJob& job) {
  return round_up(job.rows * job.dim * static_cast<int64_t>(sizeof(int32_t)), kAlign);
}

// N and Z of some rows over keys begin..end-1, from the logits of all keys.
void multiply_rows(const DecodeJob& job, const DecodeKernel& kernel, const DecodeGroup& group, int64_t first,
                   int64_t count, int64_t begin, int64_t end, const int8_t* x, std::byte* memory, int32_t* N,
                   int32_t* Z) {
  const int64_t stride = stride_of(job);
  auto* const low = reinterpret_cast<uint8_t*>(memory);
  uint8_t* const high = low + job.rows * stride;
  bool has_high = false;
  for (int64_t r = 0; r < count; ++r) {
    const DecodeRow& row = group.rows[first + r];
    ScoreTable table;
    if (row.table)
      table = *row.table;
    else
      kernel.scores(row.head, job.wide, table);
    const int8_t* const logits = x + (first + r) * stride;
    const int m = kernel.most(logits, row.on, 0, row.keys);
    if (job.probabilities_first) {
      const int32_t sum = kernel.weights(logits, row.on, 0, row.keys, m, table, nullptr, nullptr);
      ScoreTable scores = table;
      kernel.probabilities(scores, sum, job.wide, job.mode, table);
    }
    const int64_t last = std::max(begin, std::min(end, row.keys));
    uint8_t* const own_low = low + r * stride;
    uint8_t* const own_high = high + r * stride;
    if (table.has_high && !has_high) {  // rows before had none
      std::memset(high, 0, r * stride);
      has_high = true;
    }
    Z[r] = kernel.weights(logits, row.on, begin, last, m, table, own_low, table.has_high ? own_high : nullptr);
    if (job.probabilities_first) Z[r] = begin == 0 ? 255 : 0;
    const int64_t padded = round_up(end - begin, 4) + begin;
    const int64_t filled = round_up(last - begin, 4) + begin;
    if (filled < padded) std::memset(own_low + filled, 0, padded - filled);
    if (has_high) {
      if (!table.has_high)
        std::memset(own_high + begin, 0, padded - begin);
      else if (filled < padded)
        std::memset(own_high + filled, 0, padded - filled);
    }
  }
  kernel.products(job, group, begin, end, low, has_high ? high : nullptr, stride, count, N);
}

// One phase where each part is a whole group. Pieces of keys need three: a score depends on the largest logit of all
// keys, and only the sums of all pieces are the output.
class DecodeWork : public PhasedWork {
 public:
  DecodeWork(const DecodeJob& job, const DecodeKernel& kernel, int threads) : job_(job), kernel_(kernel) {
    const int64_t most = std::max<int64_t>(job.keys / kFewKeys, 1);
    const int64_t wanted = job.group_count >= threads ? 1 : std::min<int64_t>(threads / job.group_count, most);
    piece_ = std::max<int64_t>(round_up((job.keys + wanted - 1) / wanted, kAlign), kAlign);
    pieces_ = std::max<int64_t>((job.keys + piece_ - 1) / piece_, 1);
    stride_ = stride_of(job);
    row_sums_ = sums_bytes(job);
    const int64_t own = worker_bytes_ = static_cast<int64_t>(decode_workspace(job));
    const int64_t parts = job.group_count * pieces_;
    threads = static_cast<int>(std::min<int64_t>(threads, parts));
    const int64_t shared = pieces_ == 1
                               ? 0
                               : job.group_count * job.rows * stride_ + parts * row_sums_ +
                                     round_up(parts * job.rows * static_cast<int64_t>(sizeof(int32_t)), kAlign);
    memory_.reset(static_cast<std::byte*>(::operator new[](own * threads + shared, std::align_val_t{64})));
    std::byte* at = memory_.get() + own * threads;
    logits_ = reinterpret_cast<int8_t*>(at);
    at += pieces_ == 1 ? 0 : job.group_count * job.rows * stride_;
    partial_ = at;
    Z_ = reinterpret_cast<int32_t*>(at + parts * row_sums_);
  }

  int64_t phases() const override { return pieces_ == 1 ? 1 : 3; }
  int64_t parts(int64_t phase) const override { return phase == 2 ? job_.group_count : job_.group_count * pieces_; }
  void run(int64_t phase, int64_t part, int worker) noexcept override {
    std::byte* const own = memory_.get() + worker * worker_bytes_;
    if (pieces_ == 1) return decode_group(job_, kernel_, job_.groups[part], own);
    const int64_t group = part / pieces_, begin = part % pieces_ * piece_, end = std::min(begin + piece_, job_.keys);
    int8_t* const x = logits_ + (phase == 2 ? part : group) * job_.rows * stride_;
    if (phase == 0) return kernel_.logits(job_, job_.groups[group], begin, end, x, stride_);
    if (phase == 1) return multiply(job_.groups[group], begin, end, x, own, sums_of(part), Z_ + part * job_.rows);
    join(part);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  const DecodeJob& job_;
  const DecodeKernel& kernel_;
  int64_t piece_, pieces_, stride_, row_sums_, worker_bytes_;
  std::unique_ptr<std::byte[], Free> memory_;
  int8_t* logits_;      // [groups][rows][stride]
  std::byte* partial_;  // [parts][rows][dim] int32
  int32_t* Z_;          // [parts][rows]

  int32_t* sums_of(int64_t part) { return reinterpret_cast<int32_t*>(partial_ + part * row_sums_); }

  void multiply(const DecodeGroup& group, int64_t begin, int64_t end, const int8_t* x, std::byte* own, int32_t* N,
                int32_t* Z) {
    for (int64_t first = 0; first < job_.rows; first += kMostAtOnce)
      multiply_rows(job_, kernel_, group, first, std::min(kMostAtOnce, job_.rows - first), begin, end, x, own,
                    N + first * job_.dim, Z + first);
  }

  void join(int64_t index) {
    int32_t* const N = sums_of(index * pieces_);
    int32_t* const Z = Z_ + index * pieces_ * job_.rows;
    for (int64_t piece = 1; piece < pieces_; ++piece) {
      const int32_t* const more = sums_of(index * pieces_ + piece);
      for (int64_t c = 0; c < job_.rows * job_.dim; ++c)
        N[c] = static_cast<int32_t>(static_cast<uint32_t>(N[c]) + static_cast<uint32_t>(more[c]));
      for (int64_t r = 0; r < job_.rows; ++r) Z[r] += Z[piece * job_.rows + r];
    }
    for (int64_t r = 0; r < job_.rows; ++r) kernel_.write(job_, job_.groups[index].rows[r], N + r * job_.dim, Z[r]);
  }
};

}  // namespace

const DecodeKernel& decode_kernel_of([[maybe_unused]] const AttentionKernel& attention) {
#ifdef HCCS_X86
  if (&attention == &attention_avx512 || &attention == &attention_amx || &attention == &attention_amx_model)
    return decode_avx512;
  if (&attention == &attention_avx2) return decode_avx2;
#endif
#ifdef HCCS_NEON
  if (&attention == &attention_neon || &attention == &attention_i8mm) return decode_neon;
#endif
  return decode_scalar;
}

// Weights of two bytes, sums and logits.
size_t decode_workspace(const DecodeJob& job) {
  return static_cast<size_t>(3 * job.rows * stride_of(job) + sums_bytes(job));
}

void decode_group(const DecodeJob& job, const DecodeKernel& kernel, const DecodeGroup& group, std::byte* workspace) {
  const int64_t stride = stride_of(job);
  auto* const N = reinterpret_cast<int32_t*>(workspace + 2 * job.rows * stride);
  auto* const x = reinterpret_cast<int8_t*>(workspace + 2 * job.rows * stride + sums_bytes(job));
  int64_t keys = 0;
  for (int64_t r = 0; r < job.rows; ++r) keys = std::max(keys, group.rows[r].keys);
  kernel.logits(job, group, 0, keys, x, stride);
  int32_t Z[kMostAtOnce];
  for (int64_t first = 0; first < job.rows; first += kMostAtOnce) {
    const int64_t count = std::min(kMostAtOnce, job.rows - first);
    multiply_rows(job, kernel, group, first, count, 0, keys, x, workspace, N, Z);
    for (int64_t r = 0; r < count; ++r) kernel.write(job, group.rows[first + r], N + r * job.dim, Z[r]);
  }
}

void run_decode(const DecodeJob& job, const DecodeKernel& kernel, int threads, Interruption& interruption) {
  DecodeWork work(job, kernel, threads);
  run_phases(work, threads, interruption);
}

}  // namespace hccs
