// The gradient of a depthwise convolution with respect to its filter.
#ifndef OVERLAP_TRAIN_CONV_DEPTHWISE_FILTER_GRADIENT_H_
#define OVERLAP_TRAIN_CONV_DEPTHWISE_FILTER_GRADIENT_H_

#include "parallel.h"
#include "simd.h"

namespace overlap_train::conv::OT_ISA {

// dfilter[r, q, c] = sum over the output pixels of x[pixel * stride - pad + (r, q), c] * dy[pixel, c].
//
// A task takes a piece of the channels, a few vectors wide, and a share of the pixels. For one row of the
// filter its sums stay in registers, while input and gradient come from the cache: a unit of work, some rows
// or some images, is as much as a core's second cache holds beside them.
template <class T>
class DepthwiseFilterGradient {
 public:
  DepthwiseFilterGradient(const ConvShape& s, const T* x, const T* dy, T* out, Runtime& runtime)
      : s_(s), x_(x), dy_(dy), out_(out), runtime_(runtime) {
    const Index width = Min(kPanel<T>, RoundUp(s.in_c, kLanes<T>)) * static_cast<Index>(sizeof(T));
    const Index row = (s.stride_h * s.in_w + s.out_w) * width;
    rows_ = Max(1, Min(s.out_h, kUnitBytes / row));
    images_ = rows_ < s.out_h ? 1 : Max(1, Min(s.batch, kUnitBytes / (row * s.out_h)));
    bands_ = CeilDiv(s.out_h, rows_);
    units_ = CeilDiv(s.batch, images_) * bands_;
  }

  bool Run() {
    // Fixed numbers: the sums are then the same for any number of workers.
    const Index shares = Min(units_, kMostShares), pieces = Pieces();
    const Index size = s_.k_h * s_.k_w * kPanel<T>;
    Scratch<T> sums(runtime_, shares * pieces * size + kPanel<T>);
    if (!sums) return false;
    T* const zeros = sums.get() + shares * pieces * size;
    for (Index k = 0; k < kPanel<T>; k += kLanes<T>) Store(zeros + k, Vec<T>{});
    ForEachTask(runtime_, pieces * shares, [&](Index task, int) {
      const Index share = task / pieces;
      T* const own = sums.get() + task * size;
      for (Index k = 0; k < size; k += kLanes<T>) Store(own + k, Vec<T>{});
      for (Index unit = share; unit < units_; unit += shares)
        AddUnit(unit, PieceAt(task % pieces), zeros, own);
    });
    for (Index piece = 0; piece < pieces; ++piece)
      Write(PieceAt(piece), sums.get() + piece * size, shares, pieces * size);
    return true;
  }

 private:
  static constexpr Index kUnitBytes = Index(192) << 10;
  static constexpr Index kMostShares = 8;
  static constexpr int kColumns = 5;  // of the filter at a time: 20 of AVX-512's 32 registers, 10 of 16

  // Channels [begin, begin + vectors * kLanes). Where they are no multiple of a vector, the last two pieces
  // overlap and write the same sums; fewer channels than a vector has lanes are read one by one.
  struct Piece {
    Index begin;
    int vectors;
  };

  Index Pieces() const {
    const Index whole = s_.in_c / kPanel<T>, rest = s_.in_c % kPanel<T>;
    if (rest == 0) return whole;
    return whole + (whole == 0 && rest > kLanes<T> && rest % kLanes<T> != 0 ? 2 : 1);
  }

  Piece PieceAt(Index piece) const {
    const Index whole = s_.in_c / kPanel<T>, rest = s_.in_c % kPanel<T>, lanes = kLanes<T>;
    if (piece < whole) return {piece * kPanel<T>, kBlockVectors};
    const Index vectors = CeilDiv(rest, lanes);
    if (whole > 0) return {s_.in_c - vectors * lanes, static_cast<int>(vectors)};
    if (rest <= lanes) return {Max(0, rest - lanes), 1};
    if (piece > 0) return {rest - lanes, 1};
    return {0, static_cast<int>(rest / lanes)};
  }

  void AddUnit(Index unit, Piece piece, const T* zeros, T* sums) const {
    const Index image = unit / bands_ * images_, first = unit % bands_ * rows_;
    const Range range{image, Min(image + images_, s_.batch), first, Min(first + rows_, s_.out_h)};
    for (Index r = 0; r < s_.k_h; ++r) {
      for (Index q = 0; q < s_.k_w; q += kColumns) {
        const int columns = static_cast<int>(Min(kColumns, s_.k_w - q));
        AddTaps(range, r, q, columns, piece, zeros, sums + (r * s_.k_w + q) * kPanel<T>);
      }
    }
  }

  struct Range {
    Index image, images_end, row, rows_end;
  };

  void AddTaps(const Range& range, Index r, Index q, int columns, Piece piece, const T* zeros,
               T* sums) const {
    if (s_.in_c < kLanes<T>) {
      for (int i = 0; i < columns; ++i) AddFewChannels(range, r, q + i, sums + i * kPanel<T>);
      return;
    }
    switch (columns) {
      case 1:
        return AddVectors<1>(range, r, q, piece, zeros, sums);
      case 2:
        return AddVectors<2>(range, r, q, piece, zeros, sums);
      case 3:
        return AddVectors<3>(range, r, q, piece, zeros, sums);
      case 4:
        return AddVectors<4>(range, r, q, piece, zeros, sums);
      default:
        return AddVectors<kColumns>(range, r, q, piece, zeros, sums);
    }
  }

