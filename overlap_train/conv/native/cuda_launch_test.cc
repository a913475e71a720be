// Checks what surrounds the kernels, under the emulator: errors of the runtime, limits of grids and of shared
// memory, tensors beyond 2^31 elements, and which elements neighbouring threads touch.
#include "cuda_launch.h"

#include <sys/mman.h>

#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "conv_cuda.h"
#include "cuda_emulator_runtime.h"
#include "cuda_gemm.h"
#include "reference.h"

namespace overlap_train::conv {
namespace {

int failures = 0, checks = 0;

void Expect(bool holds, const std::string& what) {
  ++checks;
  if (holds) return;
  ++failures;
  std::printf("FAILED %s\n", what.c_str());
}

// What a warp reads of a fragment lies in 32 banks, and neighbouring threads gather neighbouring elements.
void TestAccessPatterns() {
  for (const bool of_a : {true, false}) {
    unsigned banks = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const int d = of_a ? FragmentDepthA(lane, 0) : FragmentDepthB(lane, 0);
      const int i = of_a ? FragmentRowA(lane, 0) : FragmentColumnB(lane);
      banks |= 1u << (d * (kGemmRows + kGemmPad) + i) % 32;
    }
    Expect(banks == 0xffffffffu, of_a ? "banks of fragment A" : "banks of fragment B");
  }
  const ConvShape s = MakeCase(2, 16, 16, 64, 64, 3, 1, true).shape;
  const auto neighbours = [&](const auto& p, const char* what) {
    using Problem = std::decay_t<decltype(p)>;
    const Index d = Problem::kDepthFastA, r = !d, e = Problem::kDepthFastB, c = !e;
    const Index row = 40, depth = 324;  // inside the image
    Expect(p.A(p.RowAt(row + r), p.DepthAt(depth + d)) == p.A(p.RowAt(row), p.DepthAt(depth)) + 1,
           std::string("neighbours of A, ") + what);
    Expect(p.B(p.DepthAt(depth + e), 5 + c) == p.B(p.DepthAt(depth), 5) + 1,
           std::string("neighbours of B, ") + what);
  };
  neighbours(ForwardProblem{s}, "forward");
  neighbours(InputGradientProblem{s}, "input gradient");
  neighbours(FilterGradientProblem{s}, "filter gradient");
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
    return overlap_conv_forward_cuda(&s, x.data(), filter.data(), nullptr, 0, y.data(), algorithm, nullptr);
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
    return overlap_conv_forward_cuda(&s, nullptr, nullptr, nullptr, 0, nullptr, algorithm, nullptr);
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
  refused(MakeCase(1, 9, 9, 5, 4, 3, 1, true).shape, kFewChannels, cudaErrorInvalidValue, "five are not few");
  refused(MakeCase(1, 31, 31, 4, 4, 15, 1, true).shape, kFewChannels, cudaErrorInvalidValue,
          "filters beyond 48 KiB");
  refused(MakeCase(1, 9, 9, 5, 4, 3, 1, true).shape, 4, cudaErrorInvalidValue, "an algorithm that is none");
  const ConvShape s = MakeCase(1, 18, 37, 1, 70, 3, 1, true).shape;
  Expect(overlap_conv_filter_gradient_workspace(&s) > 0, "a shape that needs a workspace");
  Expect(overlap_conv_filter_gradient_cuda(&s, nullptr, nullptr, nullptr, kImplicitGemm, nullptr, nullptr) ==
             cudaErrorInvalidValue,
         "a workspace that is missing");
  Expect(overlap_conv_input_gradient_cuda(&s, nullptr, nullptr, nullptr, kFewChannels, nullptr) ==
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
    Expect(overlap_conv_forward_cuda(&s, &x, &filter, nullptr, 0, &y, kImplicitGemmTf32, nullptr) == 0 &&
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
  Expect(overlap_conv_forward_cuda(&s, x.data(), filter.data(), nullptr, 0, y.data(), kSharedMemory,
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
  for (const int algorithm : {kSharedMemory, kImplicitGemm, kImplicitGemmTf32, kFewChannels}) {
    y.data[last] = 0;
    const int error =
        overlap_conv_forward_cuda(&s, x.data, filter.data(), nullptr, 0, y.data, algorithm, nullptr);
    Expect(error == 0 && y.data[last] == 5 && y.data[last - 1] == 6,
           "beyond 2^31 elements, algorithm " + std::to_string(algorithm));
  }
  y.data[last] = 0;
  Expect(overlap_conv_input_gradient_cuda(&s, x.data, filter.data(), y.data, kImplicitGemm, nullptr) == 0 &&
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
  TestAccessPatterns();
  TestFailingRuntime();
  TestRefusals();
  TestOldCode();
  TestLargeSharedMemory();
  TestBeyond32Bits();
  std::printf("launches under the emulator: %d of %d checks failed\n", failures, checks);
  return failures > 0;
}
