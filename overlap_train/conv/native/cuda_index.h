// The index arithmetic of the CUDA kernels, for host and device: which elements of which tensor a row, a
// column and a step of each kernel's reduction mean. The kernels compute nothing of the kind
// themselves, and cuda_kernels_test.cc checks all of it on the CPU.
#ifndef OVERLAP_TRAIN_CONV_CUDA_INDEX_H_
#define OVERLAP_TRAIN_CONV_CUDA_INDEX_H_

#include <cstring>

#include "geometry.h"

#ifdef __CUDACC__
#define OT_HD __host__ __device__ __forceinline__
#else
#define OT_HD inline
#endif

namespace overlap_train::conv {

constexpr Index kOutside = -1;  // the offset of an element that counts as zero

struct Pixel {
  Index image, y, x;
};

OT_HD Pixel PixelAt(Index i, Index height, Index width) {
  return {i / (height * width), i / width % height, i % width};
}

struct Tap {
  Index y, x, channel;
};

// Reductions run over taps, rows first, and the channels of each.
OT_HD Tap TapAt(Index i, Index k_w, Index channels) {
  return {i / channels / k_w, i / channels % k_w, i % channels};
}

OT_HD Index InputOffset(const ConvShape& s, Index image, Index y, Index x, Index c) {
  if (y < 0 || y >= s.in_h || x < 0 || x >= s.in_w) return kOutside;
  return ((image * s.in_h + y) * s.in_w + x) * s.in_c + c;
}

OT_HD Index OutputOffset(const ConvShape& s, Index image, Index y, Index x, Index k) {
  return ((image * s.out_h + y) * s.out_w + x) * s.out_c + k;
}

// Each problem is a product of matrices, [rows, depth] × [depth, columns], whose elements lie where A, B and
// C say. What costs divisions is found once for each row (RowAt) and once for each step of the depth
// (DepthAt). kDepthFastA, kDepthFastB: whether neighbours in depth, and not in row or column, are neighbours
// in memory.

// y[pixel, k] = sum over (r, q, c) of x[pixel's window] * filter[r, q, c, k]
struct ForwardProblem {
  static constexpr bool kDepthFastA = true, kDepthFastB = false;
  using Row = Pixel;  // the first pixel of its window, in the input
  struct Depth {
    Index d;
    Tap tap;
  };
  ConvShape s;
  OT_HD Index rows() const { return s.batch * s.out_h * s.out_w; }
  OT_HD Index columns() const { return s.out_c; }
  OT_HD Index depth() const { return s.k_h * s.k_w * s.in_c; }
  OT_HD Row RowAt(Index row) const {
    const Pixel p = PixelAt(row, s.out_h, s.out_w);
    return {p.image, p.y * s.stride_h - s.pad_top, p.x * s.stride_w - s.pad_left};
  }
  OT_HD Depth DepthAt(Index d) const { return {d, TapAt(d, s.k_w, s.in_c)}; }
  OT_HD Index A(const Row& row, const Depth& at) const {
    return InputOffset(s, row.image, row.y + at.tap.y, row.x + at.tap.x, at.tap.channel);
  }
  OT_HD Index B(const Depth& at, Index column) const { return at.d * s.out_c + column; }
  OT_HD Index C(Index row, Index column) const { return row * s.out_c + column; }
};

// dx[pixel, c] = sum over (r, q, k) of dy[the output that tap (r, q) of it reads pixel for, k] * filter[r, q,
// c, k]
struct InputGradientProblem {
  static constexpr bool kDepthFastA = true, kDepthFastB = true;
  using Row = Pixel;  // in the padded input
  using Depth = Tap;
  ConvShape s;
  OT_HD Index rows() const { return s.batch * s.in_h * s.in_w; }
  OT_HD Index columns() const { return s.in_c; }
  OT_HD Index depth() const { return s.k_h * s.k_w * s.out_c; }
  OT_HD Row RowAt(Index row) const {
    const Pixel p = PixelAt(row, s.in_h, s.in_w);
    return {p.image, p.y + s.pad_top, p.x + s.pad_left};
  }
  OT_HD Depth DepthAt(Index d) const { return TapAt(d, s.k_w, s.out_c); }
  OT_HD Index A(const Row& row, const Depth& tap) const {
    Index y = row.y - tap.y, x = row.x - tap.x;
    if (y < 0 || x < 0) return kOutside;
    if (s.stride_h != 1) {
      if (y % s.stride_h != 0) return kOutside;
      y /= s.stride_h;
    }
    if (s.stride_w != 1) {
      if (x % s.stride_w != 0) return kOutside;
      x /= s.stride_w;
    }
    return y < s.out_h && x < s.out_w ? OutputOffset(s, row.image, y, x, tap.channel) : kOutside;
  }
  OT_HD Index B(const Depth& tap, Index column) const {
    return ((tap.y * s.k_w + tap.x) * s.in_c + column) * s.out_c + tap.channel;
  }
  OT_HD Index C(Index row, Index column) const { return row * s.in_c + column; }
};

// dfilter[r, q, c, k] = sum over pixels of x[pixel's window at (r, q), c] * dy[pixel, k]
struct FilterGradientProblem {
  static constexpr bool kDepthFastA = false, kDepthFastB = false;
  using Row = Tap;
  struct Depth {
    Index d;
    Pixel window;  // the first pixel of d's window, in the input
  };
  ConvShape s;
  OT_HD Index rows() const { return s.k_h * s.k_w * s.in_c; }
  OT_HD Index columns() const { return s.out_c; }
  OT_HD Index depth() const { return s.batch * s.out_h * s.out_w; }
  OT_HD Row RowAt(Index row) const { return TapAt(row, s.k_w, s.in_c); }
  OT_HD Depth DepthAt(Index d) const { return {d, ForwardProblem{s}.RowAt(d)}; }
  OT_HD Index A(const Row& tap, const Depth& at) const {
    return InputOffset(s, at.window.image, at.window.y + tap.y, at.window.x + tap.x, tap.channel);
  }
  OT_HD Index B(const Depth& at, Index column) const { return at.d * s.out_c + column; }
  OT_HD Index C(Index row, Index column) const { return row * s.out_c + column; }
};

// The paper's tiles: a block of kSide × kSide threads computes as many output pixels of one image.
struct SharedTiles {
  static constexpr int kSide = 16;
  ConvShape s;
  OT_HD Index across() const { return (s.out_w + kSide - 1) / kSide; }
  OT_HD Index down() const { return (s.out_h + kSide - 1) / kSide; }
  OT_HD Index halo_h() const { return (kSide - 1) * s.stride_h + s.k_h; }
  OT_HD Index halo_w() const { return (kSide - 1) * s.stride_w + s.k_w; }
  // The tile's first output pixel.
  OT_HD Pixel Corner(Index tile) const {
    const Pixel p = PixelAt(tile, down(), across());
    return {p.image, p.y * kSide, p.x * kSide};
  }
  // Element i of the input tile with its halo, for channel c.
  OT_HD Index Halo(const Pixel& corner, Index i, Index c) const {
    return InputOffset(s, corner.image, corner.y * s.stride_h - s.pad_top + i / halo_w(),
                       corner.x * s.stride_w - s.pad_left + i % halo_w(), c);
  }
};

// What cvt.rna.tf32.f32 makes of a number: 10 bits of mantissa, to nearest, ties away from zero.
inline float RoundTf32(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

// Which elements of a 16×8×8 TF32 product lane `lane` of a warp holds in register `i`.
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k8" with .tf32.
OT_HD int FragmentRowA(int lane, int i) { return lane / 4 + 8 * (i % 2); }
OT_HD int FragmentDepthA(int lane, int i) { return lane % 4 + 4 * (i / 2); }
OT_HD int FragmentDepthB(int lane, int i) { return lane % 4 + 4 * i; }
OT_HD int FragmentColumnB(int lane) { return lane / 4; }
OT_HD int FragmentRowC(int lane, int i) { return lane / 4 + 8 * (i / 2); }
OT_HD int FragmentColumnC(int lane, int i) { return 2 * (lane % 4) + i % 2; }

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_INDEX_H_
