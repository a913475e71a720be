// Vectors of the instruction set this file is compiled for, in the compiler's vector extension, so that one
// source serves AVX-512, AVX2, SSE2 and NEON. Included only by kernels_isa.cc, inside whose namespace
// everything lives.
#ifndef OVERLAP_TRAIN_CONV_SIMD_H_
#define OVERLAP_TRAIN_CONV_SIMD_H_

#include "geometry.h"

#define OT_INLINE inline __attribute__((always_inline))
#define OT_NOINLINE __attribute__((noinline))
#define OT_LAMBDA __attribute__((always_inline))

namespace overlap_train::conv::OT_ISA {

// A register block of kBlockRows × kBlockVectors accumulators, one row of the second operand and one
// broadcast fill 29 of AVX-512's 32 registers and 15 of the others' 16.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kBlockVectors = 4;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kBlockVectors = 2;
#else
constexpr int kVectorBytes = 16;
constexpr int kBlockVectors = 2;
#endif
constexpr int kBlockRows = 6;

constexpr int kLineBytes = 64;  // bytes of a cache line

template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
template <class T>
constexpr int kPanel = kBlockVectors * kLanes<T>;  // output channels that one register block spans

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vec = typename VectorOf<T>::Type;

constexpr Index Min(Index a, Index b) { return a < b ? a : b; }
constexpr Index Max(Index a, Index b) { return a < b ? b : a; }
constexpr Index CeilDiv(Index a, Index b) { return (a + b - 1) / b; }
constexpr Index RoundUp(Index a, Index b) { return CeilDiv(a, b) * b; }

template <class T>
OT_INLINE Vec<T> Load(const T* p) {
  Vec<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
OT_INLINE void Store(T* p, Vec<T> v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// The first n of a vector's lanes; the others are read as zero, or left alone.
template <class T>
OT_INLINE Vec<T> LoadPartial(const T* p, Index n) {
  Vec<T> v{};
  for (Index i = 0; i < n; ++i) v[i] = p[i];
  return v;
}

template <class T>
OT_INLINE void StorePartial(T* p, Vec<T> v, Index n) {
  for (Index i = 0; i < n; ++i) p[i] = v[i];
}

template <class T>
OT_INLINE Vec<T> LoadUpTo(const T* p, Index n) {
  return n >= kLanes<T> ? Load(p) : LoadPartial(p, n);
}

template <class T>
OT_INLINE void StoreUpTo(T* p, Vec<T> v, Index n) {
  if (n >= kLanes<T>) {
    Store(p, v);
  } else {
    StorePartial(p, v, n);
  }
}

template <class T>
OT_INLINE Vec<T> MaxZero(Vec<T> v) {
  // Written so that NaN stays NaN, as tf.nn.relu keeps it.
  return v < Vec<T>{} ? Vec<T>{} : v;
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_SIMD_H_
