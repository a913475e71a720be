// A chunk of filter on its way from memory to the transform. Its stored rows are short, and lie at strides
// that are mostly powers of two: fetched into the cache they would evict each other before they are needed,
// and the hardware does not foresee them. So they are copied, line by line, while the chunk before is
// multiplied.
#ifndef OVERLAP_TRAIN_CONV_FILTER_STAGE_H_
#define OVERLAP_TRAIN_CONV_FILTER_STAGE_H_

#include "winograd_filters.h"

namespace overlap_train::conv::OT_ISA {

// A block's job (blocks.h): copies a line at each step, out of rows of 2^shift lines each, into consecutive
// memory, and fetches the line that it will copy kAhead steps later.
struct CopyLines {
  // So many lines fit into the few sets of L1 that rows at strides of 4 KiB share; 24 steps take 600 cycles.
  static constexpr Index kAhead = 24;

  const char* const* rows;  // as many more as kAhead lines are in
  char* to;
  Index next, count;  // lines
  int shift;

  const char* Line(Index i) const { return rows[i >> shift] + (i & ((Index(1) << shift) - 1)) * kLineBytes; }
  OT_INLINE void Step() {
    if (next >= count) return;
    __builtin_prefetch(Line(next + kAhead), 0, 3);
    const char* const from = Line(next);
#pragma GCC unroll 4
    for (int i = 0; i < kLineBytes; i += kVectorBytes) Store(to + i, Load(from + i));
    to += kLineBytes;
    ++next;
  }
};

// One worker's place for staged chunks of at most `inputs` × `outputs` channels.
template <class T>
class FilterStage {
 public:
  // Elements of T that a stage needs.
  static Index Size(Index inputs, Index outputs) { return 9 * inputs * outputs + TableSize(inputs, outputs); }

  FilterStage(const FilterView<T>& filter, Index inputs, Index outputs, T* memory)
      : filter_(filter),
        data_(memory),
        rows_(reinterpret_cast<const char**>(memory + 9 * inputs * outputs)) {}

  // Returns the job that stages a chunk; FinishStaging() does what is then left of it.
  CopyLines Stage(Index c0, Index cn, Index k0, Index kn) {
    const auto stored = FilterChunk<T>::Stored(filter_, c0, k0);
    const Index rows = filter_.turned ? kn : cn;
    columns_ = filter_.turned ? cn : kn;
    staged_ = {data_, columns_, rows * columns_, filter_.turned};
    const char** row = rows_;
    for (int tap = 0; tap < 9; ++tap) {
      for (Index r = 0; r < rows; ++r) {
        *row++ = reinterpret_cast<const char*>(stored.data + tap * stored.tap + r * stored.row);
      }
    }
    row_count_ = row - rows_;
    for (Index i = 0; i < CopyLines::kAhead; ++i) *row++ = rows_[row_count_ - 1];
    const Index bytes = columns_ * static_cast<Index>(sizeof(T));
    int shift = 0;
    while ((Index(kLineBytes) << shift) < bytes) ++shift;
    const bool whole_lines = (Index(kLineBytes) << shift) == bytes;
    return {rows_, reinterpret_cast<char*>(data_), 0, whole_lines ? row_count_ << shift : 0, shift};
  }

  void FinishStaging(CopyLines job) {
    if (job.count > 0) {
      while (job.next < job.count) job.Step();
      return;
    }
    for (Index r = 0; r < row_count_; ++r) {
      const T* const from = reinterpret_cast<const T*>(rows_[r]);
      for (Index i = 0; i < columns_; ++i) data_[r * columns_ + i] = from[i];
    }
  }

  const FilterChunk<T>& staged() const { return staged_; }

 private:
  static Index TableSize(Index inputs, Index outputs) {
    const Index pointers = 9 * Max(inputs, outputs) + CopyLines::kAhead;
    return CeilDiv(pointers * static_cast<Index>(sizeof(char*)), kLineBytes) * kLineBytes /
           static_cast<Index>(sizeof(T));
  }

  const FilterView<T> filter_;
  T* const data_;
  const char** const rows_;
  Index row_count_ = 0, columns_ = 0;
  FilterChunk<T> staged_{};
};

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_FILTER_STAGE_H_
