// Filters on their way into Winograd's domain and back.
#ifndef OVERLAP_TRAIN_CONV_WINOGRAD_FILTERS_H_
#define OVERLAP_TRAIN_CONV_WINOGRAD_FILTERS_H_

#include "streaming.h"
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

// Where the taps of one chunk of a filter are read, in memory or staged: rows of outputs, one for each input,
// or the other way round if turned; from tap (i, j) to the next as the view counts them.
template <class T>
struct FilterChunk {
  const T* data;
  Index row, tap;
  bool turned;

  // Inputs from c0 and outputs from k0 on, as they are stored.
  static FilterChunk Stored(const FilterView<T>& f, Index c0, Index k0) {
    const Index tap = f.inputs * f.outputs;
    if (f.turned) return {f.data + 8 * tap + k0 * f.inputs + c0, f.inputs, -tap, true};
    return {f.data + c0 * f.outputs + k0, f.outputs, tap, false};
  }
};

template <class T>
OT_INLINE void TransformFilterRow(const T* p, Index tap, Index kn, T* out, Index plane) {
  using Filter = typename Winograd<T>::Filter;
  const auto store = [&](int i, int j, Vec<T> v) OT_LAMBDA { Store(out + (i * kSpan + j) * plane, v); };
  if (kn >= kLanes<T>) {
    Transform2D<T, Filter>([&](int i, int j) OT_LAMBDA { return Load(p + (i * 3 + j) * tap); }, store);
  } else {
    Transform2D<T, Filter>([&](int i, int j) OT_LAMBDA { return LoadPartial(p + (i * 3 + j) * tap, kn); },
                           store);
  }
}

// G g Gᵀ for cn inputs and kn outputs, kn at most kPanel, into out[position * plane + c * width + k], zeros
// beyond kn.
template <class T>
OT_NOINLINE void TransformFilter(const FilterChunk<T>& f, Index cn, Index kn, T* out, Index width,
                                 Index plane) {
  if (!f.turned) {
    for (Index c = 0; c < cn; ++c) {
      for (Index k = 0; k < width; k += kLanes<T>) {
        TransformFilterRow(f.data + c * f.row + k, f.tap, kn - k, out + c * width + k, plane);
      }
    }
    return;
  }
  constexpr Index kSquare = kLanes<T> * kLanes<T>;
  alignas(kLineBytes) T squares[9 * kSquare];
  for (Index k = 0; k < kn; k += kLanes<T>) {
    for (Index c = 0; c < cn; c += kLanes<T>) {
      const Index columns = Min(kLanes<T>, cn - c);
      for (int tap = 0; tap < 9; ++tap) {
        TransposeInto(f.data + tap * f.tap + k * f.row + c, f.row, Min(kLanes<T>, kn - k), columns,
                      squares + tap * kSquare, kLanes<T>);
      }
      for (Index i = 0; i < columns; ++i) {
        TransformFilterRow(squares + i * kLanes<T>, kSquare, kLanes<T>, out + (c + i) * width + k, plane);
      }
    }
  }
}

// Gᵀ U G for `cn` inputs and `kn` outputs of u[position * plane + c * row + k] into a filter gradient whose
// tap (i, j) lies at out + (i * 3 + j) * tap, rows of `out_row`; streamed if `stream`.
template <class T>
OT_NOINLINE void FilterGradientFrom(const T* u, Index row, Index plane, Index cn, Index kn, T* out,
                                    Index out_row, Index tap, bool stream) {
  using Transform = typename Winograd<T>::FilterGradient;
  for (Index c = 0; c < cn; ++c) {
    for (Index k = 0; k < kn; k += kLanes<T>) {
      const T* in = u + c * row + k;
      T* const o = out + c * out_row + k;
      const auto load = [&](int i, int j) OT_LAMBDA { return Load(in + (i * kSpan + j) * plane); };
      if (k + kLanes<T> <= kn) {
        Transform2D<T, Transform>(
            load, [&](int i, int j, Vec<T> v) OT_LAMBDA { StoreOrStream(o + (i * 3 + j) * tap, v, stream); });
      } else {
        Transform2D<T, Transform>(
            load, [&](int i, int j, Vec<T> v) OT_LAMBDA { StorePartial(o + (i * 3 + j) * tap, v, kn - k); });
      }
    }
  }
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_WINOGRAD_FILTERS_H_
