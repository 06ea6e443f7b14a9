// Reductions over a warp or a block that leave the result with every thread (CUB leaves it with the first), in an order
// that depends on nothing but the number of threads: the same input gives the same bits.
#pragma once

#include <cuda/std/functional>

namespace ortops {

constexpr int kWarp = 32;

struct Max {
  // As numpy and IEEE 754's maximum: a NaN wins.
  __device__ __forceinline__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

struct Min {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

// Two sums in one go.
struct Pair {
  float first, second;

  __device__ __forceinline__ friend Pair operator+(Pair a, Pair b) { return {a.first + b.first, a.second + b.second}; }
};

template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <>
__device__ __forceinline__ Pair shuffle_xor(Pair value, int mask) {
  return {shuffle_xor(value.first, mask), shuffle_xor(value.second, mask)};
}

// Every thread of the warp takes part, over each kLanes neighbours.
template <int kLanes = kWarp, class T, class Combine = ::cuda::std::plus<>>
__device__ __forceinline__ T warp_reduce(T value, Combine combine = {}) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) value = combine(value, shuffle_xor(value, mask));
  return value;
}

// Every thread of a block of whole warps takes part. `partials` is shared memory, in which the results of an earlier
// reduction may still be being read until the next barrier: two reductions in a row take two of them.
template <class T, class Combine = ::cuda::std::plus<>>
__device__ __forceinline__ T block_reduce(T value, T (&partials)[kWarp], Combine combine = {}) {
  value = warp_reduce(value, combine);
  if (blockDim.x == kWarp) return value;
  if (threadIdx.x % kWarp == 0) partials[threadIdx.x / kWarp] = value;
  __syncthreads();
  const int warps = blockDim.x / kWarp;
  T result;
  for (int first = 0; first < warps; first += 4) {  // four at a time, of which the last may have been written by none
    T four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = partials[first + i];
    result = first == 0 ? four[0] : combine(result, four[0]);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      if (first + i < warps) result = combine(result, four[i]);
    }
  }
  return result;
}

}  // namespace ortops
