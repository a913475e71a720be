// Runs every CUDA kernel on the CPU, under cuda_emulator.h, against plain loops in double precision. This
// checks the index arithmetic and the use of shared memory; it is no run on a GPU.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "cuda_kernels.h"
#include "reference.h"

namespace overlap_train::conv {
namespace {

unsigned Blocks(Index count, Index per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

template <class Problem, class Product>
void Gemm(const Problem& p, const std::vector<float>& a, const std::vector<float>& b, const GemmOutput& out,
          Index slices) {
  const dim3 grid{Blocks(p.rows(), kGemmRows), Blocks(p.columns(), kGemmColumns),
                  static_cast<unsigned>(slices)};
  emulator::Launch(grid, kGemmThreads, 0,
                   [&] { ImplicitGemmKernel<Problem, Product>(p, a.data(), b.data(), out); });
}

class Checker {
 public:
  void Check(const Case& test) {
    const ConvShape& s = test.shape;
    x_ = Normal<float>(s.batch * s.in_h * s.in_w * s.in_c, 1);
    filter_ = Normal<float>(s.k_h * s.k_w * s.in_c * s.out_c, 2);
    dy_ = Normal<float>(s.batch * s.out_h * s.out_w * s.out_c, 3);
    bias_ = Normal<float>(s.out_c, 4);
    std::vector<double> y(dy_.size()), dx(x_.size()), dfilter(filter_.size());
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = bias_[i % s.out_c];
    ForEachProduct(s, [&](Index i, Index f, Index o) {
      y[o] += double(x_[i]) * filter_[f];
      dx[i] += double(dy_[o]) * filter_[f];
      dfilter[f] += double(x_[i]) * dy_[o];
    });
    for (double& v : y) v = std::max(v, 0.0);
    CheckForward(test, y);
    CheckGradients<Fp32Product>(test, "fp32", y, dx, dfilter);
    CheckGradients<Tf32Product>(test, "tf32", y, dx, dfilter);
  }
  int failures() const { return failures_; }
  int checks() const { return checks_; }

 private:
  void CheckForward(const Case& test, const std::vector<double>& y) {
    const ConvShape& s = test.shape;
    auto got = Poisoned<float>(y.size());
    const SharedTiles tiles{s};
    const dim3 grid{static_cast<unsigned>(s.batch * tiles.down() * tiles.across()),
                    Blocks(s.out_c, kSharedOutputs), 1};
    emulator::Launch(grid, SharedTiles::kSide * SharedTiles::kSide, SharedFloats(s) * sizeof(float),
                     [&] { SharedMemoryKernel(s, x_.data(), filter_.data(), bias_.data(), 1, got.data()); });
    Judge(test, "shared_memory", RelativeError(got, y));
    if (s.in_c > 4) return;
    got = Poisoned<float>(y.size());
    const dim3 few{Blocks(ForwardProblem{s}.rows(), kFewThreads), Blocks(s.out_c, kFewOutputs), 1};
    emulator::Launch(few, kFewThreads, FewFloats(s) * sizeof(float),
                     [&] { FewChannelsKernel(s, x_.data(), filter_.data(), bias_.data(), 1, got.data()); });
    Judge(test, "few channels", RelativeError(got, y));
  }

  template <class Product>
  void CheckGradients(const Case& test, const std::string& type, const std::vector<double>& y,
                      const std::vector<double>& dx, const std::vector<double>& dfilter) {
    const ConvShape& s = test.shape;
    auto got = Poisoned<float>(y.size());
    Gemm<ForwardProblem, Product>({s}, x_, filter_, {got.data(), bias_.data(), 1, 0, 0}, 1);
    Judge(test, type + " forward", RelativeError(got, y));
    got = Poisoned<float>(dx.size());
    Gemm<InputGradientProblem, Product>({s}, dy_, filter_, {got.data(), nullptr, 0, 0, 0}, 1);
    Judge(test, type + " input gradient", RelativeError(got, dx));
    // Seven slices are more than there are steps in the smallest shapes: some are then empty.
    for (const Index slices : {Index(1), Index(7)}) {
      const Index size = dfilter.size();
      Buffer<float> sum(size, 0.0f);
      Gemm<FilterGradientProblem, Product>({s}, x_, dy_, {sum.data(), nullptr, 0, 1, 0}, slices);
      Judge(test, type + " filter gradient by atomics", RelativeError(sum, dfilter));
      auto parts = Poisoned<float>(size * slices);
      sum = Poisoned<float>(size);
      Gemm<FilterGradientProblem, Product>({s}, x_, dy_, {parts.data(), nullptr, 0, 0, size}, slices);
      emulator::Launch({Blocks(size, 256), 1, 1}, 256, 0,
                       [&] { AddSlicesKernel(parts.data(), slices, size, sum.data()); });
      Judge(test, type + " filter gradient in order", RelativeError(sum, dfilter));
    }
  }

  void Judge(const Case& test, const std::string& what, double error) {
    ++checks_;
    if (error < 1e-6) return;
    if (++failures_ <= 20)
      std::printf("FAILED %s (%s): error %.1e\n", what.c_str(), test.name.c_str(), error);
  }

  std::vector<float> x_, filter_, dy_, bias_;
  int failures_ = 0, checks_ = 0;
};

}  // namespace
}  // namespace overlap_train::conv

int main() {
  using namespace overlap_train::conv;
  Checker checker;
  for (Index kernel : {1, 3, 5})
    for (Index stride : {1, 2})
      for (bool same : {true, false}) {
        checker.Check(MakeCase(1, 11, 23, 3, 5, kernel, stride, same));
        checker.Check(MakeCase(2, 7, 9, 17, 33, kernel, stride, same));
      }
  checker.Check(MakeCase(1, 18, 37, 1, 70, 3, 1, true));
  checker.Check(MakeCase(1, 5, 4, 3, 2, 3, 5, true));  // a stride beyond the kernel
  std::printf("emulated CUDA kernels: %d of %d checks failed\n", checker.failures(), checker.checks());
  return checker.failures() > 0;
}
