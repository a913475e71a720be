// Checks every CUDA kernel through conv_cuda.h against plain loops in double precision. Compiled as C++ it
// runs under the emulator, which also finds what CUDA leaves undefined; compiled by nvcc it runs on a GPU,
// also under compute-sanitizer, for which it needs neither Python nor TensorFlow:
//
//   nvcc -std=c++17 -O3 -arch=native -x cu cuda_kernels_test.cc conv_cuda.cu -o cuda_kernels_test
//   compute-sanitizer --tool initcheck ./cuda_kernels_test --raw
//
//   --raw       outputs and workspaces stay as they were allocated, for tools that look for reads of those
//   --quick     the first shapes only
//   --epilogue  bias, activation and their gradients only
//   --first     ends at the first failure
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "conv_cuda.h"
#include "cuda_index.h"
#include "reference.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "cuda_emulator_runtime.h"
#endif

namespace overlap_train::conv {
namespace {

bool raw = false, first_only = false;

void Require(int error, const char* what) {
  if (error == 0) return;
  std::printf("FAILED %s: %s\n", what, overlap_conv_error_name(error));
  std::exit(2);
}

// Device memory: a copy of host values, or NaN throughout.
class Array {
 public:
  explicit Array(const std::vector<float>& values) : Array(values.size(), true) {
    Require(cudaMemcpy(data_, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice), "copy");
  }
  explicit Array(std::size_t count) : Array(count, true) {
    if (raw) return;
    const std::vector<float> poison(count, std::numeric_limits<float>::quiet_NaN());
    Require(cudaMemcpy(data_, poison.data(), count * sizeof(float), cudaMemcpyHostToDevice), "poison");
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  float* data() const { return data_; }
  std::vector<float> Get() const {
    std::vector<float> values(count_);
    Require(cudaMemcpy(values.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost), "result");
    return values;
  }

 private:
  Array(std::size_t count, bool) : count_(count) {
    Require(cudaMalloc(&data_, std::max<std::size_t>(count, 1) * sizeof(float)), "cudaMalloc");
  }
  float* data_ = nullptr;
  std::size_t count_;
};

std::vector<float> Rounded(std::vector<float> values, bool tf32) {
  if (tf32) std::transform(values.begin(), values.end(), values.begin(), RoundTf32);
  return values;
}

// What plain loops give, of operands that are rounded first where tensor cores round them.
struct Expected {
  std::vector<double> y, dx, dfilter;

  Expected(const ConvShape& s, const std::vector<float>& bias, const std::vector<float>& x,
           const std::vector<float>& filter, const std::vector<float>& dy)
      : y(dy.size()), dx(x.size()), dfilter(filter.size()) {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = bias[i % s.out_c];
    ForEachProduct(s, [&](Index i, Index f, Index o) {
      y[o] += double(x[i]) * filter[f];
      dx[i] += double(dy[o]) * filter[f];
      dfilter[f] += double(x[i]) * dy[o];
    });
    for (double& v : y) v = std::max(v, 0.0);
  }
};

// Prints what the emulator has found; returns 1 if that is anything.
int PrintFindings() {
#ifndef __CUDACC__
  if (emulator::findings.count > 0) {
    std::printf("FOUND %s\n", emulator::findings.All().c_str());
    return 1;
  }
#endif
  return 0;
}

class Checker {
 public:
  void Check(const Case& test) {
    const ConvShape& s = test.shape;
    name_ = test.name;
    const auto x = Normal<float>(s.batch * s.in_h * s.in_w * s.in_c, 1);
    const auto filter = Normal<float>(s.k_h * s.k_w * s.in_c * s.out_c, 2);
    const auto dy = Normal<float>(s.batch * s.out_h * s.out_w * s.out_c, 3), bias = Normal<float>(s.out_c, 4);
    const Array at_x(x), at_filter(filter), at_dy(dy), at_bias(bias);
    for (const bool tf32 : {false, true}) {
      const Expected want(s, bias, Rounded(x, tf32), Rounded(filter, tf32), Rounded(dy, tf32));
      const int gemm = tf32 ? kImplicitGemmTf32 : kImplicitGemm;
      const auto forward = [&](int algorithm, const char* what) {
        Judge(what, want.y, [&](float* y) {
          const Array workspace(overlap_conv_forward_workspace(&s, algorithm));
          return overlap_conv_forward_cuda(&s, at_x.data(), at_filter.data(), at_bias.data(), 1, y, algorithm,
                                           workspace.data(), nullptr);
        });
      };
      forward(gemm, tf32 ? "tf32 forward" : "fp32 forward");
      Judge(tf32 ? "tf32 input gradient" : "fp32 input gradient", want.dx, [&](float* dx) {
        const Array workspace(overlap_conv_input_gradient_workspace(&s, gemm));
        return overlap_conv_input_gradient_cuda(&s, at_dy.data(), at_filter.data(), dx, gemm,
                                                workspace.data(), nullptr);
      });
      Judge(tf32 ? "tf32 filter gradient" : "fp32 filter gradient", want.dfilter, [&](float* dfilter) {
        const Array workspace(overlap_conv_filter_gradient_workspace(&s, gemm));
        return overlap_conv_filter_gradient_cuda(&s, at_x.data(), at_dy.data(), dfilter, gemm,
                                                 workspace.data(), nullptr);
      });
      if (tf32) continue;
      forward(kSharedMemory, "shared memory");
      CheckStreams(s, at_x, at_filter, at_bias, want.y);
    }
  }

