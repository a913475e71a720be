// Winograd's forward convolution for images of few channels. With three of them a product is so short that
// the passes between the stages, through memory, would take longer than the products: here a few tiles at a
// time go from transformed inputs to finished outputs in registers and L1.
#ifndef OVERLAP_TRAIN_CONV_WINOGRAD_FEW_INPUTS_H_
#define OVERLAP_TRAIN_CONV_WINOGRAD_FEW_INPUTS_H_

#include "direct_rows.h"
#include "parallel.h"
#include "winograd_filters.h"
#include "winograd_tiles.h"

namespace overlap_train::conv::OT_ISA {

constexpr Index kFewInputs = 4;

template <class T>
class WinogradFewInputs {
 public:
  WinogradFewInputs(const ConvShape& shape, const FilterView<T>& filter, const Epilogue<T>& epilogue,
                    const T* x, T* y, Runtime& runtime)
      : s_(shape),
        filter_(filter),
        epilogue_(epilogue),
        x_(x),
        y_(y),
        runtime_(runtime),
        grid_(shape),
        padded_(WholeTiles(shape)),
        row_(PaddedRowStride<T>(padded_)),
        stream_(Streams(y, s_.batch * s_.out_h * s_.out_w * s_.out_c, s_.out_c)) {}

  bool Run() {
    const Index panels = CeilDiv(s_.out_c, kPanel<T>);
    const Index private_size = 2 * kSpan * row_ + kPositions * kPlane + kTogether * kHalf;
    Scratch<T> filters(runtime_, panels * kPositions * kFilterPlane);
    Scratch<T> blocks(runtime_, runtime_.workers() * private_size);
    if (!filters || !blocks) return false;
    ForEachTask(runtime_, panels, [&](Index panel, int) {
      const Index k0 = panel * kPanel<T>, outputs = Min(kPanel<T>, s_.out_c - k0);
      TransformFilter(FilterChunk<T>::Stored(filter_, 0, k0), s_.in_c, outputs,
                      filters.get() + panel * kPositions * kFilterPlane, kPanel<T>, kFilterPlane);
    });
    ForEachTask(runtime_, s_.batch * grid_.rows, [&](Index task, int worker) {
      ConvolveRow(task / grid_.rows, task % grid_.rows * kTile, filters.get(),
                  blocks.get() + worker * private_size);
    });
    return true;
  }

 private:
  // Tiles whose sums share the accumulators: kSpan for each.
  static constexpr int kTogether = kBlockVectors > 2 ? 4 : 2;
  static constexpr Index kTileBlock = 8;  // tiles transformed at a time: 20 KB of floats
  static constexpr Index kPlane = PlaneStride<T>(kTileBlock * kTile * kFewInputs);
  static constexpr Index kFilterPlane = PlaneStride<T>(kFewInputs * kPanel<T>);
  static constexpr Index kHalf = kTile * kSpan * kLanes<T>;  // of one tile, between the output's two passes

  // The same convolution with as many outputs as whole groups of tiles have.
  static ConvShape WholeTiles(ConvShape s) {
    s.out_h = RoundUp(s.out_h, kTile);
    s.out_w = RoundUp(s.out_w, kTile * kTogether);
    return s;
  }

  void ConvolveRow(Index image, Index y, const T* filters, T* data) const {
    T *const copy = data, *const columns = copy + kSpan * row_, *const v = columns + kSpan * row_;
    T* const half = v + kPositions * kPlane;
    CopyPaddedRows(padded_, x_, image, y, kTile, copy);
    TransformColumns(copy, columns);
    const Index tiles = padded_.out_w / kTile;
    for (Index first = 0; first < tiles; first += kTileBlock) {
      const Index count = Min(kTileBlock, tiles - first);
      TransformRows(columns + first * kTile * s_.in_c, count, v);
      for (Index k = 0; k < s_.out_c; k += kLanes<T>) {
        const T* const u = filters + k / kPanel<T> * kPositions * kFilterPlane + k % kPanel<T>;
        for (Index t = 0; t < count; t += kTogether) {
          Multiply(v + t * kTile * s_.in_c, u, half);
          for (int i = 0; i < kTogether; ++i) {
            FinishTile(half + i * kHalf, image, y, (first + t + i) * kTile, k);
          }
        }
      }
    }
  }

