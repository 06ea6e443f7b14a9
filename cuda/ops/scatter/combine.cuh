// How updates are combined on CUDA, in float.
#pragma once

#include <cmath>
#include <type_traits>

#include "device/vector.cuh"
#include "ops/scatter/reduction.h"

namespace ortops {

template <Reduction reduction>
struct Combine {
  static constexpr Reduction kReduction = reduction;
  static constexpr float kIdentity = reduction == Reduction::add   ? 0.f
                                     : reduction == Reduction::mul ? 1.f
                                     : reduction == Reduction::min ? INFINITY
                                                                   : -INFINITY;
  __device__ __forceinline__ float operator()(float a, float b) const {
    if constexpr (reduction == Reduction::add) return a + b;
    if constexpr (reduction == Reduction::mul) return a * b;
    if constexpr (reduction == Reduction::min) return a < b || a != a ? a : b;
    return a > b || a != a ? a : b;
  }
};

// Calls f(Combine<reduction>()).
template <class F>
void with_reduction(Reduction reduction, F&& f) {
  switch (reduction) {
    case Reduction::add:
      return f(Combine<Reduction::add>());
    case Reduction::mul:
      return f(Combine<Reduction::mul>());
    case Reduction::min:
      return f(Combine<Reduction::min>());
    case Reduction::max:
      return f(Combine<Reduction::max>());
  }
}

// Extremes of floats by atomic operations on integers: as signed integers, floats that are not negative are in order,
// and as unsigned ones negative floats are in reverse. A NaN wins if it has the sign with which it is the extreme of
// both orders; so all values, those that are there before too, pass through here.
template <class Combine>
__device__ __forceinline__ float ordered(float value) {
  if constexpr (Combine::kReduction == Reduction::min) return value != value ? __int_as_float(0xffffffff) : value;
  if constexpr (Combine::kReduction == Reduction::max) return value != value ? __int_as_float(0x7fffffff) : value;
  return value;
}

template <class Combine, int N>
__device__ __forceinline__ Vector<float, N> ordered(Vector<float, N> values) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = ordered<Combine>(values[i]);
  return values;
}

template <class Combine>
__device__ __forceinline__ void combine_atomically(float* at, float value) {
  if constexpr (Combine::kReduction == Reduction::add) {
    atomicAdd(at, value);
  } else if constexpr (Combine::kReduction == Reduction::mul) {
    int* bits = reinterpret_cast<int*>(at);
    for (int before = *static_cast<volatile int*>(bits);;) {
      const int after = __float_as_int(__int_as_float(before) * value);
      if (after == before) return;
      const int came = atomicCAS(bits, before, after);
      if (came == before) return;
      before = came;
    }
  } else {
    const int bits = __float_as_int(ordered<Combine>(value));
    if ((Combine::kReduction == Reduction::max) == (bits >= 0)) {
      if constexpr (Combine::kReduction == Reduction::max) {
        atomicMax(reinterpret_cast<int*>(at), bits);
      } else {
        atomicMax(reinterpret_cast<unsigned*>(at), static_cast<unsigned>(bits));
      }
    } else {
      if constexpr (Combine::kReduction == Reduction::max) {
        atomicMin(reinterpret_cast<unsigned*>(at), static_cast<unsigned>(bits));
      } else {
        atomicMin(reinterpret_cast<int*>(at), bits);
      }
    }
  }
}

}  // namespace ortops
