// What differs between GPU generations and the emulator: asynchronous copies, tensor cores, dynamic shared
// memory.
#ifndef OVERLAP_TRAIN_CONV_CUDA_COPIES_H_
#define OVERLAP_TRAIN_CONV_CUDA_COPIES_H_

#include "cuda_index.h"

#ifdef __CUDACC__
#define OT_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#else
#include "cuda_emulator.h"
#endif

namespace overlap_train::conv {

// Copies source[at] into shared memory, or zero for kOutside; complete after WaitForCopies and a barrier.
__device__ __forceinline__ void CopyAsync(float* shared, const float* source, Index at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  // A size of 0 reads nothing and writes zeros; the address must be a valid one nevertheless.
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to),
               "l"(source + (at == kOutside ? 0 : at)), "r"(at == kOutside ? 0 : 4));
#else
  *shared = at == kOutside ? 0.0f : source[at];
#endif
}

__device__ __forceinline__ void CommitCopies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;");
#endif
}

// Waits until at most kPending groups of copies are under way.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending));
#endif
}

#ifdef __CUDACC__
// c += a b for one 16×8×8 product of a warp; the elements of each lane as the Fragment functions say.
__device__ __forceinline__ void MultiplyTf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
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
  __trap();  // the launcher takes the fp32 kernel before sm_80
#endif
}
#endif

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_COPIES_H_
