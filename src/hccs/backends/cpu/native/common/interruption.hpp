// Whether a call is to end before its work is done.
//
// The thread that called asks now and then, between two blocks of work; the threads that it started are told. Nothing
// is inline: kernels compiled for other instruction sets include this, for the reason given in softmax/rows.hpp.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace hccs {

class Interruption {
 public:
  enum class Answer { kGoOn, kStop, kNeverAsk };
  // Asked on the thread that made the interruption, and not more often than every kInterval. Must not throw.
  using Question = Answer (*)();
  static constexpr std::chrono::milliseconds kInterval{50};

  Interruption();  // ends only when requested
  explicit Interruption(Question question);

  void request();
  bool requested() const;

  // Between two blocks, on any thread: whether to stop here. Reads the clock: not for every few microseconds.
  bool poll();

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<bool> requested_ = false;
  Question question_;
  const std::thread::id caller_;
  Clock::time_point asked_{};  // the epoch: not yet
};

}  // namespace hccs
