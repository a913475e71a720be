// How a product is cut into blocks: tiles of which width, and how many slices of the depth where tiles alone
// would leave a GPU partly idle. It depends on the shape and the algorithm only, so that sums are formed in
// one order on every GPU.
#ifndef OVERLAP_TRAIN_CONV_CUDA_PLAN_H_
#define OVERLAP_TRAIN_CONV_CUDA_PLAN_H_

#include <algorithm>

#include "cuda_gemm.h"

namespace overlap_train::conv {

constexpr Index kProcessors = 132;
constexpr Index kLeastSlice = 2 * kSliceDepth;
constexpr int kFewRows = 32;

struct GemmPlan {
  Index columns;  // of a tile, 64 or 128
  Index slices;
  Index rows = 128;  // of a tile, or kFewRows
};

// What a plan should take on a GPU of kProcessors, an H100, in steps of 16 depths of a wide tile on one of
// them. `unit` is a narrow tile's step, `alone` what a multiprocessor loses in the last wave that has fewer
// blocks than it can hold, kStart what a block does ahead of its steps and after them; of slices, `adding` is
// the cost of one more launch and `traffic` that of writing and adding the sums of a wide tile. Fitted to
// U-Net's products at a batch of 8 on an H200, each by both widths in some 20 numbers of slices (of fp32, the
// filter gradient's): the plans take 1 to 2 % longer than the best, on average of a direction. With VGG16,
// and on an H100, times are within a tenth.
inline double GemmTime(Index rows, Index columns, Index depth, bool tf32, const GemmPlan& plan) {
  constexpr double kStart = 6, kAlone = 0.4;
  const bool wide = plan.columns == 128;
  const double unit = wide ? 1 : tf32 ? 0.55 : 0.52, adding = tf32 ? 1 : 3, traffic = tf32 ? 6 : 3;
  const auto up = [](Index n, Index by) { return (n + by - 1) / by; };
  const Index blocks = up(rows, 128) * up(columns, plan.columns) * plan.slices;
  const Index most = up(blocks, kProcessors), resident = wide ? 2 : 4;
  const Index missing = (resident - most % resident) % resident;
  const double steps =
      static_cast<double>(up(up(depth, kSliceDepth), plan.slices) * kSliceDepth / 16) + kStart;
  const double busy =
      static_cast<double>(most) + kAlone * static_cast<double>(missing) / static_cast<double>(resident);
  const double tiles = static_cast<double>(blocks) / kProcessors * (wide ? 1 : 0.5);
  return busy * unit * steps + (plan.slices > 1 ? adding + traffic * tiles : 0);
}

// The best plan; among the slices, of those that give each multiprocessor as many blocks as the next.
inline GemmPlan PlanFor(Index rows, Index columns, Index depth, bool tf32, bool may_slice) {
  GemmPlan best = {128, 1};
  double least = GemmTime(rows, columns, depth, tf32, best);
  const auto consider = [&](const GemmPlan& plan) {
    const double time = GemmTime(rows, columns, depth, tf32, plan);
    if (time >= 0.97 * least) return;
    best = plan;
    least = time;
  };
  const Index most = may_slice ? depth / kLeastSlice : 1;
  for (const Index width : {128, 64}) {
    consider({width, 1});
    const Index tiles = std::max<Index>((rows + 127) / 128 * ((columns + width - 1) / width), 1);
    for (Index each = 1; each <= 8; ++each) {
      const Index slices = std::min(each * kProcessors / tiles, most);
      if (slices > 1) consider({width, slices});
    }
  }
  return best;
}

template <class Problem>
GemmPlan PlanFor(const Problem& p, bool tf32, bool may_slice = true) {
  if (!Problem::kDepthFastA && !tf32 && p.rows() <= kFewRows && p.columns() % 4 == 0) {
    // The filter's gradient of an image's channels: tiles of 128 rows would be empty but for these. Of the
    // long depth each multiprocessor takes eight slices at once.
    const Index tiles = std::max<Index>((p.columns() + 63) / 64, 1);
    const Index slices = std::min(8 * kProcessors / tiles, p.depth() / kLeastSlice);
    return {64, std::max<Index>(slices, 1), kFewRows};
  }
  return PlanFor(p.rows(), p.columns(), p.depth(), tf32, may_slice);
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_PLAN_H_