  void CheckEpilogue(Index pixels, Index channels) {
    name_ = std::to_string(pixels) + " pixels of " + std::to_string(channels) + " channels";
    const auto dy = Normal<float>(pixels * channels, 5), y = Normal<float>(pixels * channels, 6);
    std::vector<double> dz(dy.size()), dbias(channels);
    for (Index i = 0; i < pixels * channels; ++i) dbias[i % channels] += dz[i] = y[i] > 0 ? dy[i] : 0;
    const Array at_dy(dy), at_y(y), at_dz(dz.size()), at_dbias(channels);
    const auto gradient = [&](float* to_dz, float* to_dbias) {
      const Array workspace(overlap_conv_epilogue_gradient_workspace(pixels, channels));
      return overlap_conv_epilogue_gradient_cuda(pixels, channels, at_dy.data(), at_y.data(), to_dz, to_dbias,
                                                 workspace.data(), nullptr);
    };
    Judge("epilogue gradient", dz, [&](float* to) { return gradient(to, at_dbias.data()); });
    Judge("bias gradient", dbias, [&](float* to) { return gradient(at_dz.data(), to); });
    const int error = gradient(at_dy.data(), at_dbias.data());
    if (error != 0) return Fail("epilogue gradient in place", overlap_conv_error_name(error));
    JudgeValues("epilogue gradient in place", dz, at_dy.Get());
  }

  int failures() const { return failures_; }
  int checks() const { return checks_; }

 private:
  // More chunks than images: some are empty.
  void CheckStreams(const ConvShape& s, const Array& x, const Array& filter, const Array& bias,
                    const std::vector<double>& want) {
    void* streams[3] = {};
#ifdef __CUDACC__
    for (void*& stream : streams) {
      Require(cudaStreamCreate(reinterpret_cast<cudaStream_t*>(&stream)), "cudaStreamCreate");
    }
#endif
    Judge("forward over streams", want, [&](float* y) {
      return overlap_conv_forward_streams_cuda(&s, x.data(), filter.data(), bias.data(), 1, y, kImplicitGemm,
                                               5, streams, 3, nullptr);
    });
#ifdef __CUDACC__
    for (void* stream : streams) cudaStreamDestroy(static_cast<cudaStream_t>(stream));
#endif
  }

