// Back through y = max(sum + bias, 0), in one pass: dz and its sum over the pixels.
#ifndef OVERLAP_TRAIN_CONV_EPILOGUE_GRADIENT_H_
#define OVERLAP_TRAIN_CONV_EPILOGUE_GRADIENT_H_

#include "parallel.h"
#include "simd.h"

namespace overlap_train::conv::OT_ISA {

// One share of the pixels. `sums` has room for the channels in whole vectors.
template <class T>
OT_NOINLINE void EpilogueGradientOf(Index pixels, Index channels, const T* dy, const T* y, T* dz, T* sums) {
  for (Index c = 0; c < channels; c += kLanes<T>) Store(sums + c, Vec<T>{});
  for (Index p = 0; p < pixels; ++p, dy += channels, y += channels, dz += channels) {
    for (Index c = 0; c < channels; c += kLanes<T>) {
      const Index lanes = channels - c;
      const Vec<T> gate = LoadUpTo(y + c, lanes), gradient = LoadUpTo(dy + c, lanes);
      const Vec<T> v = gate > Vec<T>{} ? gradient : Vec<T>{};
      StoreUpTo(dz + c, v, lanes);
      Store<T>(sums + c, Load(sums + c) + v);
    }
  }
}

template <class T>
bool RunEpilogueGradient(Index pixels, Index channels, const T* dy, const T* y, T* dz, T* dbias,
                         Runtime& runtime) {
  // Shares of a fixed size: the sums are then the same for any number of workers, and none of them is long.
  constexpr Index kPixels = 256;
  const Index shares = CeilDiv(pixels, kPixels), row = RoundUp(channels, kLanes<T>);
  Scratch<T> sums(runtime, Max(shares, 1) * row);
  if (!sums) return false;
  ForEachTask(runtime, shares, [&](Index share, int) {
    const Index first = share * kPixels * channels;
    EpilogueGradientOf(Min(kPixels, pixels - share * kPixels), channels, dy + first, y + first, dz + first,
                       sums.get() + share * row);
  });
  for (Index c = 0; c < channels; c += kLanes<T>) {
    Vec<T> total{};
    for (Index share = 0; share < shares; ++share) total += Load(sums.get() + share * row + c);
    StoreUpTo(dbias + c, total, channels - c);
  }
  return true;
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_EPILOGUE_GRADIENT_H_
