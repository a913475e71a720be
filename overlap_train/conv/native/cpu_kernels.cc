// The operations on CPUs: the kernels of kernels.h on the device's own thread pool.
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "device_runtime.h"
#include "kernel_checks.h"
#include "kernels.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace overlap_train::conv {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

tensorflow::Status OutOfScratch() {
  return tensorflow::errors::ResourceExhausted("no memory for a convolution's scratch buffers");
}

template <class T>
const T* Data(const Tensor& t) {
  return t.flat<T>().data();
}

void Zero(Tensor* t) { std::memset(const_cast<char*>(t->tensor_data().data()), 0, t->tensor_data().size()); }

// A large tensor comes from fresh pages, and the kernel clears each at its first touch: 4 KiB at a time that
// takes as long as a convolution. Huge pages take a tenth.
template <class T>
T* Fresh(Tensor* t) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t kHugePage = std::uintptr_t(2) << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(t->tensor_data().data());
  const auto first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const auto last = (begin + t->tensor_data().size()) / kHugePage * kHugePage;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
  return t->flat<T>().data();
}

template <class T>
class ConvOp final : public OpKernel {
 public:
  explicit ConvOp(OpKernelConstruction* c) : OpKernel(c) {
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
    if (y->NumElements() == 0) return;
    const Epilogue<T> epilogue{bias.NumElements() == 0 ? nullptr : Data<T>(bias), relu_};
    const auto& table = Kernels<T>();
    DeviceRuntime runtime(c, window_.share);
    const auto run = window_.winograd ? table.winograd_forward : table.direct_forward;
    OP_REQUIRES(c, run(s, Data<T>(x), Data<T>(filter), epilogue, Fresh<T>(y), runtime), OutOfScratch());
  }

 private:
  WindowAttributes window_;
  bool relu_ = false;
};

template <class T>
class InputGradientOp final : public OpKernel {
 public:
  explicit InputGradientOp(OpKernelConstruction* c) : OpKernel(c) { window_.Read(c); }

  void Compute(OpKernelContext* c) override {
    const Tensor &filter = c->input(1), &dy = c->input(2);
    TensorShape shape;
    ConvShape s;
    OP_REQUIRES_OK(c, SizesToShape(c->input(0), &shape));
    OP_REQUIRES_OK(c, MakeShape(shape, filter.shape(), window_, &s));
    OP_REQUIRES_OK(c, CheckGradient(dy.shape(), s));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(c, c->allocate_output(0, shape, &dx));
    if (dx->NumElements() == 0) return;
    if (dy.NumElements() == 0) return Zero(dx);
    const auto& table = Kernels<T>();
    DeviceRuntime runtime(c, window_.share);
    const auto run = window_.winograd ? table.winograd_input_gradient : table.direct_input_gradient;
    OP_REQUIRES(c, run(s, Data<T>(dy), Data<T>(filter), Fresh<T>(dx), runtime), OutOfScratch());
  }

 private:
  WindowAttributes window_;
};

template <class T>
class FilterGradientOp final : public OpKernel {
 public:
  explicit FilterGradientOp(OpKernelConstruction* c) : OpKernel(c) { window_.Read(c); }

  void Compute(OpKernelContext* c) override {
    const Tensor &x = c->input(0), &dy = c->input(2);
    TensorShape shape;
    ConvShape s;
    OP_REQUIRES_OK(c, SizesToShape(c->input(1), &shape));
    OP_REQUIRES_OK(c, MakeShape(x.shape(), shape, window_, &s));
    OP_REQUIRES_OK(c, CheckGradient(dy.shape(), s));
    Tensor* dfilter = nullptr;
    OP_REQUIRES_OK(c, c->allocate_output(0, shape, &dfilter));
    if (dy.NumElements() == 0 || x.NumElements() == 0) return Zero(dfilter);
    const auto& table = Kernels<T>();
    DeviceRuntime runtime(c, window_.share);
    const auto run = window_.winograd ? table.winograd_filter_gradient : table.direct_filter_gradient;
    OP_REQUIRES(c, run(s, Data<T>(x), Data<T>(dy), Fresh<T>(dfilter), runtime), OutOfScratch());
  }

