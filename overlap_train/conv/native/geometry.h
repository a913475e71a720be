// The shape of one convolution, and TensorFlow's rule for its padding. Plain data: kernels of every
// instruction set, the TensorFlow operations, the CUDA driver and the tests all include this file.
#ifndef OVERLAP_TRAIN_CONV_GEOMETRY_H_
#define OVERLAP_TRAIN_CONV_GEOMETRY_H_

#include <cstdint>

namespace overlap_train::conv {

using Index = std::int64_t;

// Layouts: input [batch, in_h, in_w, in_c], filter [k_h, k_w, in_c, out_c], output [batch, out_h, out_w,
// out_c]. Output pixel (y, x) reads input rows y * stride_h - pad_top + r for r in [0, k_h), columns
// likewise; what lies outside the input counts as zero.
struct ConvShape {
  Index batch, in_h, in_w, in_c;
  Index out_h, out_w, out_c;
  Index k_h, k_w;
  Index stride_h, stride_w;
  Index pad_top, pad_left;
};

struct Window {
  Index out;         // outputs along the axis; 0 where the kernel does not fit
  Index pad_before;  // zeros in front of the input
};

// Source: tf.nn.convolution's documentation, "SAME" and "VALID".
inline Window WindowFor(Index in, Index kernel, Index stride, bool same) {
  if (!same) return {in < kernel ? 0 : (in - kernel) / stride + 1, 0};
  const Index out = (in + stride - 1) / stride;
  const Index total = (out - 1) * stride + kernel - in;
  return {out, total > 0 ? total / 2 : 0};
}

// What is added to a convolution's sums before they are stored: y = max(sum + bias, 0), either part optional.
template <class T>
struct Epilogue {
  const T* bias;  // [out_c], or null
  bool relu;
};

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_GEOMETRY_H_
