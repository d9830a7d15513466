// The Python module `hccs.calibration._native`. Arguments arrive checked by hccs.calibration; what is checked again
// here is what would otherwise read or write outside an array.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "deployed.hpp"
#include "search.hpp"
#include "statistics.hpp"

namespace nb = nanobind;
using namespace hccs::calibration;

namespace {

template <class T, int kDims>
using Input = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

template <class T, class From>
Output<T> array(const std::vector<From>& values) {
  auto* copy = new std::vector<T>(values.begin(), values.end());
  nb::capsule owner(copy, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Output<T>(copy->data(), {copy->size()}, owner);
}

template <class T>
std::vector<T> vector(const Input<T, 1>& values) {
  return std::vector<T>(values.data(), values.data() + values.size());
}

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
    batch.selection = Selection::kLengths;
    batch.lengths = lengths->data();
    for (size_t r = 0; r < rows; ++r)
      require(batch.lengths[r] >= 0 && batch.lengths[r] <= batch.columns, "length out of range");
  }
  if (mask) {
    require(mask->shape(0) == rows && int64_t(mask->shape(1)) == batch.columns, "one mask value per logit");
    batch.selection = Selection::kMask;
    batch.mask = reinterpret_cast<const uint8_t*>(mask->data());
  }
  if (weights) {
    require(weights->shape(0) == rows, "one weight per row");
    batch.weights = weights->data();
  }
  nb::gil_scoped_release release;
  statistics.update(batch, threads);
}

// The sums of one head, 128 bits as (high, low): masses at 256 distances, then the logarithms.
Output<int64_t> sums(const Statistics& statistics, int head) {
  const HeadSums& of = statistics.heads().at(head).sums;
  std::vector<int64_t> halves;
  const auto add = [&](Int128 value) {
    halves.push_back(static_cast<int64_t>(value >> 64));
    halves.push_back(static_cast<int64_t>(value));
  };
  for (Int128 value : of.mass) add(value);
  add(of.logarithm);
  return array<int64_t>(halves);
}

void restore_sums(Statistics& statistics, int head, Input<int64_t, 1> halves) {
  require(halves.size() == 2 * (kDistances + 1), "257 sums of two halves");
  HeadSums& of = statistics.heads().at(head).sums;
  const auto value = [&](int i) {
    return static_cast<Int128>((static_cast<unsigned __int128>(halves.data()[2 * i]) << 64) |
                               static_cast<uint64_t>(halves.data()[2 * i + 1]));
  };
  for (int d = 0; d < kDistances; ++d) of.mass[d] = value(d);
  of.logarithm = value(kDistances);
}

// (length, rows, weight, kept rows, their weights, the cells' bytes) of each length of a head.
nb::list buckets(const Statistics& statistics, int head) {
  nb::list list;
  for (const auto& [length, bucket] : statistics.heads().at(head).lengths)
    list.append(nb::make_tuple(length, bucket.count(), bucket.weight(), array<uint8_t>(bucket.rows()),
                               array<int64_t>(bucket.weights()), array<uint8_t>(bucket.raw_cells())));
  return list;
}

void restore_bucket(Statistics& statistics, int head, int length, int64_t count, int64_t weight, Input<uint8_t, 1> rows,
                    Input<int64_t, 1> weights, Input<uint8_t, 1> cells) {
  require(length >= 1 && length <= statistics.n(), "length out of range");
  require(int64_t(rows.size()) % length == 0, "rows of another length");
  require(weights.size() == 0 || weights.size() * length == rows.size(), "one weight per kept row");
  require(cells.size() == 0 || int64_t(cells.size()) == LengthBucket::cell_count(length) * cell_bytes(weight),
          "wrong number of cells");
  statistics.heads().at(head).lengths.insert_or_assign(
      length, LengthBucket::restore(length, count, weight, vector(rows), vector(weights), vector(cells)));
}

Group group_of(const Statistics& statistics, const std::vector<int>& heads, const Input<double, 1>& mass,
               double negative_entropy) {
  require(mass.size() == kDistances, "256 masses");
  Group group;
  for (int head : heads) group.heads.push_back(&statistics.heads().at(head));
  group.mass = vector(mass);
  group.negative_entropy = negative_entropy;
  return group;
}

std::vector<Candidate> candidates_of(const Input<int32_t, 2>& triples) {
  require(triples.shape(1) == 3, "triples of B, S, D");
  std::vector<Candidate> candidates(triples.shape(0));
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int32_t* from = triples.data() + 3 * i;
    candidates[i] = {0.0, from[2], from[1], from[0]};
  }
  return candidates;
}

nb::tuple triple(const Candidate& c) { return nb::make_tuple(c.B, c.S, c.D, c.kl); }

}  // namespace

