// Launches the CUDA kernels; see conv_cuda.h. Free of TensorFlow's headers. nvcc compiles it for GPUs, and as
// C++ (conv_emulated.cc) it runs under the emulator.
#include <algorithm>
#include <cstdint>

#include "conv_cuda.h"
#include "cuda_gemm.h"
#include "cuda_kernels.h"
#include "cuda_launch.h"
#include "cuda_plan.h"

namespace overlap_train::conv {
namespace {

bool IsGemm(int algorithm) { return algorithm == kImplicitGemm || algorithm == kImplicitGemmTf32; }

bool Aligned(const float* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

// One product, and how it is to be computed.
struct Gemm {
  const float *a, *b;
  GemmOutput out;
  GemmPlan plan;
  bool tf32;
  cudaStream_t stream;
};

template <class Config, class Problem>
cudaError_t LaunchTiles(const Problem& p, const Gemm& gemm) {
  const Grid grid{Blocks(p.rows(), Config::kRows), Blocks(p.columns(), Config::kColumns), gemm.plan.slices,
                  Config::kThreads, Config::template kSharedBytes<Problem>};
  if (!FitsInts(p.s)) return cudaErrorInvalidConfiguration;
  const Walk walk = p.axes().By(Gatherer<Problem, Config>::kWalk);
  return Launch(ImplicitGemmKernel<Problem, Config>, grid, gemm.stream, p, walk, gemm.a, gemm.b, gemm.out);
}

// What counts is what the code was compiled for: a newer device may run it from older PTX.
template <class Kernel>
cudaError_t HasTensorCores(Kernel* kernel, bool* has) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess) *has = attributes.ptxVersion >= 80;
  return error;
}

// Whether a multiprocessor's shared memory holds kBlocks of a kernel, each with its table of rows and a KiB
// of CUDA's. Of sm_80 to sm_89 none does of the deep stages.
template <class Config, class Problem>
cudaError_t HoldsBlocks(bool* holds) {
  constexpr Index kTable = Config::kRows * (sizeof(Start) + sizeof(Index)), kCudas = 1 << 10;
  int device = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  *holds = Config::kBlocks * (Config::template kSharedBytes<Problem> + kTable + kCudas) <= most;
  return error;
}

// Wide tiles; of TF32 narrow ones where the device is too small for those, which give the same sums.
template <bool kTf32, class Problem>
cudaError_t LaunchWide(const Problem& p, const Gemm& gemm) {
  using Wide = GemmConfig<kTf32, 128, 128, 4, 4>;
  if constexpr (kTf32) {
    bool holds = false;
    const cudaError_t error = HoldsBlocks<Wide, Problem>(&holds);
    if (error != cudaSuccess) return error;
    if (!holds) return LaunchTiles<GemmConfig<kTf32, 128, 64, 4, 4>>(p, gemm);
  }
  return LaunchTiles<Wide>(p, gemm);
}

// Quads are copied where channels come in fours; what has other channels is small enough for narrow tiles.
template <bool kTf32, class Problem>
cudaError_t LaunchProduct(const Problem& p, const Gemm& gemm) {
  const bool quads_b = p.s.out_c % 4 == 0 && Aligned(gemm.b);
  if constexpr (!Problem::kDepthFastA && !kTf32) {
    if (gemm.plan.rows == kFewRows && quads_b) {
      return LaunchTiles<GemmConfig<kTf32, kFewRows, 64, 1, 4>>(p, gemm);
    }
  }
  const bool quads_a = (Problem::kDepthFastB ? p.s.out_c : p.s.in_c) % 4 == 0 && Aligned(gemm.a);
  const bool masked = kTf32 && Problem::kDepthFastA;
  if (!quads_a || !quads_b || (masked && !FitsMasks(p))) {
    return LaunchTiles<GemmConfig<kTf32, 128, 64, 1, 1>>(p, gemm);
  }
  if constexpr (Problem::kDepthFastB && !kTf32) {
    // The gradient of an image's channels: narrow tiles would be empty but for them.
    if (p.columns() <= 16) return LaunchTiles<GemmConfig<kTf32, 128, 16, 4, 4>>(p, gemm);
  }
  if (gemm.plan.columns == 64) return LaunchTiles<GemmConfig<kTf32, 128, 64, 4, 4>>(p, gemm);
  return LaunchWide<kTf32>(p, gemm);
}

template <class Problem>
cudaError_t LaunchGemm(const Problem& p, Gemm gemm) {
  gemm.out.quads = p.columns() % 4 == 0 && Aligned(gemm.out.c) && gemm.out.slice % 4 == 0;
  if (!gemm.tf32) return LaunchProduct<false>(p, gemm);
  bool has = false;
  const cudaError_t error =
      HasTensorCores(ImplicitGemmKernel<Problem, GemmConfig<true, 128, 64, 1, 1>>, &has);
  if (error != cudaSuccess) return error;
  return has ? LaunchProduct<true>(p, gemm) : LaunchProduct<false>(p, gemm);
}

cudaError_t AddSlices(const float* slices, Index count, Index size, const SlicesOutput& out,
                      cudaStream_t stream) {
  const int rows = count < kManySlices ? 1 : kAddRows;
  const auto kernel = rows == 1 ? AddSlicesKernel<1> : AddSlicesKernel<kAddRows>;
  return Launch(kernel, Grid{Blocks(size, kAddThreads / rows), 1, 1, kAddThreads}, stream, slices, count,
                size, out);
}

// The product in slices of its depth, into the workspace, and their sum; or at once.
template <class Problem>
cudaError_t LaunchSliced(const Problem& p, Gemm gemm, Index size, float* workspace) {
  if (gemm.plan.slices == 1) return LaunchGemm(p, gemm);
  if (workspace == nullptr) return cudaErrorInvalidValue;
  const GemmOutput out = gemm.out;
  gemm.out = {workspace, nullptr, 0, 0, size};
  const cudaError_t error = LaunchGemm(p, gemm);
  if (error != cudaSuccess) return error;
  return AddSlices(workspace, gemm.plan.slices, size, {out.c, out.bias, out.relu, p.columns()}, gemm.stream);
}

// Floats for the slices of `size` sums.
Index Workspace(const GemmPlan& plan, Index size) { return plan.slices == 1 ? 0 : plan.slices * size; }

cudaError_t Forward(const ConvShape& s, const float* x, const float* filter, const float* bias, int relu,
                    float* y, int algorithm, bool may_slice, float* workspace, cudaStream_t stream) {
  const ForwardProblem p{s};
  if (p.rows() == 0 || p.columns() == 0) return cudaSuccess;
  if (IsGemm(algorithm)) {
    const bool tf32 = algorithm == kImplicitGemmTf32;
    const Gemm gemm{x, filter, {y, bias, relu, 0, 0}, PlanFor(p, tf32, may_slice), tf32, stream};
    return LaunchSliced(p, gemm, p.rows() * p.columns(), workspace);
  }
  if (algorithm != kSharedMemory) return cudaErrorInvalidValue;
  const SharedTiles tiles{s};
  const Grid grid{s.batch * tiles.down() * tiles.across(), Blocks(s.out_c, kSharedOutputs), 1, kSharedThreads,
                  SharedFloats(s) * static_cast<Index>(sizeof(float))};
  return Launch(SharedMemoryKernel, grid, stream, s, x, filter, bias, relu, y);
}

cudaError_t Zero(float* out, Index count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return cudaMemsetAsync(out, 0, static_cast<std::size_t>(count) * sizeof(float), stream);
}

// Sliced only of stride 1: with a stride it is several products, of parts of the pixels.
GemmPlan InputGradientPlan(const InputGradientProblem& p, bool tf32) {
  return PlanFor(p, tf32, p.s.stride_h == 1 && p.s.stride_w == 1);
}

// One product for each tap within a stride, which together make all pixels that any tap reads.
cudaError_t InputGradient(const ConvShape& s, Gemm gemm, float* workspace) {
  const Index size = s.batch * s.in_h * s.in_w * s.in_c;
  if (s.stride_h > s.k_h || s.stride_w > s.k_w) {
    const cudaError_t error = Zero(gemm.out.c, size, gemm.stream);
    if (error != cudaSuccess) return error;
  }
  for (Index r = 0; r < std::min(s.stride_h, s.k_h); ++r) {
    for (Index q = 0; q < std::min(s.stride_w, s.k_w); ++q) {
      const InputGradientProblem p(s, r, q);
      if (p.rows() == 0) continue;
      gemm.plan = InputGradientPlan(p, gemm.tf32);
      const cudaError_t error = LaunchSliced(p, gemm, size, workspace);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

// The chunks of a batch, each on its stream. What is queued is queued also where a later chunk fails. None is
// sliced: at the same time, each would need a workspace of its own.
cudaError_t ForwardChunks(const ConvShape& shape, const float* x, const float* filter, const float* bias,
                          int relu, float* y, int algorithm, int chunks, void* const* streams, int count) {
  const Index x_image = shape.in_h * shape.in_w * shape.in_c,
              y_image = shape.out_h * shape.out_w * shape.out_c;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Index begin = shape.batch * chunk / chunks, end = shape.batch * (chunk + 1) / chunks;
    ConvShape part = shape;
    part.batch = end - begin;
    const cudaError_t error =
        Forward(part, x + begin * x_image, filter, bias, relu, y + begin * y_image, algorithm, false, nullptr,
                static_cast<cudaStream_t>(streams[chunk % count]));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace overlap_train::conv

using namespace overlap_train::conv;

const char* overlap_conv_error_name(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

long long overlap_conv_forward_workspace(const ConvShape* shape, int algorithm) {
  const ForwardProblem p{*shape};
  if (!IsGemm(algorithm)) return 0;
  return Workspace(PlanFor(p, algorithm == kImplicitGemmTf32), p.rows() * p.columns());
}

int overlap_conv_forward_cuda(const ConvShape* shape, const float* x, const float* filter, const float* bias,
                              int relu, float* y, int algorithm, float* workspace, void* stream) {
  return Forward(*shape, x, filter, bias, relu, y, algorithm, true, workspace,
                 static_cast<cudaStream_t>(stream));
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

long long overlap_conv_input_gradient_workspace(const ConvShape* shape, int algorithm) {
  if (!IsGemm(algorithm)) return 0;
  const InputGradientProblem p(*shape, 0, 0);
  return Workspace(InputGradientPlan(p, algorithm == kImplicitGemmTf32), p.rows() * p.columns());
}

int overlap_conv_input_gradient_cuda(const ConvShape* shape, const float* dy, const float* filter, float* dx,
                                     int algorithm, float* workspace, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  if (!IsGemm(algorithm)) return cudaErrorInvalidValue;
  const Index size = shape->batch * shape->in_h * shape->in_w * shape->in_c;
  // An empty dy may be a null pointer, which not even a copy of nothing should be given.
  if (shape->out_h * shape->out_w * shape->out_c == 0) return Zero(dx, size, queue);
  if (size == 0) return cudaSuccess;
  const bool tf32 = algorithm == kImplicitGemmTf32;
  return InputGradient(*shape, {dy, filter, {dx, nullptr, 0, 0, 0}, {}, tf32, queue}, workspace);
}

long long overlap_conv_filter_gradient_workspace(const ConvShape* shape, int algorithm) {
  const FilterGradientProblem p{*shape};
  if (!IsGemm(algorithm)) return 0;
  return Workspace(PlanFor(p, algorithm == kImplicitGemmTf32), p.rows() * p.columns());
}

int overlap_conv_filter_gradient_cuda(const ConvShape* shape, const float* x, const float* dy, float* dfilter,
                                      int algorithm, float* workspace, void* stream) {
  const FilterGradientProblem p{*shape};
  const auto queue = static_cast<cudaStream_t>(stream);
  const bool tf32 = algorithm == kImplicitGemmTf32;
  if (!IsGemm(algorithm)) return cudaErrorInvalidValue;
  const Index size = p.rows() * p.columns();
  if (p.depth() == 0) return Zero(dfilter, size, queue);
  if (size == 0) return cudaSuccess;
  return LaunchSliced(p, {x, dy, {dfilter, nullptr, 0, 0, 0}, PlanFor(p, tf32), tf32, queue}, size,
                      workspace);
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
  if (error != cudaSuccess) return error;
  return AddSlices(workspace, slices, channels, {dbias, nullptr, 0, channels}, queue);
}
