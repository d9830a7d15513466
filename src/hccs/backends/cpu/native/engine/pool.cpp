#include "engine/pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <thread>

namespace hccs {
namespace {

constexpr int kSpins = 2000;  // some 50 microseconds

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition>
bool spin_until(const Condition& holds) {
  for (int i = 0; i < kSpins; ++i) {
    if (holds()) return true;
    relax();
  }
  return false;
}

// Those who work on one call.
class Team {
 public:
  Team(PhasedWork& work, Interruption& interruption) : work_(work), interruption_(interruption) { open(0); }

  // Takes parts until none of any phase is left.
  void work(int worker) noexcept {
    for (;;) {
      const uint64_t ticket = ticket_.fetch_add(1);
      const auto phase = static_cast<int64_t>(ticket >> kPhaseShift);
      const auto part = static_cast<int64_t>(ticket & kPartMask);
      if (phase == work_.phases()) return;
      if (part >= work_.parts(phase)) {
        wait_for_phase_after(phase);
        continue;
      }
      if (!interruption_.poll()) work_.run(phase, part, worker);
      if (left_.fetch_sub(1) == 1) open(phase + 1);
    }
  }

  // Of the pool, under its mutex.
  int wanted = 0;       // threads that may still join
  int next_worker = 1;  // the number of the next that does
  int inside = 0;       // threads that joined and have not left

 private:
  // One number says which phase is open and which of its parts comes next: a thread that is late by a phase cannot
  // take a part of one for a part of the other.
  static constexpr int kPhaseShift = 32;
  static constexpr uint64_t kPartMask = 0xffffffff;

  void open(int64_t phase) {
    while (phase < work_.phases() && work_.parts(phase) == 0) ++phase;
    left_ = phase < work_.phases() ? work_.parts(phase) : 0;
    ticket_ = static_cast<uint64_t>(phase) << kPhaseShift;
    if (sleepers_ == 0) return;
    {
      const std::scoped_lock lock(mutex_);
    }
    opened_.notify_all();
  }
  bool is_over(int64_t phase) const { return static_cast<int64_t>(ticket_ >> kPhaseShift) != phase; }
  void wait_for_phase_after(int64_t phase) {
    const auto over = [&] { return is_over(phase); };
    if (spin_until(over)) return;
    std::unique_lock lock(mutex_);
    ++sleepers_;
    while (!opened_.wait_for(lock, Interruption::kInterval, over)) {
      lock.unlock();
      interruption_.poll();  // the caller's thread hears of signals while others work on
      lock.lock();
    }
    --sleepers_;
  }

  PhasedWork& work_;
  Interruption& interruption_;
  std::atomic<uint64_t> ticket_;
  std::atomic<int64_t> left_;
  std::atomic<int> sleepers_ = 0;
  std::mutex mutex_;
  std::condition_variable opened_;
};

class Pool {
 public:
  void run(Team& team, int others) {
    {
      const std::scoped_lock lock(mutex_);
      start(others);
      team.wanted = std::min(others, threads_);
      if (team.wanted > 0) {
        offers_.push_back(&team);
        ++offered_;
      }
    }
    others == 1 ? arrived_.notify_one() : arrived_.notify_all();
    team.work(0);
    std::unique_lock lock(mutex_);
    withdraw(team);
    left_.wait(lock, [&] { return team.inside == 0; });
  }

 private:
  void start(int wanted) {
    for (; threads_ < wanted; ++threads_) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::exception&) {  // none is left: those there are do the work
        return;
      }
    }
  }
  void withdraw(Team& team) {
    const auto found = std::find(offers_.begin(), offers_.end(), &team);
    if (found == offers_.end()) return;
    offers_.erase(found);
    --offered_;
  }
  [[noreturn]] void serve() {
    for (;;) {
      spin_until([&] { return offered_ > 0; });
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return !offers_.empty(); });
      Team& team = *offers_.front();
      const int worker = team.next_worker++;
      ++team.inside;
      if (--team.wanted == 0) withdraw(team);
      lock.unlock();
      team.work(worker);
      lock.lock();
      if (--team.inside == 0) left_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_, left_;
  std::deque<Team*> offers_;  // that want more threads
  std::atomic<int> offered_ = 0;
  int threads_ = 0;
};

// Never destroyed: its threads run until the process ends.
std::atomic<Pool*> the_pool = nullptr;
[[maybe_unused]] const int watched = pthread_atfork(nullptr, nullptr, [] { the_pool = nullptr; });

Pool& pool() {
  Pool* found = the_pool;
  if (found) return *found;
  auto* const made = new Pool;
  if (the_pool.compare_exchange_strong(found, made)) return *made;
  delete made;  // another thread was sooner
  return *found;
}

}  // namespace

void run_phases(PhasedWork& work, int threads, Interruption& interruption) {
  int64_t most = 1;
  for (int64_t phase = 0; phase < work.phases(); ++phase) most = std::max(most, work.parts(phase));
  const int others = static_cast<int>(std::min<int64_t>(most, threads)) - 1;
  if (others > 0) {
    Team team(work, interruption);
    pool().run(team, others);
    return;
  }
  for (int64_t phase = 0; phase < work.phases(); ++phase)
    for (int64_t part = 0; part < work.parts(phase) && !interruption.poll(); ++part) work.run(phase, part, 0);
}

}  // namespace hccs