  // Runs a kernel twice: the result must be right, and the same.
  template <class Run>
  void Judge(const char* what, const std::vector<double>& want, const Run& run) {
    std::vector<float> results[2];
    for (auto& result : results) {
      const Array out(want.size());
      const int error = run(out.data());
      if (error != 0) return Fail(what, overlap_conv_error_name(error));
      Require(cudaDeviceSynchronize(), what);
      result = out.Get();
    }
    const std::size_t bytes = want.size() * sizeof(float);
    if (bytes > 0 && std::memcmp(results[0].data(), results[1].data(), bytes) != 0) {
      Fail(what, "two runs differ");
    }
    JudgeValues(what, want, results[0]);
  }
  void JudgeValues(const char* what, const std::vector<double>& want, const std::vector<float>& got) {
    ++checks_;
    const double error = RelativeError(got, want);
    if (!(error < 2e-6)) Fail(what, "error " + std::to_string(error));
  }
  void Fail(const char* what, const std::string& why) {
    if (++failures_ <= 20) std::printf("FAILED %s (%s): %s\n", what, name_.c_str(), why.c_str());
    if (first_only) std::exit(PrintFindings() > 0 ? 1 : 2);
  }

  std::string name_;
  int failures_ = 0, checks_ = 0;
};

void CheckConvolutions(Checker& checker, bool quick) {
  for (Index kernel : {1, 3, 5})
    for (Index stride : {1, 2})
      for (bool same : {true, false}) {
        if (quick && (kernel == 5 || !same)) continue;
        checker.Check(MakeCase(1, 11, 23, 3, 5, kernel, stride, same));
        checker.Check(MakeCase(2, 7, 9, 17, 33, kernel, stride, same));
        checker.Check(MakeCase(1, 7, 9, 4, 8, kernel, stride, same));
      }
  checker.Check(MakeCase(1, 11, 13, 8, 72, 3, 1, true));  // in quads, wide tiles and ragged ones
  checker.Check(MakeCase(1, 9, 15, 68, 12, 3, 2, true));  // and of the input gradient, with a stride
  if (!quick) {
    checker.Check(MakeCase(1, 10, 13, 68, 200, 1, 1, true));
    checker.Check(MakeCase(1, 11, 17, 4, 132, 5, 3, false));
    checker.Check(MakeCase(1, 9, 9, 130, 6, 3, 3, true));
    checker.Check(MakeCase(1, 3, 4, 4, 8, 16, 1, true));  // more taps than masks have bits
  }
  checker.Check(MakeCase(1, 18, 37, 1, 70, 3, 1, true));  // the filter gradient in several slices
  checker.Check(MakeCase(1, 15, 29, 3, 68, 3, 1, true));  // and of few rows
  checker.Check(MakeCase(1, 5, 4, 3, 2, 3, 5, true));     // a stride beyond the kernel
  checker.Check(MakeCase(1, 2, 2, 3, 5, 5, 1, true));     // a kernel beyond the image
  checker.Check(MakeCase(1, 2, 2, 3, 5, 3, 1, false));    // no output at all
  checker.Check(MakeCase(0, 5, 5, 3, 4, 3, 1, true));     // no image
}

void CheckEpilogues(Checker& checker, bool quick) {
  for (const auto& [pixels, channels] : {std::pair<Index, Index>{1, 1}, {1000, 67}, {0, 5}, {70000, 3}}) {
    if (!quick || pixels < 70000) checker.CheckEpilogue(pixels, channels);
  }
}

}  // namespace
}  // namespace overlap_train::conv

int main(int argc, char** argv) {
  using namespace overlap_train::conv;
  bool quick = false, epilogue_only = false;
  for (int i = 1; i < argc; ++i) {
    quick |= std::strcmp(argv[i], "--quick") == 0;
    epilogue_only |= std::strcmp(argv[i], "--epilogue") == 0;
    raw |= std::strcmp(argv[i], "--raw") == 0;
    first_only |= std::strcmp(argv[i], "--first") == 0;
  }
  Checker checker;
  if (!epilogue_only) CheckConvolutions(checker, quick);
  CheckEpilogues(checker, quick);
#ifdef __CUDACC__
  const char* const where = "on this GPU";
#else
  const char* const where = "emulated";
#endif
  const int found = PrintFindings();
  std::printf("CUDA kernels, %s: %d of %d checks failed\n", where, checker.failures(), checker.checks());
  return checker.failures() > 0 || found > 0;
}
