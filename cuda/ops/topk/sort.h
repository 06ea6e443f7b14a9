// Stable sorting of the whole, where k is beyond selection. By CUB, compiled apart for its size.
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

}  // namespace ortops
