// The functions of CUDA's runtime that conv_cuda.cu and its tests call, for the emulator. Work is done at
// once, in the order in which it is queued; what was queued where is recorded, and any call can be made to
// fail.
#ifndef OVERLAP_TRAIN_CONV_CUDA_EMULATOR_RUNTIME_H_
#define OVERLAP_TRAIN_CONV_CUDA_EMULATOR_RUNTIME_H_

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "cuda_emulator.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719,
};
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum { cudaEventDisableTiming = 2 };

struct EmulatedStream;
using cudaStream_t = EmulatedStream*;
struct EmulatedEvent {
  int records = 0;
};
using cudaEvent_t = EmulatedEvent*;
struct cudaFuncAttributes {
  int ptxVersion = 0;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

namespace overlap_train::conv::emulator {

// The device that the runtime pretends to be, and what was asked of it.
struct Device {
  int ptx_version = 90;
  int most_shared_bytes = 227 << 10;
  int fail_call = 0;  // the how-manyth call from now fails; 0 for none
  int live_events = 0;
  std::map<void*, int> shared_allowed;  // by kernel
  std::vector<std::string> queued;      // "launch 0x1", "record 0x1 as 1", "0x2 waits for 1"
  int records = 0;
};
inline Device device;

inline bool Fails() { return device.fail_call > 0 && --device.fail_call == 0; }

inline std::string Named(cudaStream_t stream) {
  char name[32];
  std::snprintf(name, sizeof name, "%#lx", reinterpret_cast<unsigned long>(stream));
  return stream == nullptr ? "0x0" : name;
}

}  // namespace overlap_train::conv::emulator

#define OT_MAY_FAIL() \
  if (::overlap_train::conv::emulator::Fails()) return cudaErrorMemoryAllocation

inline const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
  }
  return "unrecognized error code";
}

inline cudaError_t cudaGetDevice(int* device) {
  OT_MAY_FAIL();
  *device = 0;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  OT_MAY_FAIL();
  const int cudas =
      what == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? 1 << 10 : 0;  // CUDA's own, of a block
  *value = overlap_train::conv::emulator::device.most_shared_bytes + cudas;
  return cudaSuccess;
}

template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel*) {
  OT_MAY_FAIL();
  attributes->ptxVersion = overlap_train::conv::emulator::device.ptx_version;
  return cudaSuccess;
}

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  OT_MAY_FAIL();
  auto& device = overlap_train::conv::emulator::device;
  if (bytes < 0 || bytes > device.most_shared_bytes) return cudaErrorInvalidValue;
  device.shared_allowed[reinterpret_cast<void*>(kernel)] = bytes;
  return cudaSuccess;
}

template <class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Parameters... arguments) {
  OT_MAY_FAIL();
  using namespace overlap_train::conv::emulator;
  const auto allowed = device.shared_allowed.find(reinterpret_cast<void*>(kernel));
  const std::size_t most = allowed == device.shared_allowed.end() ? 48 << 10 : allowed->second;
  if (config->dynamicSmemBytes > most) return cudaErrorInvalidValue;
  device.queued.push_back("launch " + Named(config->stream));
  const int before = findings.count;
  Launch(config->gridDim, config->blockDim.x, config->dynamicSmemBytes, [&] { kernel(arguments...); });
  return findings.count == before ? cudaSuccess : cudaErrorLaunchFailure;
}

inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  OT_MAY_FAIL();
  overlap_train::conv::emulator::device.queued.push_back("fill " +
                                                         overlap_train::conv::emulator::Named(stream));
  std::memset(to, value, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  OT_MAY_FAIL();
  *event = new EmulatedEvent;
  ++overlap_train::conv::emulator::device.live_events;
  return cudaSuccess;
}

inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  OT_MAY_FAIL();
  auto& device = overlap_train::conv::emulator::device;
  event->records = ++device.records;
  device.queued.push_back("record " + overlap_train::conv::emulator::Named(stream) + " as " +
                          std::to_string(event->records));
  return cudaSuccess;
}

inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  OT_MAY_FAIL();
  overlap_train::conv::emulator::device.queued.push_back(overlap_train::conv::emulator::Named(stream) +
                                                         " waits for " + std::to_string(event->records));
  return cudaSuccess;
}

inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  --overlap_train::conv::emulator::device.live_events;
  OT_MAY_FAIL();
  return cudaSuccess;
}

template <class T>
cudaError_t cudaMalloc(T** to, std::size_t bytes) {
  *to = static_cast<T*>(std::malloc(bytes > 0 ? bytes : 1));
  return *to == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

inline cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

#undef OT_MAY_FAIL

#endif  // OVERLAP_TRAIN_CONV_CUDA_EMULATOR_RUNTIME_H_
