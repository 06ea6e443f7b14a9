// Reading rows by index on CUDA. What is written is taken for one run of units, the widest (up to 16 bytes) that rows
// and places are multiples of; each thread has a few of them on their way at a time. Rows of one element, as when
// every element has its own index, are units like others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/cuda.h"
#include "device/divide.h"
#include "ops/index/rows.h"

namespace ortops {

struct ReadTuning {
  static constexpr int kThreads = 256;
  static constexpr int kUnroll =
      4;  // units of a thread; 4 x 16 bytes x 2048 threads keep a multiprocessor's memory busy
};

// IndexedRows as device code walks them. Below 2^31 of what is counted (Wide is false), divisions are products.
template <bool kWide>
struct RowWalk {
  using Count = std::conditional_t<kWide, uint64_t, uint32_t>;
  struct WideDivisor {
    uint64_t divisor = 1;
    WideDivisor() = default;
    explicit WideDivisor(int64_t by) : divisor(by) {}
    __device__ __forceinline__ uint64_t quotient(uint64_t n) const { return n / divisor; }
  };
  using Divide = std::conditional_t<kWide, WideDivisor, Divisor>;

  Divide width;
  int rank;
  int64_t size, step;
  Divide sizes[kMaxRank];
  int64_t index_strides[kMaxRank], table_strides[kMaxRank];

  explicit RowWalk(const IndexedRows& rows) : width(rows.width), rank(rows.rank), size(rows.size), step(rows.step) {
    for (int i = 0; i < rank; ++i) {
      sizes[i] = Divide(rows.sizes[i]);
      index_strides[i] = rows.index_strides[i];
      table_strides[i] = rows.table_strides[i];
    }
  }

  // Where a row's index lies, and its place in the table for index 0.
  __device__ __forceinline__ void find(Count row, int64_t& index, int64_t& place) const {
    index = place = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      const Count rest = sizes[axis].quotient(row);
      const int64_t at = row - rest * Count(sizes[axis].divisor);
      index += at * index_strides[axis];
      place += at * table_strides[axis];
      row = rest;
    }
    if (rank > 0) {
      index += int64_t(row) * index_strides[0];
      place += int64_t(row) * table_strides[0];
    }
  }

  // The index from 0 on; -1 for one out of range.
  __device__ __forceinline__ int64_t inside(int64_t index, int64_t* report) const {
    if (index >= -size && index < size) return index < 0 ? index + size : index;
    if (report) {
      report[1] = index;
      report[0] = 1;
    }
    return -1;
  }
};

template <bool kWide, class Unit, class I>
__global__ void __launch_bounds__(ReadTuning::kThreads)
    read_units(const RowWalk<kWide> walk, const I* __restrict__ indices, const Unit* __restrict__ table,
               Unit* __restrict__ y, const typename RowWalk<kWide>::Count count, const Unit none, int64_t* report) {
  using Count = typename RowWalk<kWide>::Count;
  constexpr int kThreads = ReadTuning::kThreads, kUnroll = ReadTuning::kUnroll;
  const Count first = Count(blockIdx.x) * (kThreads * kUnroll) + threadIdx.x;
  int64_t at[kUnroll], place[kUnroll];
  I index[kUnroll];
  Unit values[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const Count unit = min(first + i * kThreads, count - 1);
    const Count row = walk.width.quotient(unit);
    walk.find(row, at[i], place[i]);
    place[i] += unit - row * Count(walk.width.divisor);
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) index[i] = __ldg(indices + at[i]);
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t axis = walk.inside(index[i], report);
    values[i] = axis < 0 ? none : __ldg(table + place[i] + axis * walk.step);
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * kThreads < count) y[first + i * kThreads] = values[i];
  }
}

template <class Unit, class I>
void read_rows_by(const IndexedRows& rows, const I* indices, const void* table, void* y, Unit none, int64_t* report,
                  Context& context) {
  const int64_t count = rows.count * rows.width;
  constexpr int kBlock = ReadTuning::kThreads * ReadTuning::kUnroll;
  const int blocks = narrow((count + kBlock - 1) / kBlock);
  const auto start = [&](auto wide) {
    using Walk = RowWalk<decltype(wide)::value>;
    launch(read_units<decltype(wide)::value, Unit, I>, blocks, ReadTuning::kThreads, 0, context, Walk(rows), indices,
           static_cast<const Unit*>(table), static_cast<Unit*>(y), static_cast<typename Walk::Count>(count), none,
           report);
  };
  if (count + kBlock < int64_t(1) << 31) {
    start(std::false_type());
  } else {
    start(std::true_type());
  }
}

// An index out of range gives all bits set: NaN, or -1. One byte, where that may be no value of the type, gives 0.
template <class I, class T>
void read_rows(const IndexedRows& rows, const I* indices, const T* table, T* y, Context& context) {
  const IndexReport report(context);
  uint64_t bits = (rows.width * sizeof(T)) | (rows.step * sizeof(T)) | reinterpret_cast<uintptr_t>(table) |
                  reinterpret_cast<uintptr_t>(y) | 16;
  for (int i = 0; i < rows.rank; ++i) bits |= rows.table_strides[i] * sizeof(T);
  const int64_t bytes = static_cast<int64_t>(bits & (~bits + 1));  // the largest power of two that divides them all
  const auto start = [&](auto unit) {
    std::memset(&unit, sizeof(T) == 1 ? 0 : 0xff, sizeof(unit));
    read_rows_by(rows.in_units(sizeof(unit) / sizeof(T)), indices, table, y, unit, report.device(), context);
  };
  if (bytes == 16) {
    start(uint4());
  } else if (bytes == 8) {
    start(uint64_t());
  } else if (bytes == 4) {
    if constexpr (sizeof(T) <= 4) start(uint32_t());
  } else if (bytes == 2) {
    if constexpr (sizeof(T) <= 2) start(uint16_t());
  } else {
    if constexpr (sizeof(T) == 1) start(uint8_t());
  }
  report.check("indices", rows.size);
}

}  // namespace ortops
