#include "engine/steps.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "attention/scaling.hpp"

namespace hccs {
namespace {

constexpr int kXhatBits = 20;
constexpr int64_t kFewQueries = 4;  // below packed keys and values are worth their packing

uint8_t turn_of(const Value& value) { return value.turned ? 0x80 : 0; }
Bytes bytes_of(const Value& value) { return value.turned ? Bytes::kTurned : Bytes::kPlain; }

}  // namespace

Block::Block(size_t bytes, size_t alignment)
    : data_(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{alignment})), AlignedDelete{alignment}),
      size_(bytes) {}

std::byte* WeightMemory::take(size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  if (bytes > left_) {
    left_ = (std::max(bytes, kSlab) + kPage - 1) / kPage * kPage;
    slabs_.emplace_back(left_, kPage);
    next_ = slabs_.back().data();
#ifdef MADV_HUGEPAGE
    madvise(next_, left_, MADV_HUGEPAGE);  // a wish: without such pages the small ones serve
#endif
  }
  left_ -= bytes;
  return std::exchange(next_, next_ + bytes);
}

LinearStep::LinearStep(const LinearKernel& kernel, const Value& x, const Value& out, LinearOutput output,
                       const int8_t* weight, const int32_t* bias, const int32_t* multiplier, const int8_t* table,
                       int64_t inputs, int64_t outputs, bool row_exponents, WeightMemory& weights)
    : kernel_(kernel),
      x_(x),
      out_(out),
      output_(output),
      inputs_(inputs),
      outputs_(outputs),
      row_exponents_(row_exponents),
      packed_(weights.take(kernel.packed_bytes(inputs, outputs, row_exponents))) {
  if (table) table_.assign(table, table + 256);
  kernel.pack(weight, bias, multiplier, inputs, outputs, row_exponents, packed_);
}

void LinearStep::run(const Batch&, const Memory& memory, int64_t row, int64_t row_end, int64_t piece,
                     int64_t piece_end) const {
  LinearJob job{};
  job.packed = packed_;
  job.inputs = inputs_;
  job.outputs = outputs_;
  job.row_exponents = row_exponents_;
  job.x = memory.at(x_, row);
  job.x_stride = x_.row_bytes;
  job.x_bytes = bytes_of(x_);
  job.output = output_;
  job.out = memory.at(out_, row);
  const bool bytes = output_ == LinearOutput::kInt8 || output_ == LinearOutput::kInt8Table;
  job.out_stride = out_.row_bytes / (bytes ? 1 : output_ == LinearOutput::kInt16 ? 2 : 4);
  job.out_bytes = bytes_of(out_);
  job.table = table_.data();
  kernel_.run(job, 0, row_end - row, piece, piece_end, memory.workspace);
}

NormStep::NormStep(const RowKernels& kernels, const Constants& constants, NormSource source, const Places& places,
                   int32_t limit, const EmbeddingConstants& embedding, int bits, std::span<const int16_t> scale)
    : kernels_(kernels),
      gain_(constants.gain, constants.gain + constants.channels),
      bias_(constants.bias, constants.bias + constants.channels),
      scale_(scale.begin(), scale.end()),
      embedding_(embedding),
      job_{} {
  for (int64_t i = 0; i < constants.channels; ++i) {
    real_gain_.push_back(std::ldexp(gain_[i], -(kXhatBits + constants.gain_bits)));
    real_bias_.push_back(std::ldexp(bias_[i], -constants.gain_bits));
  }
  norm_ = {constants.channels,  constants.root, constants.root_shift, static_cast<uint64_t>(constants.epsilon),
           constants.gain_bits, gain_.data(),   bias_.data(),         real_gain_.data(),
           real_bias_.data()};
  job_.norm = &norm_;
  job_.source = source;
  job_.embedding = &embedding_;
  job_.limit = limit;
  job_.bits = bits;
  job_.scale = scale_.empty() ? nullptr : scale_.data();
  const auto take = [](const Value* place, Value& value, int64_t& stride) {
    if (place == nullptr) return;
    value = *place;
    stride = value.row_bytes;
  };
  take(places.a, a_, job_.a_stride);
  take(places.b, b_, job_.b_stride);
  take(places.clamped, clamped_, job_.clamped_stride);
  take(places.out, out_, job_.out_stride);
  take(places.narrowed, narrowed_, job_.narrowed_stride);
  if (places.narrowed) job_.turn = turn_of(narrowed_);
}

