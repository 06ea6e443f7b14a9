// Updates by atomic operations in global memory, where each element has an index of its own and the axis is too long
// for tiles in shared memory. Sums are of float: in y itself, or for 16-bit types in scratch memory.
//
// All of y would not stay in the cache between its reading, its updates and its writing. So it is taken in slices that
// do: one launch combines the updates of a slice, writes the sums of the slice before as y, and starts the next slice's
// with x in the place that becomes free by that.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/cuda.h"
#include "device/divide.h"
#include "device/vector.cuh"
#include "ops/index/read.cuh"
#include "ops/scatter/combine.cuh"

namespace ortops {

struct SliceTuning {
  static constexpr int kThreads = 256;
  static constexpr int kUnroll = 4;                // vectors of a thread that are on their way at a time
  static constexpr int kVector = 4;                // updates; of neighbours that go to neighbours, one operation
  static constexpr int64_t kFloats = 6500 * 1024;  // of a slice, 27 MB; two of them are in use at a time
  static constexpr int64_t kDense = 2;      // elements of y an update, up to which slices are worth their launches
  static constexpr int kColumns = 32;       // that a slice is a multiple of: whole sectors of memory
  static constexpr int64_t kSparse = 64;    // elements of y an update, for which sums in scratch memory are worth it
  static constexpr int64_t kCrowd = 16384;  // updates of an element, above which sorting is faster than their queue
};

// Rows of a dense tensor, or parts of rows, `pitch` apart.
struct Rectangle {
  int64_t first, rows, columns, pitch;

  int64_t size() const { return rows * columns; }
};

// y is taken for [outer][size][inner], the updates for [outer][updates][inner].
class Slices {
 public:
  Slices(const Shape& y, const Shape& part, int64_t axis) : size_(y.size()), updates_(part.size()) {
    if (axis < 0) axis += y.rank;
    bool alike = true;
    int64_t outer = 1, inner = 1;
    for (int i = 0; i < y.rank; ++i) {
      alike = alike && (i == axis || y[i] == part[i]);
      if (i != axis) (i < axis ? outer : inner) *= y[i];
    }
    constexpr int64_t kFloats = SliceTuning::kFloats, kColumns = SliceTuning::kColumns;
    if (alike && size_ > kFloats && size_ / SliceTuning::kDense <= updates_) {
      outer_ = outer;
      inner_ = inner;
      size_ = y[static_cast<int>(axis)];
      updates_ = part[static_cast<int>(axis)];
    }
    const int64_t slab = size_ * inner_;
    outers_ = std::clamp<int64_t>(kFloats / slab, 1, outer_);
    columns_ = inner_;
    const int64_t columns = kFloats / size_ / kColumns * kColumns;
    if (slab > kFloats && columns > 0) columns_ = std::min(columns, inner_);
    pieces_ = (inner_ + columns_ - 1) / columns_;
  }

  int64_t count() const { return (outer_ + outers_ - 1) / outers_ * pieces_; }
  Rectangle of_y(int64_t slice) const { return part(slice, size_); }
  Rectangle of_updates(int64_t slice) const { return part(slice, updates_); }
  // Whether vectors of so many elements begin where slices, and their rows, do.
  bool y_by(int n) const { return (pieces_ > 1 ? inner_ : size_ * inner_) % n == 0; }
  bool updates_by(int n) const { return (pieces_ > 1 ? inner_ : updates_ * inner_) % n == 0; }
  // Scratch memory for the sums of two slices, of which every other one begins this far on.
  int64_t shift() const { return pieces_ > 1 ? columns_ : outers_ * size_ * inner_; }
  int64_t floats() const { return count() == 1 ? shift() : shift() + outers_ * size_ * inner_; }

 private:
  Rectangle part(int64_t slice, int64_t size) const {
    const int64_t outer = slice / pieces_ * outers_, column = slice % pieces_ * columns_;
    const int64_t outers = std::min(outers_, outer_ - outer), columns = std::min(columns_, inner_ - column);
    const int64_t first = outer * size * inner_ + column;
    if (pieces_ == 1) return {first, 1, outers * size * inner_, 0};
    return {first, size, columns, inner_};
  }

