// Runs CUDA kernels on the CPU: enough of CUDA's language for our kernels, one fiber for each thread of a
// block, blocks one after the other. It finds what CUDA leaves undefined in the use of shared memory and of
// barriers (Fault), and says nothing about speed, and nothing about races between blocks.
//
// It models sm_80 and newer, where copies into shared memory are asynchronous: what holds there holds before.
#ifndef OVERLAP_TRAIN_CONV_CUDA_EMULATOR_H_
#define OVERLAP_TRAIN_CONV_CUDA_EMULATOR_H_

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cuda_index.h"

#define __global__ inline
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace overlap_train::conv::emulator {

enum class Fault {
  kNone,
  kUninitialised,  // shared memory read that nobody in this block has written
  kBeyondTile,     // an index outside the tile or the part that was named
  kRace,           // two threads touch one element between two barriers, and one of them writes
  kMissingWait,    // an element touched, or a block ended, while its asynchronous copy is under way
  kDivergence,     // a barrier that some threads of the block, or of the warp, do not reach
  kMisaligned,     // several floats at once where the first is not aligned to all of them
};

inline const char* NameOf(Fault fault) {
  constexpr const char* kNames[] = {"no fault",     "uninitialised shared memory", "beyond the tile", "race",
                                    "missing wait", "divergent barrier",           "misaligned"};
  return kNames[static_cast<int>(fault)];
}

// What has been found since the last Clear. A missing barrier often shows twice: as words that the first
// threads read too early, uninitialised, and as a race with whoever writes them then.
struct Findings {
  int count = 0;
  Fault first = Fault::kNone;
  std::string messages[7];  // the first of each kind

  std::string All() const {
    std::string all;
    for (const std::string& message : messages) all += message.empty() ? "" : "\n  " + message;
    return std::to_string(count) + " times:" + all;
  }
};
inline Findings findings;

inline void Clear() { findings = {}; }

inline void Report(Fault fault, const std::string& what) {
  if (findings.count++ == 0) findings.first = fault;
  std::string& message = findings.messages[static_cast<int>(fault)];
  if (!message.empty()) return;
  char where[96];
  std::snprintf(where, sizeof where, ", thread %u of block (%u, %u, %u)", threadIdx.x, blockIdx.x, blockIdx.y,
                blockIdx.z);
  message = std::string(NameOf(fault)) + ": " + what + where;
}

inline bool Within(Index i, Index n) {
  if (i >= 0 && i < n) return true;
  Report(Fault::kBeyondTile, "element " + std::to_string(i) + " of " + std::to_string(n));
  return false;
}

inline void MustBeAligned(const float* address, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes == 0) return;
  Report(Fault::kMisaligned, "global memory");
}

enum class State { kReady, kAtBarrier, kAtWarp, kDone };

struct Copy {
  void (*finish)(void* element, float value);
  void* element;
  float value;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  State state = State::kReady;
  int line = 0;                           // of the barrier at which it waits
  std::vector<Copy> queued;               // copies of no group yet
  std::vector<std::vector<Copy>> groups;  // oldest first
};

inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline const std::function<void()>* body = nullptr;
inline unsigned block = 0;     // counts blocks, so that an element knows whether this one wrote it
inline unsigned interval = 0;  // counts barriers

inline void Enter(int thread) {
  (*body)();
  fibers[thread].state = State::kDone;
}

// Back to the scheduler, which goes on with this thread when those that it waits for have come.
inline void Wait(State state, int line) {
  const unsigned thread = threadIdx.x;
  fibers[thread].state = state;
  fibers[thread].line = line;
  swapcontext(&fibers[thread].context, &scheduler);
}

inline void Prepare(unsigned threads) {
  ++block;
  fibers.resize(threads);
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    fiber.state = State::kReady;
    fiber.line = 0;
    fiber.queued.clear();
    fiber.groups.clear();
    fiber.stack.resize(64 << 10);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(Enter), 1, static_cast<int>(t));
  }
}

// Whether threads [begin, end) are all where the first of them is; says so if not.
inline bool Together(unsigned begin, unsigned end, const char* what) {
  for (unsigned t = begin; t < end; ++t) {
    if (fibers[t].state == fibers[begin].state && fibers[t].line == fibers[begin].line) continue;
    threadIdx.x = t;
    Report(Fault::kDivergence, std::string(what) + ", lines " + std::to_string(fibers[begin].line) + " and " +
                                   std::to_string(fibers[t].line));
    return false;
  }
  return true;
}

// Lets go on whoever may: warps at a warp's operation first, then the block at a barrier. False if nobody
// can.
inline bool Release(unsigned threads) {
  bool released = false;
  for (unsigned warp = 0; warp < threads; warp += 32) {
    const unsigned end = std::min(warp + 32, threads);
    const auto waits = [](const Fiber& fiber) { return fiber.state == State::kAtWarp; };
    if (std::none_of(&fibers[warp], &fibers[warp] + (end - warp), waits)) continue;
    if (!Together(warp, end, "a warp's operation that not all its threads reach")) return false;
    for (unsigned t = warp; t < end; ++t) fibers[t].state = State::kReady;
    released = true;
  }
  if (released) return true;
  if (!Together(0, threads, "a barrier that not all threads reach")) return false;
  if (fibers[0].state == State::kDone) return false;
  ++interval;
  for (Fiber& fiber : fibers) fiber.state = State::kReady;
  return true;
}

inline void RunBlock(unsigned threads) {
  Prepare(threads);
  ++interval;
  do {
    for (unsigned t = 0; t < threads; ++t) {
      if (fibers[t].state != State::kReady) continue;
      threadIdx.x = t;
      swapcontext(&scheduler, &fibers[t].context);
    }
  } while (Release(threads));
  for (unsigned t = 0; t < threads; ++t) {
    if (fibers[t].state != State::kDone || (fibers[t].queued.empty() && fibers[t].groups.empty())) continue;
    threadIdx.x = t;
    Report(Fault::kMissingWait, "the block ends with copies under way");
  }
}

// How large dynamic shared memory is in the kernel that runs.
inline std::size_t dynamic_floats = 0;

// Whether to run the last block of each grid alone, as for tensors too large to be filled.
inline bool last_block_only = false;

inline void Launch(dim3 grid, unsigned threads, std::size_t shared_bytes,
                   const std::function<void()>& kernel) {
  gridDim = grid;
  blockDim = {threads, 1, 1};
  body = &kernel;
  dynamic_floats = shared_bytes / sizeof(float);
  if (last_block_only) {
    blockIdx = {grid.x - 1, grid.y - 1, grid.z - 1};
    return RunBlock(threads);
  }
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) RunBlock(threads);
}

}  // namespace overlap_train::conv::emulator

inline void __syncthreads(int line = __builtin_LINE()) {
  using namespace overlap_train::conv::emulator;
  Wait(State::kAtBarrier, line);
}

#endif  // OVERLAP_TRAIN_CONV_CUDA_EMULATOR_H_
