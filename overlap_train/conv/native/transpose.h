// Transposing matrices through registers.
#ifndef OVERLAP_TRAIN_CONV_TRANSPOSE_H_
#define OVERLAP_TRAIN_CONV_TRANSPOSE_H_

#include "simd.h"

namespace overlap_train::conv::OT_ISA {

template <int... kIndices>
struct Lanes {};
template <int kCount, int... kIndices>
struct LanesUpTo : LanesUpTo<kCount - 1, kCount - 1, kIndices...> {};
template <int... kIndices>
struct LanesUpTo<0, kIndices...> {
  using Type = Lanes<kIndices...>;
};

// The lower (kHigh 0) or upper (1) halves of a and b, lane by lane in turn.
template <class T, int kHigh, int... kIndices>
OT_INLINE Vec<T> Interleave(Vec<T> a, Vec<T> b, Lanes<kIndices...>) {
  constexpr int kN = kLanes<T>;
  return __builtin_shufflevector(a, b, (kIndices / 2 + kHigh * kN / 2 + (kIndices % 2) * kN)...);
}

// A square of vectors, by log2(kLanes) perfect shuffles of the rows.
template <class T>
OT_INLINE void TransposeSquare(Vec<T> (&rows)[kLanes<T>]) {
  constexpr int kN = kLanes<T>;
  using AllLanes = typename LanesUpTo<kN>::Type;
#pragma GCC unroll 4
  for (int step = 1; step < kN; step *= 2) {
    Vec<T> next[kN];
#pragma GCC unroll 8
    for (int i = 0; i < kN / 2; ++i) {
      next[2 * i] = Interleave<T, 0>(rows[i], rows[i + kN / 2], AllLanes());
      next[2 * i + 1] = Interleave<T, 1>(rows[i], rows[i + kN / 2], AllLanes());
    }
#pragma GCC unroll 16
    for (int i = 0; i < kN; ++i) rows[i] = next[i];
  }
}

// out[c * out_row + r] = in[r * in_row + c] for r < rows and c < columns. Each row of `out` is filled with
// zeros to a whole vector; rows from `columns` on are left alone.
template <class T>
OT_NOINLINE void TransposeInto(const T* in, Index in_row, Index rows, Index columns, T* out, Index out_row) {
  constexpr int kN = kLanes<T>;
  for (Index r = 0; r < rows; r += kN) {
    for (Index c = 0; c < columns; c += kN) {
      Vec<T> square[kN];
      const T* const p = in + r * in_row + c;
      T* const q = out + c * out_row + r;
      if (r + kN <= rows && c + kN <= columns) {
#pragma GCC unroll 16
        for (int i = 0; i < kN; ++i) square[i] = Load(p + i * in_row);
        TransposeSquare<T>(square);
#pragma GCC unroll 16
        for (int i = 0; i < kN; ++i) Store(q + i * out_row, square[i]);
      } else {
        for (int i = 0; i < kN; ++i) {
          square[i] = r + i < rows ? LoadUpTo(p + i * in_row, columns - c) : Vec<T>{};
        }
        TransposeSquare<T>(square);
        for (Index i = 0; i < Min(kN, columns - c); ++i) Store(q + i * out_row, square[i]);
      }
    }
  }
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_TRANSPOSE_H_
