// Loops over arrays for kernels on the CPU. The library is compiled for any x86-64, which has vectors of four floats
// and no conversion of half precision; here is what takes the vectors and conversions that the processor has.
//
// ORTOPS_CLONES before a function has it compiled for three generations of processors; the dynamic loader takes the
// best one. The clones differ in rounding alone (they may fuse a product and a sum). Such a function is a plain loop:
// what it calls must be inlined (ORTOPS_INLINE), else it remains a call of code for any processor.
#pragma once

#include <cstdint>
#include <cstring>

#include "device/types.h"

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define ORTOPS_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), noinline))
#else
#define ORTOPS_CLONES
#endif
#define ORTOPS_INLINE inline __attribute__((always_inline))

namespace ortops {

void widen(const float16* from, float* to, int64_t count);
void widen(const bfloat16* from, float* to, int64_t count);
inline void widen(const double* from, double* to, int64_t count) { std::memcpy(to, from, count * sizeof(double)); }
inline void widen(const float* from, float* to, int64_t count) { std::memcpy(to, from, count * sizeof(float)); }

void narrow(const float* from, float16* to, int64_t count);
void narrow(const float* from, bfloat16* to, int64_t count);
inline void narrow(const double* from, double* to, int64_t count) { std::memcpy(to, from, count * sizeof(double)); }
inline void narrow(const float* from, float* to, int64_t count) { std::memcpy(to, from, count * sizeof(float)); }

// sum += addend
void add(double* sum, const double* addend, int64_t count);
void add(float* sum, const float* addend, int64_t count);
void add(float* sum, const float16* addend, int64_t count);
void add(float* sum, const bfloat16* addend, int64_t count);

// x + residual (which may be null), as floats: in the buffer, or in place where that is what x holds.
template <class T>
const float* gather(const T* x, const T* residual, int64_t count, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    if (!residual) return x;
  }
  widen(x, buffer, count);
  if (residual) add(buffer, residual, count);
  return buffer;
}

// sum += the products of so many arrays with a factor each: the sum is read and written once for all of them.
constexpr int kAddends = 4;
void add_products(const double* const* arrays, const double* factors, double* sum, int64_t count);
void add_products(const float* const* arrays, const float* factors, float* sum, int64_t count);
void add_products(const float16* const* arrays, const float* factors, float* sum, int64_t count);
void add_products(const bfloat16* const* arrays, const float* factors, float* sum, int64_t count);

// Indices into an axis of `size`, counted from 0 on. Returns whether all are inside of it.
bool wrap(const int64_t* indices, int64_t* from_0, int64_t count, int64_t size);
bool wrap(const int32_t* indices, int64_t* from_0, int64_t count, int64_t size);

}  // namespace ortops
