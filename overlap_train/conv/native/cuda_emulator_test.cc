// Checks that the emulator finds what it says it finds: kernels that are wrong on purpose, each in one way.
#include <cmath>
#include <limits>
#include <string>

#include "cuda_language.h"
#include "expect.h"

namespace overlap_train::conv {
namespace {

using emulator::Fault;

// Runs one block of `threads`, and expects one kind of finding.
template <class Kernel>
void ExpectFault(Fault fault, const char* what, const Kernel& kernel, unsigned threads = 64) {
  emulator::Clear();
  emulator::Launch({}, threads, threads * sizeof(float), kernel);
  Expect(emulator::findings.first == fault, std::string(what) + ": expected " + emulator::NameOf(fault) +
                                                ", got " + emulator::NameOf(emulator::findings.first) + " " +
                                                emulator::findings.All());
  emulator::Clear();
}

alignas(16) float source[1024], stored[1024];
volatile float sink;

void TestSharedMemory() {
  ExpectFault(Fault::kNone, "a word for each thread, and its neighbour's after a barrier", [] {
    OT_DYNAMIC_SHARED(shared);
    shared[threadIdx.x] = 1;
    __syncthreads();
    sink = shared[(threadIdx.x + 1) % 64];
  });
  ExpectFault(Fault::kUninitialised, "a word that nobody has written", [] {
    OT_DYNAMIC_SHARED(shared);
    if (threadIdx.x > 0) shared[threadIdx.x] = 1;
    __syncthreads();
    sink = shared[(threadIdx.x + 1) % 64];
  });
  const auto leftover = [] {
    __shared__ SharedTile<1, 64> tile;
    if (blockIdx.x == 0) tile.At(0, threadIdx.x) = 1;
    sink = tile.At(0, threadIdx.x);
  };
  emulator::Clear();
  emulator::Launch({2, 1, 1}, 64, 0, leftover);
  Expect(emulator::findings.first == Fault::kUninitialised, "a word that the block before has left");
  ExpectFault(Fault::kBeyondTile, "a part of shared memory read beyond its end", [] {
    OT_DYNAMIC_SHARED(shared);
    const auto first = SharedPart(shared, 0, 32), second = SharedPart(shared, 32, 32);
    (threadIdx.x < 32 ? first : second)[threadIdx.x % 32] = 1;
    __syncthreads();
    sink = first[threadIdx.x];
  });
  ExpectFault(Fault::kBeyondTile, "the next row of a tile", [] {
    __shared__ SharedTile<2, 60> tile;
    tile.At(0, threadIdx.x) = 1;
  });
  ExpectFault(Fault::kBeyondTile, "a part larger than what was asked for", [] {
    OT_DYNAMIC_SHARED(shared);
    SharedPart(shared, 32, 64);
  });
}

void TestRaces() {
  ExpectFault(Fault::kRace, "a read of what another thread has just written", [] {
    OT_DYNAMIC_SHARED(shared);
    shared[threadIdx.x] = 1;
    if (threadIdx.x > 0) sink = shared[threadIdx.x - 1];
  });
  ExpectFault(Fault::kRace, "a write to what another thread has just read", [] {
    OT_DYNAMIC_SHARED(shared);
    shared[threadIdx.x] = 1;
    __syncthreads();
    sink = shared[(threadIdx.x + 1) % 64];
    shared[threadIdx.x] = 2;
  });
  ExpectFault(Fault::kRace, "two writes to one word", [] {
    OT_DYNAMIC_SHARED(shared);
    shared[threadIdx.x / 2] = 1;
  });
  ExpectFault(Fault::kNone, "a word that all read", [] {
    OT_DYNAMIC_SHARED(shared);
    if (threadIdx.x == 0) shared[0] = 1;
    __syncthreads();
    sink = shared[0];
  });
}

// A copy by each thread of one word, of which the next thread reads it: `step` says what comes between.
template <class Step>
void ExpectOfCopy(Fault fault, const char* what, const Step& step) {
  ExpectFault(fault, what, [&] {
    OT_DYNAMIC_SHARED(shared);
    CopyAsync<1>(shared, threadIdx.x, source, threadIdx.x, true);
    step();
    if (threadIdx.x > 0) sink = shared[threadIdx.x - 1];
  });
}

void TestCopies() {
  ExpectOfCopy(Fault::kNone, "copies that are waited for, then a barrier", [] {
    CommitCopies();
    WaitForCopies<0>();
    __syncthreads();
  });
  ExpectOfCopy(Fault::kMissingWait, "a barrier without a wait", [] {
    CommitCopies();
    __syncthreads();
  });
  ExpectOfCopy(Fault::kMissingWait, "a wait for copies that were never committed", [] {
    WaitForCopies<0>();
    __syncthreads();
  });
  ExpectOfCopy(Fault::kMissingWait, "a wait that leaves the newest group under way", [] {
    CommitCopies();
    WaitForCopies<1>();
    __syncthreads();
  });
  ExpectOfCopy(Fault::kRace, "a wait without a barrier", [] {
    CommitCopies();
    WaitForCopies<0>();
  });
  ExpectFault(Fault::kNone, "four words at once", [] {
    OT_DYNAMIC_SHARED(shared);
    float read[4];
    if (threadIdx.x < 16) CopyAsync<4>(shared, 4 * threadIdx.x, source, 4 * threadIdx.x, true);
    CommitCopies();
    WaitForCopies<0>();
    __syncthreads();
    ReadTogether<4>(shared, (4 * threadIdx.x + 8) % 64, read);
    StoreTogether(stored + 4 * threadIdx.x, read);
  });
  ExpectFault(Fault::kMisaligned, "four words at once from the second on", [] {
    OT_DYNAMIC_SHARED(shared);
    if (threadIdx.x == 0) CopyAsync<4>(shared, 0, source, 1, true);
    CommitCopies();
    WaitForCopies<0>();
  });
  ExpectFault(Fault::kMisaligned, "four words at once to the third of shared memory", [] {
    OT_DYNAMIC_SHARED(shared);
    if (threadIdx.x == 0) CopyAsync<4>(shared, 2, source, 0, false);
    CommitCopies();
    WaitForCopies<0>();
  });
  ExpectFault(Fault::kMisaligned, "two words stored at once from the second on", [] {
    const float values[2] = {};
    StoreTogether(stored + 1, values);
  });
  ExpectFault(Fault::kMissingWait, "a word written while it is being copied", [] {
    OT_DYNAMIC_SHARED(shared);
    CopyAsync<1>(shared, threadIdx.x, source, 0, false);
    shared[threadIdx.x] = 1;
  });
  ExpectFault(Fault::kMissingWait, "a block that ends before its copies", [] {
    OT_DYNAMIC_SHARED(shared);
    CopyAsync<1>(shared, threadIdx.x, source, threadIdx.x, true);
    CommitCopies();
  });
}

void TestBarriers() {
  ExpectFault(Fault::kDivergence, "a barrier for half of the block", [] {
    if (threadIdx.x < 32) __syncthreads();
  });
  ExpectFault(Fault::kDivergence, "two barriers in two branches", [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  });
  ExpectFault(Fault::kDivergence, "a barrier behind an early return", [] {
    if (threadIdx.x == 63) return;
    __syncthreads();
  });
  const auto product = [] {
    float c[4] = {};
    const float a[4] = {}, b[2] = {};
    MultiplyTf32(c, a, b);
  };
  ExpectFault(Fault::kDivergence, "a warp's product by half of a warp", [&] {
    if (threadIdx.x % 32 < 16) product();
  });
  ExpectFault(Fault::kNone, "a warp's product by one warp of two", [&] {
    if (threadIdx.x < 32) product();
    __syncthreads();
  });
  ExpectFault(Fault::kRace, "a warp's product in place of a barrier", [&] {
    OT_DYNAMIC_SHARED(shared);
    shared[threadIdx.x] = 1;
    product();
    sink = shared[(threadIdx.x + 1) % 64];
  });
}

void TestRounding() {
  const auto rounds = [](float from, float to) {
    Expect(RoundTf32(from) == to, "TF32 of " + std::to_string(from));
  };
  rounds(1 + 0x1p-11f, 1 + 0x1p-10f);  // a tie: away from zero
  rounds(-1 - 0x1p-11f, -1 - 0x1p-10f);
  rounds(1 + 0x1p-12f, 1);
  rounds(1 + 0x1.8p-11f, 1 + 0x1p-10f);
  rounds(0x1.fffp0f, 2);  // into the next exponent
  rounds(std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity());
  Expect(std::isnan(RoundTf32(std::numeric_limits<float>::quiet_NaN())), "TF32 of NaN");
}

}  // namespace
}  // namespace overlap_train::conv

int main() {
  using namespace overlap_train::conv;
  TestSharedMemory();
  TestRaces();
  TestCopies();
  TestBarriers();
  TestRounding();
  return Verdict("the emulator");
}
