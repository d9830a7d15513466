#include "common/interruption.hpp"

namespace hccs {

Interruption::Interruption() : Interruption(nullptr) {}

Interruption::Interruption(Question question) : question_(question), caller_(std::this_thread::get_id()) {}

void Interruption::request() { requested_.store(true, std::memory_order_relaxed); }

bool Interruption::requested() const { return requested_.load(std::memory_order_relaxed); }

bool Interruption::poll() {
  if (requested()) return true;
  if (question_ == nullptr || std::this_thread::get_id() != caller_) return false;
  const Clock::time_point now = Clock::now();
  if (asked_ == Clock::time_point{}) asked_ = now;  // a short call never asks
  if (now - asked_ < kInterval) return false;
  switch (question_()) {
    case Answer::kGoOn: break;
    case Answer::kStop: request(); break;
    case Answer::kNeverAsk: question_ = nullptr; break;
  }
  asked_ = Clock::now();
  return requested();
}

}  // namespace hccs