  int64_t outer_ = 1, size_, inner_ = 1, updates_;
  int64_t outers_, columns_, pieces_;
};

template <class T>
bool slices_fit(int64_t updates, int64_t total) {
  const bool sparse = sizeof(T) < sizeof(float) && total / SliceTuning::kSparse > updates;
  return !sparse && updates / total <= SliceTuning::kCrowd && updates < (int64_t(1) << 31) - 4096;
}

// The sums of a slice that are written, and the slice that is started in their place.
template <class T>
struct Turn {
  const T* x;  // null: zeros
  T* y;
  float* sums;
  int64_t done, next;                  // where they begin in y
  int64_t done_columns, next_columns;  // 0: none
  int64_t rows, columns, pitch;        // of a whole slice
  Divisor by_columns;                  // vectors of a row
  bool aligned;                        // all can be read by vectors
  int blocks;
  Divisor by_period;  // from one of the blocks to the next
};

template <class T>
struct SliceUpdates {
  const T* updates;
  uint32_t first, vectors, pitch;
  Divisor by_columns;  // vectors of a row
  float* sums;
  int64_t origin;  // the element of y whose sum comes first
  bool aligned;
};

template <int N, class Combine, class T>
__device__ __forceinline__ void turn_over(const Turn<T>& t, int block) {
  constexpr int kThreads = SliceTuning::kThreads, kUnroll = SliceTuning::kUnroll;
  constexpr bool kInPlace = sizeof(T) == sizeof(float);
  int64_t at[kUnroll];
  bool done[kUnroll], next[kUnroll];
  Vector<float, N> sums[kUnroll];
  Vector<T, N> x[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t vector = (int64_t(block) * kUnroll + i) * kThreads + threadIdx.x;
    const int64_t row = t.rows == 1 ? 0 : t.by_columns.quotient(static_cast<uint32_t>(vector));
    const int64_t column = vector * N - row * t.columns;
    at[i] = row * t.pitch + column;
    done[i] = row < t.rows && column < t.done_columns;
    next[i] = row < t.rows && column < t.next_columns;
    x[i] = load<N, Reuse::none>(t.x + t.next + at[i], next[i] && t.x != nullptr);
    if constexpr (!kInPlace) sums[i] = load<N>(t.sums + at[i], done[i]);
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if constexpr (!kInPlace) {
      if (done[i]) store(t.y + t.done + at[i], from_float<T>(sums[i]));
    }
    if (next[i]) store(t.sums + at[i], ordered<Combine>(to_float(x[i])));
  }
}

// Adds to four neighbours in one operation where the hardware has one.
__device__ __forceinline__ void add_four(float* at, const Vector<float, 4>& values) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) atomicAdd(at + i, values[i]);
#endif
}

