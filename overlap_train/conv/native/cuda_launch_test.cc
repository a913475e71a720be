// Checks what surrounds the kernels, under the emulator: errors of the runtime, limits of grids and of shared
// memory, tensors beyond 2^31 elements, and which elements neighbouring threads touch.
#include "cuda_launch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "conv_cuda.h"
#include "cuda_emulator_runtime.h"
#include "cuda_gemm.h"
#include "cuda_plan.h"
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

// Whether `threads` that read `count` floats each, from offset_of(thread) on, meet no bank twice: the same
// floats count once.
template <class Offset>
bool BanksApart(int threads, int count, const Offset& offset_of) {
  std::map<int, std::set<int>> words;
  for (int t = 0; t < threads; ++t) {
    for (int n = 0; n < count; ++n) words[(offset_of(t) + n) % 32].insert(offset_of(t) + n);
  }
  return std::all_of(words.begin(), words.end(), [](const auto& bank) { return bank.second.size() == 1; });
}

// What is read of shared memory at once lies in different banks: by a warp one float, by half of one two, by
// the four matrices of ldmatrix 8 rows of four. Quads of fp32 are read by halves of a warp.
template <class Tile>
void TestBanks(const std::string& what) {
  constexpr bool kDepthFast = Tile::kIsDepthFast;
  if (kDepthFast) {
    Expect(BanksApart(8, 4, [](int row) { return Tile::Offset(4, 16 + row); }), "matrices of " + what);
  } else {
    Expect(BanksApart(32, 1, [](int t) { return Tile::Offset(8 + t % 4, 8 + t / 4); }), "columns of " + what);
    Expect(BanksApart(16, 2, [](int t) { return Tile::Offset(8 + t % 4, 16 + 2 * (t / 4)); }),
           "pairs of rows of " + what);
  }
  using Share = ThreadShare<Tile, Tile::kWidth / 8>;
  const auto quad = [](int thread) {
    return kDepthFast ? Tile::Offset(4, Share::At(thread, 3)) : Tile::Offset(5, Share::At(thread, 4));
  };
  Expect(BanksApart(8, 4, quad), "quads of " + what);
}

// Neighbouring threads gather neighbouring elements.
template <class Problem>
void TestNeighbours(const Problem& p, const std::string& what) {
  const Walk walk = p.axes().By(1);
  const Index row = 40, depth = 324;  // inside the image
  const auto a = [&](Index r, Index d) { return p.StartOf(r).at + walk.From(d).at; };
  const Index down = !Problem::kDepthFastA, on = Problem::kDepthFastA;
  Expect(a(row + down, depth + on) == a(row, depth) + 1, "neighbours of A, " + what);
}

// A place that is walked to is the place that is divided to, carries and all.
void TestWalks() {
  const ConvShape s = MakeCase(3, 9, 7, 5, 6, 3, 2, true).shape;
  const auto walks = [](const auto& p, const char* what) {
    for (const int step : {1, 2, 7, 16, 64}) {
      const Walk walk = p.axes().By(step);
      Place place = walk.From(3);
      bool same = true;
      for (Index i = 3; i < p.depth(); i += step, walk.Advance(place)) {
        const Place want = walk.From(i);
        same &=
            place.at == want.at && place.low == want.low && place.mid == want.mid && place.high == want.high;
      }
      Expect(same, std::string("a walk by ") + std::to_string(step) + ", " + what);
    }
  };
  walks(ForwardProblem{s}, "forward");
  walks(InputGradientProblem(s, 1, 0), "input gradient");
  walks(FilterGradientProblem{s}, "filter gradient");
}

void TestAccessPatterns() {
  TestBanks<GemmTile<true, 128>>("rows whose depths are neighbours");
  TestBanks<GemmTile<false, 128>>("wide tiles");
  TestBanks<GemmTile<false, 64>>("narrow tiles");
  const ConvShape s = MakeCase(2, 16, 16, 64, 64, 3, 1, true).shape;
  TestNeighbours(ForwardProblem{s}, "forward");
  TestNeighbours(InputGradientProblem(s, 0, 0), "input gradient");
  TestNeighbours(FilterGradientProblem{s}, "filter gradient");
}

// Small grids are cut along their depth, large ones and short depths are not.
void TestSlices() {
  const auto slices = [](Index rows, Index columns, Index depth, bool tf32) {
    return PlanFor(rows, columns, depth, tf32, true).slices;
  };
  Expect(slices(768, 1024, 4608, false) > 1, "few tiles of a long depth are sliced");
  Expect(slices(196608, 64, 576, false) == 1, "many tiles are not");
  Expect(slices(768, 1024, 64, true) == 1, "a short depth is not");
  Expect(slices(576, 64, 196608, true) > 40, "a filter's gradient is, for all multiprocessors");
  Expect(PlanFor(768, 1024, 4608, false, false).slices == 1, "what may not be sliced is not");
  Expect(PlanFor(196608, 64, 576, true, true).columns == 64, "64 columns take a narrow tile");
  Expect(PlanFor(196608, 128, 576, true, true).columns == 128, "128 columns take a wide one");
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
  TestAccessPatterns();
  TestWalks();
  TestSlices();
  TestFailingRuntime();
  TestRefusals();
  TestOldCode();
  TestLargeSharedMemory();
  TestBeyond32Bits();
  std::printf("launches under the emulator: %d of %d checks failed\n", failures, checks);
  return failures > 0;
}
