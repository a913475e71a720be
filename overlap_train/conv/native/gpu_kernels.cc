// The operations on GPUs, float only: the kernels of conv_cuda.h on TensorFlow's stream.
#include "conv_cuda.h"
#include "kernel_checks.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "xla/stream_executor/stream.h"

namespace overlap_train::conv {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

void* StreamOf(OpKernelContext* c) {
  return c->op_device_context()->stream()->platform_specific_handle().stream;
}

tensorflow::Status Launched(int error) {
  if (error == 0) return tensorflow::OkStatus();
  return tensorflow::errors::Internal(
      "the tiled convolution's kernel could not be launched: ", overlap_conv_error_name(error),
      "; use tf.nn.conv2d for this shape, or OVERLAP_TRAIN_CONV_DISABLE=1");
}

const float* Data(const Tensor& t) { return t.flat<float>().data(); }

// As TensorFlow's own convolutions: tensor cores unless
// tf.config.experimental.enable_tensor_float_32_execution says otherwise. Neither of our CPU algorithms'
// names means a GPU kernel.
int Products() { return tensorflow::tensor_float_32_execution_enabled() ? kImplicitGemmTf32 : kImplicitGemm; }

// Memory for `count` floats until the operation ends: TensorFlow gives it to others in its stream's order.
tensorflow::Status Workspace(OpKernelContext* c, long long count, Tensor* workspace) {
  return c->allocate_temp(tensorflow::DT_FLOAT, TensorShape({static_cast<Index>(count)}), workspace);
}

class GpuConvOp final : public OpKernel {
 public:
  explicit GpuConvOp(OpKernelConstruction* c) : OpKernel(c) {
    std::string activation;
    OP_REQUIRES_OK(c, c->GetAttr("activation", &activation));
    relu_ = activation == "relu";
    window_.Read(c);
  }

  void Compute(OpKernelContext* c) override {
    const Tensor &x = c->input(0), &filter = c->input(1), &bias = c->input(2);
    ConvShape s;
    OP_REQUIRES_OK(c, MakeShape(x.shape(), filter.shape(), window_, &s));
    OP_REQUIRES(c, bias.dims() == 1 && (bias.NumElements() == 0 || bias.NumElements() == s.out_c),
                tensorflow::errors::InvalidArgument("bias must be [", s.out_c, "] or [0], got ",
                                                    bias.shape().DebugString()));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(c, c->allocate_output(0, OutputShape(s), &y));
    const float* const offsets = bias.NumElements() == 0 ? nullptr : Data(bias);
    Tensor workspace;
    OP_REQUIRES_OK(c, Workspace(c, overlap_conv_forward_workspace(&s, Products()), &workspace));
    OP_REQUIRES_OK(c, Launched(overlap_conv_forward_cuda(&s, Data(x), Data(filter), offsets, relu_,
                                                         y->flat<float>().data(), Products(),
                                                         workspace.flat<float>().data(), StreamOf(c))));
  }

 private:
  WindowAttributes window_;
  bool relu_ = false;
};

class GpuInputGradientOp final : public OpKernel {
 public:
  explicit GpuInputGradientOp(OpKernelConstruction* c) : OpKernel(c) { window_.Read(c); }

  void Compute(OpKernelContext* c) override {
    const Tensor &filter = c->input(1), &dy = c->input(2);
    TensorShape shape;
    ConvShape s;
    OP_REQUIRES_OK(c, SizesToShape(c->input(0), &shape));
    OP_REQUIRES_OK(c, MakeShape(shape, filter.shape(), window_, &s));
    OP_REQUIRES_OK(c, CheckGradient(dy.shape(), s));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(c, c->allocate_output(0, shape, &dx));
    Tensor workspace;
    OP_REQUIRES_OK(c, Workspace(c, overlap_conv_input_gradient_workspace(&s, Products()), &workspace));
    OP_REQUIRES_OK(c, Launched(overlap_conv_input_gradient_cuda(
                          &s, Data(dy), Data(filter), dx->flat<float>().data(), Products(),
                          workspace.flat<float>().data(), StreamOf(c))));
  }

 private:
  WindowAttributes window_;
};

class GpuFilterGradientOp final : public OpKernel {
 public:
  explicit GpuFilterGradientOp(OpKernelConstruction* c) : OpKernel(c) { window_.Read(c); }

  void Compute(OpKernelContext* c) override {
    const Tensor &x = c->input(0), &dy = c->input(2);
    TensorShape shape;
    ConvShape s;
    OP_REQUIRES_OK(c, SizesToShape(c->input(1), &shape));
    OP_REQUIRES_OK(c, MakeShape(x.shape(), shape, window_, &s));
    OP_REQUIRES_OK(c, CheckGradient(dy.shape(), s));
    Tensor* dfilter = nullptr;
    OP_REQUIRES_OK(c, c->allocate_output(0, shape, &dfilter));
    Tensor workspace;
    OP_REQUIRES_OK(c, Workspace(c, overlap_conv_filter_gradient_workspace(&s, Products()), &workspace));
    OP_REQUIRES_OK(c, Launched(overlap_conv_filter_gradient_cuda(
                          &s, Data(x), Data(dy), dfilter->flat<float>().data(), Products(),
                          workspace.flat<float>().data(), StreamOf(c))));
  }

 private:
  WindowAttributes window_;
};

class GpuEpilogueGradientOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* c) override {
    const Tensor &dy = c->input(0), &y = c->input(1);
    OP_REQUIRES_OK(c, CheckEpilogue(dy.shape(), y.shape()));
    const Index channels = dy.dim_size(dy.dims() - 1),
                pixels = channels == 0 ? 0 : dy.NumElements() / channels;
    Tensor *dz = nullptr, *dbias = nullptr, workspace;
    OP_REQUIRES_OK(c, c->forward_input_or_allocate_output({0}, 0, dy.shape(), &dz));
    OP_REQUIRES_OK(c, c->allocate_output(1, TensorShape({channels}), &dbias));
    OP_REQUIRES_OK(c, Workspace(c, overlap_conv_epilogue_gradient_workspace(pixels, channels), &workspace));
    OP_REQUIRES_OK(c, Launched(overlap_conv_epilogue_gradient_cuda(
                          pixels, channels, Data(dy), Data(y), dz->flat<float>().data(),
                          dbias->flat<float>().data(), workspace.flat<float>().data(), StreamOf(c))));
  }
};

#define OT_REGISTER_GPU(name) Name(name).Device(tensorflow::DEVICE_GPU).TypeConstraint<float>("T")

REGISTER_KERNEL_BUILDER(OT_REGISTER_GPU("OverlapTiledConv2D"), GpuConvOp);
REGISTER_KERNEL_BUILDER(OT_REGISTER_GPU("OverlapTiledConv2DBackpropInput").HostMemory("input_sizes"),
                        GpuInputGradientOp);
REGISTER_KERNEL_BUILDER(OT_REGISTER_GPU("OverlapTiledConv2DBackpropFilter").HostMemory("filter_sizes"),
                        GpuFilterGradientOp);
REGISTER_KERNEL_BUILDER(OT_REGISTER_GPU("OverlapTiledConv2DEpilogueGrad"), GpuEpilogueGradientOp);

}  // namespace
}  // namespace overlap_train::conv
