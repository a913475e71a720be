// Winograd's convolution, forward; the input gradient is one as well, of the output gradient with turned
// filters.
//
// Two schedules. Large images with few channels go tiles first: all filters are transformed once, then each
// worker takes blocks of tiles and carries them from image to image within its own L2 cache. Small images
// with many channels have filters far larger than their tiles, so they go panels first: all tiles are
// transformed once, then each worker takes panels of output channels and transforms their filters chunk by
// chunk, just before use; the transformed filters, four times the stored ones, never reach memory. Images of
// up to kFewInputs channels have a schedule of their own, in winograd_few_inputs.h.
#ifndef OVERLAP_TRAIN_CONV_WINOGRAD_FORWARD_H_
#define OVERLAP_TRAIN_CONV_WINOGRAD_FORWARD_H_

#include "blocks.h"
#include "filter_stage.h"
#include "parallel.h"
#include "winograd_few_inputs.h"
#include "winograd_filters.h"
#include "winograd_tiles.h"

namespace overlap_train::conv::OT_ISA {

template <class T>
class WinogradForward {
 public:
  WinogradForward(const ConvShape& shape, const FilterView<T>& filter, const Epilogue<T>& epilogue,
                  const T* x, T* y, Runtime& runtime)
      : s_(shape), filter_(filter), epilogue_(epilogue), x_(x), y_(y), runtime_(runtime), grid_(shape) {}

  bool Run() {
    Scratch<T> zeros(runtime_, RoundUp(s_.in_c, kLanes<T>));
    if (!zeros) return false;
    for (Index c = 0; c < s_.in_c; ++c) zeros.get()[c] = T(0);
    zeros_ = zeros.get();
    return PanelsFirst() ? RunPanelsFirst() : RunTilesFirst();
  }

 private:
  static constexpr Index kDepth = 64;  // input channels of one pass: a panel of 64 × 64 floats half fills L1
  static constexpr Index kTileBlock = 24;   // tiles a worker carries, tiles first
  static constexpr Index kPanelTiles = 96;  // tiles at a time, panels first

  Index panels() const { return CeilDiv(s_.out_c, kPanel<T>); }
  Index PanelOutputs(Index panel) const { return Min(kPanel<T>, s_.out_c - panel * kPanel<T>); }
  Index PanelWidth(Index panel) const { return RoundUp(PanelOutputs(panel), kLanes<T>); }

  // Transformed filters beyond the cache's size are read from memory once for each block of tiles; panels
  // first reads the stored ones, a quarter of that, once for every kPanelTiles.
  bool PanelsFirst() const {
    const Index transformed_bytes = kPositions * s_.in_c * s_.out_c * static_cast<Index>(sizeof(T));
    return panels() >= runtime_.workers() && transformed_bytes > (Index(4) << 20) &&
           grid_.count <= 16 * kTileBlock;
  }

  // One position's share of M (+)= V U: `tiles` rows, `cn` input channels, a panel `width` wide.
  struct Product {
    const T* v;
    Index v_row;
    const T* u;
    Index cn;
    T* m;
    Index m_row;
    Index tiles, width;
    bool add;
  };

  template <class Job>
  static void Multiply(const Product& p, Job& job) {
    const RowSplit split(p.tiles);
    const int vectors = static_cast<int>(p.width / kLanes<T>);
    for (Index block = 0; block < split.blocks; ++block) {
      const Index t = split.begin(block);
      const Operands<T> in{p.v + t * p.v_row, p.v_row, p.u, 0, p.cn, 1, 0, 0};
      const int rows = static_cast<int>(split.begin(block + 1) - t);
      T* const m = p.m + t * p.m_row;
      if (p.add) {
        RunBlock<false>(rows, vectors, in, StoreSink<T, true>{m, p.m_row}, job);
      } else {
        RunBlock<false>(rows, vectors, in, StoreSink<T, false>{m, p.m_row}, job);
      }
    }
  }

  // Fetches the panel at `next` meanwhile; each block has its part of it.
  static void MultiplyFetching(const Product& p, const T* next) {
    constexpr Index kPanelLines = kPanel<T> * static_cast<Index>(sizeof(T)) / kLineBytes;
    const Index blocks = CeilDiv(p.tiles, kBlockRows);
    const char* const lines = reinterpret_cast<const char*>(next);
    if (blocks >= 2 * kPanelLines) {
      NoJob none;
      Multiply(p, none);
    } else if (blocks >= kPanelLines) {
      FetchLines<1> fetch{lines};
      Multiply(p, fetch);
    } else {
      FetchLines<(kPanelLines > 1 ? 2 : 1)> fetch{lines};
      Multiply(p, fetch);
    }
  }

