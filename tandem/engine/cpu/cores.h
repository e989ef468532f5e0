// The cores of a machine, shared by its stages: who computes alone has all of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

// Each stage has a byte in memory that all of them map: 1 while it computes. Pipelines take turns, so a fixed part for
// each stage would leave cores idle; and threads of two stages on one core wait for each other at every step of a layer.
class Cores {
 public:
  // `bytes` is null for a stage that shares with nobody.
  Cores(int threads, int cores, std::atomic<uint8_t>* bytes, int stages, int own)
      : threads_(threads), cores_(cores), bytes_(bytes), stages_(stages), own_(own) {}

  void computes(bool now) const {
    if (bytes_) bytes_[own_].store(now, std::memory_order_relaxed);
  }

  // How many threads to compute with, now. The parts of all that compute differ by one at most.
  int part() const {
    if (!bytes_) return threads_;
    int computing = 0, before = 0;
    for (int stage = 0; stage < stages_; stage++)
      if (stage == own_ || bytes_[stage].load(std::memory_order_relaxed)) {
        before += stage < own_;
        computing++;
      }
    return std::clamp(cores_ * (before + 1) / computing - cores_ * before / computing, 1, threads_);
  }

 private:
  const int threads_, cores_;
  std::atomic<uint8_t>* const bytes_;
  const int stages_, own_;
};
