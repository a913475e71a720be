// Runs CUDA kernels on the CPU: enough of CUDA's language for cuda_kernels.h, one fiber for each thread of a
// block, blocks one after the other. It checks indices, barriers and what is read from shared memory; it says
// nothing about speed, and nothing about races between blocks.
#ifndef OVERLAP_TRAIN_CONV_CUDA_EMULATOR_H_
#define OVERLAP_TRAIN_CONV_CUDA_EMULATOR_H_

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "cuda_index.h"

#define __global__ inline
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)
#define OT_DYNAMIC_SHARED(type, name) \
  type* const name = reinterpret_cast<type*>(emulator::dynamic_shared.data())

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace overlap_train::conv::emulator {

inline std::vector<char> dynamic_shared;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
};

inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline const std::function<void()>* body = nullptr;

inline void Enter(int thread) {
  (*body)();
  fibers[thread].done = true;
}

// Back to the scheduler; it goes on when every thread of the block has come here.
inline void Barrier() {
  const unsigned thread = threadIdx.x;
  swapcontext(&fibers[thread].context, &scheduler);
}

inline void RunBlock(unsigned threads) {
  // Shared memory starts undefined: NaN makes a read before a write visible.
  std::memset(dynamic_shared.data(), 0xff, dynamic_shared.size());
  fibers.resize(threads);
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    fiber.done = false;
    fiber.stack.resize(64 << 10);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(Enter), 1, static_cast<int>(t));
  }
  for (unsigned running = threads; running > 0;) {
    unsigned finished = 0;
    for (unsigned t = 0; t < threads; ++t) {
      if (fibers[t].done) continue;
      threadIdx.x = t;
      swapcontext(&scheduler, &fibers[t].context);
      finished += fibers[t].done;
    }
    if (finished != 0 && finished != running) {
      std::fprintf(stderr, "emulator: some threads of a block ended while others wait at a barrier\n");
      std::abort();
    }
    running -= finished;
  }
}

inline void Launch(dim3 grid, unsigned threads, std::size_t shared_bytes,
                   const std::function<void()>& kernel) {
  gridDim = grid;
  blockDim = {threads, 1, 1};
  body = &kernel;
  dynamic_shared.resize(shared_bytes);
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) RunBlock(threads);
}

}  // namespace overlap_train::conv::emulator

inline void __syncthreads() { overlap_train::conv::emulator::Barrier(); }
inline void atomicAdd(float* to, float value) { *to += value; }

namespace overlap_train::conv {

// The tensor cores' product: lanes put their fragments together, and each takes its own of the result. The
// whole block calls it at once. Products are not rounded to TF32.
inline void MultiplyTf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  static float left[32][16][8], right[32][8][8];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int i = 0; i < 4; ++i) left[warp][FragmentRowA(lane, i)][FragmentDepthA(lane, i)] = a[i];
  for (int i = 0; i < 2; ++i) right[warp][FragmentDepthB(lane, i)][FragmentColumnB(lane)] = b[i];
  __syncthreads();
  for (int i = 0; i < 4; ++i) {
    for (int d = 0; d < 8; ++d) {
      c[i] += left[warp][FragmentRowC(lane, i)][d] * right[warp][d][FragmentColumnC(lane, i)];
    }
  }
  __syncthreads();
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_EMULATOR_H_
