// What differs between a GPU and the emulator: shared memory, asynchronous copies, tensor cores.
//
// Kernels name shared memory by three types: SharedFloat, an element; SharedPointer, a checked part of
// dynamic shared memory; and SharedTile, of fixed size. On a GPU these are float, float* and a plain array.
// Under the emulator each element knows who has touched it, and a part knows where it ends.
#ifndef OVERLAP_TRAIN_CONV_CUDA_LANGUAGE_H_
#define OVERLAP_TRAIN_CONV_CUDA_LANGUAGE_H_

#include "cuda_index.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

#define OT_DYNAMIC_SHARED(name) extern __shared__ float name[]
#define OT_WITHIN(i, n, otherwise)
#else
#include "cuda_emulator_memory.h"
#endif

namespace overlap_train::conv {

#ifdef __CUDACC__

using SharedFloat = float;
using SharedPointer = float*;

// Elements [from, from + count) of dynamic shared memory.
__device__ __forceinline__ SharedPointer SharedPart(float* whole, Index from, Index /*count*/) {
  return whole + from;
}

// Copies source[at] into shared memory, or zero for kOutside; complete after WaitForCopies and a barrier.
__device__ __forceinline__ void CopyAsync(float& shared, const float* source, Index at) {
#if __CUDA_ARCH__ >= 800
  // A size of 0 reads nothing and writes zeros; the address must be a valid one nevertheless.
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(&shared));
  const std::size_t from = __cvta_generic_to_global(source + (at == kOutside ? 0 : at));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(at == kOutside ? 0 : 4)
               : "memory");
#else
  shared = at == kOutside ? 0.0f : source[at];
#endif
}

__device__ __forceinline__ void CommitCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending groups of this thread's copies are under way.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// c += a b for one 16×8×8 product of a warp; the elements of each lane as the Fragment functions say.
// Operands are rounded to TF32, to nearest and ties away from zero; mma.sync alone would cut them off.
__device__ __forceinline__ void MultiplyTf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  unsigned ra[4], rb[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(ra[i]) : "f"(a[i]));
#pragma unroll
  for (int i = 0; i < 2; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rb[i]) : "f"(b[i]));
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
#else
  __trap();  // the launcher takes the fp32 kernel where this code was compiled for less than sm_80
#endif
}

#endif  // __CUDACC__

// A tile of shared memory, [kDepth][kWidth], its rows `kPad` elements apart from each other.
template <int kDepth, int kWidth, int kPad>
struct SharedTile {
  SharedFloat values[kDepth][kWidth + kPad];

  __device__ __forceinline__ SharedFloat& At(int d, int i) {
    OT_WITHIN(d, kDepth, values[0][0]);
    OT_WITHIN(i, kWidth, values[0][0]);
    return values[d][i];
  }
};

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_LANGUAGE_H_
