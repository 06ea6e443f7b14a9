// What the interpreter and compiled expressions share on the device: where elements lie, and how they are read and
// written. This text is also part of what is compiled at run time, so it includes nothing of the C++ library.
//
// A thread works on U vectors of W neighbours. Vectors are taken where rows and addresses allow it; else W is 1, and
// the U elements of a thread lie a block apart, so that warps still touch runs of memory.
#pragma once

#include "device/math.h"

namespace ortops::elementwise {

// Division by a number that is known beforehand, of numbers below 2^31; of greater ones by the processor's own.
struct Divider {
  uint32_t size;
  uint32_t multiplier;
  int64_t wide_size;

  // kSmall: the caller knows that both are.
  template <bool kSmall>
  __device__ __forceinline__ void divide(int64_t number, int64_t& quotient, int64_t& rest) const {
    if (kSmall || (number >> 31 == 0 && size != 0)) {
      const uint32_t n = static_cast<uint32_t>(number);
      uint32_t q = size == 1 ? n : __umulhi(n, multiplier);  // floor(2^32 / size) may fall short by one
      uint32_t r = n - q * size;
      if (r >= size) r -= size, ++q;
      quotient = q;
      rest = r;
    } else {
      quotient = number / wide_size;
      rest = number % wide_size;
    }
  }
};

// W elements at `from`, of which only the first `left` are there; 0 for the others. Without kTails all are, or none.
template <int W, bool kTails = true, class T>
__device__ __forceinline__ void read(const T* from, int64_t left, T* to) {
  constexpr int kBytes = W * sizeof(T);
  if (W > 1 && left >= (kTails ? W : 1)) {
    if constexpr (kBytes >= 16) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        const uint4 words = __ldg(reinterpret_cast<const uint4*>(from) + i);
        memcpy(reinterpret_cast<char*>(to) + 16 * i, &words, 16);
      }
    } else if constexpr (kBytes == 8) {
      const uint2 words = __ldg(reinterpret_cast<const uint2*>(from));
      memcpy(to, &words, 8);
    } else if constexpr (kBytes == 4) {
      const uint32_t word = __ldg(reinterpret_cast<const uint32_t*>(from));
      memcpy(to, &word, 4);
    } else {
#pragma unroll
      for (int i = 0; i < W; ++i) to[i] = from[i];
    }
    return;
  }
  if (W > 1 && !kTails) return;
#pragma unroll
  for (int i = 0; i < W; ++i) to[i] = i < left ? from[i] : T();
}

template <int W, bool kTails = true, class T>
__device__ __forceinline__ void write(T* to, int64_t left, const T* from) {
  constexpr int kBytes = W * sizeof(T);
  if (W > 1 && left >= (kTails ? W : 1)) {
    if constexpr (kBytes >= 16) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        uint4 words;
        memcpy(&words, reinterpret_cast<const char*>(from) + 16 * i, 16);
        reinterpret_cast<uint4*>(to)[i] = words;
      }
    } else if constexpr (kBytes == 8) {
      uint2 words;
      memcpy(&words, from, 8);
      *reinterpret_cast<uint2*>(to) = words;
    } else if constexpr (kBytes == 4) {
      uint32_t word;
      memcpy(&word, from, 4);
      *reinterpret_cast<uint32_t*>(to) = word;
    } else {
#pragma unroll
      for (int i = 0; i < W; ++i) to[i] = from[i];
    }
    return;
  }
  if (W > 1 && !kTails) return;
#pragma unroll
  for (int i = 0; i < W; ++i) {
    if (i < left) to[i] = from[i];
  }
}

// From a tensor's type to that which is computed in (float, int64_t, bool), and back.
__device__ __forceinline__ float widened(float value) { return value; }
__device__ __forceinline__ float widened(float16 value) { return to_float(value); }
__device__ __forceinline__ float widened(bfloat16 value) { return to_float(value); }
__device__ __forceinline__ bool widened(bool value) { return value; }
template <class T>
__device__ __forceinline__ int64_t widened(T value) {
  return static_cast<int64_t>(value);
}

template <class T>
__device__ __forceinline__ T narrowed(float value) {
  return from_float<T>(value);
}
template <class T>
__device__ __forceinline__ T narrowed(int64_t value) {
  return static_cast<T>(value);
}
template <class T>
__device__ __forceinline__ T narrowed(bool value) {
  return value;
}

}  // namespace ortops::elementwise