void NormStep::run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  NormJob job = job_;
  if (job.a_stride) job.a = memory.at(a_, row);
  if (job.b_stride) job.b = memory.at(b_, row);
  if (job.source == NormSource::kEmbedding) job.tokens = {batch.token + row, batch.position + row, batch.type + row};
  if (job.clamped_stride) job.clamped = memory.at<int16_t>(clamped_, row);
  if (job.out_stride) job.out = memory.at<int16_t>(out_, row);
  if (job.narrowed_stride) job.narrowed = memory.at<int8_t>(narrowed_, row);
  kernels_.norm(job, row_end - row);
}

void EmbedStep::run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row)
    kernels_.embed(embedding_, batch.token[row], batch.position[row], batch.type[row], channels_, memory.at(out_, row));
}

void PixelStep::run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  const int64_t across = width_ / patch_, tokens = special_ + across * (height_ / patch_);
  const uint8_t turn = out_.turned ? 0 : 0x80;  // a pixel is x + 128 already
  for (; row < row_end; ++row) {
    auto* to = memory.at<uint8_t>(out_, row);
    const int64_t patch = row % tokens - special_;
    if (patch < 0) {
      std::memset(to, 0, channels_ * patch_ * patch_);
      continue;
    }
    const uint8_t* const image = batch.images + row / tokens * channels_ * height_ * width_;
    const uint8_t* const corner = image + patch / across * patch_ * width_ + patch % across * patch_;
    for (int64_t channel = 0; channel < channels_; ++channel)
      for (int64_t line = 0; line < patch_; ++line, to += patch_) {
        const uint8_t* const from = corner + (channel * height_ + line) * width_;
        for (int64_t i = 0; i < patch_; ++i) to[i] = from[i] ^ turn;
      }
  }
}

PlaceStep::PlaceStep(const RowKernels& kernels, const int16_t* special, int64_t specials, const int16_t* positions,
                     int64_t channels, const Value& x, const Value& out)
    : kernels_(kernels),
      special_(specials * channels),
      specials_(specials),
      channels_(channels),
      positions_(positions),
      x_(x),
      out_(out) {
  kernels.add(special, positions, specials * channels, INT16_MAX, special_.data());
}

void PlaceStep::run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row) {
    const int64_t position = batch.position[row];
    auto* const to = memory.at<int16_t>(out_, row);
    if (position < specials_)
      std::memcpy(to, special_.data() + position * channels_, channels_ * sizeof(int16_t));
    else
      kernels_.add(memory.at<int16_t>(x_, row), positions_ + position * channels_, channels_, INT16_MAX, to);
  }
}

void NarrowStep::run(const Batch&, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row)
    kernels_.narrow(memory.at<int16_t>(x_, row), channels_, bits_, turn_of(out_), memory.at<int8_t>(out_, row));
}

void NarrowRowStep::run(const Batch&, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row)
    kernels_.narrow_row(ramp_ ? &*ramp_ : nullptr, scale_.empty() ? nullptr : scale_.data(),
                        memory.at<int16_t>(x_, row), channels_, turn_of(out_), memory.at<int8_t>(out_, row));
}

void RampStep::run(const Batch&, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row)
    kernels_.ramp(ramp_, memory.at<int16_t>(x_, row), channels_, memory.at<int16_t>(out_, row));
}

void PoolStep::run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row) {
    const int64_t tokens = batch.length(row);
    auto* const pooled = divided_ ? reinterpret_cast<int32_t*>(memory.workspace) : memory.at<int32_t>(out_, row);
    kernels_.pool(pooling_, memory.at<int16_t>(x_, batch.starts[row]), x_.row_bytes, tokens, channels_, pooled);
    if (!divided_) continue;
    // floor((2 e + n) / (2 n)), where n is 1 but for a mean
    const int64_t n = pooling_ == Pooling::kMean ? tokens : 1;
    auto* const to = memory.at<int16_t>(out_, row);
    for (int64_t i = 0; i < channels_; ++i) {
      const int64_t above = 2 * int64_t{pooled[i]} + n;
      to[i] = static_cast<int16_t>(above / (2 * n) - (above % (2 * n) < 0));
    }
  }
}

