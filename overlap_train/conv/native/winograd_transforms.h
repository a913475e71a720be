// The transforms of Winograd's minimal filtering F(4×4, 3×3), one vector of channels at a time.
//
// Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), for
// Y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A. Its interpolation points 0, ±1, ±2, ∞ are replaced by 0, ±3/4, ±3/2, ∞, which
// halve the rounding error; the matrices below are Toom and Cook's for any points 0, ±kP, ±kQ, ∞.
//
// Bilinearity gives the gradients the transposes of the same matrices: the output's gradient is transformed
// by A and a filter's gradient comes back through Gᵀ.
#ifndef OVERLAP_TRAIN_CONV_WINOGRAD_TRANSFORMS_H_
#define OVERLAP_TRAIN_CONV_WINOGRAD_TRANSFORMS_H_

#include "simd.h"

namespace overlap_train::conv::OT_ISA {

constexpr int kTile = 4;        // outputs along a side of a tile
constexpr int kSpan = 6;        // inputs along a side: kTile + 3 - 1
constexpr int kPositions = 36;  // products for each tile and pair of channels: kSpan²

template <class T>
struct Winograd {
  using V = Vec<T>;
  static constexpr double kP = 0.75, kQ = 1.5;
  static constexpr double kP2 = kP * kP, kQ2 = kQ * kQ;
  // The denominators of Lagrange's polynomials at 0, ±kP and ±kQ.
  static constexpr double kAt0 = kP2 * kQ2, kAtP = 2 * kP2 * (kP2 - kQ2), kAtQ = 2 * kQ2 * (kQ2 - kP2);

  static OT_INLINE V C(double value) { return static_cast<T>(value) - V{}; }

  // Bᵀ d
  struct Input {
    static constexpr int kIn = kSpan, kOut = kSpan;
    static OT_INLINE void Apply(const V (&d)[kSpan], V (&o)[kSpan]) {
      o[0] = C(kAt0) * d[0] + (d[4] - C(kP2 + kQ2) * d[2]);
      o[5] = C(kAt0) * d[1] + (d[5] - C(kP2 + kQ2) * d[3]);
      const V even_p = d[4] - C(kQ2) * d[2], odd_p = d[3] - C(kQ2) * d[1];
      o[1] = even_p + C(kP) * odd_p;
      o[2] = even_p - C(kP) * odd_p;
      const V even_q = d[4] - C(kP2) * d[2], odd_q = d[3] - C(kP2) * d[1];
      o[3] = even_q + C(kQ) * odd_q;
      o[4] = even_q - C(kQ) * odd_q;
    }
  };

  // Aᵀ m
  struct Output {
    static constexpr int kIn = kSpan, kOut = kTile;
    static OT_INLINE void Apply(const V (&m)[kSpan], V (&y)[kTile]) {
      const V sum_p = m[1] + m[2], diff_p = m[1] - m[2];
      const V sum_q = m[3] + m[4], diff_q = m[3] - m[4];
      y[0] = m[0] + sum_p + sum_q;
      y[1] = C(kP) * diff_p + C(kQ) * diff_q;
      y[2] = C(kP2) * sum_p + C(kQ2) * sum_q;
      y[3] = C(kP2 * kP) * diff_p + (C(kQ2 * kQ) * diff_q + m[5]);
    }
  };

  // G g
  struct Filter {
    static constexpr int kIn = 3, kOut = kSpan;
    static OT_INLINE void Apply(const V (&g)[3], V (&o)[kSpan]) {
      o[0] = C(1 / kAt0) * g[0];
      const V even_p = C(kP2 / kAtP) * g[2] + C(1 / kAtP) * g[0];
      o[1] = even_p + C(kP / kAtP) * g[1];
      o[2] = even_p - C(kP / kAtP) * g[1];
      const V even_q = C(kQ2 / kAtQ) * g[2] + C(1 / kAtQ) * g[0];
      o[3] = even_q + C(kQ / kAtQ) * g[1];
      o[4] = even_q - C(kQ / kAtQ) * g[1];
      o[5] = g[2];
    }
  };

  // A y, the transpose of Output
  struct OutputGradient {
    static constexpr int kIn = kTile, kOut = kSpan;
    static OT_INLINE void Apply(const V (&y)[kTile], V (&m)[kSpan]) {
      m[0] = y[0];
      const V even_p = C(kP2) * y[2] + y[0], odd_p = C(kP2) * y[3] + y[1];
      m[1] = even_p + C(kP) * odd_p;
      m[2] = even_p - C(kP) * odd_p;
      const V even_q = C(kQ2) * y[2] + y[0], odd_q = C(kQ2) * y[3] + y[1];
      m[3] = even_q + C(kQ) * odd_q;
      m[4] = even_q - C(kQ) * odd_q;
      m[5] = y[3];
    }
  };

  // Gᵀ u, the transpose of Filter
  struct FilterGradient {
    static constexpr int kIn = kSpan, kOut = 3;
    static OT_INLINE void Apply(const V (&u)[kSpan], V (&g)[3]) {
      const V sum_p = u[1] + u[2], diff_p = u[1] - u[2];
      const V sum_q = u[3] + u[4], diff_q = u[3] - u[4];
      g[0] = C(1 / kAt0) * u[0] + (C(1 / kAtP) * sum_p + C(1 / kAtQ) * sum_q);
      g[1] = C(kP / kAtP) * diff_p + C(kQ / kAtQ) * diff_q;
      g[2] = C(kP2 / kAtP) * sum_p + (C(kQ2 / kAtQ) * sum_q + u[5]);
    }
  };
};

// Applies a transform to the columns, then to the rows, of a square of vectors: load(i, j) gives element (i,
// j), store(i, j, v) takes the result's. Both must inline, and the loops unroll, for the square to stay in
// registers.
template <class T, class Transform, class LoadAt, class StoreAt>
OT_INLINE void Transform2D(const LoadAt& load, const StoreAt& store) {
  constexpr int kIn = Transform::kIn, kOut = Transform::kOut;
  Vec<T> half[kOut][kIn];
#pragma GCC unroll 6
  for (int j = 0; j < kIn; ++j) {
    Vec<T> column[kIn], out[kOut];
#pragma GCC unroll 6
    for (int i = 0; i < kIn; ++i) column[i] = load(i, j);
    Transform::Apply(column, out);
#pragma GCC unroll 6
    for (int i = 0; i < kOut; ++i) half[i][j] = out[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < kOut; ++i) {
    Vec<T> out[kOut];
    Transform::Apply(half[i], out);
#pragma GCC unroll 6
    for (int j = 0; j < kOut; ++j) store(i, j, out[j]);
  }
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_WINOGRAD_TRANSFORMS_H_
