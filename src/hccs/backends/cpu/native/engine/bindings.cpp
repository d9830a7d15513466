#include "common/bindings.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/arrays.hpp"
#include "common/signals.hpp"
#include "engine/engine.hpp"

namespace hccs {
namespace {

using namespace arrays;

// The integers of any dtype of an array that lies in one piece, all from 0 to below `count`.
template <class T>
bool copy_numbers(const Py_buffer& view, int64_t size, int64_t count, int32_t* to) {
  bool in_range = true;
  const auto* const from = static_cast<const T*>(view.buf);
  for (int64_t i = 0; i < size; ++i) {
    in_range &= from[i] >= T{0} && static_cast<uint64_t>(from[i]) < static_cast<uint64_t>(count);
    to[i] = static_cast<int32_t>(from[i]);
  }
  return in_range;
}
bool copy_numbers(const Py_buffer& view, int64_t size, int64_t count, bool booleans, int32_t* to) {
  if (view.format == nullptr || std::strlen(view.format) != 1) return false;
  switch (view.format[0]) {
    case 'b': return copy_numbers<int8_t>(view, size, count, to);
    case '?': return booleans && copy_numbers<uint8_t>(view, size, count, to);
    case 'B': return copy_numbers<uint8_t>(view, size, count, to);
    case 'h': return copy_numbers<int16_t>(view, size, count, to);
    case 'H': return copy_numbers<uint16_t>(view, size, count, to);
    case 'i': return copy_numbers<int32_t>(view, size, count, to);
    case 'I': return copy_numbers<uint32_t>(view, size, count, to);
    case 'l':
    case 'q': return copy_numbers<int64_t>(view, size, count, to);
    case 'L':
    case 'Q': return copy_numbers<uint64_t>(view, size, count, to);
    default: return false;
  }
}

class PlannedEngine {
 public:
  PlannedEngine(int64_t arena_bytes, int64_t local_bytes) : engine_(arena_bytes, local_bytes) {}
  PlannedEngine(const PlannedEngine&) = delete;
  PlannedEngine& operator=(const PlannedEngine&) = delete;

  // Building, in the order of the plan. Values are known by their number.
  int value(bool tokens, bool local, bool may_turn, int64_t row_bytes, int64_t offset) {
    const bool turned = may_turn && engine_.instructions().linear->x_bytes == Bytes::kTurned;
    values_.push_back({tokens ? Space::kTokens : Space::kSequences, local, turned, row_bytes, offset});
    return static_cast<int>(values_.size()) - 1;
  }
  void segment(bool tokens) { engine_.begin_segment(tokens ? Space::kTokens : Space::kSequences); }

  void linear(int x, int out, nb::handle weight, nb::handle bias, nb::handle multiplier, int limit, nb::handle table,
              int row_exponents) {
    const Buffer rows(weight, PyBUF_C_CONTIGUOUS), biases(bias, PyBUF_C_CONTIGUOUS);
    require(rows.view().ndim == 2 && rows.view().itemsize == 1, "weights are int8 [outputs, inputs]");
    const int64_t outputs = rows.view().shape[0], inputs = rows.view().shape[1];
    require(biases.view().itemsize == 4 && biases.elements() == outputs, "a bias is int32 [outputs]");
    std::optional<Buffer> factors, entries;
    if (!multiplier.is_none()) {
      factors.emplace(multiplier, PyBUF_C_CONTIGUOUS);
      require(factors->view().itemsize == 4 && factors->elements() == outputs, "multipliers are int32 [outputs]");
    }
    if (!table.is_none()) {
      entries.emplace(table, PyBUF_C_CONTIGUOUS);
      require(entries->view().itemsize == 1 && entries->elements() == 256, "a table is int8 [256]");
    }
    const LinearOutput output = !factors            ? LinearOutput::kInt32
                                : limit > INT16_MAX ? LinearOutput::kLong
                                : limit != 127      ? LinearOutput::kInt16
                                : entries           ? LinearOutput::kInt8Table
                                                    : LinearOutput::kInt8;
    require(!row_exponents || !entries, "a table follows no row exponents");
    require(row_exponents >= 0 && row_exponents <= kMostExponents, "too many row exponents");
    fits(x, inputs + (row_exponents > 0));
    const bool int32 = output == LinearOutput::kInt32 || output == LinearOutput::kLong;
    fits(out, outputs * (int32 ? 4 : output == LinearOutput::kInt16 ? 2 : 1));
    engine_.add(std::make_unique<LinearStep>(
        *engine_.instructions().linear, at(x), at(out), output, limit, rows.data<int8_t>(), biases.data<int32_t>(),
        factors ? factors->data<int32_t>() : nullptr, entries ? entries->data<int8_t>() : nullptr, inputs, outputs,
        row_exponents, engine_.weights()));
  }

