// Winograd's convolution, forward; the input gradient is one as well, of the output gradient with turned
// filters.
//
// Two schedules. Large images with few channels go tiles first: all filters are transformed once, then each
// worker takes blocks of tiles and carries them from image to image within its own L2 cache. Small images
// with many channels have filters far larger than their tiles, so they go panels first: all tiles are
// transformed once, then each worker takes panels of output channels and transforms their filters chunk by
// chunk, just before use; the transformed filters, four times the stored ones, never reach memory.
#ifndef OVERLAP_TRAIN_CONV_WINOGRAD_FORWARD_H_
#define OVERLAP_TRAIN_CONV_WINOGRAD_FORWARD_H_

#include "blocks.h"
#include "parallel.h"
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

  // One position's share of M (+)= V U: `tiles` rows, `cn` input channels, a panel `width` wide. `next` is
  // the panel that will be multiplied after this one; each block fetches its part of it.
  struct Product {
    const T* v;
    Index v_row;
    const T* u;
    const T* next;
    Index cn;
    T* m;
    Index m_row;
    Index tiles, width;
    bool add;
  };

  template <int kLines>
  static void MultiplyFetching(const Product& p) {
    const RowSplit split(p.tiles);
    for (Index block = 0; block < split.blocks; ++block) {
      const Index t = split.begin(block);
      const T* const ahead = p.next + block * p.cn * kLines * (64 / static_cast<Index>(sizeof(T)));
      const Operands<T> in{p.v + t * p.v_row, p.v_row, p.u, 0, p.cn, 1, 0, 0, ahead};
      const int rows = static_cast<int>(split.begin(block + 1) - t),
                vectors = static_cast<int>(p.width / kLanes<T>);
      T* const m = p.m + t * p.m_row;
      if (p.add) {
        RunBlock<false, kLines>(rows, vectors, in, StoreSink<T, true>{m, p.m_row});
      } else {
        RunBlock<false, kLines>(rows, vectors, in, StoreSink<T, false>{m, p.m_row});
      }
    }
  }

  static void Multiply(const Product& p) {
    constexpr Index kPanelLines = kPanel<T> * static_cast<Index>(sizeof(T)) / 64;
    const Index blocks = CeilDiv(p.tiles, kBlockRows);
    if (blocks >= 2 * kPanelLines || p.next == nullptr) {
      MultiplyFetching<0>(p);
    } else if (blocks >= kPanelLines) {
      MultiplyFetching<1>(p);
    } else {
      MultiplyFetching<(kPanelLines > 1 ? 2 : 1)>(p);
    }
  }

  TileBlock<T> OutputBlock(Index tiles) const { return TileBlock<T>::Chunked(nullptr, kPanel<T>, tiles); }

  bool RunTilesFirst() {
    const Index tiles = Min(kTileBlock, grid_.count), workers = runtime_.workers();
    const Index u_plane = PlaneStride<T>(s_.in_c * kPanel<T>);
    const TileBlock<T> v = TileBlock<T>::Whole(nullptr, s_.in_c, tiles), m = OutputBlock(tiles);
    const Index private_size = kPositions * (v.plane + m.plane);
    Scratch<T> u(runtime_, panels() * kPositions * u_plane + workers * kTurnScratch<T>);
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
    T* const turn = u + panels() * kPositions * u_plane;
    const Index chunks = CeilDiv(s_.in_c, kFilterChunk);
    ForEachTask(runtime_, panels() * chunks, [&](Index task, int worker) {
      const Index panel = task / chunks, c = task % chunks * kFilterChunk, width = PanelWidth(panel);
      TransformFilter(filter_, c, Min(kFilterChunk, s_.in_c - c), panel * kPanel<T>, PanelOutputs(panel),
                      turn + worker * kTurnScratch<T>, u + panel * kPositions * u_plane + c * width, width,
                      u_plane);
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
          Multiply({v.data + position * v.plane + c, v.tile, filters + c * width, next,
                    Min(kDepth, s_.in_c - c), m.data + position * m.plane, m.tile, count, width, c > 0});
        }
      }
      TransformOutput(s_, grid_, m, first, count, panel * kPanel<T>, PanelOutputs(panel), epilogue_, y_);
    }
  }

  // Stored filters are read in rows as long as a chunk of inputs (turned ones) or some panels of outputs
  // (others); rows of 256 bytes and more keep up with memory. Either way the transformed chunk takes about
  // half of L2.
  Index ChunkInputs() const { return filter_.turned ? 64 : 32; }
  Index PanelsTogether() const {
    return !filter_.turned && grid_.count <= kTileBlock && panels() >= 4 * runtime_.workers() ? 2 : 1;
  }

  bool RunPanelsFirst() {
    const Index tiles = Min(kPanelTiles, grid_.count), workers = runtime_.workers(),
                together = PanelsTogether();
    const Index u_plane = PlaneStride<T>(ChunkInputs() * kPanel<T>);
    const TileBlock<T> m = OutputBlock(tiles);
    const Index private_size = together * kPositions * (u_plane + m.plane) + kTurnScratch<T>;
    TileBlock<T> v = TileBlock<T>::Chunked(nullptr, ChunkInputs(), tiles);
    Scratch<T> v_data(runtime_, v.size(s_.in_c));
    Scratch<T> panel_data(runtime_, workers * private_size);
    if (!v_data || !panel_data) return false;
    v.data = v_data.get();
    for (Index first = 0; first < grid_.count; first += tiles) {
      const Index count = Min(tiles, grid_.count - first);
      ForEachTask(runtime_, count, [&](Index t, int) {
        TransformInput(s_, grid_, x_, zeros_, first + t, 1, v.At(v.data + t * v.tile));
      });
      ForEachTask(runtime_, CeilDiv(panels(), together), [&](Index group, int worker) {
        T* const data = panel_data.get() + worker * private_size;
        CarryPanels(group * together, Min(panels(), (group + 1) * together), first, count, v, m.At(data),
                    data + together * kPositions * m.plane, u_plane);
      });
    }
    return true;
  }

  void CarryPanels(Index begin, Index end, Index first, Index count, const TileBlock<T>& v,
                   const TileBlock<T>& m, T* u, Index u_plane) const {
    T* const turn = u + (end - begin) * kPositions * u_plane;
    const Index k0 = begin * kPanel<T>, outputs = Min(end * kPanel<T>, s_.out_c) - k0;
    for (Index c = 0; c < s_.in_c; c += ChunkInputs()) {
      const Index cn = Min(ChunkInputs(), s_.in_c - c), ahead = Min(ChunkInputs(), s_.in_c - c - cn);
      for (Index panel = begin; panel < end; ++panel) {
        TransformFilter(filter_, c, cn, panel * kPanel<T>, PanelOutputs(panel), turn,
                        u + (panel - begin) * kPositions * u_plane, PanelWidth(panel), u_plane);
      }
      for (Index position = 0; position < kPositions; ++position) {
        if (ahead > 0) PrefetchFilter(filter_, c + cn, ahead, k0, outputs, position, kPositions);
        const T* const inputs = v.data + c / ChunkInputs() * v.chunk_stride + position * v.plane;
        for (Index panel = begin; panel < end; ++panel) {
          const Index at = (panel - begin) * kPositions + position;
          Multiply({inputs, v.tile, u + at * u_plane, nullptr, cn, m.data + at * m.plane, m.tile, count,
                    PanelWidth(panel), c > 0});
        }
      }
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
bool RunWinogradForward(const ConvShape& s, const T* x, const T* filter, Epilogue<T> epilogue, T* y,
                        Runtime& runtime) {
  return WinogradForward<T>(s, {filter, s.in_c, s.out_c, false}, epilogue, x, y, runtime).Run();
}

template <class T>
bool RunWinogradInputGradient(const ConvShape& s, const T* dy, const T* filter, T* dx, Runtime& runtime) {
  const ConvShape back{s.batch, s.out_h, s.out_w, s.out_c, s.in_h,        s.in_w,        s.in_c,
                       3,       3,       1,       1,       2 - s.pad_top, 2 - s.pad_left};
  return WinogradForward<T>(back, {filter, s.out_c, s.in_c, true}, {nullptr, false}, dy, dx, runtime).Run();
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_WINOGRAD_FORWARD_H_
