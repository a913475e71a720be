// The implicit GEMM: the matrices of cuda_index.h, never laid out in memory. A block gathers tiles of them
// into a ring of stages in shared memory, some steps of the depth ahead of what is multiplied.
#ifndef OVERLAP_TRAIN_CONV_CUDA_GEMM_H_
#define OVERLAP_TRAIN_CONV_CUDA_GEMM_H_

#include <type_traits>

#include "cuda_gather.h"
#include "cuda_kernels.h"

namespace overlap_train::conv {

// Where a block's sums go.
struct GemmOutput {
  float* c;
  const float* bias;  // forward only
  int relu;
  int quads;    // whether four neighbours in C are aligned to 16 bytes
  Index slice;  // floats from one slice of the depth to the next
};

// Stores kRun neighbours in a row of C, from `column` on.
template <int kRun>
__device__ __forceinline__ void PutSums(const GemmOutput& out, Index row, Index column, Index columns,
                                        const float (&sums)[kRun]) {
  float* const to = out.c + out.slice * blockIdx.z + row + column;
  float values[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    values[i] = column + i < columns ? Finished(sums[i], out.bias, column + i, out.relu) : 0.0f;
  }
  if (kRun > 1 && out.quads) {
    if (column < columns) StoreTogether(to, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (column + i < columns) to[i] = values[i];
  }
}

// fp32: each thread 8 × 8 sums, or 8 × 2 of tiles with 16 columns; the threads of a warp 4 down and 8 across,
// so that quads of 8 columns lie in 32 banks. Neighbouring threads share the column, and the next but one the
// row: of such pairs half a warp is served at once, and not a quarter.
template <class Config, class TileA, class TileB>
struct Fp32Product {
  static constexpr int kDown = Config::kRows / 8, kAcross = Config::kThreads / kDown;
  using Rows = ThreadShare<TileA, kDown>;
  using Columns = ThreadShare<TileB, kAcross>;
  static constexpr int kEach = Columns::kCount;
  static_assert(kAcross % 8 == 0);
  float sums[8][kEach] = {};

  static __device__ __forceinline__ int Down() {
    return threadIdx.x / 32 / (kAcross / 8) * 4 + threadIdx.x % 32 / 16 * 2 + threadIdx.x % 2;
  }
  static __device__ __forceinline__ int Across() {
    return threadIdx.x / 32 % (kAcross / 8) * 8 + threadIdx.x / 2 % 8;
  }

  __device__ __forceinline__ void Multiply(const TileA& a, const TileB& b) {
    // Unrolled, columns of four depths would be read further ahead than the registers hold.
#pragma unroll(TileB::kIsDepthFast&& kEach == 8 ? 1 : TileA::kDepth / 4)
    for (int d = 0; d < TileA::kDepth; d += 4) {
      float left[8][4];
      Rows::Read(a, Down(), d, left);
      if constexpr (TileB::kIsDepthFast) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          float right[4];
          b.template Read<4>(d, Columns::At(Across(), j), right);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sums[i][j] += left[i][e] * right[e];
          }
        }
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float right[8];
          Columns::ReadDepth(b, Across(), d + e, right);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
#pragma unroll
            for (int j = 0; j < 8; ++j) sums[i][j] += left[i][e] * right[j];
          }
        }
      }
    }
  }

  template <class Table>
  __device__ __forceinline__ void Put(Table& rows, Index column0, Index columns,
                                      const GemmOutput& out) const {
    constexpr int kRun = Columns::kRun;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Index row = rows.At(Rows::At(Down(), i));
      if (row == kOutside) continue;
#pragma unroll
      for (int j = 0; j < kEach; j += kRun) {
        float run[kRun];
#pragma unroll
        for (int n = 0; n < kRun; ++n) run[n] = sums[i][j + n];
        PutSums(out, row, column0 + Columns::At(Across(), j), columns, run);
      }
    }
  }
};

// TF32 on tensor cores: 4 warps, 2 down and 2 across, each 64 rows × half of the columns as products of
// 16×8×8.
template <class Config, class TileA, class TileB>
struct Tf32Product {
  static constexpr int kRows = Config::kRows / 2, kColumns = Config::kColumns / 2;
  static constexpr int kDown = kRows / 16, kAcross = kColumns / 8;
  float sums[kDown][kAcross][4] = {};

  static __device__ __forceinline__ int Row() { return threadIdx.x / 32 % 2 * kRows; }
  static __device__ __forceinline__ int Column() { return threadIdx.x / 32 / 2 * kColumns; }

