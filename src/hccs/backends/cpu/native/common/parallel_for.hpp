// Work over threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "common/interruption.hpp"

namespace hccs {

// Calls part(i) for i = 0..parts-1 on up to `threads` threads, this one among them, until all are done or the
// interruption is requested. Each thread takes the next part that is left; so a thread that cannot be had is not
// missed. An exception of a part ends the work and is thrown here, once every thread has been joined.
template <class Part>
void parallel_for(int64_t parts, int64_t threads, Interruption& interruption, const Part& part) {
  if (parts == 1) return part(0);
  std::atomic<int64_t> next = 0;
  std::mutex mutex;  // of what follows
  std::condition_variable ended;
  int64_t running = 0;
  std::exception_ptr failure;

  const auto take_parts = [&]() noexcept {
    try {
      while (!interruption.poll()) {
        const int64_t i = next++;
        if (i >= parts) break;
        part(i);
      }
    } catch (...) {
      const std::scoped_lock lock(mutex);
      next = parts;
      if (!failure) failure = std::current_exception();
    }
  };
  const auto work = [&]() noexcept {
    take_parts();
    const std::scoped_lock lock(mutex);
    if (--running == 0) ended.notify_one();
  };

  std::vector<std::thread> workers;
  workers.reserve(std::min(parts, threads));
  while (static_cast<int64_t>(workers.size()) + 1 < threads && next < parts) {
    {
      const std::scoped_lock lock(mutex);
      ++running;
    }
    try {
      workers.emplace_back(work);
    } catch (const std::exception&) {  // neither a thread nor memory for one is left: those there are do the work
      const std::scoped_lock lock(mutex);
      --running;
      break;
    }
  }
  take_parts();
  {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, Interruption::kInterval, [&] { return running == 0; })) {
      lock.unlock();
      interruption.poll();
      lock.lock();
    }
  }
  for (std::thread& worker : workers) worker.join();
  if (failure) std::rethrow_exception(failure);
}

// Rows shared evenly between threads, and each share cut into parts of about `at_once` rows, between which an
// interruption is seen. Parts are multiples of `block` rows, so that only the last meets an incomplete block.
struct RowParts {
  RowParts(int64_t rows, int64_t block, int64_t threads, int64_t at_once) : rows_(rows) {
    const int64_t blocks = (rows + block - 1) / block, share = (blocks + threads - 1) / threads;
    const int64_t pieces = std::max<int64_t>((share * block + at_once - 1) / at_once, 1);
    each_ = block * ((share + pieces - 1) / pieces);
  }
  int64_t count() const { return (rows_ + each_ - 1) / each_; }
  int64_t begin(int64_t part) const { return part * each_; }
  int64_t end(int64_t part) const { return std::min((part + 1) * each_, rows_); }

 private:
  int64_t rows_, each_;
};

}  // namespace hccs
