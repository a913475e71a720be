// The CUDA kernels' C interface: plain pointers and a stream, so that TensorFlow, and ctypes with PyTorch or
// CuPy, can call it alike. Device pointers throughout; layouts as in geometry.h.
//
// Every function returns 0, or a cudaError_t; overlap_conv_error_name says which. All work is queued on
// `stream`, of the current device; nothing waits. What a grid or a block's shared memory cannot hold is
// refused with cudaErrorInvalidConfiguration, and then nothing is queued.
#ifndef OVERLAP_TRAIN_CONV_CONV_CUDA_H_
#define OVERLAP_TRAIN_CONV_CONV_CUDA_H_

#include "geometry.h"

#define OT_EXPORT extern "C" __attribute__((visibility("default")))

namespace overlap_train::conv {

enum CudaAlgorithm : int {
  kSharedMemory = 0,  // forward only: the paper's, kept as the reference
  kImplicitGemm = 1,  // register tiles, asynchronous copies; fp32
  // Tensor cores: products of 10 bits, sums of 24; fp32 where compiled for less than sm_80.
  kImplicitGemmTf32 = 2,
};

}  // namespace overlap_train::conv

// The name of a cudaError_t, such as "cudaErrorInvalidValue".
OT_EXPORT const char* overlap_conv_error_name(int error);

// Floats of workspace that a product needs, in slices of its depth where it is too small to fill a GPU
// otherwise; 0 for none, and then `workspace` may be null. Slices are summed in an order that depends on the
// shape and the algorithm alone, so results repeat bit for bit.
OT_EXPORT long long overlap_conv_forward_workspace(const overlap_train::conv::ConvShape* shape,
                                                   int algorithm);
OT_EXPORT long long overlap_conv_input_gradient_workspace(const overlap_train::conv::ConvShape* shape,
                                                          int algorithm);
OT_EXPORT long long overlap_conv_filter_gradient_workspace(const overlap_train::conv::ConvShape* shape,
                                                           int algorithm);

// y = conv(x, filter) + bias, then max(., 0) if relu. bias may be null.
OT_EXPORT int overlap_conv_forward_cuda(const overlap_train::conv::ConvShape* shape, const float* x,
                                        const float* filter, const float* bias, int relu, float* y,
                                        int algorithm, float* workspace, void* stream);

// The same with the batch cut into `chunks` parts over `count` streams (the paper's Figure 3); they start
// after what is queued on `stream`, which goes on when all are done. No chunk is sliced.
OT_EXPORT int overlap_conv_forward_streams_cuda(const overlap_train::conv::ConvShape* shape, const float* x,
                                                const float* filter, const float* bias, int relu, float* y,
                                                int algorithm, int chunks, void* const* streams, int count,
                                                void* stream);

OT_EXPORT int overlap_conv_input_gradient_cuda(const overlap_train::conv::ConvShape* shape, const float* dy,
                                               const float* filter, float* dx, int algorithm,
                                               float* workspace, void* stream);

OT_EXPORT int overlap_conv_filter_gradient_cuda(const overlap_train::conv::ConvShape* shape, const float* x,
                                                const float* dy, float* dfilter, int algorithm,
                                                float* workspace, void* stream);

// Floats of workspace that the gradient of bias and ReLU needs.
OT_EXPORT long long overlap_conv_epilogue_gradient_workspace(long long pixels, long long channels);

// dz = dy where y > 0 and 0 elsewhere, and dbias, the sum of dz over the pixels; [pixels, channels],
// [channels]. dz may be dy.
OT_EXPORT int overlap_conv_epilogue_gradient_cuda(long long pixels, long long channels, const float* dy,
                                                  const float* y, float* dz, float* dbias, float* workspace,
                                                  void* stream);

#endif  // OVERLAP_TRAIN_CONV_CONV_CUDA_H_
