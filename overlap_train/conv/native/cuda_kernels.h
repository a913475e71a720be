// The CUDA kernels. They also compile as C++ against cuda_emulator.h, which runs them on the CPU.
#ifndef OVERLAP_TRAIN_CONV_CUDA_KERNELS_H_
#define OVERLAP_TRAIN_CONV_CUDA_KERNELS_H_

#include "cuda_copies.h"
#include "cuda_index.h"

namespace overlap_train::conv {

__device__ __forceinline__ float Finished(float sum, const float* bias, Index k, int relu) {
  if (bias != nullptr) sum += bias[k];
  return relu && sum < 0 ? 0.0f : sum;
}

// ---- shared_memory
// ------------------------------------------------------------------------------------------------ Paper P2:
// a block keeps its input tile, halo included, and the filters in shared memory; a thread computes one pixel.
// Channels come in chunks, or neither would fit.

constexpr int kSharedInputs = 4;   // input channels in shared memory at a time
constexpr int kSharedOutputs = 8;  // output channels of a block

inline Index SharedFloats(const ConvShape& s) {
  const SharedTiles tiles{s};
  return kSharedInputs * (tiles.halo_h() * tiles.halo_w() + s.k_h * s.k_w * kSharedOutputs);
}

__global__ void __launch_bounds__(SharedTiles::kSide* SharedTiles::kSide)
    SharedMemoryKernel(ConvShape s, const float* __restrict__ x, const float* __restrict__ filter,
                       const float* __restrict__ bias, int relu, float* __restrict__ y) {
  constexpr int kThreads = SharedTiles::kSide * SharedTiles::kSide;
  OT_DYNAMIC_SHARED(float, shared);
  const SharedTiles tiles{s};
  const Pixel corner = tiles.Corner(blockIdx.x);
  const Index k0 = static_cast<Index>(blockIdx.y) * kSharedOutputs;
  const Index halo = tiles.halo_h() * tiles.halo_w(), taps = s.k_h * s.k_w;
  float* const input = shared;
  float* const weights = shared + kSharedInputs * halo;
  const int me = threadIdx.x, row = me / SharedTiles::kSide, column = me % SharedTiles::kSide;
  float sums[kSharedOutputs] = {};
  for (Index c0 = 0; c0 < s.in_c; c0 += kSharedInputs) {
    for (Index i = me; i < kSharedInputs * halo; i += kThreads) {
      const Index c = c0 + i % kSharedInputs;
      const Index at = c < s.in_c ? tiles.Halo(corner, i / kSharedInputs, c) : kOutside;
      input[i] = at == kOutside ? 0.0f : x[at];
    }
    for (Index i = me; i < taps * kSharedInputs * kSharedOutputs; i += kThreads) {
      const Index k = k0 + i % kSharedOutputs, c = c0 + i / kSharedOutputs % kSharedInputs;
      const Index tap = i / kSharedOutputs / kSharedInputs;
      weights[i] = k < s.out_c && c < s.in_c ? filter[(tap * s.in_c + c) * s.out_c + k] : 0.0f;
    }
    __syncthreads();
    for (Index tap = 0; tap < taps; ++tap) {
      const Index at = (row * s.stride_h + tap / s.k_w) * tiles.halo_w() + column * s.stride_w + tap % s.k_w;
      for (int c = 0; c < kSharedInputs; ++c) {
        const float value = input[at * kSharedInputs + c];
        const float* const w = weights + (tap * kSharedInputs + c) * kSharedOutputs;
#pragma unroll
        for (int k = 0; k < kSharedOutputs; ++k) sums[k] += value * w[k];
      }
    }
    __syncthreads();
  }
  if (corner.y + row >= s.out_h || corner.x + column >= s.out_w) return;
#pragma unroll
  for (int k = 0; k < kSharedOutputs; ++k) {
    if (k0 + k >= s.out_c) break;
    y[OutputOffset(s, corner.image, corner.y + row, corner.x + column, k0 + k)] =
        Finished(sums[k], bias, k0 + k, relu);
  }
}

// ---- few channels
// ------------------------------------------------------------------------------------------------- At most 4
// input channels: a window is so small that a thread reads it once, into registers, for kFewOutputs outputs.

constexpr int kFewThreads = 128;
constexpr int kFewOutputs = 16;

inline Index FewFloats(const ConvShape& s) { return s.k_h * s.k_w * s.in_c * kFewOutputs; }

__global__ void __launch_bounds__(kFewThreads)
    FewChannelsKernel(ConvShape s, const float* __restrict__ x, const float* __restrict__ filter,
                      const float* __restrict__ bias, int relu, float* __restrict__ y) {
  OT_DYNAMIC_SHARED(float, weights);
  const ForwardProblem problem{s};
  const Index k0 = static_cast<Index>(blockIdx.y) * kFewOutputs;
  const Index row = static_cast<Index>(blockIdx.x) * kFewThreads + threadIdx.x;
  for (Index i = threadIdx.x; i < problem.depth() * kFewOutputs; i += kFewThreads) {
    const Index k = k0 + i % kFewOutputs;
    weights[i] = k < s.out_c ? filter[problem.B(i / kFewOutputs, k)] : 0.0f;
  }
  __syncthreads();
  if (row >= problem.rows()) return;
  float sums[kFewOutputs] = {};
  for (Index d = 0; d < problem.depth(); ++d) {
    const Index at = problem.A(row, d);
    if (at == kOutside) continue;
    const float value = x[at];
#pragma unroll
    for (int k = 0; k < kFewOutputs; ++k) sums[k] += value * weights[d * kFewOutputs + k];
  }
#pragma unroll
  for (int k = 0; k < kFewOutputs; ++k) {
    if (k0 + k < s.out_c) y[problem.C(row, k0 + k)] = Finished(sums[k], bias, k0 + k, relu);
  }
}

// ---- implicit GEMM
// ------------------------------------------------------------------------------------------------ The
// matrices of cuda_index.h, never laid out in memory: a block gathers tiles of them into shared memory, the
// next pair while the present one is multiplied.

constexpr int kGemmRows = 64, kGemmColumns = 64, kGemmDepth = 16, kGemmThreads = 256;
constexpr int kGemmPad =
    4;  // floats between rows of a tile, so that a column's elements lie in different banks

struct GemmTiles {
  float a[2][kGemmDepth][kGemmRows + kGemmPad];
  float b[2][kGemmDepth][kGemmColumns + kGemmPad];
};

// Queues the copies of one pair of tiles: rows and columns from (row0, column0), depth [d0, d1).
template <class Problem>
__device__ __forceinline__ void GatherTiles(const Problem& p, const float* a, const float* b, Index row0,
                                            Index column0, Index d0, Index d1, GemmTiles& tiles, int stage) {
  for (int i = threadIdx.x; i < kGemmDepth * kGemmRows; i += kGemmThreads) {
    // Neighbours in depth are neighbours in memory, as channels of one pixel.
    const int d = i % kGemmDepth, r = i / kGemmDepth;
    const bool inside = d0 + d < d1 && row0 + r < p.rows();
    const Index at = inside ? p.A(row0 + r, d0 + d) : kOutside;
    CopyAsync(&tiles.a[stage][d][r], a, at);
  }
  for (int i = threadIdx.x; i < kGemmDepth * kGemmColumns; i += kGemmThreads) {
    const int c = i % kGemmColumns, d = i / kGemmColumns;
    const bool inside = d0 + d < d1 && column0 + c < p.columns();
    CopyAsync(&tiles.b[stage][d][c], b, inside ? p.B(d0 + d, column0 + c) : kOutside);
  }
  CommitCopies();
}

// Where a block's sums go.
struct GemmOutput {
  float* c;
  const float* bias;  // forward only
  int relu;
  int atomic;   // add to c atomically, instead of storing
  Index slice;  // floats from one slice of the depth to the next; 0 where slices add atomically
};

__device__ __forceinline__ void PutSum(const GemmOutput& out, Index at, Index column, float sum) {
  if (out.atomic) {
    atomicAdd(out.c + at, sum);
  } else {
    out.c[at + out.slice * blockIdx.z] = Finished(sum, out.bias, column, out.relu);
  }
}

// fp32: each thread a 4 × 4 block, rows and columns 16 apart so that reads of shared memory spread over the
// banks.
struct Fp32Product {
  float sums[4][4] = {};

