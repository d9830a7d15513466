// NumPy arrays as the native code takes them apart.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <vector>

#include "softmax/job.hpp"

namespace hccs::arrays {

namespace nb = nanobind;

// The buffer protocol directly: a call on one short row is dominated by how its arrays are taken apart.
class Buffer {
 public:
  Buffer(nb::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) nb::raise_python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  const Py_buffer& view() const { return view_; }
  template <class T>
  T* data() const {
    return static_cast<T*>(view_.buf);
  }
  int64_t elements() const { return view_.len / view_.itemsize; }

 private:
  Py_buffer view_;
};

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// Numbers of the Python side, checked.
inline Mode mode_of(int mode) {
  require(mode >= 0 && mode < static_cast<int>(std::size(kModeNames)), "no such mode");
  return static_cast<Mode>(mode);
}
inline Masking masking_of(int masking) {
  require(masking >= 0 && masking <= static_cast<int>(Masking::kMask), "no such masking");
  return static_cast<Masking>(masking);
}
// Any integer >= 1; more threads than kMost are never of use.
inline int threads_of(nb::handle threads) {
  constexpr long long kMost = 1024;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(threads.ptr(), &overflow);
  if (value == -1 && overflow == 0 && PyErr_Occurred()) nb::raise_python_error();
  require(overflow > 0 || value >= 1, "threads must be at least 1");
  return static_cast<int>(overflow > 0 ? kMost : std::min(value, kMost));
}

// Whether an array holds records of so many 32-bit fields: [..., fields].
inline bool holds(const Py_buffer& view, int fields) {
  return view.itemsize == 4 && view.ndim >= 1 && view.shape[view.ndim - 1] == fields;
}

// What a call is refused for, beside its dtypes; hccs.ops makes errors of it.
enum Status { kDone, kThetaShape, kSelectionShape, kLengthRange, kMaskLayout, kOverlap, kRequantShape };

// An array seen as broadcast to a target shape: NumPy's rule, without making an array for it.
struct Broadcast {
  bool possible = false;
  const char* base = nullptr;
  int ndim = 0;
  int64_t shape[StridedRows::kMaxDims];
  int64_t stride[StridedRows::kMaxDims];

  // `own` holds ndim extents and byte strides of the array.
  Broadcast(const void* data, int own_ndim, const Py_ssize_t* own_shape, const Py_ssize_t* own_stride,
            const Py_ssize_t* target, int target_ndim)
      : base(static_cast<const char*>(data)), ndim(target_ndim) {
    if (own_ndim > target_ndim) return;
    for (int d = 0; d < target_ndim; ++d) {
      const int own = d - (target_ndim - own_ndim);
      shape[d] = target[d];
      stride[d] = own >= 0 && own_shape[own] != 1 ? own_stride[own] : 0;
      if (own >= 0 && own_shape[own] != 1 && own_shape[own] != target[d]) return;
    }
    possible = true;
  }

  // The first `dims` dimensions, dropped or merged where the stride allows: fewer to step through.
  StridedRows rows(int dims) const {
    StridedRows rows;
    rows.base = base;
    for (int d = 0; d < dims; ++d) {
      if (shape[d] == 1) continue;
      const int last = rows.ndim - 1;
      if (last >= 0 && rows.stride[last] == shape[d] * stride[d]) {
        rows.shape[last] *= shape[d];
        rows.stride[last] = stride[d];
      } else {
        rows.shape[rows.ndim] = shape[d];
        rows.stride[rows.ndim++] = stride[d];
      }
    }
    return rows;
  }

  // Calls visit(pointer) for every element of the first `dims` dimensions, in order.
  template <class Visit>
  void for_each(int dims, Visit visit) const {
    int64_t index[StridedRows::kMaxDims] = {}, count = 1;
    for (int d = 0; d < dims; ++d) count *= shape[d];
    const char* at = base;
    for (int64_t i = 0; i < count; ++i) {
      visit(at);
      for (int d = dims - 1; d >= 0; --d) {
        at += stride[d];
        if (++index[d] < shape[d]) break;
        at -= shape[d] * stride[d];
        index[d] = 0;
      }
    }
  }
};

// Row lengths of any integer dtype as contiguous int32, or false if one is not in 0..columns.
template <class T>
inline bool copy_lengths(const Py_buffer& view, int64_t columns, std::vector<int32_t>& to) {
  to.resize(view.len / sizeof(T));
  bool in_range = true;
  const auto copy = [&](const char* at, int32_t& length) {
    T value;
    std::memcpy(&value, at, sizeof value);  // the array need not be aligned
    in_range &= value >= T{0} && static_cast<uint64_t>(value) <= static_cast<uint64_t>(columns);
    length = static_cast<int32_t>(value);
  };
  if (PyBuffer_IsContiguous(&view, 'C')) {
    for (size_t i = 0; i < to.size(); ++i) copy(static_cast<const char*>(view.buf) + i * sizeof(T), to[i]);
  } else {
    size_t i = 0;
    const Broadcast all(view.buf, view.ndim, view.shape, view.strides, view.shape, view.ndim);
    all.for_each(view.ndim, [&](const char* at) { copy(at, to[i++]); });
  }
  return in_range;
}
inline bool copy_lengths(const Py_buffer& view, int64_t columns, std::vector<int32_t>& to) {
  const bool is_unsigned = view.format && std::strchr("BHILQ", view.format[std::strlen(view.format) - 1]);
  switch (view.itemsize) {
    case 1: return is_unsigned ? copy_lengths<uint8_t>(view, columns, to) : copy_lengths<int8_t>(view, columns, to);
    case 2: return is_unsigned ? copy_lengths<uint16_t>(view, columns, to) : copy_lengths<int16_t>(view, columns, to);
    case 4: return is_unsigned ? copy_lengths<uint32_t>(view, columns, to) : copy_lengths<int32_t>(view, columns, to);
    default: return is_unsigned ? copy_lengths<uint64_t>(view, columns, to) : copy_lengths<int64_t>(view, columns, to);
  }
}

// `valid` over logits of `shape` [..., columns]: booleans, or integer lengths that are copied out as int32.
class ValidRows {
 public:
  Status take(nb::handle valid, Masking masking, const Py_ssize_t* shape, int ndim) {
    if (masking == Masking::kNone) return kDone;
    const bool by_length = masking == Masking::kLengths;
    const int64_t columns = shape[ndim - 1];
    array_.emplace(valid, PyBUF_STRIDES | PyBUF_FORMAT);
    const Py_buffer& view = array_->view();
    Broadcast all(view.buf, view.ndim, view.shape, view.strides, shape, by_length ? ndim - 1 : ndim);
    if (!all.possible) return kSelectionShape;
    if (by_length) {
      if (!copy_lengths(view, columns, lengths_)) return kLengthRange;
      Py_ssize_t dense[StridedRows::kMaxDims], step = sizeof(int32_t);
      for (int d = view.ndim - 1; d >= 0; step *= view.shape[d--]) dense[d] = step;
      all = Broadcast(lengths_.data(), view.ndim, view.shape, dense, shape, ndim - 1);
    } else if (columns > 1 && all.stride[ndim - 1] != 1) {
      return kMaskLayout;
    }
    rows = all.rows(ndim - 1);
    return kDone;
  }
  StridedRows rows;

 private:
  std::vector<int32_t> lengths_;
  std::optional<Buffer> array_;
};

}  // namespace hccs::arrays