  void embedding(nb::handle words, nb::handle positions, nb::handle types, int shift, int limit) {
    const Buffer& w = keep(words);
    require(w.view().itemsize == 1 && shift >= 0 && shift < 16 && limit >= 0, "wrong embeddings");
    channels_ = columns_of(w);
    no_embedding_.assign(channels_, 0);
    embedding_ = {w.data<int8_t>(), no_embedding_.data(), no_embedding_.data(), 0, 0, shift, limit};
    words_ = w.view().shape[0];
    positions_ = INT32_MAX;
    types_ = 1;
    const auto take = [&](nb::handle table, const int16_t*& rows, int64_t& stride, int64_t& count) {
      if (table.is_none()) return;
      const Buffer& given = keep(table);
      require(given.view().itemsize == 2 && columns_of(given) == channels_, "wrong embeddings");
      rows = given.data<int16_t>();
      stride = channels_;
      count = given.view().shape[0];
    };
    take(positions, embedding_.positions, embedding_.position_stride, positions_);
    take(types, embedding_.types, embedding_.type_stride, types_);
  }
  void embed(int out) {
    fits(out, channels_ * (embedding_.limit ? 2 : 4));
    engine_.add(std::make_unique<EmbedStep>(*engine_.instructions().rows, embedding_, channels_, at(out)));
  }

