#include <cub/device/device_radix_sort.cuh>

#include "core/cuda.h"
#include "ops/topk/sort.h"

namespace ortops {
namespace {

template <class Key>
void sort(SortBuffers<Key>& buffers, int64_t count, int bits, Context& context) {
  cub::DoubleBuffer<Key> keys(buffers.keys, buffers.other_keys);
  cub::DoubleBuffer<uint32_t> values(buffers.values, buffers.other_values);
  size_t bytes = 0;
  ORTOPS_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, values, count, 0, bits, stream_of(context)));
  void* scratch = context.scratch(bytes);
  ORTOPS_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, values, count, 0, bits, stream_of(context)));
  buffers = {keys.Current(), keys.Alternate(), values.Current(), values.Alternate()};
}

}  // namespace

void sort_pairs(SortBuffers<uint32_t>& buffers, int64_t count, int bits, Context& context) {
  sort(buffers, count, bits, context);
}
void sort_pairs(SortBuffers<uint64_t>& buffers, int64_t count, int bits, Context& context) {
  sort(buffers, count, bits, context);
}

}  // namespace ortops
