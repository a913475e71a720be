// Winograd's filter gradient: at each of the 36 positions, dU = Vᵀ D summed over tiles, with V the
// transformed input and D the transformed output gradient; then Gᵀ dU G.
//
// Two schedules again. Where dU fits in cache, each worker has one of its own and takes a fixed share of the
// tiles through it (tiles split). Where it does not, all tiles are transformed first and each worker takes
// patches of dU, small enough for its cache, through all of them (patches).
#ifndef OVERLAP_TRAIN_CONV_WINOGRAD_FILTER_GRADIENT_H_
#define OVERLAP_TRAIN_CONV_WINOGRAD_FILTER_GRADIENT_H_

#include "blocks.h"
#include "parallel.h"
#include "winograd_filters.h"
#include "winograd_tiles.h"

namespace overlap_train::conv::OT_ISA {

template <class T>
class WinogradFilterGradient {
 public:
  WinogradFilterGradient(const ConvShape& shape, const T* x, const T* dy, T* out, Runtime& runtime)
      : s_(shape),
        x_(x),
        dy_(dy),
        out_(out),
        runtime_(runtime),
        grid_(shape),
        stream_(Streams(out, 9 * shape.in_c * shape.out_c, shape.out_c)) {}

  bool Run() {
    const Index channels = RoundUp(Max(s_.in_c, s_.out_c), kLanes<T>);
    Scratch<T> zeros(runtime_, channels);
    if (!zeros) return false;
    for (Index c = 0; c < channels; ++c) zeros.get()[c] = T(0);
    zeros_ = zeros.get();
    return Patches() ? RunPatches() : RunTilesSplit();
  }

 private:
  static constexpr Index kTileBlock = 48;  // tiles of one pass: 48 rows of a panel half fill L1
  static constexpr Index kPatch = 64;      // input channels of one patch of dU

  Index panels() const { return CeilDiv(s_.out_c, kPanel<T>); }
  Index PanelOutputs(Index panel) const { return Min(kPanel<T>, s_.out_c - panel * kPanel<T>); }

  bool Patches() const {
    const Index gradient_bytes = kPositions * s_.in_c * s_.out_c * static_cast<Index>(sizeof(T));
    return gradient_bytes > (Index(4) << 20) || grid_.count <= kTileBlock;
  }

  // u[c * row + k] (+)= sum over `tiles` tiles of v[tile, c] * d[tile, k], for cn inputs and kn outputs.
  void Multiply(const T* v, Index v_tile, const T* d, Index d_tile, Index tiles, Index cn, Index kn, T* u,
                Index row, bool add) const {
    const RowSplit split(cn);
    const int vectors = static_cast<int>(CeilDiv(kn, kLanes<T>));
    for (Index block = 0; block < split.blocks; ++block) {
      const Index c = split.begin(block);
      const int rows = static_cast<int>(split.begin(block + 1) - c);
      const Operands<T> in{v + c, v_tile, d, d_tile, tiles, 1, 0, 0};
      if (add) {
        RunBlock<true>(rows, vectors, in, StoreSink<T, true>{u + c * row, row});
      } else {
        RunBlock<true>(rows, vectors, in, StoreSink<T, false>{u + c * row, row});
      }
    }
  }

  bool RunTilesSplit() {
    const Index shares = Min(runtime_.workers(), CeilDiv(grid_.count, kTileBlock));
    const Index row = RoundUp(s_.out_c, kLanes<T>), plane = PlaneStride<T>(s_.in_c * row);
    const auto v = TileBlock<T>::Whole(nullptr, s_.in_c, kTileBlock);
    const auto d = TileBlock<T>::Whole(nullptr, s_.out_c, kTileBlock);
    const Index private_size = kPositions * (v.plane + d.plane);
    Scratch<T> u(runtime_, shares * kPositions * plane), blocks(runtime_, shares * private_size);
    if (!u || !blocks) return false;
    ForEachTask(runtime_, shares, [&](Index share, int) {
      T* const data = blocks.get() + share * private_size;
      CarryShare(grid_.count * share / shares, grid_.count * (share + 1) / shares, v.At(data),
                 d.At(data + kPositions * v.plane), u.get() + share * kPositions * plane, row, plane);
    });
    AddSharesAndFinish(u.get(), shares, row, plane);
    return true;
  }

