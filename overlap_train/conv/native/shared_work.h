// Work that one thread does and others may join, if they come before its end.
#ifndef OVERLAP_TRAIN_CONV_SHARED_WORK_H_
#define OVERLAP_TRAIN_CONV_SHARED_WORK_H_

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
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closed_) return false;
      ++joined_;
    }
    body_->Run(worker);
    std::lock_guard<std::mutex> lock(mutex_);
    if (--joined_ == 0) done_.notify_all();
    return true;
  }

  // Lets nobody else in and waits for those who are.
  void Close() {
    std::unique_lock<std::mutex> lock(mutex_);
    closed_ = true;
    done_.wait(lock, [this] { return joined_ == 0; });
  }

 private:
  Runtime::Body* const body_;
  std::mutex mutex_;
  std::condition_variable done_;
  int joined_ = 0;
  bool closed_ = false;
};

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_SHARED_WORK_H_
