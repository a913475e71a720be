// Checks the CPU kernels against plain loops in double precision, without TensorFlow, so that they run under
// the sanitizers. Outputs and scratch are filled with NaN first: whatever is read before it is written shows.
//
//   kernels_test             every shape below; exit status 1 where an error is too large
//   kernels_test bench [n]   times the 3×3 layers of U-Net at batch n on all cores
#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "reference.h"
#include "shared_work.h"

namespace overlap_train::conv {
namespace {

// Workers that come when they come: a new thread has often not begun when the others have done everything.
class ThreadRuntime final : public Runtime {
 public:
  ThreadRuntime(int workers, bool poison) : workers_(workers), poison_(poison) {}
  ~ThreadRuntime() {
    AwaitLatecomers();
    for (auto& [size, memory] : free_) std::free(memory);
  }
  int workers() const override { return workers_; }
  void Parallel(Body& body) override {
    AwaitLatecomers();
    const auto work = std::make_shared<SharedWork>(body);
    for (int w = 1; w < workers_; ++w) threads_.emplace_back([work, w] { work->Join(w); });
    body.Run(0);
    work->Close();
  }
  void* Acquire(std::size_t bytes) override {
    // When poisoning, each buffer is its own allocation: the address sanitizer then sees where it ends.
    if (poison_) {
      void* const memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
      std::memset(memory, 0xff, bytes);
      return memory;
    }
    const auto found = free_.lower_bound(bytes);
    if (found == free_.end()) {
      void* const memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
      sizes_[memory] = bytes;
      return memory;
    }
    void* const memory = found->second;
    free_.erase(found);
    return memory;
  }
  void Release(void* memory) override {
    if (poison_) return std::free(memory);
    free_.emplace(sizes_[memory], memory);
  }

 private:
  void AwaitLatecomers() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

  const int workers_;
  const bool poison_;
  std::vector<std::thread> threads_;
  std::multimap<std::size_t, void*> free_;
  std::map<void*, std::size_t> sizes_;
};

template <class T>
class Checker {
 public:
  explicit Checker(Runtime& runtime) : runtime_(runtime) {}

  void Check(const Case& test) {
    const ConvShape& s = test.shape;
    const Index nx = s.batch * s.in_h * s.in_w * s.in_c, nw = s.k_h * s.k_w * s.in_c * s.out_c;
    const Index ny = s.batch * s.out_h * s.out_w * s.out_c;
    const auto x = Normal<T>(nx, 1), w = Normal<T>(nw, 2), dy = Normal<T>(ny, 3),
               bias = Normal<T>(s.out_c, 4);
    std::vector<double> y(ny), dx(nx), dw(nw);
    for (Index i = 0; i < ny; ++i) y[i] = bias[i % s.out_c];
    ForEachProduct(s, [&](Index i, Index f, Index o) {
      y[o] += double(x[i]) * w[f];
      dx[i] += double(dy[o]) * w[f];
      dw[f] += double(x[i]) * dy[o];
    });
    std::vector<double> plain(ny);
    for (Index i = 0; i < ny; ++i) plain[i] = y[i] - bias[i % s.out_c];
    for (double& v : y) v = std::max(v, 0.0);
    const auto& table = Kernels<T>();
    const Epilogue<T> epilogue{bias.data(), true}, none{nullptr, false};
    Verify(test, "direct forward", Direct(), ny, y,
           [&](T* out) { return table.direct_forward(s, x.data(), w.data(), epilogue, out, runtime_); });
    Verify(test, "direct, no bias or ReLU", Direct(), ny, plain,
           [&](T* out) { return table.direct_forward(s, x.data(), w.data(), none, out, runtime_); });
    Verify(test, "direct input gradient", Direct(), nx, dx,
           [&](T* out) { return table.direct_input_gradient(s, dy.data(), w.data(), out, runtime_); });
    Verify(test, "direct filter gradient", Direct(), nw, dw,
           [&](T* out) { return table.direct_filter_gradient(s, x.data(), dy.data(), out, runtime_); });
    CheckDepthwiseFilterGradient(test, x);
    if (!WinogradApplies(s)) return;
    Verify(test, "winograd forward", Winograd(), ny, y,
           [&](T* out) { return table.winograd_forward(s, x.data(), w.data(), epilogue, out, runtime_); });
    Verify(test, "winograd, no bias or ReLU", Winograd(), ny, plain,
           [&](T* out) { return table.winograd_forward(s, x.data(), w.data(), none, out, runtime_); });
    Verify(test, "winograd input gradient", Winograd(), nx, dx,
           [&](T* out) { return table.winograd_input_gradient(s, dy.data(), w.data(), out, runtime_); });
    Verify(test, "winograd filter gradient", Winograd(), nw, dw,
           [&](T* out) { return table.winograd_filter_gradient(s, x.data(), dy.data(), out, runtime_); });
  }