  __device__ __forceinline__ void Multiply(const GemmTiles& tiles, int stage) {
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
    for (int d = 0; d < kGemmDepth; ++d) {
      float a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = tiles.a[stage][d][ty + 16 * i];
        b[i] = tiles.b[stage][d][tx + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += a[i] * b[j];
      }
    }
  }
  template <class Problem>
  __device__ __forceinline__ void Put(const Problem& p, Index row0, Index column0,
                                      const GemmOutput& out) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Index row = row0 + threadIdx.x / 16 + 16 * i, column = column0 + threadIdx.x % 16 + 16 * j;
        if (row < p.rows() && column < p.columns()) PutSum(out, p.C(row, column), column, sums[i][j]);
      }
    }
  }
};

// TF32 on tensor cores: 8 warps, 4 down and 2 across, each 16 rows × 32 columns as four products of 16×8×8.
struct Tf32Product {
  float sums[4][4] = {};

  __device__ __forceinline__ void Multiply(const GemmTiles& tiles, int stage) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 4 * 16, column = warp / 4 * 32;
#pragma unroll
    for (int d = 0; d < kGemmDepth; d += 8) {
      float a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = tiles.a[stage][d + FragmentDepthA(lane, i)][row + FragmentRowA(lane, i)];
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float b[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          b[i] = tiles.b[stage][d + FragmentDepthB(lane, i)][column + 8 * j + FragmentColumnB(lane)];
        }
        MultiplyTf32(sums[j], a, b);
      }
    }
  }
  template <class Problem>
  __device__ __forceinline__ void Put(const Problem& p, Index row0, Index column0,
                                      const GemmOutput& out) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Index row = row0 + warp % 4 * 16 + FragmentRowC(lane, i);
        const Index column = column0 + warp / 4 * 32 + 8 * j + FragmentColumnC(lane, i);
        if (row < p.rows() && column < p.columns()) PutSum(out, p.C(row, column), column, sums[j][i]);
      }
    }
  }
};

