// What differs between a GPU and the emulator: shared memory, asynchronous copies, tensor cores.
//
// Kernels name shared memory by these types: SharedPointer, a checked part of dynamic shared memory, and
// SharedTile and SharedTable, of fixed size. On a GPU they are float* and plain arrays. Under the emulator
// each element knows who has touched it, and a part knows where it ends.
#ifndef OVERLAP_TRAIN_CONV_CUDA_LANGUAGE_H_
#define OVERLAP_TRAIN_CONV_CUDA_LANGUAGE_H_

#include "cuda_index.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

#define OT_DYNAMIC_SHARED(name) extern __shared__ __align__(16) float name[]
#define OT_WITHIN(i, n, otherwise)
#else
#include "cuda_emulator_memory.h"
#endif

namespace overlap_train::conv {

#ifdef __CUDACC__

template <class T>
using SharedValue = T;
using SharedPointer = float*;

// Elements [from, from + count) of dynamic shared memory.
__device__ __forceinline__ SharedPointer SharedPart(float* whole, int from, int /*count*/) {
  return whole + from;
}

// Copies kCount floats, 1 or 4, from source[at] on into shared memory, or zeros where not `inside`; complete
// after WaitForCopies and a barrier. Four of them are aligned to 16 bytes on both sides.
template <int kCount>
__device__ __forceinline__ void CopyAsync(SharedPointer shared, int i, const float* source, Index at,
                                          bool inside) {
  const float* const from = source + at;
#if __CUDA_ARCH__ >= 800
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared + i));
  // With a source to be ignored the address is never looked at.
  if constexpr (kCount == 4) {
    asm volatile(
        "{\n.reg .pred ignore;\nsetp.eq.s32 ignore, %2, 0;\n"
        "cp.async.cg.shared.global [%0], [%1], 16, ignore;\n}" ::"r"(to),
        "l"(from), "r"(static_cast<int>(inside))
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred ignore;\nsetp.eq.s32 ignore, %2, 0;\n"
        "cp.async.ca.shared.global [%0], [%1], 4, ignore;\n}" ::"r"(to),
        "l"(from), "r"(static_cast<int>(inside))
        : "memory");
  }
#else
  if constexpr (kCount == 4) {
    float4 quad = {0, 0, 0, 0};
    if (inside) quad = *reinterpret_cast<const float4*>(from);
    *reinterpret_cast<float4*>(shared + i) = quad;
  } else {
    shared[i] = inside ? *from : 0.0f;
  }
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

// Reads kCount neighbours in shared memory, 1, 2 or 4, at once, aligned to all of them.
template <int kCount>
__device__ __forceinline__ void ReadTogether(const float* shared, int i, float* values) {
  if constexpr (kCount == 4) {
    const float4 read = *reinterpret_cast<const float4*>(shared + i);
    values[0] = read.x, values[1] = read.y, values[2] = read.z, values[3] = read.w;
  } else if constexpr (kCount == 2) {
    const float2 read = *reinterpret_cast<const float2*>(shared + i);
    values[0] = read.x, values[1] = read.y;
  } else {
    values[0] = shared[i];
  }
}

// Of four 8×4 matrices a lane gets the elements in row lane / 4 and column lane % 4. Lane 8 m + r says where
// row r of matrix m begins: row_at(lane), aligned to 16 bytes. To ldmatrix they are 8×8 matrices of halves.
template <class RowAt>
__device__ __forceinline__ void ReadMatrices(const float* shared, const RowAt& row_at, float (&values)[4]) {
#if __CUDA_ARCH__ >= 800
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(shared + row_at(threadIdx.x % 32)));
  unsigned read[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(read[0]), "=r"(read[1]), "=r"(read[2]), "=r"(read[3])
               : "r"(from)
               : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = __uint_as_float(read[i]);
#endif
}

// Rounds to TF32, to nearest and ties away from zero, in two instructions: as cvt.rna, but that the bits
// below stay, which MultiplyTf32 cuts off.
__device__ __forceinline__ float ToTf32(float value) {
  const bool finite = fabsf(value) < __uint_as_float(0x7f800000u);
  return finite ? __uint_as_float(__float_as_uint(value) + 0x1000u) : value;
}

// c += a b for one 16×8×8 product of a warp, of operands by ToTf32; the elements of each lane as the Fragment
// functions say.
__device__ __forceinline__ void MultiplyTf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#else
  __trap();  // the launcher takes the fp32 kernel where this code was compiled for less than sm_80
#endif
}

// Stores kCount floats, 2 or 4, in global memory at once.
template <int kCount>
__device__ __forceinline__ void StoreTogether(float* to, const float (&values)[kCount]) {
  if constexpr (kCount == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<float2*>(to) = make_float2(values[0], values[1]);
  } else {
    to[0] = values[0];
  }
}

#endif  // __CUDACC__

// A table in shared memory.
template <class T, int kCount>
struct SharedTable {
  SharedValue<T> values[kCount];

  __device__ __forceinline__ SharedValue<T>& At(int i) {
    OT_WITHIN(i, kCount, values[0]);
    return values[i];
  }
};

// A tile of shared memory, [kDepth][kWidth].
template <int kDepth, int kWidth>
struct SharedTile {
  SharedValue<float> values[kDepth][kWidth];

  __device__ __forceinline__ SharedValue<float>& At(int d, int i) {
    OT_WITHIN(d, kDepth, values[0][0]);
    OT_WITHIN(i, kWidth, values[0][0]);
    return values[d][i];
  }
};

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_LANGUAGE_H_
