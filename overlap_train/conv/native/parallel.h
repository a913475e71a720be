// Loops over tasks on the runtime's workers.
#ifndef OVERLAP_TRAIN_CONV_PARALLEL_H_
#define OVERLAP_TRAIN_CONV_PARALLEL_H_

#include "runtime.h"
#include "simd.h"
#include "streaming.h"

namespace overlap_train::conv::OT_ISA {

// Calls body(task, worker) for each task in [0, tasks). A free worker takes the next task, so a core that the
// machine lends to somebody else does not hold up the rest.
template <class F>
void ForEachTask(Runtime& runtime, Index tasks, const F& body) {
  struct Loop final : Runtime::Body {
    const F& body;
    const Index tasks;
    Index next = 0;
    Loop(const F& f, Index n) : body(f), tasks(n) {}
    void Run(int worker) override {
      for (;;) {
        const Index task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
        if (task >= tasks) break;
        body(task, worker);
      }
      FinishStreams();
    }
  };
  if (tasks <= 0) return;
  Loop loop(body, tasks);
  if (tasks == 1 || runtime.workers() == 1) {
    loop.Run(0);
  } else {
    runtime.Parallel(loop);
  }
}

// Scratch for T, given back at the end of its scope. Rows of it start on lines of their own.
template <class T>
class Scratch {
 public:
  Scratch(Runtime& runtime, Index count)
      : runtime_(runtime),
        data_(static_cast<T*>(runtime.Acquire(static_cast<std::size_t>(count) * sizeof(T)))) {}
  ~Scratch() {
    if (data_ != nullptr) runtime_.Release(data_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  explicit operator bool() const { return data_ != nullptr; }
  T* get() const { return data_; }

 private:
  Runtime& runtime_;
  T* data_;
};

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_PARALLEL_H_
