// What the kernels need from their surroundings: threads and scratch memory. TensorFlow's kernels lend both
// (cpu_kernels.cc); the C++ tests bring their own.
#ifndef OVERLAP_TRAIN_CONV_RUNTIME_H_
#define OVERLAP_TRAIN_CONV_RUNTIME_H_

#include <cstddef>

#include "geometry.h"

namespace overlap_train::conv {

// Virtual calls only, and no standard library: this header is compiled once for each instruction set, and an
// inline function compiled for AVX-512 must never become the linker's copy for a CPU without it.
class Runtime {
 public:
  // A piece of work; `worker` is in [0, workers) and names private scratch, not a thread.
  class Body {
   public:
    virtual void Run(int worker) = 0;

   protected:
    ~Body() = default;
  };

  virtual int workers() const = 0;
  // Calls body.Run(0) once and that of each other worker at most once, on any threads and in any order, and
  // returns when all that have begun are done. Run(0) alone must complete the work, and no call may wait for
  // another.
  virtual void Parallel(Body& body) = 0;
  // At least `bytes`, aligned to a page, contents undefined; null when there is no memory. Called only by the
  // thread that called the kernel.
  virtual void* Acquire(std::size_t bytes) = 0;
  virtual void Release(void* memory) = 0;

 protected:
  ~Runtime() = default;
};

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_RUNTIME_H_
