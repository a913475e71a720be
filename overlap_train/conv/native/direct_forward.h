// Direct convolution of any kernel and stride, register- and cache-blocked; and its input gradient, which is
// one such convolution for each phase of the stride.
//
// A task is a few output rows times a few panels of output channels. Filters are packed once per call, panel
// by panel, in the order in which the register blocks read them. Long sums run in passes of at most
// kPassDepth, so that the slice of the panel in use stays in L1 and L2 while all pixels of the task pass by.
#ifndef OVERLAP_TRAIN_CONV_DIRECT_FORWARD_H_
#define OVERLAP_TRAIN_CONV_DIRECT_FORWARD_H_

#include <algorithm>

#include "blocks.h"
#include "direct_rows.h"
#include "parallel.h"
#include "transpose.h"

namespace overlap_train::conv::OT_ISA {

// Where output pixel (y, x) of an image goes: out + image * image_stride + y * row + x * pixel.
template <class T>
struct OutputView {
  T* out;
  Index image_stride, row, pixel;
};

// The filter of a convolution in terms of a stored one, [.., stored_in, stored_out]. Tap (i, j) is the stored
// tap (h0 + i * h_step, w0 + j * w_step); `turned` exchanges its channels.
template <class T>
struct FilterTaps {
  const T* stored;
  Index stored_w, stored_in, stored_out;
  Index h0, h_step, w0, w_step;
  bool turned;

  const T* At(Index i, Index j) const {
    return stored + ((h0 + i * h_step) * stored_w + w0 + j * w_step) * stored_in * stored_out;
  }
};

// Stores a block's sums, after adding those of earlier passes (`partial`) and the epilogue.
template <class T>
struct PixelSink {
  T* y;
  Index pixel;
  const T* partial;  // [rows, kPanel], or null
  const T* bias;     // at the panel, or null
  bool relu;
  Index outputs;  // of the panel
  bool stream;

  OT_INLINE void Put(int row, int vector, Vec<T> v) const {
    const Index k = vector * kLanes<T>, lanes = outputs - k;
    if (partial != nullptr) v += Load(partial + row * kPanel<T> + k);
    if (bias != nullptr) v += LoadUpTo(bias + k, lanes);
    if (relu) v = MaxZero<T>(v);
    T* const to = y + row * pixel + k;
    if (lanes >= kLanes<T>) {
      StoreOrStream(to, v, stream);
    } else {
      StorePartial(to, v, lanes);
    }
  }
};

template <class T>
class DirectForward {
 public:
  DirectForward(const ConvShape& shape, const FilterTaps<T>& taps, const Epilogue<T>& epilogue, const T* x,
                const OutputView<T>& view, Runtime& runtime)
      : s_(shape),
        taps_(taps),
        epilogue_(epilogue),
        x_(x),
        view_(view),
        runtime_(runtime),
        row_depth_(s_.k_w * s_.in_c),
        row_stride_(PaddedRowStride<T>(s_)),
        stream_(Streams(view_.out, s_.batch * view_.image_stride, s_.out_c)) {}

  bool Run() {
    const Index rows = RowsPerTask(), bands = CeilDiv(s_.out_h, rows);
    const Index groups = PanelGroups(s_.batch * bands);
    const Index copy_size = PaddedRows(s_, rows) * row_stride_;
    const Index private_size = copy_size + rows * s_.out_w * kPanel<T>;
    Scratch<T> packed(runtime_, panels() * PanelSize() + kLanes<T>);
    Scratch<T> data(runtime_, runtime_.workers() * private_size);
    if (!packed || !data) return false;
    ForEachTask(runtime_, panels() * s_.k_h * s_.k_w, [&](Index task, int) { PackTap(task, packed.get()); });
    ForEachTask(runtime_, s_.batch * bands * groups, [&](Index task, int worker) {
      const Index group = task % groups, band = task / groups, image = band / bands,
                  first = band % bands * rows;
      T* const copy = data.get() + worker * private_size;
      const Index count = Min(rows, s_.out_h - first);
      CopyPaddedRows(s_, x_, image, first, count, copy);
      for (Index p = panels() * group / groups; p < panels() * (group + 1) / groups; ++p) {
        ConvolvePanel(p, image, first, count, copy, packed.get() + p * PanelSize(), copy + copy_size);
      }
    });
    return true;
  }

