// The most byte products per second that a core's VNNI unit gives, and its AMX unit: sums in registers, nothing loaded
// or stored.
#include <chrono>
#include <cstdint>

extern "C" double products_per_second() {
  const long rounds = 100000;
  long left = rounds;
  const auto start = std::chrono::steady_clock::now();
#define HCCS_DOT(sums) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #sums "\n"
  asm volatile("1:\n" HCCS_DOT(0) HCCS_DOT(1) HCCS_DOT(2) HCCS_DOT(3) HCCS_DOT(4) HCCS_DOT(5) HCCS_DOT(6) HCCS_DOT(7)
                   HCCS_DOT(8) HCCS_DOT(9) HCCS_DOT(10) HCCS_DOT(11) HCCS_DOT(12) HCCS_DOT(13) HCCS_DOT(14)
                       HCCS_DOT(15) "dec %0\njnz 1b\n"
               : "+r"(left)
               :
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                 "xmm12", "xmm13", "xmm14", "xmm15");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return rounds * 16 * 64 / seconds.count();
}

// For a process that may use tiles, as hccs has seen to where it uses them.
extern "C" double tile_products_per_second() {
  struct alignas(64) {
    uint8_t palette = 1, reserved[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const shapes;
  const long rounds = 100000;
  long left = rounds;
  asm volatile("ldtilecfg %0" : : "m"(shapes));
  const auto start = std::chrono::steady_clock::now();
  asm volatile(
      "1:\ntdpbusd %%tmm7, %%tmm6, %%tmm0\ntdpbusd %%tmm7, %%tmm6, %%tmm1\ntdpbusd %%tmm7, %%tmm6, %%tmm2\n"
      "tdpbusd %%tmm7, %%tmm6, %%tmm3\ndec %0\njnz 1b\n"
      : "+r"(left)
      :
      : "cc");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  asm volatile("tilerelease");
  return rounds * 4 * 16 * 16 * 64 / seconds.count();
}