NB_MODULE(_native, m) {
  nb::class_<Statistics>(m, "Statistics")
      .def(nb::init<int, std::vector<double>, bool>(), nb::arg("n"), nb::arg("scale"), nb::arg("from_float"))
      .def("update", &update<int8_t>, nb::arg("x"), nb::arg("head_of_group"), nb::arg("lengths").none(),
           nb::arg("mask").none(), nb::arg("weights").none(), nb::arg("threads"))
      .def("update_float", &update<float>, nb::arg("z"), nb::arg("head_of_group"), nb::arg("lengths").none(),
           nb::arg("mask").none(), nb::arg("weights").none(), nb::arg("threads"))
      .def("merge", &Statistics::merge, nb::call_guard<nb::gil_scoped_release>())
      .def("count_pending", &Statistics::count_pending, nb::call_guard<nb::gil_scoped_release>())
      .def("settle", &Statistics::settle, nb::call_guard<nb::gil_scoped_release>())
      .def("exp_table",
           [](const Statistics& s, int head) {
             require(head >= 0 && head < int(s.heads().size()), "no such head");
             return array<int64_t>(std::vector<int64_t>(s.exp_table(head), s.exp_table(head) + kDistances));
           })
      .def("sums", &sums)
      .def("restore_sums", &restore_sums)
      .def("buckets", &buckets)
      .def("restore_bucket", &restore_bucket)
      .def("totals",
           [](const Statistics& s, int head) {
             nb::list list;
             for (const auto& [length, bucket] : s.heads().at(head).lengths)
               list.append(nb::make_tuple(length, bucket.count(), bucket.weight()));
             return list;
           })
      .def("bytes", [](const Statistics& s, int head) {
        int64_t bytes = sizeof(HeadSums);
        for (const auto& [length, bucket] : s.heads().at(head).lengths) bytes += bucket.bytes();
        return bytes;
      });

  m.def(
      "search",
      [](const Statistics& statistics, const std::vector<int>& heads, Input<double, 1> mass, double negative_entropy,
         int n) {
        const Group group = group_of(statistics, heads, mass, negative_entropy);
        SearchResult found;
        {
          nb::gil_scoped_release release;
          found = search(group, n);
        }
        return nb::make_tuple(triple(found.best), triple(found.runner_up), found.triples, found.evaluated);
      },
      nb::arg("statistics"), nb::arg("heads"), nb::arg("mass"), nb::arg("negative_entropy"), nb::arg("n"));
  m.def(
      "evaluate",
      [](const Statistics& statistics, const std::vector<int>& heads, Input<double, 1> mass, double negative_entropy,
         int B, int S, int D) {
        const Group group = group_of(statistics, heads, mass, negative_entropy);
        Fidelity found;
        {
          nb::gil_scoped_release release;
          found = evaluate(group, B, S, D);
        }
        return nb::make_tuple(found.kl, found.kl_renormalised, found.mass_deficit);
      },
      nb::arg("statistics"), nb::arg("heads"), nb::arg("mass"), nb::arg("negative_entropy"), nb::arg("B"), nb::arg("S"),
      nb::arg("D"));
  m.def(
      "objectives",
      [](const Statistics& statistics, const std::vector<int>& heads, Input<double, 1> mass, double negative_entropy,
         Input<int32_t, 2> triples) {
        const Group group = group_of(statistics, heads, mass, negative_entropy);
        const std::vector<Candidate> candidates = candidates_of(triples);
        std::vector<double> kl;
        {
          nb::gil_scoped_release release;
          kl = objectives(group, candidates);
        }
        return array<double>(kl);
      },
      nb::arg("statistics"), nb::arg("heads"), nb::arg("mass"), nb::arg("negative_entropy"), nb::arg("triples"));
  m.def(
      "deployed_objectives",
      [](const Statistics& statistics, const std::vector<int>& heads, bool u8, bool clb, Input<int32_t, 2> triples) {
        std::vector<KeptRows> kept;
        for (int head : heads) {
          for (const auto& [length, bucket] : statistics.heads().at(head).lengths)
            require(!bucket.counted(), "rows that are no longer kept");
          kept.push_back({&statistics.heads().at(head), statistics.exp_table(head)});
        }
        const std::vector<Candidate> candidates = candidates_of(triples);
        std::vector<double> kl;
        {
          nb::gil_scoped_release release;
          kl = deployed_objectives(kept, {u8, clb}, candidates);
        }
        return array<double>(kl);
      },
      nb::arg("statistics"), nb::arg("heads"), nb::arg("u8"), nb::arg("clb"), nb::arg("triples"));
  m.attr("ROWS_KEPT") = kRowsKept;
}
