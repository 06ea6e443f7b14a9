// Loads and stores, the only place where width, alignment and tails are seen to.
//
// A thread works on `Vector<T, N>`s. One of 16 bytes moves with one instruction where memory is aligned to that; the
// host asks `is_aligned` once a call, for all tensors that are read alike. Where it is not so, N neighbours fall apart
// into N elements `threads` apart: then each instruction of a warp still touches one contiguous run of memory, which
// costs instructions but no bandwidth. `Share` hides which of the two it is.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "device/types.h"

namespace ortops {

template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];

  __host__ __device__ T& operator[](int i) { return values[i]; }
  __host__ __device__ const T& operator[](int i) const { return values[i]; }
};

// Elements in the widest load, 16 bytes.
template <class T>
constexpr int kWidth = 16 / sizeof(T);

// Whether rows of `size` elements that lie `size` apart can be read by vectors of N from each of the pointers (null:
// not used).
template <int N, class T>
bool is_aligned(int64_t size, std::initializer_list<const T*> pointers) {
  bool aligned = size % N == 0;
  for (const T* pointer : pointers)
    aligned = aligned && reinterpret_cast<uintptr_t>(pointer) % sizeof(Vector<T, N>) == 0;
  return aligned;
}

// What becomes of memory that is read: it may be written by this kernel (plain), or is read once and should not
// displace others in L1 (none), or is not written by this kernel, so that the compiler may load it whenever it suits
// (constant).
enum class Reuse { plain, none, constant };

namespace detail {

// Vectors move as words, so that the compiler keeps them in as few registers until their elements are wanted.
template <int kBytes>
struct Words {
  using Type = Vector<uint32_t, kBytes / 4>;
};
template <>
struct Words<2> {
  using Type = Vector<uint16_t, 1>;
};
template <>
struct Words<1> {
  using Type = Vector<uint8_t, 1>;
};
template <class V>
using WordsOf = typename Words<sizeof(V)>::Type;

}  // namespace detail

// N elements at an address that is aligned to all of them; zeros where `inside` is false. The condition is inside of
// the instruction: from outside of it the compiler merges zeros into every 16 bits, at two instructions an element.
// Volatile keeps the load behind a wait for what it reads.
template <int N, Reuse reuse = Reuse::plain, class T>
__device__ __forceinline__ Vector<T, N> load(const T* from, bool inside = true) {
  using Words = detail::WordsOf<Vector<T, N>>;
  Words words = {};
#define ORTOPS_LOAD(instruction)                                                                \
  asm volatile(                                                                                 \
      "{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n mov.b32 %0, 0;\n mov.b32 %1, 0;\n"           \
      " mov.b32 %2, 0;\n mov.b32 %3, 0;\n @p " instruction ".v4.b32 {%0, %1, %2, %3}, [%4];\n}" \
      : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3])                      \
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(inside)))
  if constexpr (reuse == Reuse::none && sizeof(Words) == 16) {
    ORTOPS_LOAD("ld.global.L1::no_allocate");
  } else if constexpr (reuse == Reuse::constant && sizeof(Words) == 16) {
    ORTOPS_LOAD("ld.global.nc");
  } else if (inside) {
    words = *reinterpret_cast<const Words*>(from);
  }
#undef ORTOPS_LOAD
  return detail::bit_cast<Vector<T, N>>(words);
}

template <class T, int N>
__device__ __forceinline__ void store(T* to, const Vector<T, N>& value) {
  *reinterpret_cast<Vector<T, N>*>(to) = value;
}

// 16 bytes that fill a line together with others', which is to leave the cache first. On an H200 a permutation of 268
// MB takes 0.065 ms with it, 0.085 without.
template <class T, int N>
__device__ __forceinline__ void stream(T* to, const Vector<T, N>& value) {
  static_assert(sizeof(value) == 16);
  __stcs(reinterpret_cast<uint4*>(to), detail::bit_cast<uint4>(value));
}

template <class T, int N>
__device__ __forceinline__ Vector<float, N> to_float(const Vector<T, N>& value) {
  Vector<float, N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) result[i] = to_float(value[i]);
  return result;
}

template <class T, int N>
__device__ __forceinline__ Vector<T, N> from_float(const Vector<float, N>& value) {
  Vector<T, N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) result[i] = from_float<T>(value[i]);
  return result;
}

// What one thread of `threads` has of each step of a row: N elements, side by side where kAligned, else `threads`
// apart. A step is threads * N elements, the first begins at 0; elements at `size` and beyond are read as 0 and not
// written.
template <int N, bool kAligned, class Index>
struct Share {
  Index size;
  int thread;
  int threads;

  // Where element i of the share lies.
  __device__ __forceinline__ Index at(Index step, int i) const {
    return kAligned ? (step * threads + thread) * N + i : (step * N + i) * threads + thread;
  }
  __device__ __forceinline__ bool has(Index step, int i) const { return at(step, kAligned ? 0 : i) < size; }
  __device__ __forceinline__ bool any(Index step) const { return has(step, 0); }
  // This share of an optional tensor: an absent one is read as zeros and not written.
  __device__ __forceinline__ Share where(bool present) const { return {present ? size : Index(0), thread, threads}; }

  template <Reuse reuse = Reuse::plain, class T>
  __device__ __forceinline__ Vector<T, N> read(const T* row, Index step) const {
    if constexpr (kAligned) {
      return load<N, reuse>(row + at(step, 0), any(step));
    } else {
      Vector<T, N> result;
#pragma unroll
      for (int i = 0; i < N; ++i) result[i] = load<1>(row + at(step, i), has(step, i))[0];
      return result;
    }
  }

  template <class T>
  __device__ __forceinline__ void write(T* row, Index step, const Vector<T, N>& value) const {
    if constexpr (kAligned) {
      if (any(step)) store(row + at(step, 0), value);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (has(step, i)) row[at(step, i)] = value[i];
      }
    }
  }
};

}  // namespace ortops
