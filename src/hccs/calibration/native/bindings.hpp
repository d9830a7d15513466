// What both halves of the Python module `hccs.calibration._native` share. Arguments arrive checked by hccs.calibration;
// what is checked again here is what would otherwise read or write outside an array.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <vector>

namespace hccs::calibration {

namespace nb = nanobind;

void bind_statistics(nb::module_& m);
void bind_search(nb::module_& m);

template <class T, int kDims>
using Input = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// The vector's own memory as an array.
template <class T>
Output<T> array(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Output<T>(owned->data(), {owned->size()}, owner);
}

template <class T>
std::vector<T> vector(const Input<T, 1>& values) {
  return std::vector<T>(values.data(), values.data() + values.size());
}

// What run() returns, called without Python's lock: to be had before any lock of ours.
template <class Run>
auto without_gil(const Run& run) {
  const nb::gil_scoped_release release;
  return run();
}

}  // namespace hccs::calibration
