// The steps of a plan: operators, fused where one alone reads what another writes, over any rows of a batch.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/job.hpp"
#include "decode/job.hpp"
#include "engine/rows.hpp"
#include "engine/values.hpp"
#include "linear/job.hpp"

namespace hccs {

struct AlignedDelete {
  size_t alignment = 64;
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{alignment}); }
};

// Memory that starts at a multiple of 64.
class Block {
 public:
  Block() = default;
  explicit Block(size_t bytes, size_t alignment = 64);
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[], AlignedDelete> data_;
  size_t size_ = 0;
};

// Packed weights, one layer behind the other, in pages of 2 MiB where the system gives them: a core that streams
// weights through pages of 4 KiB waits for addresses, and reaches two thirds of the bandwidth.
class WeightMemory {
 public:
  // Starts at a multiple of 64, and stays there.
  std::byte* take(size_t bytes);

 private:
  static constexpr size_t kPage = 2 << 20, kSlab = 8 * kPage;
  std::vector<Block> slabs_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

class Step {
 public:
  virtual ~Step() = default;
  virtual size_t workspace() const { return 0; }
  // Its output's channels can be made in so many pieces, apart from each other.
  virtual int64_t pieces() const { return 1; }
  virtual void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
                   int64_t piece_end) const = 0;
};

class LinearStep : public Step {
 public:
  LinearStep(const LinearKernel& kernel, const Value& x, const Value& out, LinearOutput output, int32_t limit,
             const int8_t* weight, const int32_t* bias, const int32_t* multiplier, const int8_t* table, int64_t inputs,
             int64_t outputs, int row_exponents, WeightMemory& weights);
  size_t workspace() const override { return kernel_.workspace(inputs_); }
  int64_t pieces() const override { return (outputs_ + kernel_.block_outputs - 1) / kernel_.block_outputs; }
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const LinearKernel& kernel_;
  const Value x_, out_;
  const LinearOutput output_;
  const int32_t limit_;
  const int64_t inputs_, outputs_;
  const int row_exponents_;  // how many there are; 0: none
  std::vector<int8_t> table_;
  std::byte* const packed_;
};

// LayerNorm or RMSNorm of what it reads, with what is added before and narrowed behind it.
class NormStep : public Step {
 public:
  struct Constants {
    int64_t channels, times;  // as in NormConstants
    bool centred;
    const int32_t *gain, *bias;
    int gain_bits;
    int64_t epsilon;
    uint64_t root;
    int root_shift;
  };
  struct Places {
    const Value *a, *b, *clamped, *out, *narrowed;  // null where there is none
  };
  NormStep(const RowKernels& kernels, const Constants& constants, NormSource source, const Places& places,
           int32_t limit, const EmbeddingConstants& embedding, int bits, std::span<const int16_t> scale);
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  std::vector<int32_t> gain_, bias_;
  std::vector<double> real_gain_, real_bias_;
  const std::vector<int16_t> scale_;
  const EmbeddingConstants embedding_;
  NormConstants norm_;
  NormJob job_;
  Value a_, b_, clamped_, out_, narrowed_;
};

// RMSNorm of each of the first heads of int16 rows; the channels behind them are copied.
class NormHeadsStep : public Step {
 public:
  // Gains [heads][dim], bits and epsilons of every head; `root` and `root_shift` as in NormConstants.
  NormHeadsStep(const RowKernels& kernels, const Value& x, const Value& out, int64_t channels, int64_t dim,
                std::span<const int32_t> gain, std::span<const int64_t> gain_bits, std::span<const int64_t> epsilon,
                uint64_t root, int root_shift);
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  const Value x_, out_;
  const int64_t channels_;
  const std::vector<int32_t> gain_, bias_;  // biases are zeros, of one head
  std::vector<double> real_gain_;
  const std::vector<double> real_bias_;
  std::vector<NormConstants> heads_;
};

class EmbedStep : public Step {
 public:
  EmbedStep(const RowKernels& kernels, const EmbeddingConstants& embedding, int64_t channels, const Value& out)
      : kernels_(kernels), embedding_(embedding), channels_(channels), out_(out) {}
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  const EmbeddingConstants embedding_;
  const int64_t channels_;
  const Value out_;
};

// The pixels of each row's patch; zeros in the rows of special tokens.
class PixelStep : public Step {
 public:
  PixelStep(int64_t special, int64_t patch, int64_t channels, int64_t height, int64_t width, const Value& out)
      : special_(special), patch_(patch), channels_(channels), height_(height), width_(width), out_(out) {}
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const int64_t special_, patch_, channels_, height_, width_;
  const Value out_;
};

