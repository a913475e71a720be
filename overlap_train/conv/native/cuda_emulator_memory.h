// Shared memory under the emulator: elements that know who has touched them, parts that know where they end,
// asynchronous copies, and the tensor cores' product. See cuda_emulator.h.
#ifndef OVERLAP_TRAIN_CONV_CUDA_EMULATOR_MEMORY_H_
#define OVERLAP_TRAIN_CONV_CUDA_EMULATOR_MEMORY_H_

#include <utility>

#include "cuda_emulator.h"

namespace overlap_train::conv::emulator {

// An element of shared memory, and who has touched it since the last barrier.
template <class T>
class SharedValue {
 public:
  SharedValue& operator=(const T& value) {
    Touch(true);
    Put(value);
    return *this;
  }
  SharedValue& operator=(const SharedValue& other) { return *this = static_cast<T>(other); }
  operator T() const {
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
    auto* const self = static_cast<SharedValue*>(element);
    self->in_flight_ = false;
    self->Touch(true);
    self->Put(value);
  }

 private:
  static constexpr int kNobody = -1, kSeveral = -2;

  void Put(const T& value) {
    value_ = value;
    written_ = true;
  }
  void Touch(bool writes) const {
    if (block_ != block) {  // what another block left in it is undefined
      block_ = block;
      written_ = in_flight_ = false;
      std::memset(static_cast<void*>(&value_), 0xff, sizeof value_);  // of a float, NaN
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

  mutable T value_ = {};
  mutable unsigned block_ = 0, interval_ = 0;
  mutable int writer_ = kNobody, reader_ = kNobody;
  mutable bool written_ = false, in_flight_ = false;
};

using SharedFloat = SharedValue<float>;

inline std::vector<SharedFloat>& DynamicMemory() {
  static std::vector<SharedFloat> memory;
  return memory;
}

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
  // Element i begins `count` that are read or written at once.
  void MustBeAligned(Index i, int count) const {
    if ((begin_ - DynamicMemory().data() + i) % count != 0) Report(Fault::kMisaligned, "shared memory");
  }

 private:
  SharedFloat* begin_;
  Index count_;
};

// All dynamic shared memory of the kernel that runs.
inline SharedPointer DynamicShared() {
  auto& memory = DynamicMemory();
  if (memory.size() < dynamic_floats) memory.resize(dynamic_floats);
  return {memory.data(), static_cast<Index>(dynamic_floats)};
}

}  // namespace overlap_train::conv::emulator

#define OT_DYNAMIC_SHARED(name) const auto name = ::overlap_train::conv::emulator::DynamicShared()
#define OT_WITHIN(i, n, otherwise) \
  if (!::overlap_train::conv::emulator::Within(i, n)) return otherwise

namespace overlap_train::conv {

using emulator::SharedPointer;
using emulator::SharedValue;

inline SharedPointer SharedPart(const SharedPointer& whole, Index from, Index count) {
  return whole.Part(from, count);
}

template <int kCount>
void CopyAsync(const SharedPointer& shared, int i, const float* source, Index at, bool inside) {
  using emulator::SharedFloat;
  shared.MustBeAligned(i, kCount);
  emulator::MustBeAligned(source + (inside ? at : 0), kCount * sizeof(float));
  for (int n = 0; n < kCount; ++n) {
    SharedFloat& to = shared[i + n];
    to.Begin();
    emulator::fibers[threadIdx.x].queued.push_back(
        {SharedFloat::Finish, &to, inside ? source[at + n] : 0.0f});
  }
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

template <int kCount>
void ReadTogether(const SharedPointer& shared, int i, float* values) {
  shared.MustBeAligned(i, kCount);
  for (int n = 0; n < kCount; ++n) values[n] = shared[i + n];
}

template <class RowAt>
void ReadMatrices(const SharedPointer& shared, const RowAt& row_at, float (&values)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  shared.MustBeAligned(row_at(lane), 4);
  for (int m = 0; m < 4; ++m) values[m] = shared[row_at(8 * m + lane / 4) + lane % 4];
}

inline float ToTf32(float value) { return RoundTf32(value); }

// The tensor cores' product: the lanes of a warp put their fragments together, and each takes its own of the
// result.
inline void MultiplyTf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  static float left[32][16][8], right[32][8][8];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int i = 0; i < 4; ++i) left[warp][FragmentRowA(lane, i)][FragmentDepthA(lane, i)] = CutTf32(a[i]);
  for (int i = 0; i < 2; ++i) right[warp][FragmentDepthB(lane, i)][FragmentColumnB(lane)] = CutTf32(b[i]);
  emulator::Wait(emulator::State::kAtWarp, __LINE__);
  for (int i = 0; i < 4; ++i) {
    for (int d = 0; d < 8; ++d) {
      c[i] += left[warp][FragmentRowC(lane, i)][d] * right[warp][d][FragmentColumnC(lane, i)];
    }
  }
  emulator::Wait(emulator::State::kAtWarp, __LINE__);
}

template <int kCount>
void StoreTogether(float* to, const float (&values)[kCount]) {
  emulator::MustBeAligned(to, kCount * sizeof(float));
  for (int n = 0; n < kCount; ++n) to[n] = values[n];
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_CUDA_EMULATOR_MEMORY_H_
