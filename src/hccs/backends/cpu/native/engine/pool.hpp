// Threads that start once, when work for them first comes, and wait for more.
//
// Handing over work costs them a few microseconds while they still spin, and one wake-up when they sleep; starting a
// thread for every call would cost ten times that. A forked child has none of its parent's threads and starts its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "common/interruption.hpp"

namespace hccs {

// Work in phases of parts: a phase begins once every part of the one before has ended.
class PhasedWork {
 public:
  virtual ~PhasedWork() = default;
  virtual int64_t phases() const = 0;
  virtual int64_t parts(int64_t phase) const = 0;
  // On any thread; `worker` is one number per thread, below the number of threads asked for.
  virtual void run(int64_t phase, int64_t part, int worker) noexcept = 0;
};

// Runs the work on up to `threads` threads, this one, worker 0, among them. Threads that come late or cannot be had are
// not missed: each takes the next part that is left. When the interruption is requested, the parts left are skipped.
void run_phases(PhasedWork& work, int threads, Interruption& interruption);

}  // namespace hccs