  // `a` and `b` are the numbers of what is read, `clamped`, `out` and `narrowed` of what is written; -1: none.
  // Without a bias it is RMSNorm.
  void norm(nb::handle gain, nb::handle bias, int gain_bits, int64_t epsilon, uint64_t root, int root_shift,
            const char* source, int a, int b, int limit, int clamped, int out, int narrowed, int bits,
            nb::handle scale) {
    const Buffer gains(gain, PyBUF_C_CONTIGUOUS);
    const int64_t h = gains.elements();
    const bool centred = !bias.is_none();
    require(gains.view().itemsize == 4 && h <= (centred ? 1024 : 4096), "gains are int32, at most 1024 or 4096");
    std::vector<int32_t> biases(h);
    if (centred) {
      const Buffer given(bias, PyBUF_C_CONTIGUOUS);
      require(given.view().itemsize == 4 && given.elements() == h, "biases are int32, one per channel");
      std::copy_n(given.data<int32_t>(), h, biases.begin());
    }
    require(bits >= kRowExponent && bits < 32 && root > 0 && epsilon > 0, "wrong constants");
    const NormSource from = !std::strcmp(source, "int32")   ? NormSource::kInt32
                            : !std::strcmp(source, "int16") ? NormSource::kInt16
                            : !std::strcmp(source, "sum")   ? NormSource::kSum
                                                            : NormSource::kEmbedding;
    const bool sums = from == NormSource::kSum, long_sum = sums && limit > INT16_MAX;
    if (from != NormSource::kEmbedding) fits(a, h * (from == NormSource::kInt32 || long_sum ? 4 : 2));
    if (sums) fits(b, h * (long_sum ? 4 : 2));
    const int most = sums ? limit : embedding_.limit;
    require(from != NormSource::kEmbedding || channels_ == h, "wrong channels");
    const auto place = [&](int number, int64_t bytes) -> const Value* {
      if (number < 0) return nullptr;
      fits(number, bytes);
      return &at(number);
    };
    const NormStep::Places places{a < 0 ? nullptr : &at(a), b < 0 ? nullptr : &at(b),
                                  place(clamped, h * (most && most <= INT16_MAX ? 2 : 4)), place(out, 2 * h),
                                  place(narrowed, h + (bits == kRowExponent))};
    engine_.add(
        std::make_unique<NormStep>(*engine_.instructions().rows,
                                   NormStep::Constants{h, centred ? h : kRmsTimes, centred, gains.data<int32_t>(),
                                                       biases.data(), gain_bits, epsilon, root, root_shift},
                                   from, places, limit, embedding_, bits, scales_of(scale, h)));
  }
  // Gains int32 [heads, dim], bits and epsilons int64 [heads]: the other channels of int16 rows stay.
  void norm_heads(int x, int out, int64_t channels, nb::handle gain, nb::handle gain_bits, nb::handle epsilon,
                  uint64_t root, int root_shift) {
    const Buffer gains(gain, PyBUF_C_CONTIGUOUS), bits(gain_bits, PyBUF_C_CONTIGUOUS),
        epsilons(epsilon, PyBUF_C_CONTIGUOUS);
    const int64_t dim = columns_of(gains), heads = gains.view().shape[0];
    require(gains.view().itemsize == 4 && dim <= 4096 && heads * dim <= channels, "gains are int32 [heads, dim]");
    require(bits.view().itemsize == 8 && bits.elements() == heads && epsilons.view().itemsize == 8 &&
                epsilons.elements() == heads && root > 0,
            "bits and epsilons are int64, one per head");
    fits(x, 2 * channels);
    fits(out, 2 * channels);
    const auto span = [](const Buffer& of, auto kind) {
      return std::span(of.data<const decltype(kind)>(), static_cast<size_t>(of.elements()));
    };
    engine_.add(std::make_unique<NormHeadsStep>(*engine_.instructions().rows, at(x), at(out), channels, dim,
                                                span(gains, int32_t{}), span(bits, int64_t{}),
                                                span(epsilons, int64_t{}), root, root_shift));
  }
  void narrow(int x, int out, int64_t channels, int bits) {
    require(bits >= 0 && bits < 32, "wrong bits");
    fits(x, 2 * channels);
    fits(out, channels);
    engine_.add(std::make_unique<NarrowStep>(*engine_.instructions().rows, at(x), at(out), channels, bits));
  }
  // Of every channel, int16; None: of none.
  static std::vector<int16_t> scales_of(nb::handle scale, int64_t channels) {
    if (scale.is_none()) return {};
    const Buffer values(scale, PyBUF_C_CONTIGUOUS);
    require(values.view().itemsize == 2 && values.elements() == channels, "scales are int16, one per channel");
    return {values.data<const int16_t>(), values.data<const int16_t>() + channels};
  }
  // A ramp as knots and slopes, int16 [2, 64]; None: of x itself.
  void narrow_rows(int x, int out, int64_t channels, int x_bits, nb::handle ramp, int bits, nb::handle scale) {
    require(channels <= kMostActive && (x_bits == 16 || x_bits == 32), "too many channels");
    require(x_bits == 16 || (ramp.is_none() && scale.is_none()), "ramps and scales are those of int16");
    fits(x, x_bits / 8 * channels);
    fits(out, channels + 1);
    std::optional<RampConstants> constants;
    if (!ramp.is_none()) constants = ramp_of(ramp, bits);
    engine_.add(std::make_unique<NarrowRowStep>(*engine_.instructions().rows, at(x), at(out), channels, x_bits == 32,
                                                constants ? &*constants : nullptr, scales_of(scale, channels)));
  }
  void ramp(int x, int out, int64_t channels, nb::handle ramp, int bits) {
    fits(x, 2 * channels);
    fits(out, 2 * channels);
    engine_.add(
        std::make_unique<RampStep>(*engine_.instructions().rows, at(x), at(out), channels, ramp_of(ramp, bits)));
  }
  // Tables int16 [positions, pairs]; multipliers int32 of the heads of q, k and v, of which the first `turned` turn.
  // Tables begin at the position `first`.
  void rotate(int x, int out, int64_t channels, nb::handle cosine, nb::handle sine, nb::handle multiplier,
              int64_t turned, int64_t first) {
    const Buffer &c = keep(cosine), &s = keep(sine);
    const Buffer multipliers(multiplier, PyBUF_C_CONTIGUOUS);
    const int64_t heads = multipliers.elements(), pairs = columns_of(c);
    require(c.view().itemsize == 2 && s.view().itemsize == 2 && c.elements() == s.elements() &&
                multipliers.view().itemsize == 4 && heads > 0 && channels % heads == 0 && turned <= heads &&
                2 * pairs <= channels / heads,
            "wrong rotation");
    fits(x, 2 * channels);
    fits(out, channels);
    require(at(x).space == Space::kTokens && at(out).space == Space::kTokens, "rows of tokens have a position");
    positions_ = std::min<int64_t>(positions_, c.view().shape[0] + first);
    engine_.add(std::make_unique<RotateStep>(*engine_.instructions().rows, at(x), at(out),
                                             RotateConstants{heads, turned, channels / heads, pairs, c.data<int16_t>(),
                                                             s.data<int16_t>(), multipliers.data<int32_t>(), nullptr},
                                             first));
  }
  // a may be a ramp's values of what is read; with `rows` int8 rows with exponents are written.
  void multiply(int a, int b, int out, int64_t channels, nb::handle ramp, int ramp_bits, int bits, int limit, bool rows,
                nb::handle scale) {
    require(bits >= 0 && bits <= 30 && limit > 0 && (!rows || channels <= kMostActive), "wrong product");
    require(scale.is_none() || (rows && limit <= INT16_MAX), "scales are those of int16 rows");
    fits(a, 2 * channels);
    fits(b, 2 * channels);
    const bool int32 = limit > INT16_MAX;
    fits(out, rows ? channels + 1 : channels * (int32 ? 4 : 2));
    std::optional<RampConstants> constants;
    if (!ramp.is_none()) constants = ramp_of(ramp, ramp_bits);
    using Output = MultiplyStep::Output;
    engine_.add(std::make_unique<MultiplyStep>(*engine_.instructions().rows, at(a), at(b), at(out), channels,
                                               constants ? &*constants : nullptr, bits, limit,
                                               rows    ? Output::kRows
                                               : int32 ? Output::kInt32
                                                       : Output::kInt16,
                                               scales_of(scale, channels)));
  }
  void pool(int x, int out, int64_t channels, const char* pooling, bool divided) {
    const auto* const known = std::find_if(std::begin(kPoolingNames), std::end(kPoolingNames),
                                           [&](const char* name) { return !std::strcmp(name, pooling); });
    require(known != std::end(kPoolingNames), "no such pooling");
    fits(x, 2 * channels);
    fits(out, channels * (divided ? 2 : 4));
    require(at(x).space == Space::kTokens && !at(x).local && at(out).space == Space::kSequences, "wrong values");
    engine_.add(std::make_unique<PoolStep>(*engine_.instructions().rows, at(x), at(out), channels,
                                           static_cast<Pooling>(known - std::begin(kPoolingNames)), divided));
  }
  void unit(int x, int out, int64_t channels, int bits) {
    require(channels <= 4096 && (bits == 8 || bits == 16 || bits == 32), "wrong channels");
    fits(x, bits / 8 * channels);
    fits(out, 2 * channels);
    unit_channels_ = channels;
    engine_.add(std::make_unique<UnitStep>(*engine_.instructions().rows, at(x), at(out), channels, bits));
  }
  void sum(int a, int b, int out, int64_t channels, int limit) {
    const int64_t bytes = limit > INT16_MAX ? 4 : 2;
    fits(a, bytes * channels);
    fits(b, bytes * channels);
    fits(out, channels * (limit ? bytes : 4));
    engine_.add(std::make_unique<AddStep>(*engine_.instructions().rows, at(a), at(b), at(out), channels, limit));
  }
  void table(int x, int out, int64_t channels, nb::handle entries) {
    const Buffer values(entries, PyBUF_C_CONTIGUOUS);
    require(values.view().itemsize == 1 && values.elements() == 256, "a table is int8 [256]");
    fits(x, channels);
    fits(out, channels);
    engine_.add(std::make_unique<TableStep>(at(x), at(out), channels, values.data<int8_t>()));
  }
  // The first row of every sequence, or the last.
  void one_row(int x, int out, int64_t bytes, bool last) {
    fits(x, bytes);
    fits(out, bytes);
    require(at(x).turned == at(out).turned && at(x).space == Space::kTokens, "wrong values");
    engine_.add(std::make_unique<OneRowStep>(at(x), at(out), bytes, last));
  }
  void attention(int q, int64_t q_offset, int kv, int64_t k_offset, int64_t v_offset, int out, int64_t heads,
                 int64_t kv_heads, int64_t dim, int64_t before, int64_t after, nb::handle theta, nb::handle requant) {
    const Buffer thetas(theta, PyBUF_C_CONTIGUOUS), factors(requant, PyBUF_C_CONTIGUOUS);
    const bool by_distance = thetas.view().itemsize == 2;
    const bool wide = !by_distance && holds(thetas.view(), 6);
    const int64_t numbers = by_distance ? kDistances : wide ? 6 : 3;
    require((by_distance || wide || holds(thetas.view(), 3)) && thetas.elements() == numbers * heads, "wrong theta");
    require(holds(factors.view(), 5) && factors.elements() == 5 * heads, "wrong requant");
    const int64_t width = heads * dim;
    require(kv_heads > 0 && heads % kv_heads == 0 && before >= 0 && after >= 0, "wrong heads");
    fits(q, q_offset + width);
    fits(kv, std::max(k_offset, v_offset) + kv_heads * dim);
    fits(out, width);
    require(!at(q).turned && !at(kv).turned, "attention reads plain bytes");
    using Operand = AttentionStep::Operand;
    engine_.add(AttentionStep(*engine_.instructions().attention, Operand{at(q), q_offset}, Operand{at(kv), k_offset},
                              Operand{at(kv), v_offset}, at(out), heads / kv_heads, dim, {before, after},
                              std::span(thetas.data<const Head>(), by_distance || wide ? 0 : heads),
                              std::span(thetas.data<const WideHead>(), wide ? heads : 0),
                              std::span(thetas.data<const int16_t>(), by_distance ? heads * kDistances : 0),
                              std::span(factors.data<const Requant>(), heads)));
  }
  void pixels(int out, int64_t special, int64_t patch, int64_t channels, int64_t height, int64_t width) {
    require(patch > 0 && height % patch == 0 && width % patch == 0, "an image of whole patches");
    fits(out, channels * patch * patch);
    const int64_t shape[] = {channels, height, width};
    std::copy(std::begin(shape), std::end(shape), image_);
    image_tokens_ = special + (height / patch) * (width / patch);
    engine_.add(std::make_unique<PixelStep>(special, patch, channels, height, width, at(out)));
  }
  void place(int x, int out, nb::handle special, nb::handle positions) {
    const Buffer specials(special, PyBUF_C_CONTIGUOUS);
    const Buffer& rows = keep(positions);
    const int64_t channels = columns_of(rows);
    require(specials.view().itemsize == 2 && rows.view().itemsize == 2 && columns_of(specials) == channels &&
                rows.view().shape[0] == image_tokens_,
            "wrong positions");
    fits(x, 2 * channels);
    fits(out, 2 * channels);
    engine_.add(std::make_unique<PlaceStep>(*engine_.instructions().rows, specials.data<int16_t>(),
                                            specials.view().shape[0], rows.data<int16_t>(), channels, at(x), at(out)));
  }
  // The answers are `labels` integers of `bytes` bytes for each token or sequence.
  // Scores of a `causal` plan are those of all tokens, or of the last ones where there is a cache.
  void finish(int scores, int64_t labels, int64_t bytes, int64_t longest, int64_t first_position, bool causal) {
    require(bytes == 2 || bytes == 4, "answers are int16 or int32");
    fits(scores, bytes * labels);
    require(!at(scores).local, "scores lie in the arena");
    answer_bytes_ = bytes * labels;
    engine_.set_scores(at(scores));
    first_position_ = first_position;
    causal_ = causal;
    longest_ = words_ ? std::min(longest, positions_ - first_position) : longest;
  }