  __device__ __forceinline__ void Multiply(const TileA& a, const TileB& b) {
#pragma unroll
    for (int d = 0; d < TileA::kDepth; d += 8) {
      float left[kDown][4], right[kAcross][2];
      WarpShare<TileA>::ReadLeft(a, Row(), d, left);
      WarpShare<TileB>::ReadRight(b, Column(), d, right);
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) MultiplyTf32(sums[i][j], left[i], right[j]);
      }
    }
  }
  template <class Table>
  __device__ __forceinline__ void Put(Table& rows, Index column0, Index columns,
                                      const GemmOutput& out) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < 2 * kDown; ++u) {
      const int i = u / 2, half = u % 2;
      const Index row = rows.At(Row() + WarpShare<TileA>::Row(i, half, lane / 4));
      if (row == kOutside) continue;
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const float run[2] = {sums[i][j][2 * half], sums[i][j][2 * half + 1]};
        PutSums(out, row, column0 + Column() + 8 * j + FragmentColumnC(lane, 0), columns, run);
      }
    }
  }
};

// Slices of the depth begin at multiples of this, whatever depth a stage has: tiles of either width then form
// the same sums.
constexpr int kSliceDepth = 32;

// A kernel's tiles: [kRows, kColumns] of C, by copies of kCopyA and kCopyB floats. Registers are kept to what
// lets kBlocks blocks share a multiprocessor, and the stages of as many fit 227 KiB. The index arithmetic of
// single floats takes more of them. On tensor cores stages of twice the depth, with a barrier half as often,
// are worth more than a fourth stage. On sm_75, of fp32 only and without asynchronous copies, 64 KiB hold one
// block.
template <bool kIsTf32, int kHeight, int kWidth, int kFloatsA, int kFloatsB>
struct GemmConfig {
  static constexpr bool kTf32 = kIsTf32, kWide = kWidth == 128;
  static constexpr int kRows = kHeight, kColumns = kWidth, kCopyA = kFloatsA, kCopyB = kFloatsB;
  static constexpr int kThreads = kRows < 128 ? kRows * kColumns / 64 : !kTf32 && kWide ? 256 : 128;
  static constexpr int kDepth = kTf32 && kWide ? 32 : 16, kStages = 3;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  static constexpr int kBlocks = 1;
#else
  static constexpr int kBlocks = kRows < 128 ? 8 : kWide ? 2 : kCopyA == 4 ? 4 : 3;
#endif
  template <class Problem>
  using A = GemmTile<Problem::kDepthFastA, kRows, kDepth>;
  template <class Problem>
  using B = GemmTile<Problem::kDepthFastB, kColumns, kDepth>;
  template <class Problem>
  using Product = std::conditional_t<kTf32, Tf32Product<GemmConfig, A<Problem>, B<Problem>>,
                                     Fp32Product<GemmConfig, A<Problem>, B<Problem>>>;
  template <class Problem>
  static constexpr int kStageFloats = A<Problem>::kFloats + B<Problem>::kFloats;
  template <class Problem>
  static constexpr Index kSharedBytes = Index{kStages} * kStageFloats<Problem> * Index{sizeof(float)};
};

// Grid: tiles of rows, tiles of columns, slices of the depth.
template <class Problem, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    ImplicitGemmKernel(Problem p, Walk walk, const float* __restrict__ a, const float* __restrict__ b,
                       GemmOutput out) {
  using TileA = typename Config::template A<Problem>;
  using TileB = typename Config::template B<Problem>;
  constexpr int kStages = Config::kStages, kStageFloats = Config::template kStageFloats<Problem>;
  OT_DYNAMIC_SHARED(shared);
  __shared__ typename Gatherer<Problem, Config>::Rows rows;
  rows.Fill(p, static_cast<Index>(blockIdx.x) * Config::kRows);
  __syncthreads();
  const auto tile_a = [&](int stage) {
    return TileA{SharedPart(shared, stage * kStageFloats, TileA::kFloats)};
  };
  const auto tile_b = [&](int stage) {
    return TileB{SharedPart(shared, stage * kStageFloats + TileA::kFloats, TileB::kFloats)};
  };
  const Index column0 = static_cast<Index>(blockIdx.y) * Config::kColumns;
  const Index parts = (p.depth() + kSliceDepth - 1) / kSliceDepth;
  const Index begin = parts * blockIdx.z / gridDim.z * kSliceDepth;
  Index end = parts * (blockIdx.z + 1) / gridDim.z * kSliceDepth;
  if (end > p.depth()) end = p.depth();
  const int count = static_cast<int>((end - begin + Config::kDepth - 1) / Config::kDepth);
  Gatherer<Problem, Config> gatherer(p, walk, a, b, rows, column0, begin);
  typename Config::template Product<Problem> product;
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < count) gatherer.Gather(tile_a(step), tile_b(step));
    CommitCopies();
  }
  int stage = 0;
  for (int left = count; left > 0; --left) {
    WaitForCopies<kStages - 2>();
    // For the others' copies, too; and all have read the stage before this, which is gathered into next.
    __syncthreads();
    const int before = stage > 0 ? stage - 1 : kStages - 1;
    if (left >= kStages) gatherer.Gather(tile_a(before), tile_b(before));
    CommitCopies();
    product.Multiply(tile_a(stage), tile_b(stage));
    stage = stage + 1 < kStages ? stage + 1 : 0;
  }
  WaitForCopies<0>();
  product.Put(rows.outputs, column0, p.columns(), out);
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_GEMM_H_
