#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "common/interruption.hpp"
#include "lines.hpp"
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

Deployment deployment(bool u8, int reciprocal) {
  require(reciprocal >= 0 && reciprocal <= static_cast<int>(Reciprocal::kLine), "no such reciprocal");
  return {u8, static_cast<Reciprocal>(reciprocal)};
}

// --- two lines, or wide sums: over the sampled rows ---

struct Extra {
  std::vector<double> mass;
  double negative_entropy;

  Extra(const Input<double, 1>& masses, double entropy) : mass(vector(masses)), negative_entropy(entropy) {
    require(mass.size() == kDistances, "256 masses");
  }
};

template <class Run>
auto with_sample(const Statistics& statistics, const std::vector<int>& heads, const Extra& extra, int64_t version,
                 const Run& run) {
  return without_gil([&] {
    const auto lock = statistics.lock_to_read();
    if (statistics.version() != version) throw Changed("rows came in the meantime");
    std::vector<const HeadState*> states;
    std::vector<const int64_t*> tables;
    for (int head : heads) {
      const HeadState& state = statistics.heads().at(head);
      require(state.sample.complete() && !state.sample.rows().empty(), "rows without a sample");
      states.push_back(&state);
      tables.push_back(statistics.exp_table(head));
    }
    return run(SampledRows(states, tables, extra.mass, extra.negative_entropy));
  });
}

Lines lines_of(const Statistics& statistics, const int32_t* at) {
  const Lines theta{at[0], at[1], at[2], at[3], at[4], at[5]};
  require(theta.f >= 0 && theta.f <= 7 && theta.B <= kT && LinesRegion{kT, 1, theta.f, 2}.contains(theta) &&
              int64_t(theta.B >> theta.f) * statistics.n() < int64_t{1} << 24,
          "lines that are not admissible");
  return theta;
}

nb::tuple six(const Lines& theta, double kl) {
  return nb::make_tuple(theta.B, theta.S, theta.D, theta.S2, theta.D2, theta.f, kl);
}

nb::tuple search_lines_of_group(const Statistics& statistics, const std::vector<int>& heads, Input<double, 1> mass,
                                double negative_entropy, int64_t version, int max_base, int floor, int f, int lines,
                                bool output, const Interruption& interruption) {
  require(f >= 0 && f <= 7 && max_base >= 1 && max_base <= kT && floor >= 1 && floor << f <= max_base &&
              (lines == 1 || lines == 2) && int64_t(max_base >> f) * statistics.n() < int64_t{1} << 24,
          "a region out of range");
  const LinesRegion region{max_base, floor, f, lines};
  const Measure measure = output ? Measure::kOutput : Measure::kDivergence;
  const LinesResult found =
      with_sample(statistics, heads, Extra(mass, negative_entropy), version,
                  [&](const SampledRows& rows) { return search_lines(rows, region, measure, interruption); });
  return nb::make_tuple(six(found.best, found.kl), six(found.runner_up, found.runner_up_kl), found.evaluated);
}

Output<double> lines_objectives(const Statistics& statistics, const std::vector<int>& heads, Input<double, 1> mass,
                                double negative_entropy, int64_t version, Input<int32_t, 2> thetas, bool output) {
  require(thetas.shape(1) == 6, "B, S, D, S2, D2, f");
  std::vector<Lines> asked;
  for (const int32_t* at = thetas.data(); at != thetas.data() + thetas.size(); at += 6)
    asked.push_back(lines_of(statistics, at));
  return array(with_sample(statistics, heads, Extra(mass, negative_entropy), version, [&](const SampledRows& rows) {
    std::vector<double> kl;
    for (const Lines& theta : asked) kl.push_back(rows.value(theta, output ? Measure::kOutput : Measure::kDivergence));
    return kl;
  }));
}

nb::tuple evaluate_lines(const Statistics& statistics, const std::vector<int>& heads, Input<double, 1> mass,
                         double negative_entropy, int64_t version, Input<int32_t, 1> theta, bool u8, int reciprocal) {
  require(theta.size() == 6, "B, S, D, S2, D2, f");
  const Lines lines = lines_of(statistics, theta.data());
  const Fidelity found =
      with_sample(statistics, heads, Extra(mass, negative_entropy), version,
                  [&](const SampledRows& rows) { return rows.deployed(lines, deployment(u8, reciprocal)); });
  return nb::make_tuple(found.kl, found.kl_renormalised, found.mass_deficit);
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
  m.def("search_lines", &search_lines_of_group, nb::arg("statistics"), nb::arg("heads"), nb::arg("extra_mass"),
        nb::arg("extra_entropy"), nb::arg("version"), nb::arg("max_base"), nb::arg("floor"), nb::arg("f"),
        nb::arg("lines"), nb::arg("output"), nb::arg("interruption"));
  m.def("lines_objectives", &lines_objectives, nb::arg("statistics"), nb::arg("heads"), nb::arg("extra_mass"),
        nb::arg("extra_entropy"), nb::arg("version"), nb::arg("thetas"), nb::arg("output") = false);
  m.def("evaluate_lines", &evaluate_lines, nb::arg("statistics"), nb::arg("heads"), nb::arg("extra_mass"),
        nb::arg("extra_entropy"), nb::arg("version"), nb::arg("theta"), nb::arg("u8"), nb::arg("reciprocal"));
}

}  // namespace hccs::calibration
