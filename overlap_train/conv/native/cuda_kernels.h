// The CUDA kernels but the products of matrices (cuda_gemm.h): the paper's, and sums. They also compile as
// C++ against cuda_emulator.h, which runs them on the CPU.
#ifndef OVERLAP_TRAIN_CONV_CUDA_KERNELS_H_
#define OVERLAP_TRAIN_CONV_CUDA_KERNELS_H_

#include "cuda_index.h"
#include "cuda_language.h"

namespace overlap_train::conv {

__device__ __forceinline__ float Finished(float sum, const float* bias, Index k, int relu) {
  if (bias != nullptr) sum += bias[k];
  return relu && sum < 0 ? 0.0f : sum;
}

// ---- shared memory: paper P2. A block keeps its input tile, halo included, and the filters in shared
// memory; a thread computes one pixel. Channels come in chunks, or neither would fit.

constexpr int kSharedInputs = 4;   // input channels in shared memory at a time
constexpr int kSharedOutputs = 8;  // output channels of a block
constexpr int kSharedThreads = SharedTiles::kSide * SharedTiles::kSide;

inline Index SharedFloats(const ConvShape& s) {
  const SharedTiles tiles{s};
  return kSharedInputs * (tiles.halo_h() * tiles.halo_w() + s.k_h * s.k_w * kSharedOutputs);
}

// Grid: tiles of pixels, blocks of output channels.
__global__ void __launch_bounds__(kSharedThreads)
    SharedMemoryKernel(ConvShape s, const float* __restrict__ x, const float* __restrict__ filter,
                       const float* __restrict__ bias, int relu, float* __restrict__ y) {
  OT_DYNAMIC_SHARED(shared);
  const SharedTiles tiles{s};
  const Pixel corner = tiles.Corner(blockIdx.x);
  const Index k0 = static_cast<Index>(blockIdx.y) * kSharedOutputs;
  const Index halo = tiles.halo_h() * tiles.halo_w(), taps = s.k_h * s.k_w;
  const SharedPointer input = SharedPart(shared, 0, kSharedInputs * halo);
  const SharedPointer weights =
      SharedPart(shared, kSharedInputs * halo, taps * kSharedInputs * kSharedOutputs);
  const int me = threadIdx.x, row = me / SharedTiles::kSide, column = me % SharedTiles::kSide;
  float sums[kSharedOutputs] = {};
  for (Index c0 = 0; c0 < s.in_c; c0 += kSharedInputs) {
    for (Index i = me; i < kSharedInputs * halo; i += kSharedThreads) {
      const Index c = c0 + i % kSharedInputs;
      const Index at = c < s.in_c ? tiles.Halo(corner, i / kSharedInputs, c) : kOutside;
      input[i] = at == kOutside ? 0.0f : x[at];
    }
    for (Index i = me; i < taps * kSharedInputs * kSharedOutputs; i += kSharedThreads) {
      const Index k = k0 + i % kSharedOutputs, c = c0 + i / kSharedOutputs % kSharedInputs;
      const Index tap = i / kSharedOutputs / kSharedInputs;
      weights[i] = k < s.out_c && c < s.in_c ? filter[(tap * s.in_c + c) * s.out_c + k] : 0.0f;
    }
    __syncthreads();
    for (Index tap = 0; tap < taps; ++tap) {
      const Index at = (row * s.stride_h + tap / s.k_w) * tiles.halo_w() + column * s.stride_w + tap % s.k_w;
      for (int c = 0; c < kSharedInputs; ++c) {
        const float value = input[at * kSharedInputs + c];
        const Index w = (tap * kSharedInputs + c) * kSharedOutputs;
#pragma unroll
        for (int k = 0; k < kSharedOutputs; ++k) sums[k] += value * weights[w + k];
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

// ---- back through bias and ReLU: dz = dy where y > 0 and 0 elsewhere, and dbias, the sum of dz over the
// pixels, as one part for each slice of them.

constexpr int kEpilogueRows = 8, kEpilogueColumns = 32, kEpilogueThreads = kEpilogueRows * kEpilogueColumns;
constexpr Index kMostEpilogueSlices = 256;

// How many slices the pixels are cut into; each thread sums 32 of them or more.
inline Index EpilogueSlices(Index pixels) {
  const Index slices = (pixels + 32 * kEpilogueRows - 1) / (32 * kEpilogueRows);
  if (slices < 1) return 1;
  return slices < kMostEpilogueSlices ? slices : kMostEpilogueSlices;
}

// Grid: blocks of channels, slices of `per_slice` pixels. dbias: [slices, channels].
__global__ void __launch_bounds__(kEpilogueThreads)
    EpilogueGradientKernel(Index pixels, Index per_slice, Index channels, const float* dy,
                           const float* __restrict__ y, float* dz, float* __restrict__ dbias) {
  __shared__ SharedTile<kEpilogueRows, kEpilogueColumns> sums;
  const int row = threadIdx.x / kEpilogueColumns, column = threadIdx.x % kEpilogueColumns;
  const Index channel = static_cast<Index>(blockIdx.x) * kEpilogueColumns + column;
  const Index begin = per_slice * blockIdx.y, rest = pixels - begin;
  const Index end = begin + (rest < per_slice ? rest : per_slice);
  float sum = 0;
  if (channel < channels) {
    for (Index pixel = begin + row; pixel < end; pixel += kEpilogueRows) {
      const Index at = pixel * channels + channel;
      const float value = y[at] > 0 ? dy[at] : 0.0f;  // dz may be dy itself
      dz[at] = value;
      sum += value;
    }
  }
  sums.At(row, column) = sum;
  __syncthreads();
  if (row > 0 || channel >= channels) return;
  for (int r = 1; r < kEpilogueRows; ++r) sum += sums.At(r, column);
  dbias[blockIdx.y * channels + channel] = sum;
}

// ---- sums of slices, in an order of their own, so that they repeat bit for bit

constexpr int kAddThreads = 256;
constexpr int kManySlices = 16;  // so many are shared by kAddRows threads: one alone would wait for each
constexpr int kAddRows = 8;

struct SlicesOutput {
  float* to;
  const float* bias;  // or null
  int relu;
  Index columns;
};

// Each sum by kRows threads of a block.
template <int kRows>
__global__ void __launch_bounds__(kAddThreads)
    AddSlicesKernel(const float* __restrict__ slices, Index count, Index size, SlicesOutput out) {
  constexpr int kColumns = kAddThreads / kRows;
  const int row = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  const Index i = static_cast<Index>(blockIdx.x) * kColumns + column;
  float part = 0;
  if (i < size) {
#pragma unroll 8
    for (Index slice = row; slice < count; slice += kRows) part += slices[slice * size + i];
  }
  if constexpr (kRows > 1) {
    __shared__ SharedTile<kRows, kColumns> parts;
    parts.At(row, column) = part;
    __syncthreads();
    if (row > 0) return;
    for (int r = 1; r < kRows; ++r) part += parts.At(r, column);
  }
  if (i < size) out.to[i] = Finished(part, out.bias, out.bias == nullptr ? 0 : i % out.columns, out.relu);
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_KERNELS_H_