// Grid: tiles of rows, tiles of columns, slices of the depth.
template <class Problem, class Product>
__global__ void __launch_bounds__(kGemmThreads)
    ImplicitGemmKernel(Problem p, const float* __restrict__ a, const float* __restrict__ b, GemmOutput out) {
  __shared__ GemmTiles tiles;
  const Index row0 = static_cast<Index>(blockIdx.x) * kGemmRows;
  const Index column0 = static_cast<Index>(blockIdx.y) * kGemmColumns;
  const Index steps = (p.depth() + kGemmDepth - 1) / kGemmDepth;
  const Index begin = steps * blockIdx.z / gridDim.z, end = steps * (blockIdx.z + 1) / gridDim.z;
  Product product;
  if (begin < end) GatherTiles(p, a, b, row0, column0, begin * kGemmDepth, p.depth(), tiles, 0);
  for (Index step = begin; step < end; ++step) {
    const int stage = (step - begin) % 2;
    if (step + 1 < end) {
      GatherTiles(p, a, b, row0, column0, (step + 1) * kGemmDepth, p.depth(), tiles, 1 - stage);
      WaitForCopies<1>();
    } else {
      WaitForCopies<0>();
    }
    __syncthreads();
    product.Multiply(tiles, stage);
    __syncthreads();
  }
  product.Put(p, row0, column0, out);
}

// Adds the slices of a deterministic filter gradient in order.
__global__ void AddSlicesKernel(const float* __restrict__ slices, Index count, Index size,
                                float* __restrict__ out) {
  const Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
  for (Index slice = 0; slice < count; ++slice) sum += slices[slice * size + i];
  out[i] = sum;
}

// How many slices the filter gradient's depth, all pixels, is cut into: its tiles alone would leave a GPU
// empty.
inline Index FilterGradientSlices(const ConvShape& s) {
  const FilterGradientProblem p{s};
  const Index tiles =
      ((p.rows() + kGemmRows - 1) / kGemmRows) * ((p.columns() + kGemmColumns - 1) / kGemmColumns);
  const Index wanted = (512 + tiles - 1) / tiles, most = (p.depth() + 8 * kGemmDepth - 1) / (8 * kGemmDepth);
  const Index slices = wanted < most ? wanted : most;
  return slices < 1 ? 1 : slices;
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_KERNELS_H_
