// Results that do not fit into the cores' own caches are written past them: an ordinary store of a line first
// reads it from memory, only to overwrite all of it, and drives out what the kernel still needs.
#ifndef OVERLAP_TRAIN_CONV_STREAMING_H_
#define OVERLAP_TRAIN_CONV_STREAMING_H_

#include "simd.h"

namespace overlap_train::conv::OT_ISA {

// Only where a vector is a whole line; halves of lines would leave the write-combining buffers one by one.
#if defined(__AVX512F__)
constexpr bool kCanStream = true;
#else
constexpr bool kCanStream = false;
#endif
constexpr Index kStreamBytes = Index(4) << 20;

// Whether a result of `count` elements should be streamed, if that pays from `least_bytes` on; all its rows
// are a multiple of `row` elements long.
template <class T>
bool Streams(const T* result, Index count, Index row, Index least_bytes = kStreamBytes) {
  return kCanStream && count * static_cast<Index>(sizeof(T)) >= least_bytes && row % kLanes<T> == 0 &&
         reinterpret_cast<std::uintptr_t>(result) % kLineBytes == 0;
}

// Stores a whole vector; streamed only to the border of a line. FinishStreams() must follow on this thread.
template <class T>
OT_INLINE void StoreOrStream(T* p, Vec<T> v, bool stream) {
#if defined(__AVX512F__)
  if (stream) {
#if defined(__clang__)
    __builtin_nontemporal_store(v, reinterpret_cast<Vec<T>*>(p));
#else
    if constexpr (sizeof(T) == sizeof(float)) {
      __builtin_ia32_movntps512(p, v);
    } else {
      __builtin_ia32_movntpd512(p, v);
    }
#endif
    return;
  }
#endif
  (void)stream;
  Store(p, v);
}

// Makes what this thread has streamed visible to whoever learns that its work is done.
OT_INLINE void FinishStreams() {
#if defined(__AVX512F__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_STREAMING_H_
