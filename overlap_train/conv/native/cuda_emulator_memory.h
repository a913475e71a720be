// Shared memory under the emulator: elements that know who has touched them, parts that know where they end,
// asynchronous copies, and the tensor cores' product. See cuda_emulator.h.
#ifndef OVERLAP_TRAIN_CONV_CUDA_EMULATOR_MEMORY_H_
#define OVERLAP_TRAIN_CONV_CUDA_EMULATOR_MEMORY_H_

#include <utility>

#include "cuda_emulator.h"

namespace overlap_train::conv::emulator {

// An element of shared memory, and who has touched it since the last barrier.
class SharedFloat {
 public:
  SharedFloat& operator=(float value) {
    Touch(true);
    Put(value);
    return *this;
  }
  SharedFloat& operator=(const SharedFloat& other) { return *this = static_cast<float>(other); }
  operator float() const {
    Touch(false);
    if (!written_) Report(Fault::kUninitialised, "read before it is written");
    return value_;
  }
  // The copy's write belongs to whoever waits for it, in the interval in which he does.
  void Begin() {
    Touch(true);
    in_flight_ = true;
  }
  static void Finish(void* element, float value) {
    auto* const self = static_cast<SharedFloat*>(element);
    self->in_flight_ = false;
    self->Touch(true);
    self->Put(value);
  }

 private:
  static constexpr int kNobody = -1, kSeveral = -2;

  void Put(float value) {
    value_ = value;
    written_ = true;
  }
  void Touch(bool writes) const {
    if (block_ != block) {  // what another block left in it is undefined
      block_ = block;
      written_ = in_flight_ = false;
      value_ = __builtin_nanf("");
      interval_ = interval - 1;
    }
    if (in_flight_) Report(Fault::kMissingWait, writes ? "written during a copy" : "read during a copy");
    if (interval_ != interval) {
      interval_ = interval;
      writer_ = reader_ = kNobody;
    }
    const int me = static_cast<int>(threadIdx.x);
    if (writer_ != kNobody && writer_ != me) {
      Report(Fault::kRace, "written by thread " + std::to_string(writer_) + " since the last barrier");
    }
    if (!writes) {
      reader_ = reader_ == kNobody || reader_ == me ? me : kSeveral;
      return;
    }
    if (reader_ != kNobody && reader_ != me) Report(Fault::kRace, "read by others since the last barrier");
    writer_ = me;
  }

  mutable float value_ = 0;
  mutable unsigned block_ = 0, interval_ = 0;
  mutable int writer_ = kNobody, reader_ = kNobody;
  mutable bool written_ = false, in_flight_ = false;
};

// A part of dynamic shared memory that knows where it ends.
class SharedPointer {
 public:
  SharedPointer(SharedFloat* begin, Index count) : begin_(begin), count_(count) {}
  SharedFloat& operator[](Index i) const {
    static SharedFloat nowhere;
    return Within(i, count_) ? begin_[i] : nowhere = 0.0f;
  }
  SharedPointer Part(Index from, Index count) const {
    if (count == 0 || (Within(from, count_) && Within(from + count - 1, count_)))
      return {begin_ + from, count};
    return {begin_, 0};
  }

 private:
  SharedFloat* begin_;
  Index count_;
};

// All dynamic shared memory of the kernel that runs.
inline SharedPointer DynamicShared() {
  static std::vector<SharedFloat> memory;
  if (memory.size() < dynamic_floats) memory.resize(dynamic_floats);
  return {memory.data(), static_cast<Index>(dynamic_floats)};
}

}  // namespace overlap_train::conv::emulator

#define OT_DYNAMIC_SHARED(name) const auto name = ::overlap_train::conv::emulator::DynamicShared()
#define OT_WITHIN(i, n, otherwise) \
  if (!::overlap_train::conv::emulator::Within(i, n)) return otherwise

namespace overlap_train::conv {

using emulator::SharedFloat;
using emulator::SharedPointer;

inline SharedPointer SharedPart(const SharedPointer& whole, Index from, Index count) {
  return whole.Part(from, count);
}

inline void CopyAsync(SharedFloat& shared, const float* source, Index at) {
  shared.Begin();
  emulator::fibers[threadIdx.x].queued.push_back(
      {SharedFloat::Finish, &shared, at == kOutside ? 0.0f : source[at]});
}

inline void CommitCopies() {
  auto& fiber = emulator::fibers[threadIdx.x];
  fiber.groups.push_back(std::move(fiber.queued));
  fiber.queued.clear();
}

template <int kPending>
inline void WaitForCopies() {
  auto& groups = emulator::fibers[threadIdx.x].groups;
  while (groups.size() > kPending) {
    for (const auto& copy : groups.front()) copy.finish(copy.element, copy.value);
    groups.erase(groups.begin());
  }
}

// The tensor cores' product: the lanes of a warp put their fragments together, and each takes its own of the
// result.
inline void MultiplyTf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  static float left[32][16][8], right[32][8][8];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int i = 0; i < 4; ++i) {
    left[warp][FragmentRowA(lane, i)][FragmentDepthA(lane, i)] = RoundTf32(a[i]);
  }
  for (int i = 0; i < 2; ++i) {
    right[warp][FragmentDepthB(lane, i)][FragmentColumnB(lane)] = RoundTf32(b[i]);
  }
  emulator::Wait(emulator::State::kAtWarp, __LINE__);
  for (int i = 0; i < 4; ++i) {
    for (int d = 0; d < 8; ++d) {
      c[i] += left[warp][FragmentRowC(lane, i)][d] * right[warp][d][FragmentColumnC(lane, i)];
    }
  }
  emulator::Wait(emulator::State::kAtWarp, __LINE__);
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_EMULATOR_MEMORY_H_