  TileBlock<T> OutputBlock(Index tiles) const { return TileBlock<T>::Chunked(nullptr, kPanel<T>, tiles); }

  bool RunTilesFirst() {
    const Index tiles = Min(kTileBlock, grid_.count), workers = runtime_.workers();
    const Index u_plane = PlaneStride<T>(s_.in_c * kPanel<T>);
    const TileBlock<T> v = TileBlock<T>::Whole(nullptr, s_.in_c, tiles), m = OutputBlock(tiles);
    const Index private_size = kPositions * (v.plane + m.plane);
    Scratch<T> u(runtime_, panels() * kPositions * u_plane);
    Scratch<T> blocks(runtime_, workers * private_size);
    if (!u || !blocks) return false;
    TransformAllFilters(u.get(), u_plane);
    ForEachTask(runtime_, CeilDiv(grid_.count, tiles), [&](Index task, int worker) {
      T* const data = blocks.get() + worker * private_size;
      CarryTiles(task * tiles, Min(tiles, grid_.count - task * tiles), v.At(data),
                 m.At(data + kPositions * v.plane), u.get(), u_plane);
    });
    return true;
  }

  void TransformAllFilters(T* u, Index u_plane) {
    const Index chunks = CeilDiv(s_.in_c, kDepth);
    ForEachTask(runtime_, panels() * chunks, [&](Index task, int) {
      const Index panel = task / chunks, c = task % chunks * kDepth, width = PanelWidth(panel);
      TransformFilter(FilterChunk<T>::Stored(filter_, c, panel * kPanel<T>), Min(kDepth, s_.in_c - c),
                      PanelOutputs(panel), u + panel * kPositions * u_plane + c * width, width, u_plane);
    });
  }

  void CarryTiles(Index first, Index count, const TileBlock<T>& v, const TileBlock<T>& m, const T* u,
                  Index u_plane) const {
    TransformInput(s_, grid_, x_, zeros_, first, count, v);
    for (Index panel = 0; panel < panels(); ++panel) {
      const Index width = PanelWidth(panel);
      for (Index position = 0; position < kPositions; ++position) {
        const T* const filters = u + (panel * kPositions + position) * u_plane;
        for (Index c = 0; c < s_.in_c; c += kDepth) {
          const T* const next = c + kDepth < s_.in_c ? filters + (c + kDepth) * width : filters + u_plane;
          const Index cn = Min(kDepth, s_.in_c - c);
          MultiplyFetching({v.data + position * v.plane + c, v.tile, filters + c * width, cn,
                            m.data + position * m.plane, m.tile, count, width, c > 0},
                           next);
        }
      }
      TransformOutput(s_, grid_, m, first, count, panel * kPanel<T>, PanelOutputs(panel), epilogue_, y_);
    }
  }

  // Memory likes to be read along the stored rows. Those of turned filters are inputs: a task has one panel,
  // and large chunks that follow one another. Otherwise they are outputs: then the panels of a task take
  // turns at each chunk, and each goes on in the rows where the one before has stopped. A transformed chunk
  // takes half of L2 or a third.
  Index ChunkInputs() const { return filter_.turned ? 64 : 32; }
  Index PanelsTogether(Index tiles) const {
    if (filter_.turned) return 1;
    const Index sums = kPositions * tiles * kPanel<T> * static_cast<Index>(sizeof(T));
    const Index in_cache = (Index(256) << 10) / sums, for_each = panels() / (2 * runtime_.workers());
    return Max(1, Min(in_cache, for_each));
  }

