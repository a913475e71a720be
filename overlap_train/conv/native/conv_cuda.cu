// Launches the CUDA kernels; see conv_cuda.h. Free of TensorFlow's headers.
#include <cuda_runtime.h>

#include "conv_cuda.h"
#include "cuda_kernels.h"

namespace overlap_train::conv {
namespace {

unsigned Blocks(Index count, Index per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

bool HasTf32() {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 8;
}

template <class Problem>
cudaError_t LaunchGemm(const Problem& p, const float* a, const float* b, const GemmOutput& out, Index slices,
                       int algorithm, cudaStream_t stream) {
  const dim3 grid(Blocks(p.rows(), kGemmRows), Blocks(p.columns(), kGemmColumns),
                  static_cast<unsigned>(slices));
  if (algorithm == kImplicitGemmTf32 && HasTf32()) {
    ImplicitGemmKernel<Problem, Tf32Product><<<grid, kGemmThreads, 0, stream>>>(p, a, b, out);
  } else {
    ImplicitGemmKernel<Problem, Fp32Product><<<grid, kGemmThreads, 0, stream>>>(p, a, b, out);
  }
  return cudaGetLastError();
}

// Shared memory beyond 48 KiB must be asked for.
template <class Kernel>
cudaError_t AllowShared(Kernel kernel, Index bytes) {
  if (bytes <= 48 << 10) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

cudaError_t Forward(const ConvShape& s, const float* x, const float* filter, const float* bias, int relu,
                    float* y, int algorithm, cudaStream_t stream) {
  const ForwardProblem p{s};
  if (p.rows() == 0 || p.columns() == 0) return cudaSuccess;
  if (algorithm == kSharedMemory) {
    const Index bytes = SharedFloats(s) * static_cast<Index>(sizeof(float));
    const cudaError_t error = AllowShared(SharedMemoryKernel, bytes);
    if (error != cudaSuccess) return error;
    const SharedTiles tiles{s};
    const dim3 grid(static_cast<unsigned>(s.batch * tiles.down() * tiles.across()),
                    Blocks(s.out_c, kSharedOutputs));
    SharedMemoryKernel<<<grid, SharedTiles::kSide * SharedTiles::kSide, bytes, stream>>>(s, x, filter, bias,
                                                                                         relu, y);
    return cudaGetLastError();
  }
  if (algorithm == kFewChannels) {
    if (s.in_c > 4) return cudaErrorInvalidValue;
    const Index bytes = FewFloats(s) * static_cast<Index>(sizeof(float));
    const cudaError_t error = AllowShared(FewChannelsKernel, bytes);
    if (error != cudaSuccess) return error;
    const dim3 grid(Blocks(p.rows(), kFewThreads), Blocks(s.out_c, kFewOutputs));
    FewChannelsKernel<<<grid, kFewThreads, bytes, stream>>>(s, x, filter, bias, relu, y);
    return cudaGetLastError();
  }
  return LaunchGemm(p, x, filter, {y, bias, relu, 0, 0}, 1, algorithm, stream);
}

}  // namespace
}  // namespace overlap_train::conv

using overlap_train::conv::ConvShape;
using overlap_train::conv::Index;

int overlap_conv_forward_cuda(const ConvShape* shape, const float* x, const float* filter, const float* bias,
                              int relu, float* y, int algorithm, void* stream) {
  return overlap_train::conv::Forward(*shape, x, filter, bias, relu, y, algorithm,
                                      static_cast<cudaStream_t>(stream));
}

int overlap_conv_forward_streams_cuda(const ConvShape* shape, const float* x, const float* filter,
                                      const float* bias, int relu, float* y, int algorithm, int chunks,
                                      void* const* streams, int count, void* stream) {
  if (chunks < 1 || count < 1) return cudaErrorInvalidValue;
  cudaEvent_t event;
  cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) return error;
  const auto keep = [&error](cudaError_t next) { error = error == cudaSuccess ? next : error; };
  keep(cudaEventRecord(event, static_cast<cudaStream_t>(stream)));
  for (int i = 0; i < count; ++i) keep(cudaStreamWaitEvent(static_cast<cudaStream_t>(streams[i]), event, 0));
  const Index x_image = shape->in_h * shape->in_w * shape->in_c,
              y_image = shape->out_h * shape->out_w * shape->out_c;
  for (int chunk = 0; chunk < chunks && error == cudaSuccess; ++chunk) {
    const Index begin = shape->batch * chunk / chunks, end = shape->batch * (chunk + 1) / chunks;
    ConvShape part = *shape;
    part.batch = end - begin;
    keep(overlap_train::conv::Forward(part, x + begin * x_image, filter, bias, relu, y + begin * y_image,
                                      algorithm, static_cast<cudaStream_t>(streams[chunk % count])));
  }
  for (int i = 0; i < count; ++i) {
    keep(cudaEventRecord(event, static_cast<cudaStream_t>(streams[i])));
    keep(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0));
  }
  keep(cudaEventDestroy(event));
  return error;
}

int overlap_conv_input_gradient_cuda(const ConvShape* shape, const float* dy, const float* filter, float* dx,
                                     int algorithm, void* stream) {
  const overlap_train::conv::InputGradientProblem p{*shape};
  if (p.rows() == 0) return cudaSuccess;
  return overlap_train::conv::LaunchGemm(p, dy, filter, {dx, nullptr, 0, 0, 0}, 1, algorithm,
                                         static_cast<cudaStream_t>(stream));
}

long long overlap_conv_filter_gradient_workspace(const ConvShape* shape) {
  const overlap_train::conv::FilterGradientProblem p{*shape};
  return overlap_train::conv::FilterGradientSlices(*shape) * p.rows() * p.columns();
}

int overlap_conv_filter_gradient_cuda(const ConvShape* shape, const float* x, const float* dy, float* dfilter,
                                      int algorithm, float* workspace, void* stream) {
  using namespace overlap_train::conv;
  const FilterGradientProblem p{*shape};
  const auto queue = static_cast<cudaStream_t>(stream);
  const Index slices = FilterGradientSlices(*shape), size = p.rows() * p.columns();
  if (workspace == nullptr) {
    const cudaError_t error =
        cudaMemsetAsync(dfilter, 0, static_cast<std::size_t>(size) * sizeof(float), queue);
    if (error != cudaSuccess) return error;
    return LaunchGemm(p, x, dy, {dfilter, nullptr, 0, 1, 0}, slices, algorithm, queue);
  }
  const cudaError_t error = LaunchGemm(p, x, dy, {workspace, nullptr, 0, 0, size}, slices, algorithm, queue);
  if (error != cudaSuccess) return error;
  AddSlicesKernel<<<Blocks(size, 256), 256, 0, queue>>>(workspace, slices, size, dfilter);
  return cudaGetLastError();
}
