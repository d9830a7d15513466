#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "common/interruption.hpp"
#include "deployed.hpp"
#include "search.hpp"

namespace hccs::calibration {
namespace {

// Thrown where the statistics are no longer those that the means were taken of.
struct Changed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The means of a group of heads, and the version of the statistics that they are of.
struct Means {
  std::vector<int> heads;
  std::vector<double> mass;
  double negative_entropy;
  int64_t version;

  Means(std::vector<int> of, const Input<double, 1>& masses, double entropy, int64_t at)
      : heads(std::move(of)), mass(vector(masses)), negative_entropy(entropy), version(at) {
    require(mass.size() == kDistances, "256 masses");
  }
};

// What run(group) returns, while nothing can change the statistics.
template <class Run>
auto with_group(const Statistics& statistics, const Means& means, const Run& run) {
  return without_gil([&] {
    const auto lock = statistics.lock_to_read();
    if (statistics.version() != means.version) throw Changed("rows came in the meantime");
    Group group;
    for (int head : means.heads) group.heads.push_back(&statistics.heads().at(head));
    group.mass = means.mass;
    group.negative_entropy = means.negative_entropy;
    return run(group);
  });
}

// Triples must keep every row sum of up to n columns in 1..T: the tables of logarithms end there.
Candidate candidate(const Statistics& statistics, int B, int S, int D) {
  require(D >= 1 && D <= kMaxD && S >= 0 && S <= 127 && B > S * D && int64_t(B) * statistics.n() <= kT,
          "a triple that is not admissible");
  return {0.0, D, S, B};
}

std::vector<Candidate> candidates_of(const Statistics& statistics, const Input<int32_t, 2>& triples) {
  require(triples.shape(1) == 3, "triples of B, S, D");
  std::vector<Candidate> candidates;
  for (const int32_t* at = triples.data(); at != triples.data() + triples.size(); at += 3)
    candidates.push_back(candidate(statistics, at[0], at[1], at[2]));
  return candidates;
}

nb::tuple triple(const Candidate& c) { return nb::make_tuple(c.B, c.S, c.D, c.kl); }

nb::tuple search_group(const Statistics& statistics, std::vector<int> heads, Input<double, 1> mass,
                       double negative_entropy, int64_t version, int n, const Interruption& interruption) {
  require(n >= statistics.n() && n <= kT, "n out of range");
  const Means means(std::move(heads), mass, negative_entropy, version);
  const SearchResult found =
      with_group(statistics, means, [&](const Group& group) { return search(group, n, interruption); });
  return nb::make_tuple(triple(found.best), triple(found.runner_up), found.triples, found.evaluated);
}

nb::tuple evaluate_group(const Statistics& statistics, std::vector<int> heads, Input<double, 1> mass,
                         double negative_entropy, int64_t version, int B, int S, int D) {
  const Candidate theta = candidate(statistics, B, S, D);
  const Means means(std::move(heads), mass, negative_entropy, version);
  const Fidelity found =
      with_group(statistics, means, [&](const Group& group) { return evaluate(group, theta.B, theta.S, theta.D); });
  return nb::make_tuple(found.kl, found.kl_renormalised, found.mass_deficit);
}

Output<double> objectives_of_group(const Statistics& statistics, std::vector<int> heads, Input<double, 1> mass,
                                   double negative_entropy, int64_t version, Input<int32_t, 2> triples) {
  const std::vector<Candidate> candidates = candidates_of(statistics, triples);
  const Means means(std::move(heads), mass, negative_entropy, version);
  return array(with_group(statistics, means, [&](const Group& group) { return objectives(group, candidates); }));
}

Output<double> deployed_objectives_of_group(const Statistics& statistics, const std::vector<int>& heads, bool u8,
                                            bool clb, Input<int32_t, 2> triples) {
  const std::vector<Candidate> candidates = candidates_of(statistics, triples);
  return array(without_gil([&] {
    const auto lock = statistics.lock_to_read();
    std::vector<KeptRows> kept;
    for (int head : heads) {
      for (const auto& [length, bucket] : statistics.heads().at(head).lengths)
        require(!bucket.counted(), "rows that are no longer kept");
      kept.push_back({&statistics.heads().at(head), statistics.exp_table(head)});
    }
    return deployed_objectives(kept, {u8, clb}, candidates);
  }));
}

}  // namespace

void bind_search(nb::module_& m) {
  nb::exception<Changed>(m, "Changed");
  nb::exception<Interrupted>(m, "Interrupted");
  nb::class_<Interruption>(m, "Interruption")
      .def(nb::init<>())
      .def("request", &Interruption::request, "Let what was given this end soon.");
  m.def("search", &search_group, nb::arg("statistics"), nb::arg("heads"), nb::arg("mass"), nb::arg("negative_entropy"),
        nb::arg("version"), nb::arg("n"), nb::arg("interruption"));
  m.def("evaluate", &evaluate_group, nb::arg("statistics"), nb::arg("heads"), nb::arg("mass"),
        nb::arg("negative_entropy"), nb::arg("version"), nb::arg("B"), nb::arg("S"), nb::arg("D"));
  m.def("objectives", &objectives_of_group, nb::arg("statistics"), nb::arg("heads"), nb::arg("mass"),
        nb::arg("negative_entropy"), nb::arg("version"), nb::arg("triples"));
  m.def("deployed_objectives", &deployed_objectives_of_group, nb::arg("statistics"), nb::arg("heads"), nb::arg("u8"),
        nb::arg("clb"), nb::arg("triples"));
}

}  // namespace hccs::calibration
