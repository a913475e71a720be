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

// A place in a reduction over three axes: `low` runs fastest. `at` is the offset of the place in a tensor.
struct Place {
  int low, mid, high;
  Index at;
};

// How to go on from a place: the step, and what a carry from one axis to the next adds to the offset. With it
// the reduction is walked without a division.
struct Walk {
  int low_extent, mid_extent;
  Index low_stride, mid_stride, high_stride;
  Place step;
  Index low_carry, mid_carry;

  OT_HD Place From(Index i) const {
    const Index rest = i / low_extent;
    const int low = static_cast<int>(i % low_extent), mid = static_cast<int>(rest % mid_extent);
    const int high = static_cast<int>(rest / mid_extent);
    return {low, mid, high, low * low_stride + mid * mid_stride + high * high_stride};
  }
  OT_HD void Advance(Place& place) const {
    place.low += step.low;
    place.mid += step.mid;
    place.high += step.high;
    place.at += step.at;
    if (place.low >= low_extent) {
      place.low -= low_extent;
      ++place.mid;
      place.at += low_carry;
    }
    if (place.mid >= mid_extent) {
      place.mid -= mid_extent;
      ++place.high;
      place.at += mid_carry;
    }
  }
};

// The axes of a reduction: how far the two faster ones reach, and the strides of all three in a tensor.
struct Axes {
  Index low_extent, mid_extent;
  Index low_stride, mid_stride, high_stride;

  Walk By(int step) const {
    // Of no channel there is nothing to walk, but the step is divided by them all the same.
    const int low = static_cast<int>(low_extent > 0 ? low_extent : 1), mid = static_cast<int>(mid_extent);
    Walk walk = {low, mid, low_stride, mid_stride, high_stride, {}, 0, 0};
    walk.step = walk.From(step);
    walk.low_carry = mid_stride - low * low_stride;
    walk.mid_carry = high_stride - mid * mid_stride;
    return walk;
  }
};

// What a row of A has to do with an image: the pixel of its first tap, which padding may put outside, and
// that pixel's offset. What does not change along the row's reduction, found once.
struct alignas(16) Start {
  Index at;
  int y, x;
};

// Each problem is a product of matrices, [rows, depth] × [depth, columns]. An element of A lies at the sum of
// its row's Start and its depth's Place, and is zero unless inside the image; B and C say where theirs lie.
// kDepthFastA, kDepthFastB: whether neighbours in depth, and not in row or column, are neighbours in memory.
// Coordinates are ints (FitsInts); offsets are not.

OT_HD bool Within(int i, Index extent) { return static_cast<unsigned>(i) < static_cast<unsigned>(extent); }

// y[pixel, k] = sum over (r, q, c) of x[pixel's window] * filter[r, q, c, k]
struct ForwardProblem {
  static constexpr bool kDepthFastA = true, kDepthFastB = false;
  ConvShape s;
  OT_HD Index rows() const { return s.batch * s.out_h * s.out_w; }
  OT_HD Index columns() const { return s.out_c; }
  OT_HD Index depth() const { return s.k_h * s.k_w * s.in_c; }
  Axes axes() const { return {s.in_c, s.k_w, 1, s.in_c, s.in_w * s.in_c}; }
  OT_HD Start StartOf(Index row) const {
    const Pixel p = PixelAt(row, s.out_h, s.out_w);
    const Index y = p.y * s.stride_h - s.pad_top, x = p.x * s.stride_w - s.pad_left;
    return {((p.image * s.in_h + y) * s.in_w + x) * s.in_c, static_cast<int>(y), static_cast<int>(x)};
  }
  OT_HD int tap_rows() const { return static_cast<int>(s.k_h); }
  OT_HD int tap_columns() const { return static_cast<int>(s.k_w); }
  OT_HD bool InDepth(const Place& tap) const { return tap.high < tap_rows(); }
  OT_HD bool RowInside(int y, int r) const { return Within(y + r, s.in_h); }
  OT_HD bool ColumnInside(int x, int q) const { return Within(x + q, s.in_w); }
  OT_HD Index C(Index row) const { return row * s.out_c; }
};

// dx[pixel, c] = sum over (r, q, k) of dy[the output that tap (r, q) of it reads pixel for, k] * filter[r, q,
// c, k], for those pixels that taps (r0 + stride_h i, q0 + stride_w j) read: no others do, and these read no
// others. So each pair (r0, q0) is a problem of stride 1 on a part of the pixels and of the taps.
struct InputGradientProblem {
  static constexpr bool kDepthFastA = true, kDepthFastB = true;
  ConvShape s;
  Index y0, x0, high, wide;  // the first pixel, and how many there are
  Index taps_h, taps_w;
  Index out_y, out_x;            // what the first tap of the first pixel reads
  Index b_first, b_mid, b_high;  // where B begins, and its strides over taps

