// How a product is cut into blocks: which tiles, and how many slices of the depth where tiles alone would
// leave a GPU partly idle. It depends on the shape and the algorithm only, so that sums are formed in one order
// on every GPU.
#ifndef OVERLAP_TRAIN_CONV_CUDA_PLAN_H_
#define OVERLAP_TRAIN_CONV_CUDA_PLAN_H_

#include <algorithm>
#include <cmath>

#include "cuda_gemm.h"

namespace overlap_train::conv {

constexpr Index kGemmRows = 128;

// Tiles are 128 columns wide, or 64 where that leaves fewer columns empty.
inline Index TileColumns(Index columns) {
  const Index narrow = (columns + 63) / 64;
  return narrow == 1 || narrow == 3 ? 64 : 128;
}

// The slices with which a GPU of 132 multiprocessors, with two wide or four narrow tiles on each at a time,
// should be done first. Time is counted in steps of a multiprocessor with wide tiles.
inline Index Slices(Index rows, Index columns, Index depth, bool tf32) {
  constexpr double kProcessors = 132, kStart = 6;
  const Index width = TileColumns(columns);
  const double tiles = static_cast<double>((rows + kGemmRows - 1) / kGemmRows * ((columns + width - 1) / width));
  const double wide = static_cast<double>(width) / 128, resident = 2 / wide;
  const Index steps = (depth + kGemmDepth - 1) / kGemmDepth;
  // What writing and reading the sums of a tile costs, and adding them another kernel, beside a step.
  const double traffic = tf32 ? 12 : 3;
  const auto time = [&](Index slices) {
    const double blocks = tiles * static_cast<double>(slices);
    const double waves = std::ceil(blocks / (kProcessors * resident));
    const auto each = static_cast<double>((steps + slices - 1) / slices);
    // A wave that leaves multiprocessors with one block is no faster than one of two.
    return waves * 2 * (each + kStart) + (slices > 1 ? traffic * (1 + blocks * wide / kProcessors) : 0);
  };
  Index best = 1;
  for (Index slices = 2; slices <= std::min<Index>(steps / 4, 512); ++slices) {
    if (time(slices) < 0.95 * time(best)) best = slices;
  }
  return best;
}

template <class Problem>
Index Slices(const Problem& p, bool tf32) {
  return Slices(p.rows(), p.columns(), p.depth(), tf32);
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_PLAN_H_
