// As much of Vitis' adf.h as the exported graph names, so that it can be compiled and its kernels run here.
#pragma once

#include <string>
#include <vector>

#include "aie_api/vector.hpp"

#define REGISTER_FUNCTION(f) (void)&f

namespace adf {

template <typename T>
struct buffer {
  T* p;
  T* data() { return p; }
};
template <typename T>
using input_buffer = buffer<T>;
template <typename T>
using output_buffer = buffer<T>;

struct port {};
struct graph {};
struct ratio {};
enum plio_type { plio_64_bits };

struct input_plio {
  port out[1];
  static input_plio create(std::string, plio_type, std::string) { return {}; }
};
struct output_plio {
  port in[1];
  static output_plio create(std::string, plio_type, std::string) { return {}; }
};

struct kernel {
  port in[1], out[1];
  template <typename K>
  static kernel create_object(int first_row) {
    K k(first_row);
    k.registerKernelClass();
    return {};
  }
};

inline std::string source_name;
inline double runtime_ratio;
inline std::vector<unsigned> last_dimensions;
inline std::string& source(kernel&) { return source_name; }
template <typename>
double& runtime(kernel&) {
  return runtime_ratio;
}
inline void connect(port&, port&) {}
inline std::vector<unsigned>& dimensions(port&) { return last_dimensions; }

}  // namespace adf