template <int N, class Combine, class I, class T>
__device__ __forceinline__ void combine_updates(const SliceUpdates<T>& s, const RowWalk<false>& walk, const I* indices,
                                                int block, int64_t* report) {
  constexpr int kThreads = SliceTuning::kThreads, kUnroll = SliceTuning::kUnroll;
  const int64_t step = N > 1 ? walk.table_strides[walk.rank - 1] : 0;  // from one update of a vector to the next
  int64_t place[kUnroll];
  bool inside[kUnroll];
  Vector<I, N> index[kUnroll];
  Vector<T, N> update[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    uint32_t vector = (block * kUnroll + i) * kThreads + threadIdx.x;
    inside[i] = vector < s.vectors;
    vector = inside[i] ? vector : 0;
    const uint32_t line = s.by_columns.quotient(vector);
    const uint32_t element = s.first + line * s.pitch + (vector - line * s.by_columns.divisor) * N;
    const uint32_t row = walk.width.quotient(element);
    int64_t at;
    walk.find(row, at, place[i]);
    place[i] += element - row * walk.width.divisor - s.origin;
    if constexpr (sizeof(Vector<I, N>) > 16) {  // the halves of what is more than one load
#pragma unroll
      for (int j = 0; j < N; j += 2) {
        const Vector<I, 2> two = load<2, Reuse::none>(indices + at + j, inside[i]);
        index[i][j] = two[0];
        index[i][j + 1] = two[1];
      }
    } else {
      index[i] = load<N, Reuse::none>(indices + at, inside[i]);
    }
    update[i] = load<N, Reuse::none>(s.updates + element, inside[i]);
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (!inside[i]) continue;
    if constexpr (N == 4 && Combine::kReduction == Reduction::add) {
      const Vector<I, N>& four = index[i];
      if (step == 1 && four[0] == four[1] && four[0] == four[2] && four[0] == four[3]) {
        const int64_t axis = walk.inside(four[0], report);
        float* to = s.sums + place[i] + axis * walk.step;
        if (axis < 0) continue;
        if (reinterpret_cast<uintptr_t>(to) % 16 == 0) {
          add_four(to, to_float(update[i]));
          continue;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int64_t axis = walk.inside(index[i][j], report);
      if (axis < 0) continue;
      combine_atomically<Combine>(s.sums + place[i] + j * step + axis * walk.step, to_float(update[i][j]));
    }
  }
}

template <class Combine, class I, class T>
__global__ void __launch_bounds__(SliceTuning::kThreads)
    scatter_slice(const Turn<T> turn, const SliceUpdates<T> s, const RowWalk<false> walk, const I* indices,
                  int64_t* report) {
  // Both kinds of blocks are spread evenly: one waits for atomic operations, the other for memory.
  const int group = turn.by_period.quotient(blockIdx.x);
  if (group < turn.blocks && blockIdx.x == group * turn.by_period.divisor) {
    if (turn.aligned) {
      turn_over<kWidth<T>, Combine>(turn, group);
    } else {
      turn_over<1, Combine>(turn, group);
    }
    return;
  }
  const int block = static_cast<int>(blockIdx.x) - min(turn.blocks, group + 1);
  if (s.aligned) {
    combine_updates<SliceTuning::kVector, Combine>(s, walk, indices, block, report);
  } else {
    combine_updates<1, Combine>(s, walk, indices, block, report);
  }
}

// Whether updates can be read by vectors, with an index for each in one piece as well.
template <class I, class T>
bool are_vectors(const Slices& slices, const IndexedRows& rows, const I* indices, const T* updates) {
  constexpr int N = SliceTuning::kVector;
  const int last = rows.rank - 1;
  if (rows.width > 1 || last < 0 || rows.index_strides[last] != 1) return false;
  bool aligned = slices.updates_by(N) && rows.sizes[last] % N == 0 && is_aligned<N>(N, {updates}) &&
                 reinterpret_cast<uintptr_t>(indices) % 16 == 0;
  for (int axis = 0; axis < last; ++axis) aligned = aligned && rows.index_strides[axis] % N == 0;
  return aligned;
}

template <class Combine, class I, class T>
void run_slices(const Slices& slices, const IndexedRows& rows, const I* indices, const T* updates, const T* x, T* y,
                int64_t* report, Context& context) {
  using Tuning = SliceTuning;
  constexpr bool kInPlace = std::is_same_v<T, float>;
  const int64_t count = slices.count();
  float* sums;
  if constexpr (kInPlace) {
    sums = y;
  } else {
    sums = static_cast<float*>(context.scratch(slices.floats() * sizeof(float)));
  }
  const auto blocks_for = [](int64_t vectors) {
    constexpr int kBlock = Tuning::kThreads * Tuning::kUnroll;
    return narrow((vectors + kBlock - 1) / kBlock);
  };
  const Rectangle whole = slices.of_y(0);
  const bool by_vectors = slices.y_by(kWidth<T>) && is_aligned<kWidth<T>>(kWidth<T>, {x, static_cast<const T*>(y)});
  const int n = by_vectors ? kWidth<T> : 1;
  const int many = are_vectors(slices, rows, indices, updates) ? Tuning::kVector : 1;
  // In launch i, slice i is started, the updates of slice i - 1 are combined, and slice i - 2 is written.
  for (int64_t i = 0; i < count + (kInPlace ? 1 : 2); ++i) {
    Turn<T> turn = {x, y, sums, 0, 0, 0, 0, whole.rows, whole.columns, whole.pitch, {}, by_vectors, 0, {}};
    if (i < count) {
      const Rectangle next = slices.of_y(i);
      turn.next = next.first;
      turn.next_columns = next.columns;
    }
    if (i >= 2 && !kInPlace) {
      const Rectangle done = slices.of_y(i - 2);
      turn.done = done.first;
      turn.done_columns = done.columns;
    }
    turn.sums += kInPlace ? turn.next : i % 2 * slices.shift();
    if (whole.rows > 1) turn.by_columns = Divisor(whole.columns / n);
    if (turn.next_columns + turn.done_columns > 0) turn.blocks = blocks_for((whole.size() + n - 1) / n);

    SliceUpdates<T> s = {};
    if (i >= 1 && i <= count) {
      const Rectangle part = slices.of_updates(i - 1);
      s.updates = updates;
      s.first = static_cast<uint32_t>(part.first);
      s.vectors = static_cast<uint32_t>(part.size() / many);
      s.pitch = static_cast<uint32_t>(part.pitch);
      s.by_columns = Divisor(part.columns / many);
      s.sums = sums;
      s.origin = kInPlace ? 0 : slices.of_y(i - 1).first - (i - 1) % 2 * slices.shift();
      s.aligned = many > 1;
    }
    const int blocks = turn.blocks + blocks_for(s.vectors);
    if (blocks == 0) continue;
    if (turn.blocks > 0) turn.by_period = Divisor(blocks / turn.blocks);
    launch(scatter_slice<Combine, I, T>, blocks, Tuning::kThreads, 0, context, turn, s, RowWalk<false>(rows), indices,
           report);
  }
}

}  // namespace ortops
