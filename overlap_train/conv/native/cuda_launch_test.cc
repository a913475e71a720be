// Checks what surrounds the kernels, under the emulator: errors of the runtime, limits of grids and of shared
// memory, tensors beyond 2^31 elements.
#include "cuda_launch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "conv_cuda.h"
#include "cuda_emulator_runtime.h"
#include "cuda_plan.h"
#include "expect.h"
#include "reference.h"

namespace overlap_train::conv {
namespace {

// Where shared memory is too small for the wide tiles of TF32, narrow ones give the same sums.
void TestSmallDevice() {
  const ConvShape s = MakeCase(1, 176, 192, 4, 128, 1, 1, true).shape;
  Expect(PlanFor(ForwardProblem{s}, true).columns == 128, "a shape of wide tiles");
  const auto x = Normal<float>(176 * 192 * 4, 1), filter = Normal<float>(4 * 128, 2);
  std::vector<float> last[2];  // pixel; of narrow tiles the last block has its second half
  emulator::last_block_only = true;
  for (const int kib : {227, 99}) {  // sm_90; sm_86 and sm_89
    emulator::device = {};
    emulator::device.most_shared_bytes = kib << 10;
    std::vector<float> y(176 * 192 * 128);
    Expect(overlap_conv_forward_cuda(&s, x.data(), filter.data(), nullptr, 0, y.data(), kImplicitGemmTf32,
                                     nullptr, nullptr) == 0,
           "TF32 with " + std::to_string(kib) + " KiB");
    last[kib == 99].assign(y.end() - 128, y.end());
  }
  emulator::last_block_only = false;
  emulator::device = {};
  Expect(last[0][0] != 0 && last[1][0] == 0, "a small device has narrow tiles");
  Expect(std::equal(last[0].begin() + 64, last[0].end(), last[1].begin() + 64), "the same sums");
}

// Whatever call fails, its error is returned, no event is left behind, and no stream goes unjoined.
void TestFailingRuntime() {
  const ConvShape s = MakeCase(4, 3, 3, 2, 2, 3, 1, true).shape;
  const auto x = Normal<float>(72, 1), filter = Normal<float>(36, 2);
  std::vector<float> y(72), workspace(4096);
  void* streams[2] = {reinterpret_cast<void*>(1), reinterpret_cast<void*>(2)};
  const auto over_streams = [&](int algorithm) {
    return overlap_conv_forward_streams_cuda(&s, x.data(), filter.data(), nullptr, 0, y.data(), algorithm, 4,
                                             streams, 2, reinterpret_cast<void*>(7));
  };
  const auto tf32 = [&](int algorithm) {
    return overlap_conv_forward_cuda(&s, x.data(), filter.data(), nullptr, 0, y.data(), algorithm,
                                     workspace.data(), nullptr);
  };
  const auto until_none_fails = [&](const auto& run, const char* what) {
    int call = 1;
    for (bool failed = true; failed; ++call) {
      emulator::device = {};
      emulator::device.fail_call = call;
      const int error = run(kImplicitGemmTf32);
      failed = emulator::device.fail_call == 0;
      Expect(error == (failed ? cudaErrorMemoryAllocation : cudaSuccess),
             std::string(what) + ", failing call " + std::to_string(call));
      Expect(emulator::device.live_events == 0, std::string(what) + " leaks an event");
    }
    Expect(call > 3, std::string(what) + " makes calls that can fail");
  };
  until_none_fails(over_streams, "forward over streams");
  until_none_fails(tf32, "forward in TF32");

  emulator::device = {};
  Expect(over_streams(kImplicitGemm) == 0, "forward over streams");
  const std::vector<std::string> order = {"record 0x7 as 1", "0x1 waits for 1", "0x2 waits for 1",
                                          "launch 0x1",      "launch 0x2",      "launch 0x1",
                                          "launch 0x2",      "record 0x1 as 2", "0x7 waits for 2",
                                          "record 0x2 as 3", "0x7 waits for 3"};
  Expect(emulator::device.queued == order, "streams begin after the caller's, which goes on after them");

  emulator::device = {};
  emulator::device.fail_call = 6;  // the second launch
  Expect(over_streams(kImplicitGemm) != 0, "a launch that fails");
  Expect(emulator::device.queued.size() == 8 && emulator::device.queued.back() == "0x7 waits for 3",
         "what was launched before a failure is joined");
  emulator::device = {};
}

// What is not possible is refused before anything is launched; the pointers are never looked at.
void TestRefusals() {
  emulator::device = {};
  const auto forward = [](const ConvShape& s, int algorithm) {
    return overlap_conv_forward_cuda(&s, nullptr, nullptr, nullptr, 0, nullptr, algorithm, nullptr, nullptr);
  };
  const auto refused = [&](const ConvShape& s, int algorithm, int error, const char* what) {
    Expect(forward(s, algorithm) == error, what);
    Expect(emulator::device.queued.empty(), std::string(what) + ": nothing is queued");
  };
  const Index most = 65535;
  refused(MakeCase(1, 1, 1, 1, most * 8 + 1, 1, 1, true).shape, kSharedMemory, cudaErrorInvalidConfiguration,
          "a grid too high");
  refused(MakeCase(1, 1, 1, 1, most * 64 + 1, 1, 1, true).shape, kImplicitGemm, cudaErrorInvalidConfiguration,
          "a grid too high for products");
  // 2^32 + 1 tiles: as 32 bits that would be one.
  refused(MakeCase((Index(1) << 32) + 1, 16, 16, 1, 1, 1, 1, true).shape, kSharedMemory,
          cudaErrorInvalidConfiguration, "a grid too wide");
  refused(MakeCase(1, 99, 99, 4, 4, 99, 3, true).shape, kSharedMemory, cudaErrorInvalidConfiguration,
          "more shared memory than a block can have");
  // 2^31 bytes and some: as an int that would be little.
  refused(MakeCase(1, 40000, 40000, 4, 4, 8200, 1, true).shape, kSharedMemory, cudaErrorInvalidConfiguration,
          "shared memory beyond 32 bits");
  refused(MakeCase(1, 1, Index(1) << 30, 1, 1, 1, 1, true).shape, kImplicitGemm,
          cudaErrorInvalidConfiguration, "coordinates beyond 30 bits");
  refused(MakeCase(1, 9, 9, 5, 4, 3, 1, true).shape, 4, cudaErrorInvalidValue, "an algorithm that is none");
  const ConvShape s = MakeCase(1, 18, 37, 1, 70, 3, 1, true).shape;
  Expect(overlap_conv_filter_gradient_workspace(&s, kImplicitGemm) > 0, "a shape that needs a workspace");
  Expect(overlap_conv_filter_gradient_cuda(&s, nullptr, nullptr, nullptr, kImplicitGemm, nullptr, nullptr) ==
             cudaErrorInvalidValue,
         "a workspace that is missing");
  Expect(overlap_conv_input_gradient_cuda(&s, nullptr, nullptr, nullptr, kSharedMemory, nullptr, nullptr) ==
             cudaErrorInvalidValue,
         "a gradient by an algorithm that has none");
  Expect(emulator::device.queued.empty(), "nothing is queued");
}

// Code compiled for less than sm_80 has no tensor cores, whatever it runs on: fp32 then.
void TestOldCode() {
  const ConvShape s = MakeCase(1, 1, 1, 1, 1, 1, 1, true).shape;
  const float x = 1 + 0x1p-11f, filter = 1;
  float y = 0;
  for (const auto& [version, want] : {std::pair<int, float>{75, x}, {80, RoundTf32(x)}}) {
    emulator::device = {};
    emulator::device.ptx_version = version;
    Expect(overlap_conv_forward_cuda(&s, &x, &filter, nullptr, 0, &y, kImplicitGemmTf32, nullptr, nullptr) ==
                   0 &&
               y == want,
           "TF32 in code for " + std::to_string(version));
  }
  emulator::device = {};
}

// Shared memory beyond 48 KiB is asked for before the launch; the emulator refuses a launch that did not.
void TestLargeSharedMemory() {
  const ConvShape s = MakeCase(1, 40, 40, 1, 1, 20, 1, true).shape;
  Expect(SharedFloats(s) * 4 > 48 << 10, "a shape with large tiles");
  const auto x = Normal<float>(1600, 1), filter = Normal<float>(400, 2);
  std::vector<float> y(1600);
  Expect(overlap_conv_forward_cuda(&s, x.data(), filter.data(), nullptr, 0, y.data(), kSharedMemory, nullptr,
                                   nullptr) == 0,
         "large tiles");
}

// Address space without memory behind it, until it is touched.
class Vast {
 public:
  explicit Vast(Index count) : bytes_(static_cast<std::size_t>(count) * sizeof(float)) {
    void* const got =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data = got == MAP_FAILED ? nullptr : static_cast<float*>(got);
  }
  ~Vast() {
    if (data != nullptr) munmap(data, bytes_);
  }
  float* data;

