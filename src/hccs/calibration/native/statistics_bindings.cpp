#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "bindings.hpp"
#include "statistics.hpp"

namespace hccs::calibration {
namespace {

template <class T>
void update(Statistics& statistics, Input<T, 3> x, Input<int32_t, 1> head_of_group,
            std::optional<Input<int32_t, 1>> lengths, std::optional<Input<bool, 2>> mask,
            std::optional<Input<int64_t, 1>> weights, int threads) {
  Batch batch;
  if constexpr (std::is_same_v<T, float>)
    batch.z = x.data();
  else
    batch.x = x.data();
  require(statistics.from_float() == (batch.z != nullptr), "logits of the wrong kind");
  require(threads >= 1, "threads must be at least 1");
  batch.groups = x.shape(0);
  batch.rows = x.shape(1);
  batch.columns = x.shape(2);
  const size_t rows = batch.groups * batch.rows;
  require(batch.columns <= statistics.n(), "more columns than n");
  require(head_of_group.shape(0) == x.shape(0), "one head per group");
  batch.head_of_group = head_of_group.data();
  for (int64_t g = 0; g < batch.groups; ++g)
    require(batch.head_of_group[g] >= 0 && batch.head_of_group[g] < int64_t(statistics.heads().size()), "no such head");
  if (lengths) {
    require(lengths->shape(0) == rows, "one length per row");
    batch.masking = Masking::kLengths;
    batch.lengths = lengths->data();
    for (size_t r = 0; r < rows; ++r)
      require(batch.lengths[r] >= 0 && batch.lengths[r] <= batch.columns, "length out of range");
  }
  if (mask) {
    require(mask->shape(0) == rows && int64_t(mask->shape(1)) == batch.columns, "one mask value per logit");
    batch.masking = Masking::kMask;
    batch.mask = reinterpret_cast<const uint8_t*>(mask->data());
  }
  if (weights) {
    require(weights->shape(0) == rows, "one weight per row");
    batch.weights = weights->data();
    for (size_t r = 0; r < rows; ++r) require(batch.weights[r] >= 0, "a weight below 0");
  }
  const nb::gil_scoped_release release;
  statistics.update(batch, threads);
}

// 128 bits as (high, low): masses at 256 distances, then the logarithms.
std::vector<int64_t> halves_of(const HeadSums& sums) {
  std::vector<int64_t> halves;
  const auto add = [&](Int128 value) {
    halves.push_back(static_cast<int64_t>(value >> 64));
    halves.push_back(static_cast<int64_t>(value));
  };
  for (Int128 value : sums.mass) add(value);
  add(sums.logarithm);
  return halves;
}

HeadSums sums_of(const Input<int64_t, 1>& halves) {
  require(halves.size() == 2 * (kDistances + 1), "257 sums of two halves");
  HeadSums sums;
  const auto value = [&](int i) {
    return static_cast<Int128>((static_cast<unsigned __int128>(halves.data()[2 * i]) << 64) |
                               static_cast<uint64_t>(halves.data()[2 * i + 1]));
  };
  for (int d = 0; d < kDistances; ++d) sums.mass[d] = value(d);
  sums.logarithm = value(kDistances);
  return sums;
}

void restore_sums(Statistics& statistics, int head, Input<int64_t, 1> halves) {
  const HeadSums sums = sums_of(halves);
  without_gil([&] { statistics.restore_sums(head, sums); });
}

void restore_sample(Statistics& statistics, int head, Input<int64_t, 1> lengths, Input<int64_t, 1> weights,
                    Input<uint8_t, 1> rows, Input<int64_t, 1> quantised) {
  const HeadSums sums = statistics.from_float() ? sums_of(quantised) : HeadSums();
  without_gil([&] { statistics.restore_sample(head, vector(lengths), vector(weights), vector(rows), sums); });
}

void restore_bucket(Statistics& statistics, int head, int length, int64_t count, int64_t weight, Input<uint8_t, 1> rows,
                    Input<int64_t, 1> weights, Input<uint8_t, 1> cells) {
  without_gil([&] {
    statistics.restore_bucket(
        head, LengthBucket::restore(length, count, weight, vector(rows), vector(weights), vector(cells)));
  });
}

// The version of the statistics, and the sums of some heads in it, with the weight of each one's rows: those of the
// logits, or of float logits those of their int8 softmax.
nb::tuple sums(const Statistics& statistics, const std::vector<int>& heads, bool quantised) {
  int64_t version = 0;
  std::vector<std::pair<int64_t, std::vector<int64_t>>> found;
  without_gil([&] {
    const auto lock = statistics.lock_to_read();
    version = statistics.version();
    for (int head : heads) {
      const HeadState& state = statistics.heads().at(head);
      found.emplace_back(static_cast<int64_t>(state.weight()), halves_of(quantised ? state.quantised : state.sums));
    }
  });
  nb::list list;
  for (auto& [weight, halves] : found) list.append(nb::make_tuple(weight, array(std::move(halves))));
  return nb::make_tuple(version, list);
}

// For each of some heads: its sums, and (length, rows, weight, kept rows, their weights, the cells' bytes) of each
// length; and where rows were counted, (lengths, weights, rows, quantised sums) of the sample of them, else None. All
// in one form for one multiset of rows, and at one time.
nb::list state(Statistics& statistics, const std::vector<int>& heads) {
  struct Bucket {
    int length;
    int64_t count, weight;
    std::vector<uint8_t> rows;
    std::vector<int64_t> weights;
    std::vector<uint8_t> cells;
  };
  struct Sample {
    std::vector<int64_t> lengths, weights;
    std::vector<uint8_t> rows;
    std::vector<int64_t> quantised;
  };
  std::vector<std::tuple<std::vector<int64_t>, std::vector<Bucket>, std::optional<Sample>>> found;
  without_gil([&] {
    const auto lock = statistics.settle();
    for (int head : heads) {
      const HeadState& from = statistics.heads().at(head);
      auto& [halves, buckets, sample] = found.emplace_back();
      halves = halves_of(from.sums);
      if (from.counted() && from.sample.complete()) {
        sample.emplace();
        for (const auto& [key, weight] : from.sample.rows()) {
          sample->lengths.push_back(static_cast<int64_t>(key.row.size()));
          sample->weights.push_back(weight);
          sample->rows.insert(sample->rows.end(), key.row.begin(), key.row.end());
        }
        if (statistics.from_float()) sample->quantised = halves_of(from.quantised);
      }
      for (const auto& [length, of] : from.lengths)
        buckets.push_back({length, of.count(), of.weight(), of.rows(), of.weights(), of.raw_cells()});
    }
  });
  nb::list list;
  for (auto& [halves, buckets, sample] : found) {
    nb::list of_head;
    for (Bucket& of : buckets)
      of_head.append(nb::make_tuple(of.length, of.count, of.weight, array(std::move(of.rows)),
                                    array(std::move(of.weights)), array(std::move(of.cells))));
    nb::object sampled = nb::none();
    if (sample)
      sampled = nb::make_tuple(array(std::move(sample->lengths)), array(std::move(sample->weights)),
                               array(std::move(sample->rows)), array(std::move(sample->quantised)));
    list.append(nb::make_tuple(array(std::move(halves)), of_head, sampled));
  }
  return list;
}

// (length, rows, weight) of each length of a head.
nb::list totals(const Statistics& statistics, int head) {
  std::vector<std::array<int64_t, 3>> found;
  without_gil([&] {
    const auto lock = statistics.lock_to_read();
    for (const auto& [length, bucket] : statistics.heads().at(head).lengths)
      found.push_back({length, bucket.count(), bucket.weight()});
  });
  nb::list list;
  for (const auto& [length, count, weight] : found) list.append(nb::make_tuple(length, count, weight));
  return list;
}

int64_t bytes(const Statistics& statistics, int head) {
  return without_gil([&] {
    const auto lock = statistics.lock_to_read();
    int64_t bytes = sizeof(HeadSums) + statistics.heads().at(head).sample.bytes();
    for (const auto& [length, bucket] : statistics.heads().at(head).lengths) bytes += bucket.bytes();
    return bytes;
  });
}

}  // namespace

void bind_statistics(nb::module_& m) {
  nb::class_<Statistics>(m, "Statistics")
      .def(nb::init<int, std::vector<double>, bool>(), nb::arg("n"), nb::arg("scale"), nb::arg("from_float"))
      .def("update", &update<int8_t>, nb::arg("x"), nb::arg("head_of_group"), nb::arg("lengths").none(),
           nb::arg("mask").none(), nb::arg("weights").none(), nb::arg("threads"))
      .def("update_float", &update<float>, nb::arg("z"), nb::arg("head_of_group"), nb::arg("lengths").none(),
           nb::arg("mask").none(), nb::arg("weights").none(), nb::arg("threads"))
      .def("merge", &Statistics::merge, nb::call_guard<nb::gil_scoped_release>())
      .def("count_pending", &Statistics::count_pending, nb::call_guard<nb::gil_scoped_release>())
      .def("exp_table",
           [](const Statistics& s, int head) {
             return array(std::vector<int64_t>(s.exp_table(head), s.exp_table(head) + kDistances));
           })
      .def("sums", &sums, nb::arg("heads"), nb::arg("quantised") = false)
      .def("state", &state, nb::arg("heads"))
      .def("restore_bucket", &restore_bucket, nb::arg("head"), nb::arg("length"), nb::arg("count"), nb::arg("weight"),
           nb::arg("rows").noconvert(), nb::arg("weights").noconvert(), nb::arg("cells").noconvert())
      .def("restore_sums", &restore_sums, nb::arg("head"), nb::arg("halves").noconvert())
      .def("restore_sample", &restore_sample, nb::arg("head"), nb::arg("lengths").noconvert(),
           nb::arg("weights").noconvert(), nb::arg("rows").noconvert(), nb::arg("quantised").noconvert())
      .def("sampled",
           [](const Statistics& s, int head) {
             return without_gil([&] {
               const auto lock = s.lock_to_read();
               const RowSample& sample = s.heads().at(head).sample;
               return sample.complete() ? static_cast<int64_t>(sample.rows().size()) : int64_t{-1};
             });
           })
      .def("totals", &totals, nb::arg("head"))
      .def("bytes", &bytes, nb::arg("head"));
}

}  // namespace hccs::calibration
