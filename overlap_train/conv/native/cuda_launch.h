// Launches one kernel, or says why not: the limits of grids and of shared memory are checked before numbers
// are narrowed, and the launch returns its own error, not one that somebody else has left behind.
#ifndef OVERLAP_TRAIN_CONV_CUDA_LAUNCH_H_
#define OVERLAP_TRAIN_CONV_CUDA_LAUNCH_H_

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "cuda_emulator_runtime.h"
#endif

#include "geometry.h"

namespace overlap_train::conv {

constexpr Index kMostBlocksX = 2147483647, kMostBlocksYZ = 65535;  // CUDA guide, "Compute Capabilities"
constexpr Index kSharedWithoutAsking = 48 << 10;

inline Index Blocks(Index count, Index per_block) { return (count + per_block - 1) / per_block; }

struct Grid {
  Index x, y, z;
  int threads;
  Index shared_bytes = 0;

  bool Fits() const {
    return x >= 1 && y >= 1 && z >= 1 && x <= kMostBlocksX && y <= kMostBlocksYZ && z <= kMostBlocksYZ;
  }
};

// Shared memory beyond 48 KiB must be asked for, and a device has a limit of its own.
template <class Kernel>
cudaError_t AllowShared(Kernel* kernel, Index bytes) {
  if (bytes <= kSharedWithoutAsking) return cudaSuccess;
  int device = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  if (bytes > most) return cudaErrorInvalidConfiguration;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

template <class... Parameters, class... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream,
                   const Arguments&... arguments) {
  if (!grid.Fits()) return cudaErrorInvalidConfiguration;
  const cudaError_t error = AllowShared(kernel, grid.shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim.x = static_cast<unsigned>(grid.x);
  config.gridDim.y = static_cast<unsigned>(grid.y);
  config.gridDim.z = static_cast<unsigned>(grid.z);
  config.blockDim.x = static_cast<unsigned>(grid.threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_LAUNCH_H_
