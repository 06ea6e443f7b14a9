#include "device/arrays.h"

#include <algorithm>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace ortops {
namespace {

constexpr int64_t kChunk = 512;  // floats on the way from one loop to the next

// Half precision has instructions since 2012 (F16C), 4 to 10 times as fast as the loops of integers that compilers make
// of to_float and from_float. They convert the first multiple of 8 elements, and return how many those are.
#ifdef __x86_64__
bool has_f16c() {
  static const bool has = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has;
}

__attribute__((target("avx,f16c"))) int64_t widen_f16c(const float16* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}

__attribute__((target("avx,f16c"))) int64_t narrow_f16c(const float* from, float16* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}

__attribute__((target("avx,f16c"))) int64_t add_products_f16c(const float16* const* arrays, const float* factors,
                                                              float* sum, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const auto product = [&](int n) __attribute__((target("avx,f16c"))) {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(arrays[n] + i));
      return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(factors[n]));
    };
    const __m256 products = _mm256_add_ps(_mm256_add_ps(product(0), product(1)), _mm256_add_ps(product(2), product(3)));
    _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), products));
  }
  return i;
}
#else
constexpr bool has_f16c() { return false; }
constexpr int64_t widen_f16c(const float16*, float*, int64_t) { return 0; }
constexpr int64_t narrow_f16c(const float*, float16*, int64_t) { return 0; }
constexpr int64_t add_products_f16c(const float16* const*, const float*, float*, int64_t) { return 0; }
#endif

template <class T>
void add_widened(float* sum, const T* addend, int64_t count) {
  float wide[kChunk];
  for (int64_t at = 0; at < count; at += kChunk) {
    const int64_t n = std::min(kChunk, count - at);
    widen(addend + at, wide, n);
    add(sum + at, wide, n);
  }
}

template <class T, class C = Compute<T>>
ORTOPS_INLINE void add_products_of(const T* const* arrays, const C* factors, C* __restrict sum, int64_t begin,
                                   int64_t end) {
  const T *a = arrays[0], *b = arrays[1], *c = arrays[2], *d = arrays[3];
  const C fa = factors[0], fb = factors[1], fc = factors[2], fd = factors[3];
  for (int64_t i = begin; i < end; ++i) {
    sum[i] += (to_compute(a[i]) * fa + to_compute(b[i]) * fb) + (to_compute(c[i]) * fc + to_compute(d[i]) * fd);
  }
}

}  // namespace

void widen(const float16* from, float* to, int64_t count) {
  for (int64_t i = has_f16c() ? widen_f16c(from, to, count) : 0; i < count; ++i) to[i] = to_float(from[i]);
}

ORTOPS_CLONES void widen(const bfloat16* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

void narrow(const float* from, float16* to, int64_t count) {
  for (int64_t i = has_f16c() ? narrow_f16c(from, to, count) : 0; i < count; ++i) to[i] = from_float<float16>(from[i]);
}

ORTOPS_CLONES void narrow(const float* from, bfloat16* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from_float<bfloat16>(from[i]);
}

ORTOPS_CLONES void add(double* sum, const double* addend, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += addend[i];
}
ORTOPS_CLONES void add(float* sum, const float* addend, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += addend[i];
}

void add(float* sum, const float16* addend, int64_t count) { add_widened(sum, addend, count); }
void add(float* sum, const bfloat16* addend, int64_t count) { add_widened(sum, addend, count); }

ORTOPS_CLONES void add_products(const double* const* arrays, const double* factors, double* sum, int64_t count) {
  add_products_of(arrays, factors, sum, 0, count);
}
ORTOPS_CLONES void add_products(const float* const* arrays, const float* factors, float* sum, int64_t count) {
  add_products_of(arrays, factors, sum, 0, count);
}
ORTOPS_CLONES void add_products(const bfloat16* const* arrays, const float* factors, float* sum, int64_t count) {
  add_products_of(arrays, factors, sum, 0, count);
}
void add_products(const float16* const* arrays, const float* factors, float* sum, int64_t count) {
  add_products_of(arrays, factors, sum, has_f16c() ? add_products_f16c(arrays, factors, sum, count) : 0, count);
}

#define ORTOPS_WRAP(Index)                                                                      \
  ORTOPS_CLONES bool wrap(const Index* indices, int64_t* from_0, int64_t count, int64_t size) { \
    int64_t outside = 0;                                                                        \
    for (int64_t i = 0; i < count; ++i) {                                                       \
      const int64_t index = indices[i] + (indices[i] < 0 ? size : 0);                           \
      from_0[i] = index;                                                                        \
      outside |= index | (size - 1 - index); /* negative where one of them is */                \
    }                                                                                           \
    return outside >= 0;                                                                        \
  }
ORTOPS_WRAP(int64_t)
ORTOPS_WRAP(int32_t)
#undef ORTOPS_WRAP

}  // namespace ortops