 private:
  WindowAttributes window_;
};

template <class T>
class DepthwiseFilterGradientOp final : public OpKernel {
 public:
  explicit DepthwiseFilterGradientOp(OpKernelConstruction* c) : OpKernel(c) { window_.Read(c); }

  void Compute(OpKernelContext* c) override {
    const Tensor &x = c->input(0), &dy = c->input(2);
    TensorShape shape;
    ConvShape s;
    OP_REQUIRES_OK(c, SizesToShape(c->input(1), &shape));
    OP_REQUIRES(c, shape.dim_size(3) == 1,
                tensorflow::errors::InvalidArgument("there must be one filter for each channel, got ",
                                                    shape.DebugString()));
    OP_REQUIRES_OK(c, MakeShape(x.shape(), shape, window_, &s));
    s.out_c = s.in_c;
    Tensor* dfilter = nullptr;
    OP_REQUIRES_OK(c, c->allocate_output(0, shape, &dfilter));
    // Before the check: TensorFlow's forward gives an empty batch the size of the input.
    if (dy.NumElements() == 0 || x.NumElements() == 0) return Zero(dfilter);
    OP_REQUIRES_OK(c, CheckGradient(dy.shape(), s));
    DeviceRuntime runtime(c, window_.share);
    OP_REQUIRES(
        c, Kernels<T>().depthwise_filter_gradient(s, Data<T>(x), Data<T>(dy), Fresh<T>(dfilter), runtime),
        OutOfScratch());
  }

 private:
  WindowAttributes window_;
};

template <class T>
class EpilogueGradientOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* c) override {
    const Tensor &dy = c->input(0), &y = c->input(1);
    OP_REQUIRES_OK(c, CheckEpilogue(dy.shape(), y.shape()));
    const Index channels = dy.dim_size(dy.dims() - 1);
    Tensor *dz = nullptr, *dbias = nullptr;
    OP_REQUIRES_OK(c, c->forward_input_or_allocate_output({0}, 0, dy.shape(), &dz));
    OP_REQUIRES_OK(c, c->allocate_output(1, TensorShape({channels}), &dbias));
    if (dy.NumElements() == 0) return Zero(dbias);
    DeviceRuntime runtime(c, true);
    OP_REQUIRES(c,
                Kernels<T>().epilogue_gradient(dy.NumElements() / channels, channels, Data<T>(dy), Data<T>(y),
                                               dz->flat<T>().data(), dbias->flat<T>().data(), runtime),
                OutOfScratch());
  }
};

#define OT_REGISTER(name, kernel)                                                                \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"),  \
                          kernel<float>);                                                        \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<double>("T"), \
                          kernel<double>)

OT_REGISTER("OverlapTiledConv2D", ConvOp);
OT_REGISTER("OverlapTiledConv2DBackpropInput", InputGradientOp);
OT_REGISTER("OverlapTiledConv2DBackpropFilter", FilterGradientOp);
OT_REGISTER("OverlapDepthwiseConv2DBackpropFilter", DepthwiseFilterGradientOp);
OT_REGISTER("OverlapTiledConv2DEpilogueGrad", EpilogueGradientOp);

}  // namespace
}  // namespace overlap_train::conv

// For build.py: which instruction set the library runs here.
extern "C" __attribute__((visibility("default"))) const char* overlap_conv_instruction_set() {
  return overlap_train::conv::Kernels<float>().name;
}

// For library.py: how often an idle thread has helped an operation.
extern "C" __attribute__((visibility("default"))) std::int64_t overlap_conv_helps_accepted() {
  return overlap_train::conv::HelpsAccepted().load(std::memory_order_relaxed);
}

// For library.py: a run of a network begins (1) or ends (-1).
extern "C" __attribute__((visibility("default"))) void overlap_conv_count_runs(int change) {
  overlap_train::conv::Runs().fetch_add(change, std::memory_order_relaxed);
}
