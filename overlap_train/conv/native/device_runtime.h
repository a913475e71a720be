// TensorFlow's threads and our scratch memory, as the kernels want them.
#ifndef OVERLAP_TRAIN_CONV_DEVICE_RUNTIME_H_
#define OVERLAP_TRAIN_CONV_DEVICE_RUNTIME_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>

#include "runtime.h"
#include "scratch_pool.h"
#include "shared_work.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/blocking_counter.h"
#include "tensorflow/core/platform/cpu_info.h"

namespace overlap_train::conv {

// How many idle threads may help an operation. Read once: the order of sums depends on it.
inline int MostHelpers() {
  static const int most = [] {
    const char* const wanted = std::getenv("OVERLAP_TRAIN_CONV_HELPERS");
    if (wanted != nullptr && *wanted != '\0') {
      return std::max(0, std::min(63, std::atoi(wanted)));
    }
    // Each adds scratch memory, and terms to the sums of a filter gradient.
    return std::min(7, tensorflow::port::NumSchedulableCPUs() - 1);
  }();
  return most;
}

// How often an idle thread has helped, in this process.
inline std::atomic<std::int64_t>& HelpsAccepted() {
  static std::atomic<std::int64_t> count(0);
  return count;
}

// How many runs of networks a scheduler has going, in this process.
inline std::atomic<int>& Runs() {
  static std::atomic<int> count(0);
  return count;
}

// The threads of one call of one operation: the intra-op pool, or where that has one thread only, the caller
// and those of the threads that run operations which have none to run.
class DeviceRuntime final : public Runtime {
 public:
  // `share`: whether idle threads may help.
  DeviceRuntime(tensorflow::OpKernelContext* c, bool share)
      : pool_(*c->device()->tensorflow_cpu_worker_threads()),
        runner_(c->runner()),
        helpers_(share && runner_ != nullptr && pool_.num_threads == 1 ? MostHelpers() : 0) {}

  int workers() const override { return pool_.num_threads + helpers_; }

  void Parallel(Body& body) override {
    if (helpers_ > 0 && Runs().load(std::memory_order_relaxed) > helpers_) {
      body.Run(0);  // each core has a run of its own, whose data would leave its cache for this one's
    } else if (helpers_ > 0) {
      Offer(body);
    } else {
      Distribute(body);
    }
  }
  void* Acquire(std::size_t bytes) override { return ScratchPool::Get().Acquire(bytes); }
  void Release(void* memory) override { ScratchPool::Get().Release(memory); }

 private:
  // An idle thread accepts at once; a busy one finds the offer between two operations, mostly when it is
  // over. Nobody waits for a thread that has not accepted, so there is no deadlock however few threads there
  // are.
  void Offer(Body& body) {
    const auto work = std::make_shared<SharedWork>(body);
    for (int w = 1; w <= helpers_; ++w) {
      (*runner_)([work, w] {
        if (work->Join(w)) HelpsAccepted().fetch_add(1, std::memory_order_relaxed);
      });
    }
    body.Run(0);
    work->Close();
  }

  // All shares go to the pool while the caller sleeps, as under oneDNN. With one share computed by the
  // caller, calls that followed an operation of oneDNN's often took as long as on one core.
  void Distribute(Body& body) {
    if (pool_.workers->CurrentThreadId() >= 0) {  // a pool thread must not wait for its own pool
      for (int w = 0; w < workers(); ++w) body.Run(w);
      return;
    }
    tensorflow::BlockingCounter left(workers());
    for (int w = 0; w < workers(); ++w) {
      pool_.workers->Schedule([&body, &left, w] {
        body.Run(w);
        left.DecrementCount();
      });
    }
    left.Wait();
  }

  const tensorflow::DeviceBase::CpuWorkerThreads& pool_;
  std::function<void(std::function<void()>)>* const runner_;
  const int helpers_;
};

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_DEVICE_RUNTIME_H_