 private:
  std::size_t bytes_;
};

// The last block of tensors with more than 2^31 elements, whose last pixel is one.
void TestBeyond32Bits() {
  const Index side = 46400;
  const ConvShape s = MakeCase(1, side, side, 1, 1, 3, 1, true).shape;
  const Vast x(side * side), y(side * side);
  if (x.data == nullptr || y.data == nullptr) {
    std::printf("SKIPPED tensors beyond 2^31 elements: no address space for them\n");
    return;
  }
  const std::vector<float> filter = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Index last = side * side - 1;
  x.data[last] = 1;
  emulator::device = {};
  emulator::last_block_only = true;
  for (const int algorithm : {kSharedMemory, kImplicitGemm, kImplicitGemmTf32}) {
    y.data[last] = 0;
    const int error =
        overlap_conv_forward_cuda(&s, x.data, filter.data(), nullptr, 0, y.data, algorithm, nullptr, nullptr);
    Expect(error == 0 && y.data[last] == 5 && y.data[last - 1] == 6,
           "beyond 2^31 elements, algorithm " + std::to_string(algorithm));
  }
  y.data[last] = 0;
  Expect(overlap_conv_input_gradient_cuda(&s, x.data, filter.data(), y.data, kImplicitGemm, nullptr,
                                          nullptr) == 0 &&
             y.data[last] == 5 && y.data[last - 1] == 4,
         "beyond 2^31 elements, input gradient");
  const ConvShape wide = MakeCase(1, 1, 1, Index(1) << 26, 33, 1, 1, true).shape;
  const Vast dfilter(wide.in_c * wide.out_c);
  if (dfilter.data != nullptr) {
    const std::vector<float> dy(33, 2);
    x.data[wide.in_c - 1] = 3;
    Expect(overlap_conv_filter_gradient_cuda(&wide, x.data, dy.data(), dfilter.data, kImplicitGemm, nullptr,
                                             nullptr) == 0 &&
               dfilter.data[wide.in_c * wide.out_c - 1] == 6,
           "beyond 2^31 elements, filter gradient");
  }
  emulator::last_block_only = false;
}

}  // namespace
}  // namespace overlap_train::conv

int main() {
  using namespace overlap_train::conv;
  TestSmallDevice();
  TestFailingRuntime();
  TestRefusals();
  TestOldCode();
  TestLargeSharedMemory();
  TestBeyond32Bits();
  return Verdict("launches under the emulator");
}
