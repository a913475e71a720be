// The operations as TensorFlow sees them: attributes, shapes and documentation. Kernels: cpu_kernels.cc and
// gpu_kernels.cc. Second derivatives: _gradients.py.
#include "geometry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace overlap_train::conv {
namespace {

using tensorflow::Status;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

Status Window1D(InferenceContext* c, DimensionHandle in, DimensionHandle kernel, int stride, bool same,
                DimensionHandle* out) {
  if (!c->ValueKnown(in) || !c->ValueKnown(kernel)) {
    *out = c->UnknownDim();
    return absl::OkStatus();
  }
  if (c->Value(kernel) < 1) return tensorflow::errors::InvalidArgument("a filter needs a size of at least 1");
  *out = c->MakeDim(WindowFor(c->Value(in), c->Value(kernel), stride, same).out);
  return absl::OkStatus();
}

Status ReadWindow(InferenceContext* c, std::vector<int>* strides, bool* same) {
  std::string padding;
  TF_RETURN_IF_ERROR(c->GetAttr("strides", strides));
  TF_RETURN_IF_ERROR(c->GetAttr("padding", &padding));
  if (strides->size() != 2 || (*strides)[0] < 1 || (*strides)[1] < 1) {
    return tensorflow::errors::InvalidArgument("strides must be two numbers of at least 1, [height, width]");
  }
  *same = padding == "SAME";
  return absl::OkStatus();
}

Status ForwardShape(InferenceContext* c) {
  ShapeHandle x, filter, bias;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &x));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 4, &filter));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &bias));
  DimensionHandle unused, channels = c->Dim(filter, 3);
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(x, 3), c->Dim(filter, 2), &unused));
  const DimensionHandle biases = c->Dim(bias, 0);
  if (c->ValueKnown(biases) && c->Value(biases) != 0)
    TF_RETURN_IF_ERROR(c->Merge(biases, channels, &channels));
  std::vector<int> strides;
  bool same;
  TF_RETURN_IF_ERROR(ReadWindow(c, &strides, &same));
  DimensionHandle height, width;
  TF_RETURN_IF_ERROR(Window1D(c, c->Dim(x, 1), c->Dim(filter, 0), strides[0], same, &height));
  TF_RETURN_IF_ERROR(Window1D(c, c->Dim(x, 2), c->Dim(filter, 1), strides[1], same, &width));
  c->set_output(0, c->MakeShape({c->Dim(x, 0), height, width, channels}));
  return absl::OkStatus();
}

Status ShapeFromSizes(InferenceContext* c, int input) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(input, &shape));
  TF_RETURN_IF_ERROR(c->WithRank(shape, 4, &shape));
  c->set_output(0, shape);
  return absl::OkStatus();
}

Status EpilogueGradientShape(InferenceContext* c) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->input(1), &shape));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(shape, 1, &shape));
  c->set_output(0, shape);
  c->set_output(1, c->Vector(c->Dim(shape, -1)));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("OverlapTiledConv2D")
    .Input("input: T")
    .Input("filter: T")
    .Input("bias: T")
    .Output("output: T")
    .Attr("T: {float, double}")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'SAME', 'VALID'} = 'SAME'")
    .Attr("activation: {'linear', 'relu'} = 'linear'")
    .Attr("algorithm: {'direct', 'winograd'} = 'direct'")
    .Attr("share: bool = true")
    .SetShapeFn(ForwardShape)
    .Doc(R"doc(
A two-dimensional convolution with bias and activation: activation(conv2d(input, filter) + bias).

input: [batch, in_height, in_width, in_channels].
filter: [filter_height, filter_width, in_channels, out_channels].
bias: [out_channels], or [0] for none.
output: [batch, out_height, out_width, out_channels].
strides: of the window, [height, width].
padding: as in tf.nn.conv2d.
activation: applied last.
algorithm: 'winograd', for 3×3 filters and strides of 1, takes a quarter of the multiplications and has a few times
  the rounding error; where an input of a 4×4 tile of outputs is not finite, outputs of it that do not
  read it may be NaN as well.
share: whether, on a CPU and with one intra-op thread, threads that have no operation to run may help.
)doc");

REGISTER_OP("OverlapTiledConv2DBackpropInput")
    .Input("input_sizes: int32")
    .Input("filter: T")
    .Input("out_backprop: T")
    .Output("output: T")
    .Attr("T: {float, double}")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'SAME', 'VALID'} = 'SAME'")
    .Attr("algorithm: {'direct', 'winograd'} = 'direct'")
    .Attr("share: bool = true")
    .SetShapeFn([](InferenceContext* c) { return ShapeFromSizes(c, 0); })
    .Doc(R"doc(
The gradient of OverlapTiledConv2D, without bias and activation, with respect to its input.

input_sizes: the input's shape, [4].
filter: [filter_height, filter_width, in_channels, out_channels].
out_backprop: the gradient with respect to the output.
output: the gradient with respect to the input.
)doc");

REGISTER_OP("OverlapTiledConv2DBackpropFilter")
    .Input("input: T")
    .Input("filter_sizes: int32")
    .Input("out_backprop: T")
    .Output("output: T")
    .Attr("T: {float, double}")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'SAME', 'VALID'} = 'SAME'")
    .Attr("algorithm: {'direct', 'winograd'} = 'direct'")
    .Attr("share: bool = true")
    .SetShapeFn([](InferenceContext* c) { return ShapeFromSizes(c, 1); })
    .Doc(R"doc(
The gradient of OverlapTiledConv2D, without bias and activation, with respect to its filter.

input: [batch, in_height, in_width, in_channels].
filter_sizes: the filter's shape, [4].
out_backprop: the gradient with respect to the output.
output: the gradient with respect to the filter.
)doc");

REGISTER_OP("OverlapDepthwiseConv2DBackpropFilter")
    .Input("input: T")
    .Input("filter_sizes: int32")
    .Input("out_backprop: T")
    .Output("output: T")
    .Attr("T: {float, double}")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'SAME', 'VALID'} = 'SAME'")
    .Attr("share: bool = true")
    .SetShapeFn([](InferenceContext* c) { return ShapeFromSizes(c, 1); })
    .Doc(R"doc(
The gradient of tf.nn.depthwise_conv2d with one filter for each channel, with respect to its filters. On CPUs only.

input: [batch, in_height, in_width, channels].
filter_sizes: the filters' shape, [filter_height, filter_width, channels, 1].
out_backprop: the gradient with respect to the output, [batch, out_height, out_width, channels].
output: the gradient with respect to the filters.
strides: of the window, [height, width].
padding: as in tf.nn.depthwise_conv2d.
share: as in OverlapTiledConv2D.
)doc");

REGISTER_OP("OverlapTiledConv2DEpilogueGrad")
    .Input("out_backprop: T")
    .Input("output: T")
    .Output("sum_backprop: T")
    .Output("bias_backprop: T")
    .Attr("T: {float, double}")
    .SetShapeFn(EpilogueGradientShape)
    .Doc(R"doc(
Back through OverlapTiledConv2D's bias and ReLU, in one pass over the pixels.

out_backprop: the gradient with respect to the operation's output, [.., channels].
output: that output.
sum_backprop: the gradient with respect to the convolution's sums.
bias_backprop: the gradient with respect to the bias, [channels].
)doc");

}  // namespace overlap_train::conv
