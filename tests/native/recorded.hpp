// Arrays of a file of recorded cases, one after the other.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

template <class T>
std::vector<T> read_array(std::FILE* file, int64_t count) {
  std::vector<T> values(count);
  if (count && std::fread(values.data(), sizeof(T), count, file) != static_cast<size_t>(count)) std::abort();
  return values;
}