  InputGradientProblem(const ConvShape& shape, Index r0, Index q0) : s(shape) {
    y0 = First(r0, s.pad_top, s.stride_h);
    x0 = First(q0, s.pad_left, s.stride_w);
    high = y0 < s.in_h ? (s.in_h - y0 + s.stride_h - 1) / s.stride_h : 0;
    wide = x0 < s.in_w ? (s.in_w - x0 + s.stride_w - 1) / s.stride_w : 0;
    taps_h = (s.k_h - r0 + s.stride_h - 1) / s.stride_h;
    taps_w = (s.k_w - q0 + s.stride_w - 1) / s.stride_w;
    out_y = (y0 + s.pad_top - r0) / s.stride_h;
    out_x = (x0 + s.pad_left - q0) / s.stride_w;
    const Index tap = s.in_c * s.out_c;
    b_first = (r0 * s.k_w + q0) * tap;
    b_mid = s.stride_w * tap;
    b_high = s.stride_h * s.k_w * tap;
  }
  // The first pixel that tap `tap` reads.
  static Index First(Index tap, Index pad, Index stride) {
    const Index rest = (tap - pad) % stride;
    return rest < 0 ? rest + stride : rest;
  }
  OT_HD Index rows() const { return s.batch * high * wide; }
  OT_HD Index columns() const { return s.in_c; }
  OT_HD Index depth() const { return taps_h * taps_w * s.out_c; }
  Axes axes() const { return {s.out_c, taps_w, 1, -s.out_c, -s.out_w * s.out_c}; }
  OT_HD Start StartOf(Index row) const {
    const Pixel p = PixelAt(row, high, wide);
    const Index y = out_y + p.y, x = out_x + p.x;
    return {OutputOffset(s, p.image, y, x, 0), static_cast<int>(y), static_cast<int>(x)};
  }
  OT_HD int tap_rows() const { return static_cast<int>(taps_h); }
  OT_HD int tap_columns() const { return static_cast<int>(taps_w); }
  OT_HD bool InDepth(const Place& tap) const { return tap.high < tap_rows(); }
  OT_HD bool RowInside(int y, int r) const { return Within(y - r, s.out_h); }
  OT_HD bool ColumnInside(int x, int q) const { return Within(x - q, s.out_w); }
  // From one column to the next B moves on by out_c.
  OT_HD Index B(const Place& tap) const { return b_first + b_mid * tap.mid + b_high * tap.high + tap.low; }
  OT_HD Index C(Index row) const {
    const Pixel p = PixelAt(row, high, wide);
    return ((p.image * s.in_h + y0 + s.stride_h * p.y) * s.in_w + x0 + s.stride_w * p.x) * s.in_c;
  }
};

// dfilter[r, q, c, k] = sum over pixels of x[pixel's window at (r, q), c] * dy[pixel, k]
struct FilterGradientProblem {
  static constexpr bool kDepthFastA = false, kDepthFastB = false;
  ConvShape s;
  OT_HD Index rows() const { return s.k_h * s.k_w * s.in_c; }
  OT_HD Index columns() const { return s.out_c; }
  OT_HD Index depth() const { return s.batch * s.out_h * s.out_w; }
  Axes axes() const {
    const Index line = s.in_w * s.in_c;
    return {s.out_w, s.out_h, s.stride_w * s.in_c, s.stride_h * line, s.in_h * line};
  }
  OT_HD Start StartOf(Index row) const {
    const Tap tap = TapAt(row, s.k_w, s.in_c);
    const Index y = tap.y - s.pad_top, x = tap.x - s.pad_left;
    return {(y * s.in_w + x) * s.in_c + tap.channel, static_cast<int>(y), static_cast<int>(x)};
  }
  OT_HD bool Inside(int y, int x, const Place& pixel) const {
    const int down = static_cast<int>(s.stride_h), across = static_cast<int>(s.stride_w);
    return pixel.high < static_cast<int>(s.batch) && Within(y + down * pixel.mid, s.in_h) &&
           Within(x + across * pixel.low, s.in_w);
  }
  OT_HD Index C(Index row) const { return row * s.out_c; }
};

// Whether coordinates, and what steps beyond the last of them, are ints.
inline bool FitsInts(const ConvShape& s) {
  constexpr Index kMost = 1 << 30;
  for (const Index n : {s.batch, s.in_h, s.in_w, s.in_c, s.out_h, s.out_w, s.out_c, s.k_h, s.k_w}) {
    if (n >= kMost) return false;
  }
  return (s.out_h + s.k_h) * s.stride_h < kMost && (s.out_w + s.k_w) * s.stride_w < kMost;
}

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

// What the tensor cores make of a number that was not rounded.
inline float CutTf32(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits &= ~0x1fffu;
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
