// Stable sorting, where k is beyond selection. By CUB, compiled apart for its size.
#pragma once

#include <cstdint>

#include "core/op.h"

namespace ortops {

// Two buffers of keys and two of values, of which the first of each holds the input, and after sort_pairs the output.
template <class Key>
struct SortBuffers {
  Key *keys, *other_keys;
  uint32_t *values, *other_values;
};

// Sorts by the lowest `bits` of the keys, the smallest first.
void sort_pairs(SortBuffers<uint32_t>& buffers, int64_t count, int bits, Context& context);
void sort_pairs(SortBuffers<uint64_t>& buffers, int64_t count, int bits, Context& context);

// Dense rows, each of which a block sorts in its shared memory.
template <class T>
struct ShortRows {
  static constexpr int kMost = 16384;  // elements of one

  const T* x;
  T* values;
  int64_t* indices;
  int64_t rows;
  int n, k;
  bool largest, sorted;
};

template <class T>
void sort_rows(const ShortRows<T>& p, Context& context);

}  // namespace ortops
