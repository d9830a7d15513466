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

LinearStep::LinearStep(const LinearKernel& kernel, const Value& x, const Value& out, LinearOutput output, int32_t limit,
                       const int8_t* weight, const int32_t* bias, const int32_t* multiplier, const int8_t* table,
                       int64_t inputs, int64_t outputs, int row_exponents, WeightMemory& weights)
    : kernel_(kernel),
      x_(x),
      out_(out),
      output_(output),
      limit_(limit),
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
  job.limit = limit_;
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
  norm_ = {constants.channels,  constants.times,      constants.centred,
           constants.root,      constants.root_shift, static_cast<uint64_t>(constants.epsilon),
           constants.gain_bits, gain_.data(),         bias_.data(),
           real_gain_.data(),   real_bias_.data()};
  job_.norm = &norm_;
  job_.source = source;
  job_.embedding = &embedding_;
  job_.limit = limit;
  const int32_t most = source == NormSource::kEmbedding ? embedding.limit : limit;
  job_.clamped_long = most == 0 || most > INT16_MAX;
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
  if (job.clamped_stride) job.clamped = memory.at(clamped_, row);
  if (job.out_stride) job.out = memory.at<int16_t>(out_, row);
  if (job.narrowed_stride) job.narrowed = memory.at<int8_t>(narrowed_, row);
  kernels_.norm(job, row_end - row);
}

NormHeadsStep::NormHeadsStep(const RowKernels& kernels, const Value& x, const Value& out, int64_t channels, int64_t dim,
                             std::span<const int32_t> gain, std::span<const int64_t> gain_bits,
                             std::span<const int64_t> epsilon, uint64_t root, int root_shift)
    : kernels_(kernels),
      x_(x),
      out_(out),
      channels_(channels),
      gain_(gain.begin(), gain.end()),
      bias_(dim),
      real_gain_(gain.size()),
      real_bias_(dim) {
  for (size_t head = 0; head < gain_bits.size(); ++head) {
    const auto bits = static_cast<int>(gain_bits[head]);
    const size_t first = head * dim;
    for (size_t i = first; i < first + dim; ++i) real_gain_[i] = std::ldexp(gain_[i], -(kXhatBits + bits));
    heads_.push_back({dim, kRmsTimes, false, root, root_shift, static_cast<uint64_t>(epsilon[head]), bits,
                      &gain_[first], bias_.data(), &real_gain_[first], real_bias_.data()});
  }
}

void NormHeadsStep::run(const Batch&, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  const auto* x = memory.at<int16_t>(x_, row);
  auto* out = memory.at<int16_t>(out_, row);
  NormJob job{};
  job.source = NormSource::kInt16;
  job.a_stride = x_.row_bytes;
  job.out_stride = out_.row_bytes;
  for (const NormConstants& head : heads_) {
    job.norm = &head;
    job.a = x;
    job.out = out;
    kernels_.norm(job, row_end - row);
    x += head.channels;
    out += head.channels;
  }
  const int64_t normed = x - memory.at<int16_t>(x_, row);
  for (; row < row_end; ++row)
    std::memcpy(memory.at<int16_t>(out_, row) + normed, memory.at<int16_t>(x_, row) + normed,
                (channels_ - normed) * sizeof(int16_t));
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
  for (; row < row_end && long_rows_; ++row) {
    const auto* const x = memory.at<int32_t>(x_, row);
    kernels_.narrow_long_row(x, channels_, kernels_.largest(x, channels_), turn_of(out_), memory.at<int8_t>(out_, row));
  }
  for (; row < row_end; ++row)
    kernels_.narrow_row(ramp_ ? &*ramp_ : nullptr, scale_.empty() ? nullptr : scale_.data(),
                        memory.at<int16_t>(x_, row), channels_, turn_of(out_), memory.at<int8_t>(out_, row));
}

RotateStep::RotateStep(const RowKernels& kernels, const Value& x, const Value& out, const RotateConstants& constants,
                       int64_t first)
    : kernels_(kernels),
      x_(x),
      out_(out),
      multiplier_(constants.multiplier, constants.multiplier + constants.heads),
      constants_(constants),
      first_(first) {
  for (const int32_t multiplier : multiplier_) factor_.push_back(std::ldexp(multiplier, -kRotateShift));
  constants_.multiplier = multiplier_.data();
  constants_.factor = factor_.data();
}

