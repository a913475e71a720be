// Gathers tiles of the implicit GEMM's operands into shared memory by asynchronous copies. What costs
// divisions is found before the first tile: each row's Start, and each thread's Place in the depth, which it
// then walks.
#ifndef OVERLAP_TRAIN_CONV_CUDA_GATHER_H_
#define OVERLAP_TRAIN_CONV_CUDA_GATHER_H_

#include <type_traits>

#include "cuda_tiles.h"

namespace overlap_train::conv {

// Which elements of a tile a thread copies, kCopy neighbours at a time: neighbouring threads those that are
// neighbours in memory. Either its depth or its index across is the same for all of them. Of a tile of few
// columns some threads copy none.
template <class Tile, int kThreads, int kCopy>
struct CopyShare {
  static constexpr int kLine = (Tile::kIsDepthFast ? Tile::kDepth : Tile::kWidth) / kCopy;
  static constexpr int kStep = kThreads / kLine;
  static constexpr int kAll = Tile::kWidth * Tile::kDepth / kCopy;
  static constexpr bool kIdle = kAll < kThreads;
  static constexpr int kCount = kIdle ? 1 : kAll / kThreads;
  static_assert(kStep * kLine == kThreads && (kIdle || kCount * kThreads == kAll));
  static __device__ __forceinline__ int Depth(int i) {
    return Tile::kIsDepthFast ? threadIdx.x % kLine * kCopy : threadIdx.x / kLine + kStep * i;
  }
  static __device__ __forceinline__ int Across(int i) {
    return Tile::kIsDepthFast ? threadIdx.x / kLine + kStep * i : threadIdx.x % kLine * kCopy;
  }
};

// Of the rows of taps a bit each, and of their columns, from kColumnBit on: which of them lead a row of A out
// of the image. kBeyond is set for every row, and stands for what lies beyond the depth.
constexpr int kMaskTaps = 15, kColumnBit = 16;
constexpr unsigned kBeyond = 1u << 31;

struct alignas(16) MaskedStart {
  Index at;
  unsigned outside;
};

template <class Problem>
__device__ __forceinline__ MaskedStart Masked(const Problem& p, const Start& start) {
  unsigned outside = kBeyond;
  for (int r = 0; r < p.tap_rows(); ++r) outside |= unsigned{!p.RowInside(start.y, r)} << r;
  for (int q = 0; q < p.tap_columns(); ++q) {
    outside |= unsigned{!p.ColumnInside(start.x, q)} << (kColumnBit + q);
  }
  return {start.at, outside};
}

// Whether there are bits for all taps, and 32 bits hold how far the rows of a tile of 128 lie apart.
template <class Problem>
bool FitsMasks(const Problem& p) {
  const ConvShape& s = p.s;
  if (p.rows() == 0 || s.k_h > kMaskTaps || s.k_w > kMaskTaps) return false;
  const Index images = 128 / (p.rows() / s.batch) + 2;
  const Index most = (Index{1} << 30) / images;
  return s.in_h * s.in_w * s.in_c < most && s.out_h * s.out_w * s.out_c < most;
}

// Which rows of a problem the rows of a block's tile are.
template <int kRows, bool kMasks>
struct RowTable {
  SharedTable<std::conditional_t<kMasks, MaskedStart, Start>, kRows> starts;
  SharedTable<Index, kRows> outputs;  // offsets in C; kOutside beyond the last row

  template <class Problem>
  __device__ __forceinline__ void Fill(const Problem& p, Index row0) {
    for (int i = threadIdx.x; i < kRows; i += blockDim.x) {
      const Index row = row0 + i;
      const bool inside = row < p.rows();
      // Coordinates that no tap leads back into the image.
      constexpr Start kNowhere = {0, -(1 << 30), -(1 << 30)};
      const Start start = inside ? p.StartOf(row) : kNowhere;
      if constexpr (kMasks) {
        starts.At(i) = Masked(p, start);
      } else {
        starts.At(i) = start;
      }
      outputs.At(i) = inside ? p.C(row) : kOutside;
    }
  }
};

// The copies of one thread for the tiles of one block, step by step of the depth.
template <class Problem, class Config>
class Gatherer {
  using TileA = typename Config::template A<Problem>;
  using TileB = typename Config::template B<Problem>;
  static constexpr int kCopyA = Config::kCopyA, kCopyB = Config::kCopyB;
  using ShareA = CopyShare<TileA, Config::kThreads, kCopyA>;
  using ShareB = CopyShare<TileB, Config::kThreads, kCopyB>;

 public:
  // Whether a thread keeps its rows in registers, where each costs it 64 bits: FitsMasks must hold. The sums
  // of fp32 leave none for them.
  static constexpr bool kMasks = Config::kTf32 && Problem::kDepthFastA && kCopyA == 4;
  using Rows = RowTable<Config::kRows, kMasks>;
  // How far a Place moves on between two copies of A, or two steps.
  static constexpr int kWalk = Problem::kDepthFastA ? TileA::kDepth : ShareA::kStep;