  // Beyond a row's padding there is scratch that nobody has written; what becomes of it is not used.
  OT_NOINLINE void TransformColumns(const T* in, T* out) const {
    for (Index x = 0; x < row_; x += kLanes<T>) {
      Vec<T> d[kSpan], o[kSpan];
#pragma GCC unroll 6
      for (int i = 0; i < kSpan; ++i) d[i] = Load(in + i * row_ + x);
      Winograd<T>::Input::Apply(d, o);
#pragma GCC unroll 6
      for (int i = 0; i < kSpan; ++i) Store(out + i * row_ + x, o[i]);
    }
  }

  // As if a tile began at every pixel, three of four for nothing: that needs no lane to move. Tile t's values
  // lie at v[position * kPlane + t * kTile * in_c + c].
  OT_NOINLINE void TransformRows(const T* in, Index tiles, T* v) const {
    const Index values = ((tiles - 1) * kTile + 1) * s_.in_c;
    for (Index i = 0; i < kSpan; ++i) {
      for (Index x = 0; x < values; x += kLanes<T>) {
        Vec<T> d[kSpan], o[kSpan];
#pragma GCC unroll 6
        for (int j = 0; j < kSpan; ++j) d[j] = Load(in + i * row_ + x + j * s_.in_c);
        Winograd<T>::Input::Apply(d, o);
#pragma GCC unroll 6
        for (int j = 0; j < kSpan; ++j) Store(v + (i * kSpan + j) * kPlane + x, o[j]);
      }
    }
  }

  // M = V U for kTogether tiles and one vector of outputs, and the first pass of Aᵀ M A over M's columns.
  OT_NOINLINE void Multiply(const T* v, const T* u, T* half) const {
    const Index next = kTile * s_.in_c;
    for (int j = 0; j < kSpan; ++j, v += kPlane, u += kFilterPlane) {
      Vec<T> m[kTogether][kSpan] = {};
      for (Index c = 0; c < s_.in_c; ++c) {
#pragma GCC unroll 6
        for (int i = 0; i < kSpan; ++i) {
          const Vec<T> b = Load(u + i * kSpan * kFilterPlane + c * kPanel<T>);
          const T* const a = v + i * kSpan * kPlane + c;
#pragma GCC unroll 4
          for (int t = 0; t < kTogether; ++t) m[t][i] += (a[t * next] - Vec<T>{}) * b;
        }
      }
#pragma GCC unroll 4
      for (int t = 0; t < kTogether; ++t) {
        Vec<T> o[kTile];
        Winograd<T>::Output::Apply(m[t], o);
#pragma GCC unroll 4
        for (int i = 0; i < kTile; ++i) Store(half + t * kHalf + (i * kSpan + j) * kLanes<T>, o[i]);
      }
    }
  }

  // The second pass, over rows, and the epilogue, of the tile whose first output pixel is (y, x): outputs
  // from k on.
  OT_NOINLINE void FinishTile(const T* half, Index image, Index y, Index x, Index k) const {
    const Index height = Min(kTile, s_.out_h - y), width = Min(kTile, s_.out_w - x), lanes = s_.out_c - k;
    if (width <= 0) return;
    const Vec<T> bias = epilogue_.bias == nullptr ? Vec<T>{} : LoadUpTo(epilogue_.bias + k, lanes);
    T* to = y_ + ((image * s_.out_h + y) * s_.out_w + x) * s_.out_c + k;
    for (int i = 0; i < height; ++i, half += kSpan * kLanes<T>, to += s_.out_w * s_.out_c) {
      Vec<T> m[kSpan], o[kTile];
#pragma GCC unroll 6
      for (int j = 0; j < kSpan; ++j) m[j] = Load(half + j * kLanes<T>);
      Winograd<T>::Output::Apply(m, o);
#pragma GCC unroll 4
      for (int j = 0; j < kTile; ++j) {
        if (j >= width) break;
        const Vec<T> value = Finish<T>(o[j], bias, epilogue_.relu);
        if (lanes >= kLanes<T>) {
          StoreOrStream(to + j * s_.out_c, value, stream_);
        } else {
          StorePartial(to + j * s_.out_c, value, lanes);
        }
      }
    }
  }

  const ConvShape s_;
  const FilterView<T> filter_;
  const Epilogue<T> epilogue_;
  const T* const x_;
  T* const y_;
  Runtime& runtime_;
  const TileGrid grid_;
  const ConvShape padded_;
  const Index row_;  // between padded rows
  const bool stream_;
};

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_WINOGRAD_FEW_INPUTS_H_