  void CarryShare(Index begin, Index end, const TileBlock<T>& v, const TileBlock<T>& d, T* u, Index row,
                  Index plane) const {
    for (Index first = begin; first < end; first += kTileBlock) {
      const Index count = Min(kTileBlock, end - first);
      TransformInput(s_, grid_, x_, zeros_, first, count, v);
      TransformOutputGradient(s_, grid_, dy_, zeros_, first, count, d);
      for (Index position = 0; position < kPositions; ++position) {
        for (Index panel = 0; panel < panels(); ++panel) {
          const Index k = panel * kPanel<T>;
          Multiply(v.data + position * v.plane, v.tile, d.data + position * d.plane + k, d.tile, count,
                   s_.in_c, PanelOutputs(panel), u + position * plane + k, row, first > begin);
        }
      }
    }
  }

  void AddSharesAndFinish(T* u, Index shares, Index row, Index plane) {
    ForEachTask(runtime_, s_.in_c, [&](Index c, int) {
      for (Index share = 1; share < shares; ++share) {
        for (Index position = 0; position < kPositions; ++position) {
          T* const sum = u + position * plane + c * row;
          const T* const part = sum + share * kPositions * plane;
          for (Index k = 0; k < row; k += kLanes<T>) Store<T>(sum + k, Load(sum + k) + Load(part + k));
        }
      }
      FilterGradientFrom(u + c * row, row, plane, 1, s_.out_c, out_ + c * s_.out_c, s_.out_c,
                         s_.in_c * s_.out_c, false);
    });
  }

  bool RunPatches() {
    auto v = TileBlock<T>::Chunked(nullptr, kPatch, grid_.count);
    auto d = TileBlock<T>::Chunked(nullptr, kPanel<T>, grid_.count);
    const Index plane = PlaneStride<T>(kPatch * kPanel<T>), private_size = kPositions * plane;
    Scratch<T> tiles(runtime_, v.size(s_.in_c) + d.size(s_.out_c));
    Scratch<T> u(runtime_, runtime_.workers() * private_size);
    if (!tiles || !u) return false;
    v.data = tiles.get();
    d.data = v.data + v.size(s_.in_c);
    ForEachTask(runtime_, grid_.count, [&](Index t, int) {
      TransformInput(s_, grid_, x_, zeros_, t, 1, v.At(v.data + t * v.tile));
      TransformOutputGradient(s_, grid_, dy_, zeros_, t, 1, d.At(d.data + t * d.tile));
    });
    const Index patches = CeilDiv(s_.in_c, kPatch);
    ForEachTask(runtime_, panels() * patches, [&](Index task, int worker) {
      CarryPatch(task / patches, task % patches * kPatch, v, d, u.get() + worker * private_size, plane);
    });
    return true;
  }

  void CarryPatch(Index panel, Index c, const TileBlock<T>& v, const TileBlock<T>& d, T* u,
                  Index plane) const {
    const Index k = panel * kPanel<T>, kn = PanelOutputs(panel), cn = Min(kPatch, s_.in_c - c);
    for (Index position = 0; position < kPositions; ++position) {
      const T* const vp = v.data + c / kPatch * v.chunk_stride + position * v.plane;
      const T* const dp = d.data + panel * d.chunk_stride + position * d.plane;
      for (Index t = 0; t < grid_.count; t += kTileBlock) {
        Multiply(vp + t * v.tile, v.tile, dp + t * d.tile, d.tile, Min(kTileBlock, grid_.count - t), cn, kn,
                 u + position * plane, kPanel<T>, t > 0);
      }
    }
    FilterGradientFrom(u, kPanel<T>, plane, cn, kn, out_ + c * s_.out_c + k, s_.out_c, s_.in_c * s_.out_c,
                       stream_);
  }

  const ConvShape& s_;
  const T* const x_;
  const T* const dy_;
  T* const out_;
  Runtime& runtime_;
  const TileGrid grid_;
  const bool stream_;
  const T* zeros_ = nullptr;
};

template <class T>
bool RunWinogradFilterGradient(const ConvShape& s, const T* x, const T* dy, T* dfilter, Runtime& runtime) {
  return WinogradFilterGradient<T>(s, x, dy, dfilter, runtime).Run();
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_WINOGRAD_FILTER_GRADIENT_H_
