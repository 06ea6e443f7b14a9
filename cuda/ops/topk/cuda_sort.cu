#include <algorithm>
#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>

#include "core/cuda.h"
#include "ops/topk/order.h"
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

constexpr int kSortThreads = 512;

// kItems a thread. The sort is stable, so that of equal keys the lower index comes first.
template <class T, int kItems>
__global__ void __launch_bounds__(kSortThreads) sort_rows_kernel(const ShortRows<T> p) {
  using Sort = cub::BlockRadixSort<uint32_t, kSortThreads, kItems, uint16_t>;
  constexpr int kBits = 15;  // of an index, all ones being none
  extern __shared__ uint4 memory[];
  Sort sort(*reinterpret_cast<typename Sort::TempStorage*>(memory));
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* x = p.x + row * p.n;
    uint32_t keys[kItems];
    uint16_t indices[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int index = static_cast<int>(threadIdx.x) * kItems + i;
      indices[i] = static_cast<uint16_t>(index);
      keys[i] = index < p.n ? ~key_of(compared(oriented(x[index], p.largest)), p.largest) : ~0u;
    }
    sort.SortBlockedToStriped(keys, indices, kLowestKeyBit<T>, 32);
    if (!p.sorted) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        keys[i] = i * kSortThreads + static_cast<int>(threadIdx.x) < p.k ? indices[i] : (1u << kBits) - 1;
      }
      sort.SortBlockedToStriped(keys, indices, 0, kBits);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int place = i * kSortThreads + static_cast<int>(threadIdx.x);
      if (place >= p.k) continue;
      const int index = p.sorted ? indices[i] : static_cast<int>(keys[i]);
      p.values[row * p.k + place] = x[index];
      p.indices[row * p.k + place] = index;
    }
    __syncthreads();
  }
}

template <class T, int kItems>
void start(const ShortRows<T>& p, Context& context) {
  using Sort = cub::BlockRadixSort<uint32_t, kSortThreads, kItems, uint16_t>;
  launch(sort_rows_kernel<T, kItems>, static_cast<unsigned>(std::min<int64_t>(p.rows, 1 << 30)), kSortThreads,
         sizeof(typename Sort::TempStorage), context, p);
}

}  // namespace

template <class T>
void sort_rows(const ShortRows<T>& p, Context& context) {
  if (p.n <= kSortThreads * 16) {
    start<T, 16>(p, context);
  } else {
    start<T, 32>(p, context);
  }
}
template void sort_rows(const ShortRows<float>& p, Context& context);
template void sort_rows(const ShortRows<float16>& p, Context& context);
template void sort_rows(const ShortRows<bfloat16>& p, Context& context);
template void sort_rows(const ShortRows<int32_t>& p, Context& context);
template void sort_rows(const ShortRows<int8_t>& p, Context& context);
template void sort_rows(const ShortRows<uint8_t>& p, Context& context);

void sort_pairs(SortBuffers<uint32_t>& buffers, int64_t count, int bits, Context& context) {
  sort(buffers, count, bits, context);
}
void sort_pairs(SortBuffers<uint64_t>& buffers, int64_t count, int bits, Context& context) {
  sort(buffers, count, bits, context);
}

}  // namespace ortops