 private:
  static constexpr Index kPassDepth = 256;
  static constexpr Index kCopyBytes = Index(256) << 10;

  Index panels() const { return CeilDiv(s_.out_c, kPanel<T>); }
  Index PanelOutputs(Index panel) const { return Min(kPanel<T>, s_.out_c - panel * kPanel<T>); }
  Index PanelSize() const { return s_.k_h * row_depth_ * kPanel<T>; }

  Index RowsPerTask() const {
    const Index by_cache = kCopyBytes / (row_stride_ * static_cast<Index>(sizeof(T)) * s_.stride_h);
    const Index by_balance = CeilDiv(s_.batch * s_.out_h * panels(), 4 * runtime_.workers());
    return Max(1, Min(Min(by_cache, by_balance), s_.out_h));
  }
  // Enough tasks for an even load where there are few rows.
  Index PanelGroups(Index bands) const {
    return Max(1, Min(panels(), CeilDiv(4 * runtime_.workers(), bands)));
  }

  void PackTap(Index task, T* packed) const {
    const Index tap = task % (s_.k_h * s_.k_w), panel = task / (s_.k_h * s_.k_w);
    const Index outputs = PanelOutputs(panel), width = RoundUp(outputs, kLanes<T>), k0 = panel * kPanel<T>;
    const T* const from = taps_.At(tap / s_.k_w, tap % s_.k_w);
    T* const to = packed + panel * PanelSize() + tap * s_.in_c * width;
    if (taps_.turned) {
      const T* const rows = from + k0 * taps_.stored_out;
      TransposeInto(rows, taps_.stored_out, outputs, s_.in_c, to, width);
      return;
    }
    for (Index c = 0; c < s_.in_c; ++c) {
      for (Index k = 0; k < width; k += kLanes<T>) {
        Store(to + c * width + k, LoadUpTo(from + c * taps_.stored_out + k0 + k, outputs - k));
      }
    }
  }

  void ConvolvePanel(Index panel, Index image, Index first, Index rows, const T* copy, const T* filters,
                     T* partial) const {
    const Index depth = s_.k_h * row_depth_, width = RoundUp(PanelOutputs(panel), kLanes<T>);
    if (depth <= 2 * kPassDepth) {
      const Operands<T> in{copy, 0, filters, 0, row_depth_, s_.k_h, row_stride_, 0};
      return Pass(panel, image, first, rows, in, nullptr, nullptr);
    }
    const Index runs = CeilDiv(row_depth_, kPassDepth);
    for (Index pass = 0; pass < s_.k_h * runs; ++pass) {
      const Index r = pass / runs, begin = row_depth_ * (pass % runs) / runs;
      const Index end = row_depth_ * (pass % runs + 1) / runs;
      const Operands<T> in{copy + r * row_stride_ + begin,
                           0,
                           filters + (r * row_depth_ + begin) * width,
                           0,
                           end - begin,
                           1,
                           0,
                           0};
      const bool last = pass + 1 == s_.k_h * runs;
      Pass(panel, image, first, rows, in, pass > 0 ? partial : nullptr, last ? nullptr : partial);
    }
  }

  // One pass over the task's pixels. `in` describes the first of them; sums are added to `from`, and go to
  // `to` or, where that is null, to the output.
  void Pass(Index panel, Index image, Index first, Index rows, Operands<T> in, const T* from, T* to) const {
    const Index outputs = PanelOutputs(panel), k0 = panel * kPanel<T>;
    const int vectors = static_cast<int>(CeilDiv(outputs, kLanes<T>));
    const T* const a = in.a;
    const RowSplit split(s_.out_w);
    in.a_row = s_.stride_w * s_.in_c;
    for (Index row = 0; row < rows; ++row) {
      T* const y = view_.out + image * view_.image_stride + (first + row) * view_.row + k0;
      for (Index block = 0; block < split.blocks; ++block) {
        const Index x = split.begin(block);
        const int pixels = static_cast<int>(split.begin(block + 1) - x);
        const Index sums = (row * s_.out_w + x) * kPanel<T>;
        in.a = a + row * s_.stride_h * row_stride_ + x * in.a_row;
        if (to != nullptr && from == nullptr) {
          RunBlock<false>(pixels, vectors, in, StoreSink<T, false>{to + sums, kPanel<T>});
        } else if (to != nullptr) {
          RunBlock<false>(pixels, vectors, in, StoreSink<T, true>{to + sums, kPanel<T>});
        } else {
          RunBlock<false>(
              pixels, vectors, in,
              PixelSink<T>{y + x * view_.pixel, view_.pixel, from == nullptr ? nullptr : from + sums,
                           epilogue_.bias == nullptr ? nullptr : epilogue_.bias + k0, epilogue_.relu, outputs,
                           stream_});
        }
      }
    }
  }