  bool RunPanelsFirst() {
    const Index tiles = Min(kPanelTiles, grid_.count), together = PanelsTogether(tiles);
    const Index u_plane = PlaneStride<T>(ChunkInputs() * kPanel<T>);
    const TileBlock<T> m = OutputBlock(tiles);
    const Index m_size = together * kPositions * m.plane, u_size = kPositions * u_plane;
    const Index private_size = m_size + u_size + FilterStage<T>::Size(ChunkInputs(), kPanel<T>);
    TileBlock<T> v = TileBlock<T>::Chunked(nullptr, ChunkInputs(), tiles);
    Scratch<T> v_data(runtime_, v.size(s_.in_c));
    Scratch<T> panel_data(runtime_, runtime_.workers() * private_size);
    if (!v_data || !panel_data) return false;
    v.data = v_data.get();
    for (Index first = 0; first < grid_.count; first += tiles) {
      const Index count = Min(tiles, grid_.count - first);
      ForEachTask(runtime_, count, [&](Index t, int) {
        TransformInput(s_, grid_, x_, zeros_, first + t, 1, v.At(v.data + t * v.tile));
      });
      ForEachTask(runtime_, CeilDiv(panels(), together), [&](Index group, int worker) {
        T* const data = panel_data.get() + worker * private_size;
        FilterStage<T> stage(filter_, ChunkInputs(), kPanel<T>, data + m_size + u_size);
        CarryPanels(group * together, Min(panels(), (group + 1) * together), first, count, v, m.At(data),
                    data + m_size, u_plane, stage);
      });
    }
    return true;
  }

  void CarryPanels(Index begin, Index end, Index first, Index count, const TileBlock<T>& v,
                   const TileBlock<T>& m, T* u, Index u_plane, FilterStage<T>& stage) const {
    const Index together = end - begin, steps = together * CeilDiv(s_.in_c, ChunkInputs());
    const auto inputs_of = [&](Index step) { return step / together * ChunkInputs(); };
    const auto panel_of = [&](Index step) { return begin + step % together; };
    const auto stage_for = [&](Index step) {
      const Index c = inputs_of(step), panel = panel_of(step);
      return stage.Stage(c, Min(ChunkInputs(), s_.in_c - c), panel * kPanel<T>, PanelOutputs(panel));
    };
    stage.FinishStaging(stage_for(0));
    for (Index step = 0; step < steps; ++step) {
      const Index c = inputs_of(step), cn = Min(ChunkInputs(), s_.in_c - c), panel = panel_of(step);
      const Index width = PanelWidth(panel);
      T* const sums = m.data + (panel - begin) * kPositions * m.plane;
      TransformFilter(stage.staged(), cn, PanelOutputs(panel), u, width, u_plane);
      const bool more = step + 1 < steps;
      CopyLines copy = more ? stage_for(step + 1) : CopyLines{};
      for (Index position = 0; position < kPositions; ++position) {
        const T* const inputs = v.data + c / ChunkInputs() * v.chunk_stride + position * v.plane;
        Multiply({inputs, v.tile, u + position * u_plane, cn, sums + position * m.plane, m.tile, count, width,
                  c > 0},
                 copy);
      }
      if (more) stage.FinishStaging(copy);
    }
    for (Index panel = begin; panel < end; ++panel) {
      TransformOutput(s_, grid_, m.At(m.data + (panel - begin) * kPositions * m.plane), first, count,
                      panel * kPanel<T>, PanelOutputs(panel), epilogue_, y_);
    }
  }

  const ConvShape& s_;
  const FilterView<T> filter_;
  const Epilogue<T> epilogue_;
  const T* const x_;
  T* const y_;
  Runtime& runtime_;
  const TileGrid grid_;
  const T* zeros_ = nullptr;
};

template <class T>
bool RunWinograd(const ConvShape& s, const FilterView<T>& filter, const Epilogue<T>& epilogue, const T* x,
                 T* y, Runtime& runtime) {
  if (s.in_c <= kFewInputs) return WinogradFewInputs<T>(s, filter, epilogue, x, y, runtime).Run();
  return WinogradForward<T>(s, filter, epilogue, x, y, runtime).Run();
}

template <class T>
bool RunWinogradForward(const ConvShape& s, const T* x, const T* filter, Epilogue<T> epilogue, T* y,
                        Runtime& runtime) {
  return RunWinograd<T>(s, {filter, s.in_c, s.out_c, false}, epilogue, x, y, runtime);
}

template <class T>
bool RunWinogradInputGradient(const ConvShape& s, const T* dy, const T* filter, T* dx, Runtime& runtime) {
  const ConvShape back{s.batch, s.out_h, s.out_w, s.out_c, s.in_h,        s.in_w,        s.in_c,
                       3,       3,       1,       1,       2 - s.pad_top, 2 - s.pad_left};
  return RunWinograd<T>(back, {filter, s.out_c, s.in_c, true}, {nullptr, false}, dy, dx, runtime);
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_WINOGRAD_FORWARD_H_
