// The implicit GEMM: the matrices of cuda_index.h, never laid out in memory. A block gathers tiles of them
// into shared memory, the next pair while the present one is multiplied.
#ifndef OVERLAP_TRAIN_CONV_CUDA_GEMM_H_
#define OVERLAP_TRAIN_CONV_CUDA_GEMM_H_

#include "cuda_index.h"
#include "cuda_kernels.h"
#include "cuda_language.h"

namespace overlap_train::conv {

constexpr int kGemmRows = 64, kGemmColumns = 64, kGemmDepth = 16, kGemmThreads = 256;
// Rows of a tile are 72 floats apart, 8 banks: the 4 depths × 8 rows that a warp reads of a TF32 fragment lie
// in 32 different banks.
constexpr int kGemmPad = 8;

struct GemmTiles {
  SharedTile<kGemmDepth, kGemmRows, kGemmPad> a[2];
  SharedTile<kGemmDepth, kGemmColumns, kGemmPad> b[2];
};

// Which elements of a [kGemmDepth, kWidth] tile a thread gathers: neighbouring threads those that are
// neighbours in memory. Either its depth or its index across is the same for all of them.
template <bool kDepthFast, int kWidth>
struct Share {
  static constexpr int kCount = kGemmDepth * kWidth / kGemmThreads;
  static constexpr int kStep = kGemmThreads / (kDepthFast ? kGemmDepth : kWidth);
  static __device__ __forceinline__ int Depth(int i) {
    return kDepthFast ? threadIdx.x % kGemmDepth : threadIdx.x / kWidth + kStep * i;
  }
  static __device__ __forceinline__ int Across(int i) {
    return kDepthFast ? threadIdx.x / kGemmDepth + kStep * i : threadIdx.x % kWidth;
  }
};

// Copies the pairs of tiles that a block multiplies, from (row0, column0) on.
template <class Problem>
class Gatherer {
  using ShareA = Share<Problem::kDepthFastA, kGemmRows>;
  using ShareB = Share<Problem::kDepthFastB, kGemmColumns>;
  static constexpr int kRows = Problem::kDepthFastA ? ShareA::kCount : 1;

 public:
  __device__ __forceinline__ Gatherer(const Problem& p, const float* a, const float* b, Index row0,
                                      Index column0)
      : p_(p), a_(a), b_(b), row0_(row0), column0_(column0), depth_(p.depth()) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Index row = row0 + ShareA::Across(i);
      rows_[i] = p.RowAt(row < p.rows() ? row : 0);
    }
  }

  // Queues the copies of the pair at depth d0.
  __device__ __forceinline__ void Gather(Index d0, GemmTiles& tiles, int stage) const {
#pragma unroll
    for (int i = 0; i < ShareA::kCount; ++i) {
      const int d = ShareA::Depth(i), r = ShareA::Across(i);
      const bool inside = d0 + d < depth_ && row0_ + r < p_.rows();
      const Index at = inside ? p_.A(rows_[i % kRows], p_.DepthAt(d0 + d)) : kOutside;
      CopyAsync(tiles.a[stage].At(d, r), a_, at);
    }
#pragma unroll
    for (int i = 0; i < ShareB::kCount; ++i) {
      const int d = ShareB::Depth(i), c = ShareB::Across(i);
      const bool inside = d0 + d < depth_ && column0_ + c < p_.columns();
      const Index at = inside ? p_.B(p_.DepthAt(d0 + d), column0_ + c) : kOutside;
      CopyAsync(tiles.b[stage].At(d, c), b_, at);
    }
    CommitCopies();
  }

 private:
  const Problem& p_;
  const float *const a_, *const b_;
  const Index row0_, column0_, depth_;
  typename Problem::Row rows_[kRows];
};

// Where a block's sums go.
struct GemmOutput {
  float* c;
  const float* bias;  // forward only
  int relu;
  Index slice;  // floats from one slice of the depth to the next
};

__device__ __forceinline__ void PutSum(const GemmOutput& out, Index at, Index column, float sum) {
  out.c[at + out.slice * blockIdx.z] = Finished(sum, out.bias, column, out.relu);
}

// fp32: each thread a 4 × 4 block, rows and columns 16 apart so that reads of shared memory spread over the
// banks.
struct Fp32Product {
  float sums[4][4] = {};

  __device__ __forceinline__ void Multiply(GemmTiles& tiles, int stage) {
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
    for (int d = 0; d < kGemmDepth; ++d) {
      float a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = tiles.a[stage].At(d, ty + 16 * i);
        b[i] = tiles.b[stage].At(d, tx + 16 * i);
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

  __device__ __forceinline__ void Multiply(GemmTiles& tiles, int stage) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 4 * 16, column = warp / 4 * 32;
#pragma unroll
    for (int d = 0; d < kGemmDepth; d += 8) {
      float a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = tiles.a[stage].At(d + FragmentDepthA(lane, i), row + FragmentRowA(lane, i));
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float b[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          b[i] = tiles.b[stage].At(d + FragmentDepthB(lane, i), column + 8 * j + FragmentColumnB(lane));
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
  const Gatherer<Problem> gatherer(p, a, b, row0, column0);
  Product product;
  if (begin < end) gatherer.Gather(begin * kGemmDepth, tiles, 0);
  for (Index step = begin; step < end; ++step) {
    const int stage = (step - begin) % 2;
    if (step + 1 < end) {
      gatherer.Gather((step + 1) * kGemmDepth, tiles, 1 - stage);
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

#endif  // OVERLAP_TRAIN_CONV_CUDA_GEMM_H_