  const ConvShape s_;
  const FilterTaps<T> taps_;
  const Epilogue<T> epilogue_;
  const T* const x_;
  const OutputView<T> view_;
  Runtime& runtime_;
  const Index row_depth_;   // values of a window's row: k_w * in_c
  const Index row_stride_;  // between padded rows
  const bool stream_;
};

template <class T>
bool RunDirectForward(const ConvShape& s, const T* x, const T* filter, Epilogue<T> epilogue, T* y,
                      Runtime& runtime) {
  const FilterTaps<T> taps{filter, s.k_w, s.in_c, s.out_c, 0, 1, 0, 1, false};
  const OutputView<T> view{y, s.out_h * s.out_w * s.out_c, s.out_w * s.out_c, s.out_c};
  return DirectForward<T>(s, taps, epilogue, x, view, runtime).Run();
}

// Input pixels `offset`, `offset + stride`, ... along one axis, as a forward convolution of the output
// gradient.
struct Phase {
  Index count;      // input pixels of the phase
  Index taps;       // kernel taps that reach them
  Index first_tap;  // the smallest of those; the others follow at `stride`
  Index pad;

  // Pixel stride * q + offset receives tap r from output q + b - m, where r = first_tap + m * stride and
  // b = (offset + pad_before - first_tap) / stride. Turning the taps makes that window q - pad .. q - pad +
  // taps.
  Phase(Index in, Index kernel, Index stride, Index pad_before, Index offset)
      : count(in > offset ? CeilDiv(in - offset, stride) : 0),
        taps(0),
        first_tap((offset + pad_before) % stride),
        pad(0) {
    taps = first_tap < kernel ? CeilDiv(kernel - first_tap, stride) : 0;
    pad = taps - 1 - (offset + pad_before - first_tap) / stride;
  }
};

template <class T>
bool RunDirectInputGradient(const ConvShape& s, const T* dy, const T* filter, T* dx, Runtime& runtime) {
  // Strides beyond the filter leave pixels that no output reads.
  if (s.stride_h > s.k_h || s.stride_w > s.k_w) std::fill(dx, dx + s.batch * s.in_h * s.in_w * s.in_c, T(0));
  for (Index oy = 0; oy < std::min(s.stride_h, s.in_h); ++oy) {
    const Phase h(s.in_h, s.k_h, s.stride_h, s.pad_top, oy);
    if (h.taps == 0) continue;
    for (Index ox = 0; ox < std::min(s.stride_w, s.in_w); ++ox) {
      const Phase w(s.in_w, s.k_w, s.stride_w, s.pad_left, ox);
      if (w.taps == 0) continue;
      const ConvShape back{s.batch, s.out_h, s.out_w, s.out_c, h.count, w.count, s.in_c,
                           h.taps,  w.taps,  1,       1,       h.pad,   w.pad};
      const FilterTaps<T> taps{filter,
                               s.k_w,
                               s.in_c,
                               s.out_c,
                               h.first_tap + (h.taps - 1) * s.stride_h,
                               -s.stride_h,
                               w.first_tap + (w.taps - 1) * s.stride_w,
                               -s.stride_w,
                               true};
      const OutputView<T> view{dx + (oy * s.in_w + ox) * s.in_c, s.in_h * s.in_w * s.in_c,
                               s.stride_h * s.in_w * s.in_c, s.stride_w * s.in_c};
      if (!DirectForward<T>(back, taps, {nullptr, false}, dy, view, runtime).Run()) return false;
    }
  }
  return true;
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_DIRECT_FORWARD_H_
