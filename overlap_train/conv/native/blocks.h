// The register blocks: C[rows × vectors] = sum over depth of A[row, depth] * B[depth, vectors]. Everything
// that is expensive in this package happens in these two loops.
#ifndef OVERLAP_TRAIN_CONV_BLOCKS_H_
#define OVERLAP_TRAIN_CONV_BLOCKS_H_

#include "simd.h"

namespace overlap_train::conv::OT_ISA {

// One row of a block. Its vectors are named, not an array: g++ 12 keeps arrays of accumulators in memory.
template <class T, int kVectors>
struct Row {
  Vec<T> v0{}, v1{}, v2{}, v3{};

  static OT_INLINE Row At(const T* p) {
    Row r;
    r.v0 = Load(p);
    if constexpr (kVectors > 1) r.v1 = Load(p + kLanes<T>);
    if constexpr (kVectors > 2) r.v2 = Load(p + 2 * kLanes<T>);
    if constexpr (kVectors > 3) r.v3 = Load(p + 3 * kLanes<T>);
    return r;
  }
  OT_INLINE void AddProduct(T a, const Row& b) {
    const Vec<T> s = a - Vec<T>{};
    v0 += s * b.v0;
    if constexpr (kVectors > 1) v1 += s * b.v1;
    if constexpr (kVectors > 2) v2 += s * b.v2;
    if constexpr (kVectors > 3) v3 += s * b.v3;
  }
  template <class Sink>
  OT_INLINE void Send(const Sink& sink, int row) const {
    sink.Put(row, 0, v0);
    if constexpr (kVectors > 1) sink.Put(row, 1, v1);
    if constexpr (kVectors > 2) sink.Put(row, 2, v2);
    if constexpr (kVectors > 3) sink.Put(row, 3, v3);
  }
};

// Where a block's operands lie. The depth is `segments` runs of `depth` steps each.
template <class T>
struct Operands {
  const T* a;
  Index a_row;  // from one row of A to the next (inner blocks), or from one depth to the next (outer blocks)
  const T* b;
  Index b_depth;  // from one depth of B to the next; outer blocks only, inner ones read B packed
  Index depth;
  Index segments;
  Index a_segment;  // from one run of A to the next
  Index b_segment;  // likewise of B; outer blocks only
};

// What a block does beside its products: Step() at each step of the depth, in the shade of the sums. A job is
// carried on from block to block.
struct NoJob {
  OT_INLINE void Step() {}
};

// Fetches what the next blocks will read, kLines cache lines at a step: panels come from L3 or from memory,
// in an order that the hardware does not foresee.
template <int kLines>
struct FetchLines {
  const char* next;
  OT_INLINE void Step() {
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line) __builtin_prefetch(next + line * kLineBytes, 0, 3);
    next += kLines * kLineBytes;
  }
};

// kOuter false: A[row, depth] = a[row * a_row + depth], and B is packed: kVectors * kLanes values for each
// depth. kOuter true:  A[row, depth] = a[depth * a_row + row], and B[depth] = b + depth * b_depth.
template <class T, bool kOuter, int kRows, int kVectors, class Sink, class Job>
OT_NOINLINE void Block(const Operands<T>& in, const Sink& sink, Job& carried) {
  using R = Row<T, kVectors>;
  R c0, c1, c2, c3, c4, c5;
  const T* b = in.b;
  Job job = carried;  // in registers: the loop's stores might otherwise change it
  const Index row = kOuter ? 1 : in.a_row;
  for (Index segment = 0; segment < in.segments; ++segment) {
    const T* a = in.a + segment * in.a_segment;
    const T* a3 = a + 3 * row;
    if constexpr (kOuter) b = in.b + segment * in.b_segment;
#pragma GCC unroll 4
    for (Index k = 0; k < in.depth; ++k) {
      const R bk = R::At(b);
      c0.AddProduct(a[0], bk);
      if constexpr (kRows > 1) c1.AddProduct(a[row], bk);
      if constexpr (kRows > 2) c2.AddProduct(a[2 * row], bk);
      if constexpr (kRows > 3) c3.AddProduct(a3[0], bk);
      if constexpr (kRows > 4) c4.AddProduct(a3[row], bk);
      if constexpr (kRows > 5) c5.AddProduct(a3[2 * row], bk);
      job.Step();
      a += kOuter ? in.a_row : 1;
      a3 += kOuter ? in.a_row : 1;
      b += kOuter ? in.b_depth : kVectors * kLanes<T>;
    }
  }
  carried = job;
  c0.Send(sink, 0);
  if constexpr (kRows > 1) c1.Send(sink, 1);
  if constexpr (kRows > 2) c2.Send(sink, 2);
  if constexpr (kRows > 3) c3.Send(sink, 3);
  if constexpr (kRows > 4) c4.Send(sink, 4);
  if constexpr (kRows > 5) c5.Send(sink, 5);
}

template <class T, bool kOuter, int kVectors, class Sink, class Job>
OT_INLINE void BlockOfRows(int rows, const Operands<T>& in, const Sink& sink, Job& job) {
  switch (rows) {
    case 1:
      return Block<T, kOuter, 1, kVectors>(in, sink, job);
    case 2:
      return Block<T, kOuter, 2, kVectors>(in, sink, job);
    case 3:
      return Block<T, kOuter, 3, kVectors>(in, sink, job);
    case 4:
      return Block<T, kOuter, 4, kVectors>(in, sink, job);
    case 5:
      return Block<T, kOuter, 5, kVectors>(in, sink, job);
    default:
      return Block<T, kOuter, 6, kVectors>(in, sink, job);
  }
}

// rows in [1, kBlockRows], vectors in [1, kBlockVectors].
template <bool kOuter, class T, class Sink, class Job>
OT_INLINE void RunBlock(int rows, int vectors, const Operands<T>& in, const Sink& sink, Job& job) {
  if constexpr (kBlockVectors > 2) {
    if (vectors == 4) return BlockOfRows<T, kOuter, 4>(rows, in, sink, job);
    if (vectors == 3) return BlockOfRows<T, kOuter, 3>(rows, in, sink, job);
  }
  if (vectors == 2) return BlockOfRows<T, kOuter, 2>(rows, in, sink, job);
  return BlockOfRows<T, kOuter, 1>(rows, in, sink, job);
}

template <bool kOuter, class T, class Sink>
OT_INLINE void RunBlock(int rows, int vectors, const Operands<T>& in, const Sink& sink) {
  NoJob none;
  RunBlock<kOuter>(rows, vectors, in, sink, none);
}

// Stores a block, or adds it to what is there. Adding whole blocks, rather than going on from the stored sum,
// keeps the rounding error of long sums that of two short ones.
template <class T, bool kAdd>
struct StoreSink {
  T* c;
  Index c_row;
  OT_INLINE void Put(int row, int vector, Vec<T> v) const {
    T* p = c + row * c_row + vector * kLanes<T>;
    if constexpr (kAdd) v += Load(p);
    Store(p, v);
  }
};

// Equal shares of `count` rows, none larger than kBlockRows: 8 rows run as 4 + 4, not 6 + 2.
struct RowSplit {
  Index count, blocks;
  explicit constexpr RowSplit(Index n) : count(n), blocks(CeilDiv(n, kBlockRows)) {}
  constexpr Index begin(Index block) const { return count * block / blocks; }
};

}  // namespace overlap_train::conv::OT_ISA

#endif  // OVERLAP_TRAIN_CONV_BLOCKS_H_
