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

// One thread of a team, in a run.
class Member {
 public:
  Member(Team& team, int number, int size) : number(number), size(size), team_(team) {}

  // Wait until all have come here. What each wrote before, all see after.
  inline void meet();

  // This member's part of [0, count).
  int from(int count) const { return static_cast<int>(static_cast<int64_t>(count) * number / size); }
  int to(int count) const { return static_cast<int>(static_cast<int64_t>(count) * (number + 1) / size); }

  const int number;
  const int size;

 private:
  friend class Team;
  Team& team_;
  int patience_ = Turn::MOST;
};

// Whoever calls `run` is member 0; the others are threads of the team's own.
class Team {
 public:
  explicit Team(int size) : size_(size), first_(*this, 0, size) {
    try {
      for (int number = 1; number < size; number++) threads_.emplace_back([this, number] { serve(number); });
    } catch (...) {  // there is no thread left; those that there are would end the process with them
      end();
      throw;
    }
  }

  ~Team() { end(); }

  int size() const { return size_; }

  // Every member does the work; returns when all have done it.
  void run(const std::function<void(Member&)>& work) {
    work_ = &work;
    if (size_ > 1) start_.next();
    work(first_);
    first_.meet();
  }

 private:
  friend class Member;

  void end() {
    work_ = nullptr;
    start_.next();
    for (std::thread& thread : threads_) thread.join();
  }

  void serve(int number) {
    Member self(*this, number, size_);
    int patience = Turn::LEAST;  // between runs nobody spins for long
    for (uint32_t seen = 0;; seen++) {
      start_.wait(seen, patience);
      patience = Turn::LEAST;
      if (work_ == nullptr) return;
      (*work_)(self);
      self.meet();
    }
  }

  const int size_;
  const std::function<void(Member&)>* work_ = nullptr;
  Turn start_, together_;
  std::atomic<int> here_{0};
  Member first_;
  std::vector<std::thread> threads_;
};

void Member::meet() {
  if (size == 1) return;
  const uint32_t seen = team_.together_.now();
  if (team_.here_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    team_.here_.store(0, std::memory_order_relaxed);
    team_.together_.next();
  } else {
    team_.together_.wait(seen, patience_);
  }
}