  // Of the shape's input and window, with one filter for each channel.
  void CheckDepthwiseFilterGradient(const Case& test, const std::vector<T>& x) {
    ConvShape s = test.shape, pixels = s;
    const Index channels = s.out_c = s.in_c;
    const auto dy = Normal<T>(s.batch * s.out_h * s.out_w * channels, 7);
    std::vector<double> dw(s.k_h * s.k_w * channels);
    pixels.in_c = pixels.out_c = 1;
    ForEachProduct(pixels, [&](Index i, Index f, Index o) {
      for (Index c = 0; c < channels; ++c)
        dw[f * channels + c] += double(x[i * channels + c]) * dy[o * channels + c];
    });
    Verify(test, "depthwise filter gradient", Direct(), static_cast<Index>(dw.size()), dw, [&](T* out) {
      return Kernels<T>().depthwise_filter_gradient(s, x.data(), dy.data(), out, runtime_);
    });
  }

  void CheckEpilogueGradient(Index pixels, Index channels) {
    const auto dy = Normal<T>(pixels * channels, 5), y = Normal<T>(pixels * channels, 6);
    std::vector<double> want(pixels * channels), sums(channels);
    for (Index i = 0; i < pixels * channels; ++i) sums[i % channels] += want[i] = y[i] > 0 ? dy[i] : 0;
    auto dbias = Poisoned<T>(channels);
    const Case test{{}, std::to_string(pixels) + " pixels of " + std::to_string(channels)};
    Verify(test, "epilogue gradient", Direct(), pixels * channels, want, [&](T* dz) {
      return Kernels<T>().epilogue_gradient(pixels, channels, dy.data(), y.data(), dz, dbias.data(),
                                            runtime_);
    });
    Judge(test, "bias gradient", Direct(), RelativeError(dbias, sums));
  }

  int failures() const { return failures_; }
  int checks() const { return checks_; }
  void Report(const char* type) const {
    for (const auto& [what, error] : worst_)
      std::printf("%-6s %-26s largest error %.2e\n", type, what.c_str(), error);
  }

 private:
  static constexpr bool kFloat = sizeof(T) == sizeof(float);
  static double Direct() { return kFloat ? 1e-6 : 1e-14; }
  static double Winograd() { return kFloat ? 5e-6 : 1e-14; }

  void Verify(const Case& test, const char* what, double bound, Index count, const std::vector<double>& want,
              const std::function<bool(T*)>& run) {
    auto got = Poisoned<T>(count), again = Poisoned<T>(count);
    const bool ran = run(got.data()) && run(again.data());
    Judge(test, what, bound, ran ? RelativeError(got, want) : std::numeric_limits<double>::quiet_NaN());
    const bool same = std::memcmp(got.data(), again.data(), got.size() * sizeof(T)) == 0;
    if (ran && !same) Fail(test, what, "two runs differ");
  }
  void Judge(const Case& test, const char* what, double bound, double error) {
    ++checks_;
    worst_[what] = std::max(worst_[what], error);
    if (!(error < bound)) Fail(test, what, "error " + std::to_string(error / bound) + " times the bound");
  }
  void Fail(const Case& test, const char* what, const std::string& why) {
    if (++failures_ <= 20) std::printf("FAILED %s (%s): %s\n", what, test.name.c_str(), why.c_str());
  }

