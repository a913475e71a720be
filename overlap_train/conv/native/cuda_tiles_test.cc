// Checks the tiles of the implicit GEMM, under the emulator: which elements neighbouring threads touch, walks
// along the depth, how products are cut into tiles, and those tiles that no small product is cut into.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cuda_emulator_runtime.h"
#include "cuda_gemm.h"
#include "cuda_launch.h"
#include "cuda_plan.h"
#include "expect.h"
#include "reference.h"

namespace overlap_train::conv {
namespace {

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
  Expect(BanksApart(std::min(8, Tile::kWidth / 8), 4, quad), "quads of " + what);
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
  TestBanks<GemmTile<true, 128, 16>>("rows whose depths are neighbours");
  TestBanks<GemmTile<true, 128, 32>>("rows of twice as many depths");
  TestBanks<GemmTile<false, 128, 32>>("wide tiles");
  TestBanks<GemmTile<false, 64, 16>>("narrow tiles");
  TestBanks<GemmTile<false, 32, 16>>("tiles of few rows");
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

// Few rows of a filter's gradient take small tiles of fp32, which fill a GPU in many slices.
void TestFewRows() {
  const ConvShape image = MakeCase(8, 128, 192, 3, 64, 3, 1, true).shape;
  const GemmPlan plan = PlanFor(FilterGradientProblem{image}, false);
  Expect(plan.rows == kFewRows && plan.columns == 64 && plan.slices == 1056, "27 rows of a long depth");
  Expect(PlanFor(FilterGradientProblem{image}, true).rows == 128, "tensor cores have no such tiles");
  const ConvShape small = MakeCase(1, 2, 2, 3, 8, 3, 1, true).shape;
  Expect(PlanFor(FilterGradientProblem{small}, false).slices == 1, "27 rows of a short depth");
  const ConvShape odd = MakeCase(8, 128, 192, 3, 5, 3, 1, true).shape;
  Expect(PlanFor(FilterGradientProblem{odd}, false).rows == 128, "columns that are no quads");
}

// Masks have bits for 15 rows and columns of taps, and 32 bits for how far the rows of a tile lie apart.
void TestMasks() {
  const auto fits = [](Index batch, Index side, Index channels, Index kernel, Index stride) {
    return FitsMasks(ForwardProblem{MakeCase(batch, side, side, channels, 4, kernel, stride, true).shape});
  };
  Expect(fits(8, 20, 4, 15, 1) && !fits(8, 20, 4, 16, 1), "15 taps fit, 16 do not");
  Expect(fits(1000, 512, 512, 3, 1), "large images fit, however many there are");
  Expect(!fits(8, 1 << 14, 4, 3, 1), "an image of 2^30 floats does not");
  Expect(fits(8, 1 << 10, 4, 1, 1 << 10) && !fits(8, 1 << 11, 4, 1, 1 << 11), "many images in a tile");
  Expect(!fits(0, 20, 4, 3, 1), "no image");
}

// A product's two slices.
template <class Config, class Problem>
std::vector<float> Slices(const Problem& p, const std::vector<float>& a, const std::vector<float>& b) {
  const Index size = p.rows() * p.columns();
  std::vector<float> sums(2 * size);
  const Grid grid{Blocks(p.rows(), Config::kRows), Blocks(p.columns(), Config::kColumns), 2, Config::kThreads,
                  Config::template kSharedBytes<Problem>};
  const Walk walk = p.axes().By(Gatherer<Problem, Config>::kWalk);
  const GemmOutput out = {sums.data(), nullptr, 0, 1, size};
  const int error =
      Launch(ImplicitGemmKernel<Problem, Config>, grid, nullptr, p, walk, a.data(), b.data(), out);
  Expect(error == 0, "a launch of tiles");
  return sums;
}

// Wide tiles form the same sums as narrow ones, which cuda_kernels_test.cc compares with plain loops.
template <class Problem>
void TestWidths(const Problem& p, const std::vector<float>& a, const std::vector<float>& b,
                const std::string& what) {
  emulator::Clear();
  Expect(
      Slices<GemmConfig<false, 128, 128, 4, 4>>(p, a, b) == Slices<GemmConfig<false, 128, 64, 4, 4>>(p, a, b),
      "widths of fp32, " + what);
  Expect(
      Slices<GemmConfig<true, 128, 128, 4, 4>>(p, a, b) == Slices<GemmConfig<true, 128, 64, 4, 4>>(p, a, b),
      "widths of TF32, " + what);
  Expect(emulator::findings.count == 0, "widths, " + what + ": " + emulator::findings.All());
}

void TestWidths() {
  const ConvShape s = MakeCase(1, 11, 13, 76, 132, 3, 1, true).shape;
  const auto x = Normal<float>(143 * 76, 1), filter = Normal<float>(9 * 76 * 132, 2);
  const auto dy = Normal<float>(143 * 132, 3);
  TestWidths(ForwardProblem{s}, x, filter, "forward");
  TestWidths(InputGradientProblem(s, 0, 0), dy, filter, "input gradient");
  TestWidths(FilterGradientProblem{s}, x, dy, "filter gradient");
}

}  // namespace
}  // namespace overlap_train::conv

int main() {
  using namespace overlap_train::conv;
  TestAccessPatterns();
  TestWalks();
  TestSlices();
  TestFewRows();
  TestMasks();
  TestWidths();
  return Verdict("tiles under the emulator");
}
