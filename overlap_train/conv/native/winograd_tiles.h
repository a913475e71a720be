// Between images and Winograd's tiles: where the tiles of a convolution lie, and the passes that carry input,
// output and output gradients over. A transformed block is laid out [position][tile][channel].
#ifndef OVERLAP_TRAIN_CONV_WINOGRAD_TILES_H_
#define OVERLAP_TRAIN_CONV_WINOGRAD_TILES_H_

#include "streaming.h"
#include "winograd_transforms.h"

namespace overlap_train::conv::OT_ISA {

struct TileGrid {
  Index rows, columns, count;  // tiles down and across one image; tiles in the batch

  explicit TileGrid(const ConvShape& s)
      : rows(CeilDiv(s.out_h, kTile)), columns(CeilDiv(s.out_w, kTile)), count(s.batch * rows * columns) {}

  struct Place {
    Index image, y, x;  // the tile's first output pixel
  };
  Place At(Index tile) const {
    return {tile / (rows * columns), tile / columns % rows * kTile, tile % columns * kTile};
  }
};

// Elements from one position's plane to the next: an odd number of cache lines, because a power of two would
// send all 36 planes' stores to the same few sets of the cache.
template <class T>
constexpr Index PlaneStride(Index elements) {
  constexpr Index kLine = 64 / static_cast<Index>(sizeof(T));
  return (CeilDiv(elements, kLine) | 1) * kLine;
}

// Elements from one tile's channels to the next's; a line more than needed, for the same reason.
template <class T>
constexpr Index TileStride(Index channels) {
  return RoundUp(channels, kLanes<T>) + 64 / static_cast<Index>(sizeof(T));
}

// A block of transformed tiles: element (position, tile, channel) of the channels of one chunk lies at
// data + chunk * chunk_stride + position * plane + tile * tile_stride + channel. Whoever multiplies chunk by
// chunk reads consecutive memory.
template <class T>
struct TileBlock {
  T* data;
  Index tile;   // stride between tiles
  Index plane;  // stride between positions
  Index chunk;  // channels of a chunk
  Index chunk_stride;

  static TileBlock Whole(T* data, Index channels, Index tiles) {
    const Index tile = TileStride<T>(channels);
    return {data, tile, PlaneStride<T>(tiles * tile), Max(channels, 1), 0};
  }
  static TileBlock Chunked(T* data, Index chunk, Index tiles) {
    const Index plane = PlaneStride<T>(tiles * chunk);
    return {data, chunk, plane, chunk, kPositions * plane};
  }
  // Elements that `channels` channels take.
  Index size(Index channels) const { return CeilDiv(channels, chunk) * kPositions * plane; }
  TileBlock At(T* start) const { return {start, tile, plane, chunk, chunk_stride}; }
};

// The pixels under a tile: kSide × kSide pointers, to `zeros` ([channels]) where there is no pixel.
template <class T, int kSide>
struct Pixels {
  const T* at[kSide][kSide];

