// The threads of one stage. They sleep between runs, and spin only briefly where they wait for each other.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <functional>
#include <thread>
#include <vector>

// A number that threads wait for to change. Waiting spins for a while, which is cheap while every thread has a core,
// and sleeps when that was in vain. Who had to sleep spins less the next time: where others have the cores, a thread
// that spins keeps the one from running that it waits for.
class Turn {
 public:
  uint32_t now() const { return value_.load(std::memory_order_acquire); }

  void next() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst)) call(FUTEX_WAKE_PRIVATE, INT_MAX);
  }

  // Wait until it is no longer `seen`. `patience` is the caller's own, in turns of the spinning loop.
  void wait(uint32_t seen, int& patience) {
    for (int spin = 0; spin < patience; spin++) {
      if (now() != seen) {
        patience = std::min(patience * 2, MOST);
        return;
      }
      __builtin_ia32_pause();
    }
    patience = std::max(patience / 2, LEAST);
    asleep_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == seen) call(FUTEX_WAIT_PRIVATE, seen);
    asleep_.fetch_sub(1, std::memory_order_seq_cst);
  }

  static constexpr int MOST = 4096, LEAST = 16;

 private:
  void call(int what, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), what, value, nullptr, nullptr, 0);
  }

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> asleep_{0};
};

class Team;

// One thread of a team.
class Member {
 public:
  Member(Team& team, int number) : number(number), team_(team) {}

  // How many are in this run.
  inline int size() const;

  // Wait until all have come here. What each wrote before, all see after.
  inline void meet();

  // This member's part of [0, count).
  int from(int count) const { return static_cast<int>(static_cast<int64_t>(count) * number / size()); }
  int to(int count) const { return static_cast<int>(static_cast<int64_t>(count) * (number + 1) / size()); }

  const int number;

 private:
  friend class Team;
  Team& team_;
  int patience_ = Turn::MOST;
};

// Whoever calls `run` is member 0; the others are threads of the team's own.
class Team {
 public:
  explicit Team(int most) : starts_(most), first_(*this, 0) {
    try {
      for (int number = 1; number < most; number++) threads_.emplace_back([this, number] { serve(number); });
    } catch (...) {  // there is no thread left; those that there are would end the process with them
      end();
      throw;
    }
  }

  ~Team() { end(); }

  // The first `size` members do the work; returns when they have done it. The others sleep on. `more`: another run
  // follows at once, so it is worth a while of waiting awake.
  void run(int size, bool more, const std::function<void(Member&)>& work) {
    work_ = &work;
    size_ = size;
    more_ = more;
    for (int number = 1; number < size; number++) starts_[number].next();
    work(first_);
    first_.meet();
  }

 private:
  friend class Member;

  void end() {
    work_ = nullptr;
    for (Turn& start : starts_) start.next();
    for (std::thread& thread : threads_) thread.join();
  }

  void serve(int number) {
    Member self(*this, number);
    int patience = Turn::LEAST;
    for (uint32_t seen = 0;; seen++) {
      starts_[number].wait(seen, patience);
      if (work_ == nullptr) return;
      const bool more = more_;  // of this run: once all have met, it is the next one's
      (*work_)(self);
      self.meet();
      patience = more ? self.patience_ : Turn::LEAST;
    }
  }

  const std::function<void(Member&)>* work_ = nullptr;
  int size_ = 1;
  bool more_ = false;
  std::vector<Turn> starts_;  // of each member; member 0 needs none
  Turn together_;
  std::atomic<int> here_{0};
  Member first_;
  std::vector<std::thread> threads_;
};

int Member::size() const { return team_.size_; }

void Member::meet() {
  const int all = size();  // the next run may have another: once this one is here, it may begin
  if (all == 1) return;
  const uint32_t seen = team_.together_.now();
  if (team_.here_.fetch_add(1, std::memory_order_acq_rel) + 1 == all) {
    team_.here_.store(0, std::memory_order_relaxed);
    team_.together_.next();
  } else {
    team_.together_.wait(seen, patience_);
  }
}