// Rows of special tokens as they are; other rows plus their position, clamped.
class PlaceStep : public Step {
 public:
  PlaceStep(const RowKernels& kernels, const int16_t* special, int64_t specials, const int16_t* positions,
            int64_t channels, const Value& x, const Value& out);
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  std::vector<int16_t> special_;  // with their positions
  const int64_t specials_, channels_;
  const int16_t* const positions_;
  const Value x_, out_;
};

class NarrowStep : public Step {
 public:
  NarrowStep(const RowKernels& kernels, const Value& x, const Value& out, int64_t channels, int bits)
      : kernels_(kernels), x_(x), out_(out), channels_(channels), bits_(bits) {}
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  const Value x_, out_;
  const int64_t channels_;
  const int bits_;
};

// int8 rows with an exponent of their own, of x or of a ramp's values of it, times scales of channels.
class NarrowRowStep : public Step {
 public:
  NarrowRowStep(const RowKernels& kernels, const Value& x, const Value& out, int64_t channels, bool long_rows,
                const RampConstants* ramp, std::span<const int16_t> scale)
      : kernels_(kernels),
        x_(x),
        out_(out),
        channels_(channels),
        long_rows_(long_rows),
        scale_(scale.begin(), scale.end()) {
    if (ramp) ramp_ = *ramp;
  }
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  const Value x_, out_;
  const int64_t channels_;
  const bool long_rows_;  // x is int32: there is no ramp, and no scale
  const std::vector<int16_t> scale_;
  std::optional<RampConstants> ramp_;
};

// q, k and v of every row to int8, q and k turned by the row's position.
class RotateStep : public Step {
 public:
  // The tables are read where they lie.
  RotateStep(const RowKernels& kernels, const Value& x, const Value& out, const RotateConstants& constants,
             int64_t first);
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  const Value x_, out_;
  const std::vector<int32_t> multiplier_;
  std::vector<double> factor_;
  RotateConstants constants_;
  const int64_t first_;  // position of the tables
};

// The product of two values, the first of them a ramp's of what is read or not: int16, int32, or int8 rows with an
// exponent each.
class MultiplyStep : public Step {
 public:
  enum class Output { kInt16, kInt32, kRows };
  MultiplyStep(const RowKernels& kernels, const Value& a, const Value& b, const Value& out, int64_t channels,
               const RampConstants* ramp, int bits, int32_t limit, Output output, std::span<const int16_t> scale)
      : kernels_(kernels),
        a_(a),
        b_(b),
        out_(out),
        channels_(channels),
        bits_(bits),
        limit_(limit),
        output_(output),
        scale_(scale.begin(), scale.end()) {
    if (ramp) ramp_ = *ramp;
  }
  size_t workspace() const override { return output_ == Output::kRows ? channels_ * sizeof(int32_t) : 0; }
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  const Value a_, b_, out_;
  const int64_t channels_;
  const int bits_;
  const int32_t limit_;
  const Output output_;
  const std::vector<int16_t> scale_;
  std::optional<RampConstants> ramp_;
};

class RampStep : public Step {
 public:
  RampStep(const RowKernels& kernels, const Value& x, const Value& out, int64_t channels, const RampConstants& ramp)
      : kernels_(kernels), x_(x), out_(out), channels_(channels), ramp_(ramp) {}
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  const Value x_, out_;
  const int64_t channels_;
  const RampConstants ramp_;
};

// The tokens of every sequence as one row: int32, or int16 where a mean is divided.
class PoolStep : public Step {
 public:
  PoolStep(const RowKernels& kernels, const Value& x, const Value& out, int64_t channels, Pooling pooling, bool divided)
      : kernels_(kernels), x_(x), out_(out), channels_(channels), pooling_(pooling), divided_(divided) {}
  size_t workspace() const override { return divided_ ? channels_ * sizeof(int32_t) : 0; }
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  const Value x_, out_;
  const int64_t channels_;
  const Pooling pooling_;
  const bool divided_;
};

class UnitStep : public Step {
 public:
  UnitStep(const RowKernels& kernels, const Value& x, const Value& out, int64_t channels, int bits)
      : kernels_(kernels), x_(x), out_(out), channels_(channels), bits_(bits) {}
  size_t workspace() const override { return channels_ * sizeof(int32_t); }
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  const Value x_, out_;
  const int64_t channels_;
  const int bits_;  // of x
};

class AddStep : public Step {
 public:
  AddStep(const RowKernels& kernels, const Value& a, const Value& b, const Value& out, int64_t channels, int32_t limit)
      : kernels_(kernels), a_(a), b_(b), out_(out), channels_(channels), limit_(limit) {}
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const RowKernels& kernels_;
  const Value a_, b_, out_;
  const int64_t channels_;
  const int32_t limit_;
};