void RotateStep::run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row) {
    const int64_t at = (batch.position[row] - first_) * constants_.pairs;
    kernels_.rotate(constants_, constants_.cosine + at, constants_.sine + at, memory.at<int16_t>(x_, row),
                    turn_of(out_), memory.at<int8_t>(out_, row));
  }
}

void MultiplyStep::run(const Batch&, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  constexpr int64_t kPart = 1024;  // channels whose ramp stays in the nearest cache
  alignas(64) int16_t active[kPart];
  const bool rows = output_ == Output::kRows;
  const int64_t bytes = limit_ <= INT16_MAX ? sizeof(int16_t) : sizeof(int32_t);
  for (; row < row_end; ++row) {
    std::byte* const product = rows ? memory.workspace : memory.at(out_, row);
    int32_t largest = 0;
    for (int64_t begin = 0, count; begin < channels_; begin += count) {
      count = std::min(kPart, channels_ - begin);
      const int16_t* a = memory.at<int16_t>(a_, row) + begin;
      if (ramp_) {
        kernels_.ramp(*ramp_, a, count, active);
        a = active;
      }
      const int16_t* const b = memory.at<int16_t>(b_, row) + begin;
      largest = std::max(largest, kernels_.multiply(a, b, count, bits_, limit_, product + begin * bytes));
    }
    if (!rows) continue;
    auto* const out = memory.at<int8_t>(out_, row);
    if (limit_ > INT16_MAX)
      kernels_.narrow_long_row(reinterpret_cast<const int32_t*>(product), channels_, largest, turn_of(out_), out);
    else
      kernels_.narrow_row(nullptr, scale_.empty() ? nullptr : scale_.data(), reinterpret_cast<const int16_t*>(product),
                          channels_, turn_of(out_), out);
  }
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
    if (limit_ > INT16_MAX)
      kernels_.add_long(memory.at<int32_t>(a_, row), memory.at<int32_t>(b_, row), channels_, limit_,
                        memory.at<int32_t>(out_, row));
    else
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

void OneRowStep::run(const Batch& batch, const Memory& memory, int64_t row, int64_t row_end, int64_t, int64_t) const {
  for (; row < row_end; ++row) {
    const int64_t from = last_ ? batch.starts[row + 1] - 1 : batch.token_row(row);
    std::memcpy(memory.at(out_, row), memory.at(x_, from), bytes_);
  }
}

AttentionStep::AttentionStep(const AttentionKernel& kernel, const Operand& q, const Operand& k, const Operand& v,
                             const Value& out, int64_t group, int64_t dim, Reach reach, std::span<const Head> theta,
                             std::span<const WideHead> wide_theta, std::span<const int16_t> scores,
                             std::span<const Requant> requant)
    : kernel_(kernel),
      decode_(decode_kernel_of(kernel)),
      q_(q),
      k_(k),
      v_(v),
      out_(out),
      group_(group),
      dim_(dim),
      reach_(reach),
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
  job.before = job.after = kUnlimited;
  job.masking = Masking::kNone;
  job.output = AttentionOutput::kInt8;
  job.turned = out_.turned;
  return job;
}

DecodeJob AttentionStep::few_queries(int64_t rows, int64_t keys) const {
  DecodeJob job{};
  job.rows = rows;
  job.keys = keys;
  job.dim = job.k_stride = job.v_stride = dim_;
  job.output = AttentionOutput::kInt8;
  return job;
}

size_t AttentionStep::workspace(int64_t longest) const {
  const DecodeJob few = few_queries(kFewQueries * std::min(group_, kAtOnce), longest);
  return std::max(kernel_.workspace(job_of(longest, longest)), decode_workspace(few));
}

AttentionStep::Keys AttentionStep::new_keys(const Batch& batch, const Memory& memory, int64_t sequence,
                                            int64_t shared) const {
  const auto at = [&](const Operand& operand) {
    return memory.at<int8_t>(operand.value, row_of(batch, operand.value, sequence)) + operand.offset + shared * dim_;
  };
  return {at(k_), at(v_)};
}

AttentionStep::Keys AttentionStep::keys_of(const Batch& batch, const Memory& memory, int64_t sequence,
                                           int64_t shared) const {
  if (!batch.cache) return new_keys(batch, memory, sequence, shared);
  const CachedRows& cache = *batch.cache;
  const int64_t rows = cache.texts * cache.capacity;
  int8_t* const k =
      cache.memory + cached_before_ * rows + (cache.text[sequence] * shared_heads() + shared) * cache.capacity * dim_;
  return {k, k + shared_heads() * dim_ * rows};
}