  // From here on calls on one thread add up the seconds of every step, in the order of the plan.
  void time_steps() { seconds_.assign(engine_.steps(), 0.0); }
  const std::vector<double>& step_seconds() const { return seconds_; }

  // Scores of token ids [batch, n], with `mask` and `types` of the same shape or None: C-contiguous arrays of integers.
  // False for what is not, for ids that the model does not know and for masks with holes: the caller says why.
  bool run(nb::handle ids, nb::handle mask, nb::handle types, nb::handle scores, nb::handle threads) {
    const Buffer tokens(ids, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
    const Py_buffer& view = tokens.view();
    if (view.ndim != 2 || words_ == 0) return false;
    const int64_t batch = view.shape[0], n = view.shape[1], size = batch * n;
    if (batch < 1 || n < 1 || n > longest_ || size > INT32_MAX) return false;
    Lent arena(*this);
    arena->token.resize(size);
    arena->type.resize(size);
    arena->position.resize(size);
    arena->starts.resize(batch + 1);
    if (!copy_numbers(view, size, words_, false, arena->token.data())) return false;
    const auto copy_like = [&](nb::handle array, int64_t count, std::vector<int32_t>& to) {
      const Buffer numbers(array, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
      const Py_buffer& other = numbers.view();
      return other.ndim == 2 && other.shape[0] == batch && other.shape[1] == n &&
             copy_numbers(other, size, count, array.is(mask), to.data());
    };
    if (mask.is_none()) {
      for (int64_t s = 0; s <= batch; ++s) arena->starts[s] = static_cast<int32_t>(s * n);
    } else {
      if (!copy_like(mask, 2, arena->position)) return false;
      if (!lengths_of(arena->position.data(), batch, n, arena->starts.data())) return false;
    }
    if (types.is_none())
      std::fill(arena->type.begin(), arena->type.end(), 0);
    else if (!copy_like(types, types_, arena->type))
      return false;
    pack(*arena, batch, n);
    return run(arena, batch, n, nullptr, scores, threads);
  }
  // Appends tokens to texts, `counts` of each in `ids` one text after the other, and writes the scores after their last
  // tokens. Text i has `past` tokens in the cache, [texts][capacity] for every attention. False for what does not fit.
  bool run_new_rows(nb::handle ids, nb::handle counts, nb::handle texts, nb::handle past, nb::handle memory,
                    int64_t all, int64_t capacity, nb::handle scores, nb::handle threads) {
    const Buffer tokens(ids, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
    const Buffer cached(memory, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    const int64_t size = tokens.elements();
    if (!causal_ || all < 1 || capacity < 1 || size < 1 || size > INT32_MAX) return false;
    if (cached.view().len != all * capacity * engine_.cache_bytes()) return false;
    Lent arena(*this);
    const auto read = [&](nb::handle array, int64_t count, std::vector<int32_t>& to) {
      const Buffer numbers(array, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
      to.resize(numbers.elements());
      return copy_numbers(numbers.view(), numbers.elements(), count, false, to.data());
    };
    if (!read(ids, words_, arena->token) || !read(counts, size + 1, arena->starts) || !read(texts, all, arena->text) ||
        !read(past, capacity, arena->past))
      return false;
    const auto sequences = static_cast<int64_t>(arena->text.size());
    if (arena->past.size() != arena->text.size() || arena->starts.size() != arena->text.size()) return false;
    arena->type.assign(size, 0);
    arena->position.resize(size);
    const int64_t most = std::min(capacity, longest_);
    int64_t start = 0;
    arena->starts.push_back(0);
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t count = arena->starts[s], before = arena->past[s];
      if (count < 1 || start + count > size || before + count > most) return false;
      for (int64_t i = 0; i < count; ++i)
        arena->position[start + i] = static_cast<int32_t>(first_position_ + before + i);
      arena->starts[s] = static_cast<int32_t>(start);
      start += count;
    }
    if (start != size) return false;
    arena->starts[sequences] = static_cast<int32_t>(size);
    const CachedRows cache{cached.data<int8_t>(), all, capacity, arena->past.data(), arena->text.data()};
    return run(arena, sequences, 1, nullptr, scores, threads, &cache);
  }
  // The same of images, uint8 [batch, channels, height, width].
  bool run_pixels(nb::handle images, nb::handle scores, nb::handle threads) {
    const Buffer pixels(images, PyBUF_C_CONTIGUOUS);
    const Py_buffer& view = pixels.view();
    if (view.ndim != 4 || view.itemsize != 1 || !std::equal(image_, image_ + 3, view.shape + 1)) return false;
    const int64_t batch = view.shape[0], n = image_tokens_;
    if (batch < 1 || n < 1 || n > longest_ || batch * n > INT32_MAX) return false;
    Lent arena(*this);
    arena->starts.resize(batch + 1);
    arena->position.resize(batch * n);
    for (int64_t s = 0; s <= batch; ++s) arena->starts[s] = static_cast<int32_t>(s * n);
    for (int64_t i = 0; i < batch * n; ++i) arena->position[i] = static_cast<int32_t>(i % n);
    return run(arena, batch, n, pixels.data<uint8_t>(), scores, threads);
  }

 private:
  // An arena that no other call has. Taken and given back under the GIL, which a thread that forks holds too.
  class Lent {
   public:
    explicit Lent(PlannedEngine& of) : of_(of) {
      if (of.arenas_.empty()) {
        arena_ = std::make_unique<Arena>();
      } else {
        arena_ = std::move(of.arenas_.back());
        of.arenas_.pop_back();
      }
    }
    ~Lent() { of_.arenas_.push_back(std::move(arena_)); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    Arena& operator*() const { return *arena_; }
    Arena* operator->() const { return arena_.get(); }

   private:
    PlannedEngine& of_;
    std::unique_ptr<Arena> arena_;
  };

  // Where sequences start from masks that begin with all their ones; false for others and for none.
  static bool lengths_of(const int32_t* mask, int64_t batch, int64_t n, int32_t* starts) {
    starts[0] = 0;
    for (int64_t s = 0; s < batch; ++s, mask += n) {
      int32_t ones = 0, before = 0;
      for (int64_t i = 0; i < n; ++i) ones += mask[i];
      for (int64_t i = 0; i < ones; ++i) before += mask[i];
      if (ones == 0 || before != ones) return false;
      starts[s + 1] = starts[s] + ones;
    }
    return true;
  }
  // Moves the tokens and types of sequences together, padding left out, and numbers positions.
  void pack(Arena& arena, int64_t batch, int64_t n) const {
    for (int64_t s = 0; s < batch; ++s) {
      const int64_t start = arena.starts[s], length = arena.starts[s + 1] - start;
      for (auto* row : {&arena.token, &arena.type}) {
        int32_t* const data = row->data();
        if (start != s * n) std::memmove(data + start, data + s * n, length * sizeof(int32_t));
      }
      for (int64_t i = 0; i < length; ++i) arena.position[start + i] = static_cast<int32_t>(first_position_ + i);
    }
  }

  bool run(const Lent& arena, int64_t sequences, int64_t n, const uint8_t* images, nb::handle scores,
           nb::handle threads, const CachedRows* cache = nullptr) {
    const Buffer out(scores, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    const bool per_token = engine_.scores().space == Space::kTokens || (causal_ && cache == nullptr);
    // Unit vectors may be asked for with fewer channels than they have.
    const int64_t dims = unit_channels_ && out.view().ndim > 1 ? out.view().shape[out.view().ndim - 1] : unit_channels_;
    require(dims <= unit_channels_ && (dims > 0 || !unit_channels_), "a vector has no such channels");
    const int64_t row = answer_bytes_ - 2 * (unit_channels_ - dims);
    require(out.view().len == sequences * (per_token ? n : 1) * row, "scores have the wrong size");
    const Batch batch{sequences,
                      arena->starts[sequences],
                      arena->starts.data(),
                      arena->token.data(),
                      arena->position.data(),
                      arena->type.data(),
                      images,
                      dims,
                      !causal_           ? Chosen::kFirst
                      : cache == nullptr ? Chosen::kAll
                                         : Chosen::kLast,
                      cache};
    const int most = threads_of(threads);
    arena->seconds.assign(most == 1 ? seconds_.size() : 0, 0.0);
    run_interruptibly([&](Interruption& interruption) {
      const std::byte* from = engine_.run(*arena, batch, most, interruption);
      if (from == nullptr) return;
      auto* to = out.data<std::byte>();
      for (int64_t s = 0; s < sequences; ++s) {
        const int64_t rows = per_token ? batch.length(s) : 1;
        for (int64_t i = 0; i < rows; ++i, from += engine_.scores().row_bytes, to += row) std::memcpy(to, from, row);
        const int64_t padding = per_token ? (n - rows) * row : 0;
        std::memset(to, 0, padding);
        to += padding;
      }
    });
    for (size_t i = 0; i < arena->seconds.size(); ++i) seconds_[i] += arena->seconds[i];
    return true;
  }

  const Value& at(int number) const {
    require(number >= 0 && number < static_cast<int>(values_.size()), "no such value");
    return values_[number];
  }
  void fits(int number, int64_t bytes) const {
    require(bytes > 0 && at(number).row_bytes >= bytes, "a value has too few bytes");
  }
  static int64_t columns_of(const Buffer& array) {
    require(array.view().ndim == 2, "a table of rows");
    return array.view().shape[1];
  }
  static RampConstants ramp_of(nb::handle array, int bits) {
    const Buffer pieces(array, PyBUF_C_CONTIGUOUS);
    require(pieces.view().itemsize == 2 && pieces.elements() == 128, "a ramp is int16 [2, 64]");
    require(bits >= 0 && bits <= 9, "pieces of a ramp have 1 to 512 steps");
    RampConstants ramp{};
    std::memcpy(ramp.knot, pieces.data<int16_t>(), sizeof ramp.knot);
    std::memcpy(ramp.slope, pieces.data<int16_t>() + 64, sizeof ramp.slope);
    ramp.bits = bits;
    return ramp;
  }
  const Buffer& keep(nb::handle array) {
    kept_.push_back(std::make_unique<Buffer>(array, PyBUF_C_CONTIGUOUS));
    return *kept_.back();
  }

  Engine engine_;
  std::vector<Value> values_;
  std::vector<std::unique_ptr<Buffer>> kept_;  // constants that are read where they lie
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<double> seconds_;  // of steps; empty: they are not timed
  EmbeddingConstants embedding_{};
  std::vector<int16_t> no_embedding_;  // a row of zeros, for models without positions or types
  int64_t channels_ = 0, words_ = 0, positions_ = 0, types_ = 0;
  int64_t image_[3] = {}, image_tokens_ = 0;
  int64_t answer_bytes_ = 0, unit_channels_ = 0, longest_ = 0, first_position_ = 0;
  bool causal_ = false;
};

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<PlannedEngine>(m, "Engine")
      .def(nb::init<int64_t, int64_t>(), nb::arg("arena_bytes"), nb::arg("local_bytes"))
      .def("value", &PlannedEngine::value, nb::arg("tokens"), nb::arg("local"), nb::arg("may_turn"),
           nb::arg("row_bytes"), nb::arg("offset"))
      .def("segment", &PlannedEngine::segment, nb::arg("tokens"))
      .def("linear", &PlannedEngine::linear, nb::arg("x"), nb::arg("out"), nb::arg("weight"), nb::arg("bias"),
           nb::arg("multiplier").none(), nb::arg("limit"), nb::arg("table").none(), nb::arg("row_exponents"))
      .def("embedding", &PlannedEngine::embedding, nb::arg("words"), nb::arg("positions").none(),
           nb::arg("types").none(), nb::arg("shift"), nb::arg("limit"))
      .def("embed", &PlannedEngine::embed, nb::arg("out"))
      .def("norm", &PlannedEngine::norm, nb::arg("gain"), nb::arg("bias").none(), nb::arg("gain_bits"),
           nb::arg("epsilon"), nb::arg("root"), nb::arg("root_shift"), nb::arg("source"), nb::arg("a"), nb::arg("b"),
           nb::arg("limit"), nb::arg("clamped"), nb::arg("out"), nb::arg("narrowed"), nb::arg("bits"),
           nb::arg("scale").none())
      .def("norm_heads", &PlannedEngine::norm_heads, nb::arg("x"), nb::arg("out"), nb::arg("channels"), nb::arg("gain"),
           nb::arg("gain_bits"), nb::arg("epsilon"), nb::arg("root"), nb::arg("root_shift"))
      .def("narrow", &PlannedEngine::narrow, nb::arg("x"), nb::arg("out"), nb::arg("channels"), nb::arg("bits"))
      .def("narrow_rows", &PlannedEngine::narrow_rows, nb::arg("x"), nb::arg("out"), nb::arg("channels"),
           nb::arg("x_bits"), nb::arg("ramp").none(), nb::arg("bits"), nb::arg("scale").none())
      .def("ramp", &PlannedEngine::ramp, nb::arg("x"), nb::arg("out"), nb::arg("channels"), nb::arg("ramp"),
           nb::arg("bits"))
      .def("rotate", &PlannedEngine::rotate, nb::arg("x"), nb::arg("out"), nb::arg("channels"), nb::arg("cosine"),
           nb::arg("sine"), nb::arg("multiplier"), nb::arg("turned"), nb::arg("first"))
      .def("multiply", &PlannedEngine::multiply, nb::arg("a"), nb::arg("b"), nb::arg("out"), nb::arg("channels"),
           nb::arg("ramp").none(), nb::arg("ramp_bits"), nb::arg("bits"), nb::arg("limit"), nb::arg("rows"),
           nb::arg("scale").none())
      .def("pool", &PlannedEngine::pool, nb::arg("x"), nb::arg("out"), nb::arg("channels"), nb::arg("pooling"),
           nb::arg("divided"))
      .def("unit", &PlannedEngine::unit, nb::arg("x"), nb::arg("out"), nb::arg("channels"), nb::arg("bits"))
      .def("sum", &PlannedEngine::sum, nb::arg("a"), nb::arg("b"), nb::arg("out"), nb::arg("channels"),
           nb::arg("limit"))
      .def("table", &PlannedEngine::table, nb::arg("x"), nb::arg("out"), nb::arg("channels"), nb::arg("entries"))
      .def("one_row", &PlannedEngine::one_row, nb::arg("x"), nb::arg("out"), nb::arg("bytes"), nb::arg("last"))
      .def("attention", &PlannedEngine::attention, nb::arg("q"), nb::arg("q_offset"), nb::arg("kv"),
           nb::arg("k_offset"), nb::arg("v_offset"), nb::arg("out"), nb::arg("heads"), nb::arg("kv_heads"),
           nb::arg("dim"), nb::arg("before"), nb::arg("after"), nb::arg("theta"), nb::arg("requant"))
      .def("pixels", &PlannedEngine::pixels, nb::arg("out"), nb::arg("special"), nb::arg("patch"), nb::arg("channels"),
           nb::arg("height"), nb::arg("width"))
      .def("place", &PlannedEngine::place, nb::arg("x"), nb::arg("out"), nb::arg("special"), nb::arg("positions"))
      .def("finish", &PlannedEngine::finish, nb::arg("scores"), nb::arg("labels"), nb::arg("bytes"), nb::arg("longest"),
           nb::arg("first_position"), nb::arg("causal"))
      .def("time_steps", &PlannedEngine::time_steps)
      .def("step_seconds", &PlannedEngine::step_seconds)
      .def("run", nb::overload_cast<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>(&PlannedEngine::run),
           nb::arg("ids"), nb::arg("mask").none(), nb::arg("types").none(), nb::arg("scores"), nb::arg("threads"))
      .def("run_new_rows", &PlannedEngine::run_new_rows, nb::arg("ids"), nb::arg("counts"), nb::arg("texts"),
           nb::arg("past"), nb::arg("memory"), nb::arg("all"), nb::arg("capacity"), nb::arg("scores"),
           nb::arg("threads"))
      .def("run_pixels", &PlannedEngine::run_pixels, nb::arg("images"), nb::arg("scores"), nb::arg("threads"));
}

}  // namespace hccs
