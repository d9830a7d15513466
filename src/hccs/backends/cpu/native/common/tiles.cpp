#include "common/tiles.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace hccs {

bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  unsigned a, b, c, d;
  constexpr unsigned kSavedByTheSystem = 1u << 27, kTileUnit = 1u << 24, kByteProducts = 1u << 25;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kSavedByTheSystem)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTileUnit) || !(d & kByteProducts)) return false;
  // The system, or the hypervisor below it, must have switched on the state of tiles: its configuration and its data.
  constexpr unsigned kTileState = 3u << 17;
  unsigned enabled, upper;
  asm volatile("xgetbv" : "=a"(enabled), "=d"(upper) : "c"(0));
  if ((enabled & kTileState) != kTileState) return false;
  // Of the whole process, and of threads that it starts; asking again is allowed.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace hccs
