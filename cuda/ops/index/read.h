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
    const auto read = [&](auto copy) {
      for_each_row(rows, begin, end, [&](int64_t row, int64_t at, int64_t place) {
        const int64_t index = indices[at];
        if (index < -rows.size || index >= rows.size) throw_index_error("indices", index, rows.size);
        copy(y + row * rows.width, table + place + (index < 0 ? index + rows.size : index) * rows.step);
      });
    };
    if (rows.width == 1) {
      read([](T* to, const T* from) { *to = *from; });
    } else if (rows.width * sizeof(T) < kCopy) {
      read([&](T* to, const T* from) { std::copy_n(from, rows.width, to); });
    } else {
      read([&](T* to, const T* from) { std::memcpy(to, from, rows.width * sizeof(T)); });
    }
  });
}

}  // namespace ortops