void UnitStep::run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  const uint8_t turn = turn_of(x_);
  for (; row < row_end; ++row) {
    const auto* x = memory.at<int32_t>(x_, row);
    if (bits_ != 32) {
      auto* const wide = reinterpret_cast<int32_t*>(memory.workspace);
      const auto* const words = memory.at<int16_t>(x_, row);
      const auto* const bytes = memory.at<uint8_t>(x_, row);
      for (int64_t i = 0; i < batch.dims; ++i) wide[i] = bits_ == 16 ? words[i] : static_cast<int8_t>(bytes[i] ^ turn);
      x = wide;
    }
    kernels_.unit(x, batch.dims, memory.at<int16_t>(out_, row));
  }
}

void AddStep::run(const Batch&, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row)
    kernels_.add(memory.at<int16_t>(a_, row), memory.at<int16_t>(b_, row), channels_, limit_, memory.at(out_, row));
}

TableStep::TableStep(const Value& x, const Value& out, int64_t channels, const int8_t* entries)
    : x_(x), out_(out), channels_(channels) {
  for (int byte = 0; byte < 256; ++byte)
    entries_[byte] = static_cast<int8_t>(entries[x.turned ? byte : byte ^ 0x80] ^ turn_of(out));
}

void TableStep::run(const Batch&, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row) {
    const auto* const from = memory.at<uint8_t>(x_, row);
    auto* const to = memory.at<int8_t>(out_, row);
    for (int64_t i = 0; i < channels_; ++i) to[i] = entries_[from[i]];
  }
}

void FirstStep::run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row) std::memcpy(memory.at(out_, row), memory.at(x_, batch.token_row(row)), bytes_);
}

AttentionStep::AttentionStep(const AttentionKernel& kernel, const Operand& q, const Operand& k, const Operand& v,
                             const Value& out, int64_t dim, bool causal, std::span<const Head> theta,
                             std::span<const WideHead> wide_theta, std::span<const int16_t> scores,
                             std::span<const Requant> requant)
    : kernel_(kernel),
      decode_(decode_kernel_of(kernel)),
      q_(q),
      k_(k),
      v_(v),
      out_(out),
      dim_(dim),
      causal_(causal),
      theta_(theta.begin(), theta.end()),
      wide_theta_(wide_theta.begin(), wide_theta.end()),
      by_distance_(!scores.empty()),
      requant_(requant.begin(), requant.end()),
      tables_(by_distance_ ? requant.size() : wide_theta.size()),
      scores_(requant.size()) {
  for (size_t i = 0; i < tables_.size(); ++i)
    if (by_distance_) {
      const int16_t* const own = &scores[i * kDistances];
      wide_theta_.push_back({own[0], 0, 1, 0, 1, 0});
      for (int d = 0; d < 256; ++d) {
        const int score = own[d < kDistances ? d : kDistances - 1];
        tables_[i].low[d] = static_cast<uint8_t>(score);
        tables_[i].high[d] = static_cast<uint8_t>(score >> 8);
      }
    } else {
      tabulate_scores(wide_theta_[i], tables_[i]);
    }
  for (size_t i = 0; i < scores_.size(); ++i)
    if (by_distance_) {
      std::memcpy(scores_[i].low, tables_[i].low, kDistances);
      std::memcpy(scores_[i].high, tables_[i].high, kDistances);
      scores_[i].has_high = wide_theta_[i].B > 255;
    } else if (!wide_theta_.empty()) {
      decode_.scores(&wide_theta_[i].B, true, scores_[i]);
    } else {
      decode_.scores(&theta_[i].B, false, scores_[i]);
    }
}

AttentionJob AttentionStep::job_of(int64_t queries, int64_t keys) const {
  AttentionJob job{};
  job.queries = queries;
  job.keys = keys;
  job.dim = dim_;
  job.q_stride = q_.value.row_bytes;
  job.k_stride = k_.value.row_bytes;
  job.v_stride = v_.value.row_bytes;
  job.out_stride = out_.row_bytes;
  job.causal = causal_;
  job.masking = Masking::kNone;
  job.output = AttentionOutput::kInt8;
  job.turned = out_.turned;
  return job;
}

DecodeJob AttentionStep::few_queries(int64_t queries, int64_t keys) const {
  DecodeJob job{};
  job.rows = queries;
  job.keys = keys;
  job.dim = job.k_stride = job.v_stride = dim_;
  job.output = AttentionOutput::kInt8;
  return job;
}

size_t AttentionStep::workspace(int64_t longest) const {
  return std::max(kernel_.workspace(job_of(longest, longest)), decode_workspace(few_queries(kFewQueries, longest)));
}

