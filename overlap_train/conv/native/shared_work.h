// Work that one thread does and others may join, if they come before its end.
#ifndef OVERLAP_TRAIN_CONV_SHARED_WORK_H_
#define OVERLAP_TRAIN_CONV_SHARED_WORK_H_

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "runtime.h"

namespace overlap_train::conv {

// Thread-safe. Outlives the work itself for those who come too late; the body does not.
class SharedWork {
 public:
  explicit SharedWork(Runtime::Body& body) : body_(&body) {}
  SharedWork(const SharedWork&) = delete;
  SharedWork& operator=(const SharedWork&) = delete;

  // Takes part as `worker`, unless the work has been closed; returns whether it did.
  bool Join(int worker) {
    int state = state_.load(std::memory_order_relaxed);
    do {
      if ((state & kClosed) != 0) return false;
    } while (!state_.compare_exchange_weak(state, state + kOne, std::memory_order_acquire));
    body_->Run(worker);
    if (state_.fetch_sub(kOne, std::memory_order_acq_rel) == kClosed + kOne) {
      std::lock_guard<std::mutex> lock(mutex_);
      done_.notify_one();
    }
    return true;
  }

  // Lets nobody else in and waits for those who are. One thread only.
  void Close() {
    if (state_.fetch_or(kClosed, std::memory_order_acq_rel) == 0) return;
    // They are in the middle of a task, of some tens of microseconds; to sleep and to be woken takes as long.
    for (int i = 0; i < kSpins; ++i, Pause()) {
      if (state_.load(std::memory_order_acquire) == kClosed) return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return state_.load(std::memory_order_acquire) == kClosed; });
  }

 private:
  static constexpr int kClosed = 1, kOne = 2;  // the lowest bit, and one who has joined, in state_
  static constexpr int kSpins = 1000;

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  Runtime::Body* const body_;
  std::atomic<int> state_{0};
  std::mutex mutex_;
  std::condition_variable done_;
};

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_SHARED_WORK_H_
