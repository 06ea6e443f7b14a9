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

// Every thread of the warp takes part.
template <class T, class Combine = ::cuda::std::plus<>>
__device__ __forceinline__ T warp_reduce(T value, Combine combine = {}) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = combine(value, shuffle_xor(value, mask));
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
  T result = partials[0];
#pragma unroll 4
  for (int warp = 1; warp < warps; ++warp) result = combine(result, partials[warp]);
  return result;
}

}  // namespace ortops
