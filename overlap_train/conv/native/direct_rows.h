// Rows of an image, copied with their padding, so that the inner loops know no borders: a pixel's window is
// then k_h runs of k_w * in_c consecutive values.
#ifndef OVERLAP_TRAIN_CONV_DIRECT_ROWS_H_
#define OVERLAP_TRAIN_CONV_DIRECT_ROWS_H_

#include "simd.h"

namespace overlap_train::conv::OT_ISA {

// Elements of one padded row, and from one to the next.
template <class T>
Index PaddedRowStride(const ConvShape& s) {
  constexpr Index kLine = 64 / static_cast<Index>(sizeof(T));
  return (CeilDiv(((s.out_w - 1) * s.stride_w + s.k_w) * s.in_c, kLine) | 1) * kLine;
}

// How many padded rows `rows` output rows need.
inline Index PaddedRows(const ConvShape& s, Index rows) { return (rows - 1) * s.stride_h + s.k_h; }

template <class T>
OT_INLINE void Fill(T* out, Index count, T value) {
  for (Index i = 0; i < count; ++i) out[i] = value;
}

// The rows that output rows [first, first + rows) of `image` read. The padding may be negative: the input
// gradient's phases begin inside the image.
template <class T>
OT_NOINLINE void CopyPaddedRows(const ConvShape& s, const T* x, Index image, Index first, Index rows,
                                T* out) {
  const Index stride = PaddedRowStride<T>(s), width = (s.out_w - 1) * s.stride_w + s.k_w;
  const Index left = Min(Max(s.pad_left, 0), width);
  const Index skip = Max(-s.pad_left, 0);
  const Index inside = Max(Min(s.in_w - skip, width - left), 0);
  for (Index r = 0; r < PaddedRows(s, rows); ++r, out += stride) {
    const Index y = first * s.stride_h - s.pad_top + r;
    if (y < 0 || y >= s.in_h) {
      Fill(out, width * s.in_c, T(0));
      continue;
    }
    Fill(out, left * s.in_c, T(0));
    if (inside > 0) {
      const T* const row = x + ((image * s.in_h + y) * s.in_w + skip) * s.in_c;
      __builtin_memcpy(out + left * s.in_c, row, static_cast<std::size_t>(inside * s.in_c) * sizeof(T));
    }
    Fill(out + (left + inside) * s.in_c, (width - left - inside) * s.in_c, T(0));
  }
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_DIRECT_ROWS_H_