void AttentionStep::append(const Batch& batch, const Memory& memory, int64_t sequence, int64_t shared) const {
  const Keys from = new_keys(batch, memory, sequence, shared), to = keys_of(batch, memory, sequence, shared);
  const int64_t past = batch.cache->past[sequence], length = batch.length(sequence);
  for (int64_t i = 0; i < length; ++i) {
    std::memcpy(to.k + (past + i) * dim_, from.k + i * k_.value.row_bytes, dim_);
    std::memcpy(to.v + (past + i) * dim_, from.v + i * v_.value.row_bytes, dim_);
  }
}

void AttentionStep::decode(const Batch& batch, const Memory& memory, int64_t sequence, int64_t position,
                           int64_t queries, int64_t shared) const {
  const Keys from = keys_of(batch, memory, sequence, shared);
  const int8_t* const q = memory.at<int8_t>(q_.value, query_row(batch, sequence)) + q_.offset;
  int8_t* const out = memory.at<int8_t>(out_, row_of(batch, out_, sequence));
  // Queries with a window begin at keys of their own.
  const int64_t at_once = reach_.before < kUnlimited ? 1 : queries;
  DecodeRow rows[kFewQueries * kAtOnce];
  for (int64_t query = 0; query < queries; query += at_once)
    for (int64_t first = shared * group_; first < (shared + 1) * group_; first += kAtOnce) {
      const int64_t heads = std::min(kAtOnce, (shared + 1) * group_ - first);
      const int64_t key = std::max(int64_t{0}, position + query - reach_.before);
      DecodeRow* row = rows;
      for (int64_t head = first; head < first + heads; ++head)
        for (int64_t i = query; i < query + at_once; ++i)
          *row++ = {q + i * q_.value.row_bytes + head * dim_,
                    out + i * out_.row_bytes + head * dim_,
                    nullptr,
                    nullptr,
                    &scores_[head],
                    &requant_[head],
                    position + i + 1 - key,
                    nullptr};
      const DecodeJob job = few_queries(heads * at_once, position + query + at_once - key);
      decode_group(job, decode_, DecodeGroup{from.k + key * dim_, from.v + key * dim_, rows}, memory.workspace);
    }
  if (!out_.turned) return;
  for (int64_t i = 0; i < queries; ++i) {
    int8_t* const own = out + i * out_.row_bytes + shared * group_ * dim_;
    for (int64_t c = 0; c < group_ * dim_; ++c) own[c] ^= static_cast<int8_t>(0x80);
  }
}

void AttentionStep::run(const Batch& batch, const Memory& memory, Interruption& interruption, int64_t sequence,
                        int64_t head, int64_t head_end) const {
  const bool one = has_one_query(batch);
  const int64_t length = batch.length(sequence), keys = batch.keys(sequence), past = keys - length;
  AttentionJob job = job_of(length, keys);
  job.interruption = &interruption;
  if (batch.cache) {
    job.k_stride = job.v_stride = dim_;
    const int64_t queries = one ? 1 : length;
    for (int64_t shared = head / group_; shared < head_end / group_; ++shared) {
      append(batch, memory, sequence, shared);
      if (queries <= kFewQueries) decode(batch, memory, sequence, keys - queries, queries, shared);
    }
    if (queries <= kFewQueries) return;
  }
  if (one) {  // the first query alone, which has no keys before it
    job.queries = 1;
    job.keys = std::min(length, reach_.after + 1);
    run_heads(job, batch, memory, sequence, 0, head, head_end);
    return;
  }
  const int64_t key = std::max(int64_t{0}, past - reach_.before);
  job.keys -= key;
  job.before = reach_.before;
  job.after = reach_.after;
  run_heads(job, batch, memory, sequence, key, head, head_end);
}

void AttentionStep::run_heads(AttentionJob& job, const Batch& batch, const Memory& memory, int64_t sequence,
                              int64_t key, int64_t head, int64_t head_end) const {
  AttentionGroup groups[kAtOnce];
  job.groups = groups;
  for (; head < head_end; head += kAtOnce) {
    const int64_t count = std::min(kAtOnce, head_end - head);
    for (int64_t i = 0; i < count; ++i) {
      const Keys from = keys_of(batch, memory, sequence, (head + i) / group_);
      const auto row = [&](const Value& value) { return memory.at<int8_t>(value, row_of(batch, value, sequence)); };
      groups[i] = {row(q_.value) + q_.offset + (head + i) * dim_,
                   from.k + key * job.k_stride,
                   from.v + key * job.v_stride,
                   row(out_) + (head + i) * dim_,
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