  __device__ __forceinline__ Gatherer(const Problem& p, const Walk& walk, const float* a, const float* b,
                                      Rows& rows, Index column0, Index d0)
      : p_(p), walk_(walk), a_(a), b_(b), rows_(rows), place_(walk.From(d0 + ShareA::Depth(0))) {
    const Index column = column0 + ShareB::Across(0);
    if constexpr (Problem::kDepthFastB) {
      b_ += column * p.s.out_c;
      left_b_ = Clamped(p.columns() - column);
    } else {
      const Index d = d0 + ShareB::Depth(0);
      b_ += d * p.columns() + column;
      left_b_ = column < p.columns() ? Clamped(p.depth() - d) : 0;
    }
    if constexpr (kMasks) {
      const Index first = static_cast<MaskedStart>(rows.starts.At(0)).at;
      a_ += first;
#pragma unroll
      for (int i = 0; i < ShareA::kCount; ++i) {
        const MaskedStart start = rows.starts.At(ShareA::Across(i));
        from_[i] = static_cast<int>(start.at - first);
        outside_[i] = start.outside;
      }
    }
    if constexpr (!Problem::kDepthFastA) {
      const Start start = rows.starts.At(ShareA::Across(0));
      a_ += start.at;
      y_ = start.y;
      x_ = start.x;
    }
  }

  // Queues the copies of the next pair of tiles.
  __device__ __forceinline__ void Gather(const TileA& a, const TileB& b) {
    GatherB(b);
    if constexpr (kMasks) {
      const unsigned tap = p_.InDepth(place_) ? 1u << place_.high | 1u << (kColumnBit + place_.mid) : kBeyond;
      const float* const from = a_ + place_.at;
#pragma unroll
      for (int i = 0; i < ShareA::kCount; ++i) {
        CopyAsync<kCopyA>(a.values, TileA::Offset(ShareA::Depth(0), ShareA::Across(i)), from, from_[i],
                          (outside_[i] & tap) == 0);
      }
      walk_.Advance(place_);
    } else if constexpr (Problem::kDepthFastA) {
      const float* const from = a_ + place_.at;
#pragma unroll
      for (int i = 0; i < ShareA::kCount; ++i) {
        const Start start = rows_.starts.At(ShareA::Across(i));
        // All three, without a branch between them, which would cost registers.
        const bool inside =
            p_.InDepth(place_) & p_.RowInside(start.y, place_.high) & p_.ColumnInside(start.x, place_.mid);
        CopyAsync<kCopyA>(a.values, TileA::Offset(ShareA::Depth(0), ShareA::Across(i)), from, start.at,
                          inside);
      }
      walk_.Advance(place_);
    } else {
#pragma unroll
      for (int i = 0; i < ShareA::kCount; ++i) {
        CopyAsync<kCopyA>(a.values, TileA::Offset(ShareA::Depth(i), ShareA::Across(0)), a_, place_.at,
                          p_.Inside(y_, x_, place_));
        walk_.Advance(place_);
      }
    }
  }

 private:
  __device__ __forceinline__ void GatherB(const TileB& b) {
    if constexpr (Problem::kDepthFastB) {
      // The taps of B are those of A, whose places it shares.
      const bool inside = p_.InDepth(place_);
      const float* from = b_ + p_.B(place_);
#pragma unroll
      for (int i = 0; i < ShareB::kCount; ++i, from += ShareB::kStep * p_.s.out_c) {
        if (ShareB::kIdle && ShareB::Across(i) >= TileB::kWidth) continue;
        CopyAsync<kCopyB>(b.values, TileB::Offset(ShareB::Depth(0), ShareB::Across(i)), from, 0,
                          inside && left_b_ > ShareB::kStep * i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < ShareB::kCount; ++i, b_ += ShareB::kStep * p_.columns()) {
        CopyAsync<kCopyB>(b.values, TileB::Offset(ShareB::Depth(i), ShareB::Across(0)), b_, 0,
                          left_b_ > ShareB::kStep * i);
      }
      left_b_ -= TileB::kDepth;
    }
  }

  // A slice is shorter than that (kMostSteps).
  static __device__ __forceinline__ int Clamped(Index left) {
    constexpr Index kMost = 2147483647;
    return static_cast<int>(left < kMost ? left : kMost);
  }

  const Problem& p_;
  const Walk& walk_;
  const float *a_, *b_;  // b_: the next element of B, but for its tap
  Rows& rows_;
  Place place_;
  // Of each row that this thread copies, with masks: where it begins, from a_ on, and its MaskedStart's bits.
  int from_[ShareA::kCount];
  unsigned outside_[ShareA::kCount];
  int y_, x_;   // of the one row that this thread copies, where depth runs slowest
  int left_b_;  // how many of B's columns or depths there are from b_ on
};

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_GATHER_H_
