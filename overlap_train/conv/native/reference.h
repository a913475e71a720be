// What the C++ tests share: random and poisoned tensors, a convolution written as plain loops, and cases.
#ifndef OVERLAP_TRAIN_CONV_REFERENCE_H_
#define OVERLAP_TRAIN_CONV_REFERENCE_H_

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "geometry.h"

namespace overlap_train::conv {

template <class T>
std::vector<T> Normal(Index count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& v : values) v = static_cast<T>(normal(generator));
  return values;
}

// Begins on a cache line, as TensorFlow's buffers do, and ends where it says, so that sanitizers see it.
template <class T>
struct LineAllocator {
  using value_type = T;
  T* allocate(std::size_t n) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, n * sizeof(T)) != 0) std::abort();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  bool operator==(const LineAllocator&) const { return true; }
  bool operator!=(const LineAllocator&) const { return false; }
};
template <class T>
using Buffer = std::vector<T, LineAllocator<T>>;

template <class T>
Buffer<T> Poisoned(Index count) {
  return Buffer<T>(static_cast<std::size_t>(count), std::numeric_limits<T>::quiet_NaN());
}

// Calls f(input element, filter element, output element) for every product of the convolution.
template <class F>
void ForEachProduct(const ConvShape& s, const F& f) {
  for (Index n = 0; n < s.batch; ++n)
    for (Index oy = 0; oy < s.out_h; ++oy)
      for (Index ox = 0; ox < s.out_w; ++ox)
        for (Index r = 0; r < s.k_h; ++r)
          for (Index q = 0; q < s.k_w; ++q) {
            const Index y = oy * s.stride_h - s.pad_top + r, x = ox * s.stride_w - s.pad_left + q;
            if (y < 0 || y >= s.in_h || x < 0 || x >= s.in_w) continue;
            const Index in = ((n * s.in_h + y) * s.in_w + x) * s.in_c, tap = (r * s.k_w + q) * s.in_c;
            const Index out = ((n * s.out_h + oy) * s.out_w + ox) * s.out_c;
            for (Index c = 0; c < s.in_c; ++c)
              for (Index k = 0; k < s.out_c; ++k) f(in + c, (tap + c) * s.out_c + k, out + k);
          }
}

template <class Values>
double RelativeError(const Values& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - want[i];
    error += d * d;
    norm += want[i] * want[i];
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);  // NaN if anything is
}

struct Case {
  ConvShape shape;
  std::string name;
};

inline Case MakeCase(Index n, Index h, Index w, Index c, Index k, Index kernel, Index stride, bool same) {
  const Window rows = WindowFor(h, kernel, stride, same), columns = WindowFor(w, kernel, stride, same);
  char name[128];
  std::snprintf(name, sizeof name, "%ldx%ldx%ldx%ld -> %ld, %ld×%ld / %ld, %s", long(n), long(h), long(w),
                long(c), long(k), long(kernel), long(kernel), long(stride), same ? "SAME" : "VALID");
  return {{n, h, w, c, rows.out, columns.out, k, kernel, kernel, stride, stride, rows.pad_before,
           columns.pad_before},
          name};
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_REFERENCE_H_