class TableStep : public Step {
 public:
  TableStep(const Value& x, const Value& out, int64_t channels, const int8_t* entries);
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const Value x_, out_;
  const int64_t channels_;
  int8_t entries_[256];  // by the byte as it is stored
};

// The first row of every sequence, or the last; of a causal plan the chosen ones.
class OneRowStep : public Step {
 public:
  OneRowStep(const Value& x, const Value& out, int64_t bytes, bool last)
      : x_(x), out_(out), bytes_(bytes), last_(last) {}
  void run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
           int64_t piece_end) const override;

 private:
  const Value x_, out_;
  const int64_t bytes_;
  const bool last_;
};

// Attention mixes rows, so it stands alone: over sequences and heads, of all queries or of each sequence's chosen one.
// Keys and values of a batch with a cache are appended to it, and read there.
class AttentionStep {
 public:
  struct Operand {
    Value value;
    int64_t offset;  // of the first head in a row
  };
  // How far before and after its own position a query sees.
  struct Reach {
    int64_t before, after;  // kUnlimited: any distance
  };
  AttentionStep(const AttentionKernel& kernel, const Operand& q, const Operand& k, const Operand& v, const Value& out,
                int64_t group, int64_t dim, Reach reach, std::span<const Head> theta,
                std::span<const WideHead> wide_theta, std::span<const int16_t> scores,
                std::span<const Requant> requant);
  int64_t heads() const { return static_cast<int64_t>(requant_.size()); }
  int64_t group() const { return group_; }
  int64_t shared_heads() const { return heads() / group_; }
  size_t workspace(int64_t longest) const;
  // Of the keys and values of one token; those of `before` bytes lie before them.
  int64_t cache_bytes() const { return 2 * shared_heads() * dim_; }
  void set_cached_before(int64_t before) { cached_before_ = before; }
  // Whole groups of heads that share keys and values.
  void run(const Batch& batch, const Memory& memory, Interruption& interruption, int64_t sequence, int64_t head,
           int64_t head_end) const;

 private:
  static constexpr int64_t kAtOnce = 16;     // heads
  static constexpr int64_t kFewQueries = 4;  // more of them are worth packing keys and values for

  struct Keys {
    int8_t *k, *v;
  };
  AttentionJob job_of(int64_t queries, int64_t keys) const;
  DecodeJob few_queries(int64_t rows, int64_t keys) const;
  // The first key and value of a sequence, for the heads that share them: in the cache, or in the batch.
  Keys keys_of(const Batch& batch, const Memory& memory, int64_t sequence, int64_t shared) const;
  Keys new_keys(const Batch& batch, const Memory& memory, int64_t sequence, int64_t shared) const;
  void append(const Batch& batch, const Memory& memory, int64_t sequence, int64_t shared) const;
  // Queries from `position` of the text on, of the heads that share keys in the cache.
  void decode(const Batch& batch, const Memory& memory, int64_t sequence, int64_t position, int64_t queries,
              int64_t shared) const;
  // The job's queries over the keys of their sequence from `key` on.
  void run_heads(AttentionJob& job, const Batch& batch, const Memory& memory, int64_t sequence, int64_t key,
                 int64_t head, int64_t head_end) const;
  int64_t row_of(const Batch& batch, const Value& value, int64_t sequence) const {
    return value.space == Space::kTokens || batch.chosen == Chosen::kAll ? batch.starts[sequence] : sequence;
  }
  // Of one query per sequence, which may lie among those of all tokens.
  bool has_one_query(const Batch& batch) const {
    return out_.space == Space::kSequences && batch.chosen != Chosen::kAll;
  }
  int64_t query_row(const Batch& batch, int64_t sequence) const {
    const bool among_all = q_.value.space == Space::kTokens && has_one_query(batch);
    return among_all ? batch.token_row(sequence) : row_of(batch, q_.value, sequence);
  }

  const AttentionKernel& kernel_;
  const DecodeKernel& decode_;
  const Operand q_, k_, v_;
  const Value out_;
  const int64_t group_, dim_;  // heads that share keys and values; channels of a head
  const Reach reach_;
  std::vector<Head> theta_;
  std::vector<WideHead> wide_theta_;  // in its place
  bool by_distance_;                  // scores are the tables', whatever theta says
  std::vector<Requant> requant_;
  std::vector<ScoreTables> tables_;
  std::vector<ScoreTable> scores_;  // the same for few queries
  int64_t cached_before_ = 0;
};

}  // namespace hccs
