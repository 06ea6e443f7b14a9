// Reading rows by index on the CPU.
#pragma once

#include <algorithm>
#include <cstring>

#include "ops/index/rows.h"

namespace ortops {

constexpr int64_t kReadGrain = 16384;  // elements worth a thread's while
// Bytes that are copied by a call of memcpy; fewer are elements in a loop.
constexpr size_t kCopy = 32;

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