AttentionStep::Cached AttentionStep::cached(const CachedRows& cache, int64_t sequence, int64_t head) const {
  const int64_t rows = cache.texts * cache.capacity;
  int8_t* const k =
      cache.memory + cached_before_ * rows + (cache.text[sequence] * heads() + head) * cache.capacity * dim_;
  return {k, k + heads() * dim_ * rows};
}

void AttentionStep::append(const Batch& batch, const Memory& memory, int64_t sequence, int64_t head) const {
  const Cached to = cached(*batch.cache, sequence, head);
  const int64_t past = batch.cache->past[sequence], length = batch.length(sequence);
  const auto copy = [&](const Operand& operand, int8_t* rows) {
    const int8_t* const from =
        memory.at<int8_t>(operand.value, row_of(batch, operand.value, sequence)) + operand.offset + head * dim_;
    for (int64_t i = 0; i < length; ++i)
      std::memcpy(rows + (past + i) * dim_, from + i * operand.value.row_bytes, dim_);
  };
  copy(k_, to.k);
  copy(v_, to.v);
}

// A head of up to kFewQueries queries, over keys and values in the cache.
void AttentionStep::decode(const Batch& batch, const Memory& memory, int64_t sequence, int64_t queries,
                           int64_t head) const {
  const int64_t keys = batch.keys(sequence);
  const DecodeJob job = few_queries(queries, keys);
  const int8_t* const q = memory.at<int8_t>(q_.value, row_of(batch, q_.value, sequence)) + q_.offset + head * dim_;
  int8_t* const out = memory.at<int8_t>(out_, row_of(batch, out_, sequence)) + head * dim_;
  DecodeRow rows[kFewQueries];
  for (int64_t i = 0; i < queries; ++i)
    rows[i] = {q + i * q_.value.row_bytes,
               out + i * out_.row_bytes,
               nullptr,
               nullptr,
               &scores_[head],
               &requant_[head],
               keys - queries + i + 1,
               nullptr};
  const Cached from = cached(*batch.cache, sequence, head);
  decode_group(job, decode_, DecodeGroup{from.k, from.v, rows}, memory.workspace);
  if (!out_.turned) return;
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t c = 0; c < dim_; ++c) out[i * out_.row_bytes + c] ^= static_cast<int8_t>(0x80);
}

void AttentionStep::run(const Batch& batch, const Memory& memory, Interruption& interruption, int64_t sequence,
                        int64_t head, int64_t head_end) const {
  constexpr int64_t kAtOnce = 16;
  AttentionGroup groups[kAtOnce];
  const bool one = out_.space == Space::kSequences && batch.chosen != Chosen::kAll;
  const int64_t queries = one ? 1 : batch.length(sequence);
  // The first query of a causal model sees the first key alone.
  const int64_t keys = one && causal_ && batch.chosen == Chosen::kFirst ? 1 : batch.keys(sequence);
  AttentionJob job = job_of(queries, keys);
  job.interruption = &interruption;
  job.groups = groups;
  if (batch.cache) {
    job.k_stride = job.v_stride = dim_;
    for (int64_t i = head; i < head_end; ++i) append(batch, memory, sequence, i);
    if (queries <= kFewQueries) {
      for (; head < head_end; ++head) decode(batch, memory, sequence, queries, head);
      return;
    }
  }
  for (; head < head_end; head += kAtOnce) {
    const int64_t count = std::min(kAtOnce, head_end - head);
    for (int64_t i = 0; i < count; ++i) {
      const auto at = [&](const Operand& operand) {
        return memory.at<int8_t>(operand.value, row_of(batch, operand.value, sequence)) + operand.offset +
               (head + i) * dim_;
      };
      const Cached from = batch.cache ? cached(*batch.cache, sequence, head + i) : Cached{at(k_), at(v_)};
      groups[i] = {at(q_),
                   from.k,
                   from.v,
                   memory.at<int8_t>(out_, row_of(batch, out_, sequence)) + (head + i) * dim_,
                   theta_.empty() ? nullptr : &theta_[head + i],
                   wide_theta_.empty() ? nullptr : &wide_theta_[head + i],
                   &requant_[head + i],
                   tables_.empty() ? nullptr : &tables_[head + i],
                   by_distance_};
    }
    job.rows = count * job.queries;
    kernel_.rows(job, 0, job.rows, memory.workspace);
  }
}

}  // namespace hccs
