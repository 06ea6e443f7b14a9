// Reading rows by index on the CPU.
#pragma once

#include <algorithm>
#include <cstring>

#include "device/arrays.h"
#include "ops/index/rows.h"

namespace ortops {

constexpr int64_t kReadGrain = 16384;  // elements worth a thread's while
// Bytes that are copied by a call of memcpy; fewer are elements in a loop.
constexpr size_t kCopy = 32;
constexpr int64_t kIndices = 256;  // that are looked at before they are followed
constexpr int64_t kFew = 16;       // for which that is not worth a call

// Calls f(row, place) for the rows begin..end with the place that each row's index gives.
template <class I, class F>
void for_each_place(const IndexedRows& rows, const I* indices, int64_t begin, int64_t end, F&& f) {
  const int64_t index_stride = rows.rank > 0 ? rows.index_strides[rows.rank - 1] : 0;
  const int64_t table_stride = rows.rank > 0 ? rows.table_strides[rows.rank - 1] : 0;
  const int64_t size = rows.size, step = rows.step;
  for_each_run(rows, begin, end, [&](int64_t row, int64_t count, int64_t first, int64_t place) {
    int64_t i = 0;
    if (index_stride == 1 && count >= kFew) {
      int64_t from_0[kIndices];
      for (int64_t n; i < count; i += n) {
        n = std::min(kIndices, count - i);
        if (!wrap(indices + first + i, from_0, n, size)) break;  // the loop below finds which
        if (step == 1) {
          for (int64_t j = 0; j < n; ++j) f(row + i + j, place + (i + j) * table_stride + from_0[j]);
        } else {
          for (int64_t j = 0; j < n; ++j) f(row + i + j, place + (i + j) * table_stride + from_0[j] * step);
        }
      }
    }
    for (; i < count; ++i) {
      const int64_t given = indices[first + i * index_stride];
      const int64_t index = given < 0 ? given + size : given;
      if (static_cast<uint64_t>(index) >= static_cast<uint64_t>(size)) throw_index_error("indices", given, size);
      f(row + i, place + i * table_stride + index * step);
    }
  });
}

template <class I, class T>
void read_rows(const IndexedRows& rows, const I* indices, const T* table, T* y, Context& context) {
  context.parallel_for(rows.count, std::max<int64_t>(1, kReadGrain / rows.width), [&](int64_t begin, int64_t end) {
    const int64_t width = rows.width;
    if (width == 1) {
      for_each_place(rows, indices, begin, end, [=](int64_t row, int64_t place) { y[row] = table[place]; });
    } else if (width * sizeof(T) < kCopy) {
      for_each_place(rows, indices, begin, end, [=](int64_t row, int64_t place) {
        for (int64_t i = 0; i < width; ++i) y[row * width + i] = table[place + i];
      });
    } else {
      for_each_place(rows, indices, begin, end, [=](int64_t row, int64_t place) {
        std::memcpy(y + row * width, table + place, width * sizeof(T));
      });
    }
  });
}

}  // namespace ortops