  Runtime& runtime_;
  std::map<std::string, double> worst_;
  int failures_ = 0, checks_ = 0;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (Index kernel : {1, 3, 5})
    for (Index stride : {1, 2})
      for (bool same : {true, false})
        for (Index c : {1, 3, 17})
          for (Index k : {1, 4, 66})
            for (Index w : {23, 11})
              cases.push_back(MakeCase(2, w == 11 ? 7 : 10, w, c, k, kernel, stride, same));
  cases.push_back(MakeCase(1, 9, 191, 3, 64, 3, 1, true));
  cases.push_back(MakeCase(2, 6, 75, 4, 70, 3, 1, true));  // few channels, more than one block of tiles
  cases.push_back(MakeCase(2, 6, 75, 2, 7, 3, 1, false));
  cases.push_back(MakeCase(3, 1, 1, 3, 5, 3, 1, true));  // images below the window
  cases.push_back(MakeCase(2, 1, 37, 2, 20, 3, 1, true));
  cases.push_back(MakeCase(2, 37, 1, 4, 70, 3, 1, true));
  cases.push_back(MakeCase(1, 5, 75, 130, 4, 3, 1, true));      // the same for its input gradient
  cases.push_back(MakeCase(1, 37, 41, 64, 64, 3, 1, true));     // many tiles: tiles first, tiles split
  cases.push_back(MakeCase(2, 8, 12, 130, 200, 3, 1, true));    // few tiles, uneven channels
  cases.push_back(MakeCase(1, 8, 12, 200, 700, 3, 1, true));    // panels first, patches
  cases.push_back(MakeCase(1, 8, 12, 64, 768, 3, 1, true));     // panels first, all chunks whole lines
  cases.push_back(MakeCase(5, 18, 21, 200, 260, 3, 1, false));  // more than one pass of each
  // Results that are streamed: forward, the input gradient with and without strides, Winograd's, the
  // filter's.
  cases.push_back(MakeCase(1, 130, 130, 1, 64, 3, 1, true));
  cases.push_back(MakeCase(1, 130, 130, 64, 1, 3, 1, true));
  cases.push_back(MakeCase(1, 130, 130, 64, 1, 3, 2, true));
  cases.push_back(MakeCase(1, 260, 260, 1, 64, 3, 1, true));
  cases.push_back(MakeCase(1, 4, 4, 200, 640, 3, 1, true));
  cases.push_back(MakeCase(1, 5, 4, 3, 2, 3, 5, true));  // a stride beyond the kernel
  cases.push_back(MakeCase(1, 2, 2, 3, 5, 5, 1, true));  // a kernel beyond the image
  cases.push_back(MakeCase(2, 1, 1, 20, 30, 3, 1, true));
  return cases;
}

// Who comes in time does work, and the work ends with it; who comes too late does none.
int CheckSharedWork() {
  struct Counted final : Runtime::Body {
    void Run(int worker) override {
      if (worker != 0) {
        ++helped;
        return;
      }
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (helped == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    }
    std::atomic<int> helped{0};
  } body;
  const auto work = std::make_shared<SharedWork>(body);
  bool in_time = false;
  std::thread helper([&] { in_time = work->Join(1); });
  body.Run(0);
  work->Close();
  helper.join();
  const bool late = work->Join(2);
  if (in_time && !late && body.helped == 1) return 0;
  std::printf("FAILED shared work: in time %d, late %d, helped %d\n", in_time, late, body.helped.load());
  return 1;
}

template <class T>
int CheckAll(const char* type, int workers) {
  ThreadRuntime runtime(workers, true);
  Checker<T> checker(runtime);
  for (const Case& test : Cases()) checker.Check(test);
  checker.CheckEpilogueGradient(1, 1);
  checker.CheckEpilogueGradient(1000, 67);
  checker.Report(type);
  std::printf("%s, %d workers, %s: %d of %d checks failed\n", type, workers, Kernels<T>().name,
              checker.failures(), checker.checks());
  return checker.failures();
}

double MedianMilliseconds(const std::function<void()>& f) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  f();
  f();
  const auto start = Clock::now();
  while (times.size() < 5 || Clock::now() - start < std::chrono::milliseconds(250)) {
    const auto t = Clock::now();
    f();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - t).count());
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void Bench(Index batch) {
  const int workers = static_cast<int>(std::thread::hardware_concurrency());
  ThreadRuntime runtime(workers, false);
  const auto& table = Kernels<float>();
  std::printf("%s, %d workers; ms and GFLOP/s of the direct method's work: forward, input, filter gradient\n",
              table.name, workers);
  const Index layers[][4] = {{128, 192, 3, 64},  {128, 192, 64, 64}, {64, 96, 64, 128},  {64, 96, 128, 128},
                             {32, 48, 128, 256}, {32, 48, 256, 256}, {16, 24, 256, 512}, {16, 24, 512, 512},
                             {8, 12, 512, 1024}, {8, 12, 1024, 1024}};
  for (const auto& [h, w, c, k] : layers) {
    const ConvShape s = MakeCase(batch, h, w, c, k, 3, 1, true).shape;
    const auto x = Normal<float>(batch * h * w * c, 1), f = Normal<float>(9 * c * k, 2);
    const auto dy = Normal<float>(batch * h * w * k, 3);
    Buffer<float> y(dy.size()), dx(x.size()), df(f.size());
    const double giga = 2e-9 * 9 * batch * h * w * c * k;
    const Epilogue<float> none{nullptr, false};
    std::printf("%ldx%ldx%ldx%ld->%ld", long(batch), long(h), long(w), long(c), long(k));
    const auto time = [&](const std::function<void()>& run) {
      const double ms = MedianMilliseconds(run);
      std::printf("  %7.2f %4.0f", ms, giga / ms * 1e3);
      std::fflush(stdout);
    };
    std::printf(" | winograd");
    time([&] { table.winograd_forward(s, x.data(), f.data(), none, y.data(), runtime); });
    time([&] { table.winograd_input_gradient(s, dy.data(), f.data(), dx.data(), runtime); });
    time([&] { table.winograd_filter_gradient(s, x.data(), dy.data(), df.data(), runtime); });
    std::printf(" | direct");
    time([&] { table.direct_forward(s, x.data(), f.data(), none, y.data(), runtime); });
    time([&] { table.direct_input_gradient(s, dy.data(), f.data(), dx.data(), runtime); });
    time([&] { table.direct_filter_gradient(s, x.data(), dy.data(), df.data(), runtime); });
    std::printf("\n");
  }
}

}  // namespace
}  // namespace overlap_train::conv

int main(int argc, char** argv) {
  using namespace overlap_train::conv;
  if (argc > 1 && std::strcmp(argv[1], "bench") == 0) {
    Bench(argc > 2 ? std::atoi(argv[2]) : 1);
    return 0;
  }
  int failures = CheckSharedWork();
  for (int workers : {1, 3})
    failures += CheckAll<float>("float", workers) + CheckAll<double>("double", workers);
  return failures > 0;
}