  template <int kTaps>
  void AddVectors(const Range& range, Index r, Index q, Piece piece, const T* zeros, T* sums) const {
    switch (piece.vectors) {
      case 1:
        return Add<kTaps, 1>(range, r, q, piece.begin, zeros, sums);
      case 2:
        return Add<kTaps, 2>(range, r, q, piece.begin, zeros, sums);
      case 3:
        return Add<kTaps, Min(3, kBlockVectors)>(range, r, q, piece.begin, zeros, sums);
      default:
        return Add<kTaps, kBlockVectors>(range, r, q, piece.begin, zeros, sums);
    }
  }

  // Adds the taps [q, q + kTaps) of the filter's row r, a unit's sum at a time: one long sum would lose
  // digits.
  template <int kTaps, int kVectors>
  OT_NOINLINE void Add(const Range& range, Index r, Index q, Index begin, const T* zeros, T* sums) const {
    Vec<T> total[kTaps][kVectors];
    for (int i = 0; i < kTaps; ++i) {
      for (int v = 0; v < kVectors; ++v) total[i][v] = Vec<T>{};
    }
    for (Index image = range.image; image < range.images_end; ++image) {
      for (Index row = range.row; row < range.rows_end; ++row) {
        const Index y = row * s_.stride_h - s_.pad_top + r;
        if (y < 0 || y >= s_.in_h) continue;
        const T* const x = x_ + (image * s_.in_h + y) * s_.in_w * s_.in_c + begin;
        const T* dy = dy_ + (image * s_.out_h + row) * s_.out_w * s_.in_c + begin;
        for (Index left = q - s_.pad_left, end = left + s_.out_w * s_.stride_w; left < end;
             left += s_.stride_w, dy += s_.in_c) {
          Vec<T> gradient[kVectors];
          for (int v = 0; v < kVectors; ++v) gradient[v] = Load(dy + v * kLanes<T>);
          for (int i = 0; i < kTaps; ++i) {
            const bool inside = left + i >= 0 && left + i < s_.in_w;
            const T* const from = inside ? x + (left + i) * s_.in_c : zeros;
            for (int v = 0; v < kVectors; ++v) total[i][v] += gradient[v] * Load(from + v * kLanes<T>);
          }
        }
      }
    }
    for (int i = 0; i < kTaps; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        T* const sum = sums + i * kPanel<T> + v * kLanes<T>;
        Store<T>(sum, Load(sum) + total[i][v]);
      }
    }
  }

  // Adds one tap in double precision, a row's sum at a time: a unit has many pixels here.
  OT_NOINLINE void AddFewChannels(const Range& range, Index r, Index q, T* sums) const {
    double total[kLanes<T>] = {};
    for (Index image = range.image; image < range.images_end; ++image) {
      for (Index row = range.row; row < range.rows_end; ++row) {
        const Index y = row * s_.stride_h - s_.pad_top + r;
        if (y < 0 || y >= s_.in_h) continue;
        double sum[kLanes<T>] = {};
        for (Index column = 0; column < s_.out_w; ++column) {
          const Index left = column * s_.stride_w - s_.pad_left + q;
          if (left < 0 || left >= s_.in_w) continue;
          const T* const x = x_ + ((image * s_.in_h + y) * s_.in_w + left) * s_.in_c;
          const T* const dy = dy_ + ((image * s_.out_h + row) * s_.out_w + column) * s_.in_c;
          for (Index c = 0; c < s_.in_c; ++c) sum[c] += double(x[c]) * dy[c];
        }
        for (Index c = 0; c < s_.in_c; ++c) total[c] += sum[c];
      }
    }
    for (Index c = 0; c < s_.in_c; ++c) sums[c] += static_cast<T>(total[c]);
  }

  void Write(Piece piece, const T* sums, Index shares, Index share_size) const {
    for (Index tap = 0; tap < s_.k_h * s_.k_w; ++tap, sums += kPanel<T>) {
      for (int v = 0; v < piece.vectors; ++v) {
        const Index at = v * kLanes<T>;
        Vec<T> total = Load(sums + at);
        for (Index share = 1; share < shares; ++share) total += Load(sums + share * share_size + at);
        StoreUpTo(out_ + tap * s_.in_c + piece.begin + at, total, s_.in_c - piece.begin - at);
      }
    }
  }

  const ConvShape s_;
  const T* const x_;
  const T* const dy_;
  T* const out_;
  Runtime& runtime_;
  Index rows_, images_;  // output rows and images of a unit
  Index bands_;          // units of an image that is too large for one
  Index units_;
};

template <class T>
bool RunDepthwiseFilterGradient(const ConvShape& s, const T* x, const T* dy, T* dfilter, Runtime& runtime) {
  return DepthwiseFilterGradient<T>(s, x, dy, dfilter, runtime).Run();
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_DEPTHWISE_FILTER_GRADIENT_H_