  Pixels(const T* image, Index height, Index width, Index channels, Index top, Index left, const T* zeros) {
    for (int i = 0; i < kSide; ++i) {
      for (int j = 0; j < kSide; ++j) {
        const Index y = top + i, x = left + j;
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        at[i][j] = inside ? image + (y * width + x) * channels : zeros;
      }
    }
  }
};

// Transforms one tile, channels [begin, end), into out, where channel c of position 0 lies at out[c].
// Channels are padded with zeros to a whole vector.
template <class T, class Transform>
OT_INLINE void TransformPixels(const Pixels<T, Transform::kIn>& pixels, Index begin, Index end, T* out,
                               Index plane) {
  Index c = begin;
  for (; c + kLanes<T> <= end; c += kLanes<T>) {
    Transform2D<T, Transform>([&](int i, int j) OT_LAMBDA { return Load(pixels.at[i][j] + c); },
                              [&](int i, int j, Vec<T> v)
                                  OT_LAMBDA { Store(out + (i * kSpan + j) * plane + c, v); });
  }
  if (c < end) {
    Transform2D<T, Transform>(
        [&](int i, int j) OT_LAMBDA { return LoadPartial(pixels.at[i][j] + c, end - c); },
        [&](int i, int j, Vec<T> v) OT_LAMBDA { Store(out + (i * kSpan + j) * plane + c, v); });
  }
}

template <class T, class Transform>
OT_INLINE void TransformTile(const Pixels<T, Transform::kIn>& pixels, Index channels, T* tile,
                             const TileBlock<T>& out) {
  for (Index c = 0; c < channels; c += out.chunk, tile += out.chunk_stride) {
    TransformPixels<T, Transform>(pixels, c, Min(c + out.chunk, channels), tile - c, out.plane);
  }
}

// Bᵀ d B for `count` tiles from `first` on.
template <class T>
OT_NOINLINE void TransformInput(const ConvShape& s, const TileGrid& grid, const T* x, const T* zeros,
                                Index first, Index count, const TileBlock<T>& out) {
  for (Index t = 0; t < count; ++t) {
    const auto place = grid.At(first + t);
    const Pixels<T, kSpan> pixels(x + place.image * s.in_h * s.in_w * s.in_c, s.in_h, s.in_w, s.in_c,
                                  place.y - s.pad_top, place.x - s.pad_left, zeros);
    TransformTile<T, typename Winograd<T>::Input>(pixels, s.in_c, out.data + t * out.tile, out);
  }
}

// A dy Aᵀ likewise.
template <class T>
OT_NOINLINE void TransformOutputGradient(const ConvShape& s, const TileGrid& grid, const T* dy,
                                         const T* zeros, Index first, Index count, const TileBlock<T>& out) {
  for (Index t = 0; t < count; ++t) {
    const auto place = grid.At(first + t);
    const Pixels<T, kTile> pixels(dy + place.image * s.out_h * s.out_w * s.out_c, s.out_h, s.out_w, s.out_c,
                                  place.y, place.x, zeros);
    TransformTile<T, typename Winograd<T>::OutputGradient>(pixels, s.out_c, out.data + t * out.tile, out);
  }
}

template <class T>
OT_INLINE Vec<T> Finish(Vec<T> v, Vec<T> bias, bool relu) {
  v += bias;
  return relu ? MaxZero<T>(v) : v;
}

// Aᵀ M A for `count` tiles from `first` on and the output channels [k0, k0 + kn), with the epilogue, into y.
// M holds those channels only.
template <class T>
OT_NOINLINE void TransformOutput(const ConvShape& s, const TileGrid& grid, const TileBlock<T>& m, Index first,
                                 Index count, Index k0, Index kn, const Epilogue<T>& epilogue, T* y) {
  using Output = typename Winograd<T>::Output;
  // The products between the stores hide them as long as the last-level cache takes the result.
  constexpr Index kLeastBytes = 4 * kStreamBytes;
  const bool stream = Streams(y, s.batch * s.out_h * s.out_w * s.out_c, s.out_c, kLeastBytes);
  for (Index t = 0; t < count; ++t) {
    const auto place = grid.At(first + t);
    const Index height = Min(kTile, s.out_h - place.y), width = Min(kTile, s.out_w - place.x);
    T* const corner = y + ((place.image * s.out_h + place.y) * s.out_w + place.x) * s.out_c + k0;
    for (Index k = 0; k < kn; k += kLanes<T>) {
      const T* const in = m.data + t * m.tile + k;
      T* const out = corner + k;
      const Index lanes = kn - k;
      const Vec<T> bias = epilogue.bias == nullptr ? Vec<T>{} : LoadUpTo(epilogue.bias + k0 + k, lanes);
      const auto load = [&](int i, int j) OT_LAMBDA { return Load(in + (i * kSpan + j) * m.plane); };
      if (height == kTile && width == kTile && lanes >= kLanes<T>) {
        Transform2D<T, Output>(load, [&](int i, int j, Vec<T> v) OT_LAMBDA {
          StoreOrStream(out + (i * s.out_w + j) * s.out_c, Finish<T>(v, bias, epilogue.relu), stream);
        });
      } else {
        Transform2D<T, Output>(load, [&](int i, int j, Vec<T> v) OT_LAMBDA {
          if (i < height && j < width) {
            StoreUpTo(out + (i * s.out_w + j) * s.out_c, Finish<T>(v, bias, epilogue.relu), lanes);
          }
        });
      }
    }
  }
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_WINOGRAD_TILES_H_
