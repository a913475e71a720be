// The CPU kernels of one instruction set, as a table; dispatch.cc picks the table for this machine.
#ifndef OVERLAP_TRAIN_CONV_KERNELS_H_
#define OVERLAP_TRAIN_CONV_KERNELS_H_

#include "geometry.h"
#include "runtime.h"

namespace overlap_train::conv {

// Every function writes its whole result, out of nothing but what it has written or been given, and returns
// false only when scratch memory ran out. Tensors are dense, need no alignment and must not overlap. Sums are
// formed in an order that depends on the shape and the number of workers alone, so results repeat bit for
// bit.
template <class T>
struct KernelTable {
  const char* name;  // "avx512", "avx2" or "portable"

  bool (*direct_forward)(const ConvShape&, const T* x, const T* filter, Epilogue<T>, T* y, Runtime&);
  bool (*direct_input_gradient)(const ConvShape&, const T* dy, const T* filter, T* dx, Runtime&);
  bool (*direct_filter_gradient)(const ConvShape&, const T* x, const T* dy, T* dfilter, Runtime&);

  // Only where WinogradApplies().
  bool (*winograd_forward)(const ConvShape&, const T* x, const T* filter, Epilogue<T>, T* y, Runtime&);
  bool (*winograd_input_gradient)(const ConvShape&, const T* dy, const T* filter, T* dx, Runtime&);
  bool (*winograd_filter_gradient)(const ConvShape&, const T* x, const T* dy, T* dfilter, Runtime&);

  // dz = dy where y > 0 and 0 elsewhere, and dbias = sum of dz over the pixels; [pixels, channels],
  // [channels].
  bool (*epilogue_gradient)(Index pixels, Index channels, const T* dy, const T* y, T* dz, T* dbias, Runtime&);

  // Of a depthwise convolution whose filter is [k_h, k_w, in_c, 1]; out_c is in_c.
  bool (*depthwise_filter_gradient)(const ConvShape&, const T* x, const T* dy, T* dfilter, Runtime&);
};

inline bool WinogradApplies(const ConvShape& s) {
  return s.k_h == 3 && s.k_w == 3 && s.stride_h == 1 && s.stride_w == 1;
}

// The table for this CPU, or the one that OVERLAP_TRAIN_CONV_ISA names if this CPU can run it; chosen once.
template <class T>
const KernelTable<T>& Kernels();

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_KERNELS_H_
