// What the operations' kernels, on any device, read from their attributes and check about their inputs.
#ifndef OVERLAP_TRAIN_CONV_KERNEL_CHECKS_H_
#define OVERLAP_TRAIN_CONV_KERNEL_CHECKS_H_

#include <string>
#include <vector>

#include "geometry.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace overlap_train::conv {

struct WindowAttributes {
  int stride_h = 1, stride_w = 1;
  bool same = true;
  bool winograd = false;
  bool share = true;

  void Read(tensorflow::OpKernelConstruction* c) {
    std::vector<int> strides;
    std::string padding, algorithm = "direct";
    OP_REQUIRES_OK(c, c->GetAttr("strides", &strides));
    OP_REQUIRES_OK(c, c->GetAttr("padding", &padding));
    if (c->HasAttr("algorithm")) OP_REQUIRES_OK(c, c->GetAttr("algorithm", &algorithm));
    OP_REQUIRES_OK(c, c->GetAttr("share", &share));
    OP_REQUIRES(
        c, strides.size() == 2 && strides[0] > 0 && strides[1] > 0,
        tensorflow::errors::InvalidArgument("strides must be two numbers of at least 1, [height, width]"));
    stride_h = strides[0];
    stride_w = strides[1];
    same = padding == "SAME";
    winograd = algorithm == "winograd";
    OP_REQUIRES(c, !winograd || (stride_h == 1 && stride_w == 1),
                tensorflow::errors::InvalidArgument("algorithm 'winograd' needs strides of 1, got [",
                                                    stride_h, ", ", stride_w, "]; use 'direct' or 'auto'"));
  }
};

// Puts the shape of a convolution of `x` with `filter` together.
inline tensorflow::Status MakeShape(const tensorflow::TensorShape& x, const tensorflow::TensorShape& filter,
                                    const WindowAttributes& window, ConvShape* s) {
  using tensorflow::errors::InvalidArgument;
  if (x.dims() != 4)
    return InvalidArgument("input must be [batch, height, width, channels], got ", x.DebugString());
  if (filter.dims() != 4) {
    return InvalidArgument("filter must be [height, width, in_channels, out_channels], got ",
                           filter.DebugString());
  }
  if (x.dim_size(3) != filter.dim_size(2)) {
    return InvalidArgument("input has ", x.dim_size(3), " channels and filter expects ", filter.dim_size(2),
                           "; grouped convolution is not supported");
  }
  for (int i = 0; i < 4; ++i) {
    if (filter.dim_size(i) < 1)
      return InvalidArgument("filter has an empty dimension: ", filter.DebugString());
  }
  if (window.winograd && (filter.dim_size(0) != 3 || filter.dim_size(1) != 3)) {
    return InvalidArgument("algorithm 'winograd' needs a 3×3 filter, got ", filter.dim_size(0), "×",
                           filter.dim_size(1), "; use 'direct' or 'auto'");
  }
  const Window rows = WindowFor(x.dim_size(1), filter.dim_size(0), window.stride_h, window.same);
  const Window columns = WindowFor(x.dim_size(2), filter.dim_size(1), window.stride_w, window.same);
  *s = {x.dim_size(0),   x.dim_size(1),      x.dim_size(2),      x.dim_size(3),      rows.out,
        columns.out,     filter.dim_size(3), filter.dim_size(0), filter.dim_size(1), window.stride_h,
        window.stride_w, rows.pad_before,    columns.pad_before};
  return tensorflow::OkStatus();
}

inline tensorflow::TensorShape OutputShape(const ConvShape& s) {
  return tensorflow::TensorShape({s.batch, s.out_h, s.out_w, s.out_c});
}

// The shape that an int32 vector tensor of four sizes holds.
inline tensorflow::Status SizesToShape(const tensorflow::Tensor& sizes, tensorflow::TensorShape* shape) {
  if (sizes.dims() != 1 || sizes.NumElements() != 4) {
    return tensorflow::errors::InvalidArgument("sizes must be a vector of 4, got shape ",
                                               sizes.shape().DebugString());
  }
  return tensorflow::TensorShapeUtils::MakeShape(sizes.vec<tensorflow::int32>(), shape);
}

inline tensorflow::Status CheckGradient(const tensorflow::TensorShape& gradient, const ConvShape& s) {
  if (gradient == OutputShape(s)) return tensorflow::OkStatus();
  return tensorflow::errors::InvalidArgument("out_backprop has shape ", gradient.DebugString(), ", expected ",
                                             OutputShape(s).DebugString());
}

inline tensorflow::Status CheckEpilogue(const tensorflow::TensorShape& dy, const tensorflow::TensorShape& y) {
  if (dy == y && dy.dims() >= 1) return tensorflow::OkStatus();
  return tensorflow::errors::InvalidArgument("out_backprop ", dy.DebugString(), " and output ",
                                             y.DebugString(), " must have one shape");
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_KERNEL_CHECKS_H_
