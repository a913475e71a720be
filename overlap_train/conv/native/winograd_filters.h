// Filters on their way into Winograd's domain and back.
#ifndef OVERLAP_TRAIN_CONV_WINOGRAD_FILTERS_H_
#define OVERLAP_TRAIN_CONV_WINOGRAD_FILTERS_H_

#include "transpose.h"
#include "winograd_transforms.h"

namespace overlap_train::conv::OT_ISA {

// A 3×3 filter as a forward convolution reads it, [3, 3, inputs, outputs]. The input gradient is a forward
// convolution too, whose filter is the stored one turned by 180° and with its channels exchanged.
template <class T>
struct FilterView {
  const T* data;          // [3, 3, in_c, out_c], as stored
  Index inputs, outputs;  // of the convolution that reads it
  bool turned;
};

constexpr Index kFilterChunk = 64;  // input channels that are transformed at a time

// Room for a turned chunk of filter: nine taps, kFilterChunk rows.
template <class T>
constexpr Index kTurnRow = kPanel<T> + 64 / static_cast<Index>(sizeof(T));
template <class T>
constexpr Index kTurnScratch = 9 * RoundUp(kFilterChunk, kLanes<T>) * kTurnRow<T>;

// G g Gᵀ for inputs [c0, c0 + cn), cn at most kFilterChunk, and outputs [k0, k0 + kn), kn at most kPanel,
// into out[position * plane + (c - c0) * width + (k - k0)], zeros beyond kn. `turn` has kTurnScratch
// elements.
template <class T>
OT_NOINLINE void TransformFilter(const FilterView<T>& f, Index c0, Index cn, Index k0, Index kn, T* turn,
                                 T* out, Index width, Index plane) {
  const T* source = f.data + c0 * f.outputs + k0;
  Index row = f.outputs, tap = f.inputs * f.outputs;
  if (f.turned) {
    row = kTurnRow<T>;
    tap = RoundUp(kFilterChunk, kLanes<T>) * row;
    for (int i = 0; i < 9; ++i) {
      // As stored: rows are this view's outputs, columns its inputs.
      const T* stored = f.data + (8 - i) * f.inputs * f.outputs + k0 * f.inputs + c0;
      TransposeInto(stored, f.inputs, kn, cn, turn + i * tap, row);
    }
    source = turn;
  }
  for (Index c = 0; c < cn; ++c) {
    for (Index k = 0; k < width; k += kLanes<T>) {
      const T* p = source + c * row + k;
      T* const o = out + c * width + k;
      const auto store = [&](int i, int j, Vec<T> v) OT_LAMBDA { Store(o + (i * kSpan + j) * plane, v); };
      if (k + kLanes<T> <= kn) {
        Transform2D<T, typename Winograd<T>::Filter>(
            [&](int i, int j) OT_LAMBDA { return Load(p + (i * 3 + j) * tap); }, store);
      } else {
        Transform2D<T, typename Winograd<T>::Filter>(
            [&](int i, int j) OT_LAMBDA { return LoadPartial(p + (i * 3 + j) * tap, kn - k); }, store);
      }
    }
  }
}

// Fetches one of `parts` parts of a chunk of stored filter that TransformFilter will read soon: short rows at
// long strides, which the hardware does not foresee.
template <class T>
OT_NOINLINE void PrefetchFilter(const FilterView<T>& f, Index c0, Index cn, Index k0, Index kn, Index part,
                                Index parts) {
  // As stored: rows are inputs of the view, or its outputs if it is turned.
  const Index rows = f.turned ? kn : cn, columns = f.turned ? cn : kn;
  const Index stride = f.turned ? f.inputs : f.outputs;
  const T* const first = f.data + (f.turned ? k0 * stride + c0 : c0 * stride + k0);
  for (Index i = 9 * rows * part / parts; i < 9 * rows * (part + 1) / parts; ++i) {
    const T* const row = first + (i / rows) * f.inputs * f.outputs + i % rows * stride;
    for (Index k = 0; k < columns; k += 64 / static_cast<Index>(sizeof(T))) __builtin_prefetch(row + k, 0, 2);
  }
}

// Gᵀ U G for `cn` inputs and `kn` outputs of u[position * plane + c * row + k] into a filter gradient whose
// tap (i, j) lies at out + (i * 3 + j) * tap, rows of `out_row`.
template <class T>
OT_NOINLINE void FilterGradientFrom(const T* u, Index row, Index plane, Index cn, Index kn, T* out,
                                    Index out_row, Index tap) {
  using Transform = typename Winograd<T>::FilterGradient;
  for (Index c = 0; c < cn; ++c) {
    for (Index k = 0; k < kn; k += kLanes<T>) {
      const T* in = u + c * row + k;
      T* const o = out + c * out_row + k;
      const auto load = [&](int i, int j) OT_LAMBDA { return Load(in + (i * kSpan + j) * plane); };
      if (k + kLanes<T> <= kn) {
        Transform2D<T, Transform>(load,
                                  [&](int i, int j, Vec<T> v) OT_LAMBDA { Store(o + (i * 3 + j) * tap, v); });
      } else {
        Transform2D<T, Transform>(
            load, [&](int i, int j, Vec<T> v) OT_LAMBDA { StorePartial(o + (i * 3 + j) * tap, v, kn - k); });
      }
    }
  }
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_WINOGRAD_FILTERS_H_
