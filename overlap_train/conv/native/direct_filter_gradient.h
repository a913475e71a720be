// The direct filter gradient: for each row of taps, an outer product of windows and output gradients summed
// over pixels. A task is a share of the pixels times a panel of output channels.
#ifndef OVERLAP_TRAIN_CONV_DIRECT_FILTER_GRADIENT_H_
#define OVERLAP_TRAIN_CONV_DIRECT_FILTER_GRADIENT_H_

#include "blocks.h"
#include "direct_rows.h"
#include "parallel.h"

namespace overlap_train::conv::OT_ISA {

template <class T>
class DirectFilterGradient {
 public:
  DirectFilterGradient(const ConvShape& shape, const T* x, const T* dy, T* out, Runtime& runtime)
      : s_(shape),
        x_(x),
        dy_(dy),
        out_(out),
        runtime_(runtime),
        row_depth_(s_.k_w * s_.in_c),
        in_place_(ReadsInPlace(s_)),
        row_stride_(in_place_ ? s_.in_w * s_.in_c : PaddedRowStride<T>(s_)),
        small_(s_.k_h * row_depth_ * s_.out_c <= kSmallFilter),
        columns_(Min(pixels(), s_.out_w)),
        rows_(Max(1, Min(s_.out_h, pixels() / s_.out_w))) {}

  bool Run() {
    const Index bands = s_.batch * CeilDiv(s_.out_h, rows_);
    const Index shares = Min(Shares(), bands);
    const Index panel_size = s_.k_h * row_depth_ * kPanel<T>;
    const Index copy_size = in_place_ ? 0 : PaddedRows(s_, rows_) * row_stride_;
    const Index private_size = copy_size + rows_ * columns_ * kPanel<T>;
    Scratch<T> sums(runtime_, shares * panels() * panel_size);
    Scratch<T> data(runtime_, runtime_.workers() * private_size);
    if (!sums || !data) return false;
    ForEachTask(runtime_, shares * panels(), [&](Index task, int worker) {
      const Index share = task / panels(), panel = task % panels();
      T* const copy = data.get() + worker * private_size;
      for (Index band = bands * share / shares, begin = band; band < bands * (share + 1) / shares; ++band) {
        CarryBand(band, panel, copy, copy + copy_size, sums.get() + task * panel_size, band > begin);
      }
    });
    ForEachTask(runtime_, s_.k_h * row_depth_,
                [&](Index row, int) { AddShares(row, sums.get(), shares, panel_size); });
    return true;
  }

 private:
  static constexpr Index kSmallFilter = 16384;

  // The window of a 1×1 filter lies in x as it is, without padding. Each panel would copy all of it again,
  // and with strides also what nobody reads.
  static bool ReadsInPlace(const ConvShape& s) {
    return s.k_h == 1 && s.k_w == 1 && s.pad_top == 0 && s.pad_left == 0 &&
           (s.out_h - 1) * s.stride_h < s.in_h && (s.out_w - 1) * s.stride_w < s.in_w;
  }

  // Pixels of one pass. 96 rows of a packed panel fill most of L1. A small filter costs little to add up, so
  // its sums are kept short, in passes and in shares: they are long beside their result, and lose digits to
  // it.
  Index pixels() const { return small_ ? 32 : 96; }
  Index Shares() const {
    if (small_) return Max(16, runtime_.workers());
    return panels() >= 2 * runtime_.workers() ? 1 : runtime_.workers();
  }

  Index panels() const { return CeilDiv(s_.out_c, kPanel<T>); }
  Index PanelOutputs(Index panel) const { return Min(kPanel<T>, s_.out_c - panel * kPanel<T>); }

  void CarryBand(Index band, Index panel, T* copy, T* packed, T* sums, bool add) const {
    const Index bands = CeilDiv(s_.out_h, rows_), image = band / bands, first = band % bands * rows_;
    const Index rows = Min(rows_, s_.out_h - first);
    const Index width = RoundUp(PanelOutputs(panel), kLanes<T>);
    const T* from = copy;
    if (in_place_) {
      from = x_ + (image * s_.in_h + first * s_.stride_h) * row_stride_;
    } else {
      CopyPaddedRows(s_, x_, image, first, rows, copy);
    }
    for (Index left = 0; left < s_.out_w; left += columns_) {
      const Index columns = Min(columns_, s_.out_w - left);
      PackGradient(panel, image, first, rows, left, columns, packed);
      const Operands<T> in{
          from + left * s_.stride_w * s_.in_c, s_.stride_w * s_.in_c, packed, width, columns, rows,
          s_.stride_h * row_stride_,           columns * width};
      AddWindows(in, static_cast<int>(width / kLanes<T>), sums, add || left > 0);
    }
  }

  void PackGradient(Index panel, Index image, Index first, Index rows, Index left, Index columns,
                    T* packed) const {
    const Index outputs = PanelOutputs(panel), width = RoundUp(outputs, kLanes<T>);
    for (Index y = 0; y < rows; ++y) {
      const T* from = dy_ + ((image * s_.out_h + first + y) * s_.out_w + left) * s_.out_c + panel * kPanel<T>;
      for (Index x = 0; x < columns; ++x, from += s_.out_c, packed += width) {
        for (Index k = 0; k < width; k += kLanes<T>) Store(packed + k, LoadUpTo(from + k, outputs - k));
      }
    }
  }

  void AddWindows(Operands<T> in, int vectors, T* sums, bool add) const {
    const T* const a = in.a;
    const RowSplit split(row_depth_);
    for (Index r = 0; r < s_.k_h; ++r) {
      for (Index block = 0; block < split.blocks; ++block) {
        const Index begin = split.begin(block);
        const int count = static_cast<int>(split.begin(block + 1) - begin);
        T* const c = sums + (r * row_depth_ + begin) * kPanel<T>;
        in.a = a + r * row_stride_ + begin;
        if (add) {
          RunBlock<true>(count, vectors, in, StoreSink<T, true>{c, kPanel<T>});
        } else {
          RunBlock<true>(count, vectors, in, StoreSink<T, false>{c, kPanel<T>});
        }
      }
    }
  }

  void AddShares(Index row, const T* sums, Index shares, Index panel_size) const {
    for (Index panel = 0; panel < panels(); ++panel) {
      const Index outputs = PanelOutputs(panel);
      for (Index k = 0; k < outputs; k += kLanes<T>) {
        const T* p = sums + panel * panel_size + row * kPanel<T> + k;
        Vec<T> v = Load(p);
        for (Index share = 1; share < shares; ++share) v += Load(p + share * panels() * panel_size);
        StoreUpTo(out_ + row * s_.out_c + panel * kPanel<T> + k, v, outputs - k);
      }
    }
  }

  const ConvShape s_;
  const T* const x_;
  const T* const dy_;
  T* const out_;
  Runtime& runtime_;
  const Index row_depth_;
  const bool in_place_;
  const Index row_stride_;
  const bool small_;
  const Index columns_;  // output columns and rows of one pass
  const Index rows_;
};

template <class T>
bool RunDirectFilterGradient(const ConvShape& s, const T* x, const T* dy, T* dfilter, Runtime& runtime) {
  return DirectFilterGradient<T>(s, x, dy, dfilter, runtime).Run();
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_DIRECT_FILTER_GRADIENT_H_
