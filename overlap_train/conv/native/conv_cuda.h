// The CUDA kernels' C interface: plain pointers and a stream, so that TensorFlow, and ctypes with PyTorch or
// CuPy, can call it alike. Device pointers throughout; layouts as in geometry.h.
//
// Every function returns 0, or a cudaError_t. All work is queued on `stream`; nothing waits.
#ifndef OVERLAP_TRAIN_CONV_CONV_CUDA_H_
#define OVERLAP_TRAIN_CONV_CONV_CUDA_H_

#include "geometry.h"

#define OT_EXPORT extern "C" __attribute__((visibility("default")))

namespace overlap_train::conv {

enum CudaAlgorithm : int {
  kSharedMemory = 0,      // the paper's; kept as the reference
  kImplicitGemm = 1,      // register tiles, asynchronous copies; fp32
  kImplicitGemmTf32 = 2,  // on tensor cores from sm_80 on: products of 10 bits, sums of 24; fp32 before
  kFewChannels = 3,       // at most 4 input channels
};

}  // namespace overlap_train::conv

// y = conv(x, filter) + bias, then max(., 0) if relu. bias may be null.
OT_EXPORT int overlap_conv_forward_cuda(const overlap_train::conv::ConvShape* shape, const float* x,
                                        const float* filter, const float* bias, int relu, float* y,
                                        int algorithm, void* stream);

// The same with the batch cut into `chunks` parts over `count` streams (the paper's Figure 3); they start
// after what is queued on `stream`, which goes on when all are done.
OT_EXPORT int overlap_conv_forward_streams_cuda(const overlap_train::conv::ConvShape* shape, const float* x,
                                                const float* filter, const float* bias, int relu, float* y,
                                                int algorithm, int chunks, void* const* streams, int count,
                                                void* stream);

OT_EXPORT int overlap_conv_input_gradient_cuda(const overlap_train::conv::ConvShape* shape, const float* dy,
                                               const float* filter, float* dx, int algorithm, void* stream);

// Floats of workspace that the deterministic filter gradient needs.
OT_EXPORT long long overlap_conv_filter_gradient_workspace(const overlap_train::conv::ConvShape* shape);

// `workspace` null: partial sums are added by atomics, in any order. Otherwise they are added in a fixed one.
OT_EXPORT int overlap_conv_filter_gradient_cuda(const overlap_train::conv::ConvShape* shape, const float* x,
                                                const float* dy, float* dfilter, int algorithm,
                                                float* workspace, void* stream);

#endif  // OVERLAP_TRAIN_CONV_CONV_CUDA_H_
