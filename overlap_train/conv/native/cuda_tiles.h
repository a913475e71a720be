// Tiles of the implicit GEMM's operands in shared memory, and how threads and warps read them.
//
// A tile keeps the order of its tensor, so that whole quads can be copied: depth fastest, or what runs across
// the depth (rows of A, columns of B). Pitches are such that no read meets a bank twice.
#ifndef OVERLAP_TRAIN_CONV_CUDA_TILES_H_
#define OVERLAP_TRAIN_CONV_CUDA_TILES_H_

#include "cuda_language.h"

namespace overlap_train::conv {

template <bool kDepthFast, int kAcross, int kDeep>
struct GemmTile {
  static constexpr bool kIsDepthFast = kDepthFast;
  static constexpr int kWidth = kAcross, kDepth = kDeep;
  // 20 floats, or 36: eight rows of 4 floats, or of one, begin in banks of their own. kAcross + 8: four
  // depths of 8.
  static constexpr int kPitch = kDepthFast ? kDepth + 4 : kAcross + 8;
  static constexpr int kFloats = kPitch * (kDepthFast ? kAcross : kDepth);
  SharedPointer values;

  static __device__ __forceinline__ int Offset(int d, int i) {
    OT_WITHIN(d, kDepth, 0);
    OT_WITHIN(i, kAcross, 0);
    return kDepthFast ? i * kPitch + d : d * kPitch + i;
  }
  // kCount neighbours in the tile's own order.
  template <int kCount>
  __device__ __forceinline__ void Read(int d, int i, float* read) const {
    OT_WITHIN((kDepthFast ? d : i) + kCount - 1, kDepthFast ? kDepth : kAcross, (void)0);
    ReadTogether<kCount>(values, Offset(d, i), read);
  }
};

// Which kCount of a tile's rows or columns are a thread's, of kThreads along that side: in quads where these
// are neighbours in the tile.
template <class Tile, int kThreads>
struct ThreadShare {
  static constexpr int kCount = Tile::kWidth / kThreads;
  static constexpr int kRun = Tile::kIsDepthFast ? 1 : 4;  // how many are neighbours
  static_assert(kCount % kRun == 0);
  static __device__ __forceinline__ int At(int thread, int i) {
    return i / kRun * (kThreads * kRun) + thread * kRun + i % kRun;
  }
  // Depths [d, d + 4) of all 8.
  static __device__ __forceinline__ void Read(const Tile& tile, int thread, int d, float (&values)[8][4]) {
    if constexpr (Tile::kIsDepthFast) {
#pragma unroll
      for (int i = 0; i < 8; ++i) tile.template Read<4>(d, At(thread, i), values[i]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float across[8];
        ReadDepth(tile, thread, d + e, across);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i][e] = across[i];
      }
    }
  }
  // Depth d of all 8, in two quads.
  static __device__ __forceinline__ void ReadDepth(const Tile& tile, int thread, int d, float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) tile.template Read<4>(d, At(thread, i), values + i);
  }
};

// What a warp reads of a tile for products of the tensor cores, rounded to TF32 in the registers that they
// want: four neighbouring ones for 16 rows × 8 depths of A, two for 8 columns of B. Where depth runs fastest
// four 8×4 matrices are read at once. Where it does not, of A two neighbouring rows make a pair.
template <class Tile>
struct WarpShare {
  static constexpr int kRun = Tile::kIsDepthFast ? 1 : 2;
  // The row of A that fragment `i` has for lanes 4 g to 4 g + 3, in its upper or lower half.
  static __device__ __forceinline__ int Row(int i, int half, int g) {
    return 16 * i + (kRun == 1 ? 8 * half + g : 2 * g + half);
  }
  template <int kCount>
  static __device__ __forceinline__ void ReadLeft(const Tile& tile, int row, int d,
                                                  float (&left)[kCount][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (Tile::kIsDepthFast) {
        const auto row_at = [&](int l) { return Tile::Offset(d + l / 16 * 4, row + 16 * i + l % 16); };
        ReadMatrices(tile.values, row_at, left[i]);
      } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          tile.template Read<2>(d + lane % 4 + 4 * h, row + Row(i, 0, lane / 4), left[i] + 2 * h);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) left[i][n] = ToTf32(left[i][n]);
    }
  }
  template <int kCount>
  static __device__ __forceinline__ void ReadRight(const Tile& tile, int column, int d,
                                                   float (&right)[kCount][2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kCount; j += 2) {
      float read[4];
      if constexpr (Tile::kIsDepthFast) {
        const auto row_at = [&](int l) {
          return Tile::Offset(d + l / 8 % 2 * 4, column + 8 * j + l / 16 * 8 + l % 8);
        };
        ReadMatrices(tile.values, row_at, read);
      } else {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          tile.template Read<1>(d + FragmentDepthB(lane, n % 2),
                                column + 8 * (j + n / 2) + FragmentColumnB(lane), read + n);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) right[j + n / 2][n % 2] = ToTf32(read[n]);
    }
  }
};

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_TILES_H_
