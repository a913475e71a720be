// Launches the CUDA kernels; see conv_cuda.h. Free of TensorFlow's headers. nvcc compiles it for GPUs, and as
// C++ (conv_emulated.cc) it runs under the emulator.
#include "conv_cuda.h"
#include "cuda_gemm.h"
#include "cuda_kernels.h"
#include "cuda_launch.h"

namespace overlap_train::conv {
namespace {

bool IsGemm(int algorithm) { return algorithm == kImplicitGemm || algorithm == kImplicitGemmTf32; }

template <class Problem>
cudaError_t LaunchGemm(const Problem& p, const float* a, const float* b, const GemmOutput& out, Index slices,
                       int algorithm, cudaStream_t stream) {
  const Grid grid{Blocks(p.rows(), kGemmRows), Blocks(p.columns(), kGemmColumns), slices, kGemmThreads};
  bool tf32 = algorithm == kImplicitGemmTf32;
  if (tf32) {
    // What counts is what the code was compiled for: a newer device may run it from older PTX.
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, ImplicitGemmKernel<Problem, Tf32Product>);
    if (error != cudaSuccess) return error;
    tf32 = attributes.ptxVersion >= 80;
  }
  const auto kernel =
      tf32 ? ImplicitGemmKernel<Problem, Tf32Product> : ImplicitGemmKernel<Problem, Fp32Product>;
  return Launch(kernel, grid, stream, p, a, b, out);
}

bool FewChannelsFit(const ConvShape& s) {
  return s.in_c <= kMostFew && FewFloats(s) * static_cast<Index>(sizeof(float)) <= kSharedWithoutAsking;
}

cudaError_t Forward(const ConvShape& s, const float* x, const float* filter, const float* bias, int relu,
                    float* y, int algorithm, cudaStream_t stream) {
  const ForwardProblem p{s};
  if (p.rows() == 0 || p.columns() == 0) return cudaSuccess;
  if (IsGemm(algorithm)) return LaunchGemm(p, x, filter, {y, bias, relu, 0}, 1, algorithm, stream);
  if (algorithm == kSharedMemory) {
    const SharedTiles tiles{s};
    const Grid grid{s.batch * tiles.down() * tiles.across(), Blocks(s.out_c, kSharedOutputs), 1,
                    kSharedThreads, SharedFloats(s) * static_cast<Index>(sizeof(float))};
    return Launch(SharedMemoryKernel, grid, stream, s, x, filter, bias, relu, y);
  }
  if (algorithm != kFewChannels || !FewChannelsFit(s)) return cudaErrorInvalidValue;
  const Grid grid{Blocks(p.rows(), kFewThreads), Blocks(s.out_c, kFewOutputs), 1, kFewThreads,
                  FewFloats(s) * static_cast<Index>(sizeof(float))};
  return Launch(FewChannelsKernel, grid, stream, s, x, filter, bias, relu, y);
}

cudaError_t AddSlices(const float* slices, Index count, Index size, float* out, cudaStream_t stream) {
  return Launch(AddSlicesKernel, Grid{Blocks(size, kAddThreads), 1, 1, kAddThreads}, stream, slices, count,
                size, out);
}

cudaError_t Zero(float* out, Index count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return cudaMemsetAsync(out, 0, static_cast<std::size_t>(count) * sizeof(float), stream);
}

// The chunks of a batch, each on its stream. What is queued is queued also where a later chunk fails.
cudaError_t ForwardChunks(const ConvShape& shape, const float* x, const float* filter, const float* bias,
                          int relu, float* y, int algorithm, int chunks, void* const* streams, int count) {
  const Index x_image = shape.in_h * shape.in_w * shape.in_c,
              y_image = shape.out_h * shape.out_w * shape.out_c;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Index begin = shape.batch * chunk / chunks, end = shape.batch * (chunk + 1) / chunks;
    ConvShape part = shape;
    part.batch = end - begin;
    const cudaError_t error = Forward(part, x + begin * x_image, filter, bias, relu, y + begin * y_image,
                                      algorithm, static_cast<cudaStream_t>(streams[chunk % count]));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace overlap_train::conv

using namespace overlap_train::conv;

const char* overlap_conv_error_name(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

int overlap_conv_few_channels(const ConvShape* shape) { return FewChannelsFit(*shape); }

int overlap_conv_forward_cuda(const ConvShape* shape, const float* x, const float* filter, const float* bias,
                              int relu, float* y, int algorithm, void* stream) {
  return Forward(*shape, x, filter, bias, relu, y, algorithm, static_cast<cudaStream_t>(stream));
}

int overlap_conv_forward_streams_cuda(const ConvShape* shape, const float* x, const float* filter,
                                      const float* bias, int relu, float* y, int algorithm, int chunks,
                                      void* const* streams, int count, void* stream) {
  if (chunks < 1 || count < 1) return cudaErrorInvalidValue;
  const auto queue = static_cast<cudaStream_t>(stream);
  cudaEvent_t event;
  cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) return error;
  const auto keep = [&error](cudaError_t next) { error = error == cudaSuccess ? next : error; };
  keep(cudaEventRecord(event, queue));
  for (int i = 0; i < count && error == cudaSuccess; ++i) {
    keep(cudaStreamWaitEvent(static_cast<cudaStream_t>(streams[i]), event, 0));
  }
  if (error == cudaSuccess) {
    keep(ForwardChunks(*shape, x, filter, bias, relu, y, algorithm, chunks, streams, count));
    // Also after an error, so that the caller may free what the chunks before it are reading. A wait is for
    // what the event stands for when it is queued: one event serves for all streams.
    for (int i = 0; i < count; ++i) {
      const cudaError_t recorded = cudaEventRecord(event, static_cast<cudaStream_t>(streams[i]));
      keep(recorded);
      if (recorded == cudaSuccess) keep(cudaStreamWaitEvent(queue, event, 0));
    }
  }
  keep(cudaEventDestroy(event));  // CUDA lets go of it when what waits for it is done
  return error;
}

int overlap_conv_input_gradient_cuda(const ConvShape* shape, const float* dy, const float* filter, float* dx,
                                     int algorithm, void* stream) {
  const InputGradientProblem p{*shape};
  const auto queue = static_cast<cudaStream_t>(stream);
  if (!IsGemm(algorithm)) return cudaErrorInvalidValue;
  // An empty dy may be a null pointer, which not even a copy of nothing should be given.
  if (shape->out_h * shape->out_w == 0) return Zero(dx, p.rows() * p.columns(), queue);
  if (p.rows() == 0) return cudaSuccess;
  return LaunchGemm(p, dy, filter, {dx, nullptr, 0, 0}, 1, algorithm, queue);
}

long long overlap_conv_filter_gradient_workspace(const ConvShape* shape) {
  const FilterGradientProblem p{*shape};
  const Index slices = FilterGradientSlices(*shape);
  return slices == 1 ? 0 : slices * p.rows() * p.columns();
}

int overlap_conv_filter_gradient_cuda(const ConvShape* shape, const float* x, const float* dy, float* dfilter,
                                      int algorithm, float* workspace, void* stream) {
  const FilterGradientProblem p{*shape};
  const auto queue = static_cast<cudaStream_t>(stream);
  const Index slices = FilterGradientSlices(*shape), size = p.rows() * p.columns();
  if (!IsGemm(algorithm) || (slices > 1 && workspace == nullptr)) return cudaErrorInvalidValue;
  if (p.depth() == 0) return Zero(dfilter, size, queue);
  if (slices == 1) return LaunchGemm(p, x, dy, {dfilter, nullptr, 0, 0}, 1, algorithm, queue);
  const cudaError_t error = LaunchGemm(p, x, dy, {workspace, nullptr, 0, size}, slices, algorithm, queue);
  return error == cudaSuccess ? AddSlices(workspace, slices, size, dfilter, queue) : error;
}

long long overlap_conv_epilogue_gradient_workspace(long long pixels, long long channels) {
  return EpilogueSlices(pixels) * channels;
}

int overlap_conv_epilogue_gradient_cuda(long long pixels, long long channels, const float* dy, const float* y,
                                        float* dz, float* dbias, float* workspace, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  if (channels == 0) return cudaSuccess;
  if (pixels == 0) return Zero(dbias, channels, queue);
  const Index slices = EpilogueSlices(pixels);
  const Grid grid{Blocks(channels, kEpilogueColumns), slices, 1, kEpilogueThreads};
  const cudaError_t error = Launch(EpilogueGradientKernel, grid, queue, pixels, Blocks(pixels, slices),
                                   channels, dy, y, dz, workspace);
  return error == cudaSuccess ? AddSlices(workspace, slices, channels, dbias, queue) : error;
}
