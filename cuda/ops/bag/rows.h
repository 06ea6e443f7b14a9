// Sums and maxima of rows that lie anywhere, on the CPU. A block of columns is worked on at a time, whose results stay
// in registers while all rows pass; what a later row has there is fetched meanwhile, which is most of the time where
// the table is larger than the caches.
//
// The rows are those of consecutive items: `rows.row(item)` is where one lies (null: it is left out),
// `rows.factor(item)` what it is multiplied by, and `rows.last` is behind the last item that has a row at all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "device/arrays.h"
#include "device/types.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace ortops {

constexpr int64_t kColumns = 512;  // that are worked on at a time
constexpr int kAhead = 16;         // items whose rows are fetched before their turn

template <class T>
ORTOPS_INLINE void fetch(const T* row, int64_t count) {
  constexpr int64_t kLine = 64;  // bytes of a cache line
  for (int64_t byte = 0; byte < count * int64_t(sizeof(T)); byte += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(row) + byte);
  }
}

template <class Rows>
ORTOPS_INLINE void fetch_ahead(const Rows& rows, int64_t item, int64_t column, int64_t count) {
  fetch(rows.row(std::min(item + kAhead, rows.last - 1)) + column, count);
}

namespace detail {

// For any processor, and for few columns: row by row.
template <class Rows, class C>
void sum_by_rows(const Rows& rows, int64_t begin, int64_t end, int64_t count, C* totals) {
  std::fill_n(totals, count, C(0));
  for (int64_t item = begin; item < end; ++item) {
    const auto* const row = rows.row(item);
    fetch_ahead(rows, item, 0, count);
    if (!row) continue;
    const C factor = rows.factor(item);
    for (int64_t i = 0; i < count; ++i) totals[i] += factor * to_compute(row[i]);
  }
}

template <bool kWinners, class Rows, class C>
void find_maximum_by_rows(const Rows& rows, int64_t begin, int64_t end, int64_t count, C* best, int32_t* winners) {
  for (int64_t i = 0; i < count; ++i) best[i] = to_compute(rows.row(begin)[i]);
  if (kWinners) std::fill_n(winners, count, 0);
  for (int64_t item = begin + 1; item < end; ++item) {
    const auto* const row = rows.row(item);
    fetch_ahead(rows, item, 0, count);
    if (!row) continue;
    for (int64_t i = 0; i < count; ++i) {
      const C value = to_compute(row[i]);
      const bool keep = (best[i] >= value) | (best[i] != best[i]);
      best[i] = keep ? best[i] : value;
      if (kWinners) winners[i] = keep ? winners[i] : static_cast<int32_t>(item - begin);
    }
  }
}

#ifdef __x86_64__
// For processors since 2013 (x86-64-v3): by vectors of 8 floats. The last one of a count that is no multiple of 8
// overlaps the one before it.
#define ORTOPS_AVX2 __attribute__((target("avx2,fma,f16c")))

inline bool has_avx2() {
  static const bool has =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return has;
}

ORTOPS_AVX2 inline __m256 load8(const float* from) { return _mm256_loadu_ps(from); }
ORTOPS_AVX2 inline __m256 load8(const float16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
ORTOPS_AVX2 inline __m256 load8(const bfloat16* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// Calls f(integral_constant<int, vectors>, column) for blocks that cover the columns, which are a vector's at least.
template <int kLanes, int kMost, class F>
ORTOPS_INLINE void for_blocks(int64_t count, F f) {
  int64_t column = 0;
  for (; column + kLanes * kMost <= count; column += kLanes * kMost) f(std::integral_constant<int, kMost>(), column);
  if constexpr (kMost > 2) {
    for (; column + kLanes * 2 <= count; column += kLanes * 2) f(std::integral_constant<int, 2>(), column);
  }
  for (; column + kLanes <= count; column += kLanes) f(std::integral_constant<int, 1>(), column);
  if (column < count) f(std::integral_constant<int, 1>(), count - kLanes);
}

template <class Rows>
ORTOPS_AVX2 void sum_rows_avx2(const Rows& rows, int64_t begin, int64_t end, int64_t count, float* totals) {
  if (count < 8) return sum_by_rows(rows, begin, end, count, totals);
  for_blocks<8, 8>(count, [=](auto vectors, int64_t column) ORTOPS_AVX2 {
    constexpr int kVectors = decltype(vectors)::value;
    __m256 sums[kVectors] = {};
    for (int64_t item = begin; item < end; ++item) {
      const auto* const row = rows.row(item);
      fetch_ahead(rows, item, column, 8 * kVectors);
      if (!row) continue;
      const __m256 factor = _mm256_set1_ps(rows.factor(item));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[v] = _mm256_fmadd_ps(factor, load8(row + column + 8 * v), sums[v]);
    }
    for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(totals + column + 8 * v, sums[v]);
  });
}

// By vectors of 16 floats, for which sums of rows that are in the caches have half as much to do.
#define ORTOPS_AVX512 __attribute__((target("avx512f,avx512bw,avx2,fma,f16c")))

inline bool has_avx512() {
  static const bool has = has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  return has;
}

ORTOPS_AVX512 inline __m512 load16(const float* from) { return _mm512_loadu_ps(from); }
// With a mask of ones: GCC 12 warns of the ones without.
ORTOPS_AVX512 inline __m512 load16(const float16* from) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
ORTOPS_AVX512 inline __m512 load16(const bfloat16* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, bits), 16));
}

template <class Rows>
ORTOPS_AVX512 void sum_rows_avx512(const Rows& rows, int64_t begin, int64_t end, int64_t count, float* totals) {
  if (count < 16) return sum_rows_avx2(rows, begin, end, count, totals);
  for_blocks<16, 4>(count, [=](auto vectors, int64_t column) ORTOPS_AVX512 {
    constexpr int kVectors = decltype(vectors)::value;
    __m512 sums[kVectors] = {};
    for (int64_t item = begin; item < end; ++item) {
      const auto* const row = rows.row(item);
      fetch_ahead(rows, item, column, 16 * kVectors);
      if (!row) continue;
      const __m512 factor = _mm512_set1_ps(rows.factor(item));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[v] = _mm512_fmadd_ps(factor, load16(row + column + 16 * v), sums[v]);
    }
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(totals + column + 16 * v, sums[v]);
  });
}

template <bool kWinners, class Rows>
ORTOPS_AVX2 void find_maximum_avx2(const Rows& rows, int64_t begin, int64_t end, int64_t count, float* best,
                                   int32_t* winners) {
  if (count < 8) return find_maximum_by_rows<kWinners>(rows, begin, end, count, best, winners);
  for_blocks<8, 4>(count, [=](auto vectors, int64_t column) ORTOPS_AVX2 {
    constexpr int kVectors = decltype(vectors)::value;
    __m256 greatest[kVectors], winner[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      greatest[v] = load8(rows.row(begin) + column + 8 * v);
      winner[v] = _mm256_setzero_ps();
    }
    for (int64_t item = begin + 1; item < end; ++item) {
      const auto* const row = rows.row(item);
      fetch_ahead(rows, item, column, 8 * kVectors);
      if (!row) continue;
      const __m256 place = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(item - begin)));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const __m256 value = load8(row + column + 8 * v);
        const __m256 is_nan = _mm256_cmp_ps(greatest[v], greatest[v], _CMP_UNORD_Q);
        const __m256 keep = _mm256_or_ps(_mm256_cmp_ps(greatest[v], value, _CMP_GE_OQ), is_nan);
        greatest[v] = _mm256_blendv_ps(value, greatest[v], keep);
        if (kWinners) winner[v] = _mm256_blendv_ps(place, winner[v], keep);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      _mm256_storeu_ps(best + column + 8 * v, greatest[v]);
      if (kWinners) _mm256_storeu_ps(reinterpret_cast<float*>(winners + column + 8 * v), winner[v]);
    }
  });
}
#endif

}  // namespace detail

// The sums of `count` columns (kColumns at most) of the rows of begin..end, each times its factor. Those of a run of
// rows are formed before they are added to the others: rounding errors do not grow with a bag as one chain of sums has
// them.
template <class T, class Rows, class C = Compute<T>>
void sum_rows(const Rows& rows, int64_t begin, int64_t end, int64_t count, C* totals) {
  constexpr int64_t kRun = 128;
  const auto sum_run = [&](int64_t first, C* sums) {
    const int64_t behind = std::min(end, first + kRun);
#ifdef __x86_64__
    if constexpr (!std::is_same_v<T, double>) {
      if (detail::has_avx512()) return detail::sum_rows_avx512(rows, first, behind, count, sums);
      if (detail::has_avx2()) return detail::sum_rows_avx2(rows, first, behind, count, sums);
    }
#endif
    detail::sum_by_rows(rows, first, behind, count, sums);
  };
  sum_run(begin, totals);
  for (int64_t first = begin + kRun; first < end; first += kRun) {
    C sums[kColumns];
    sum_run(first, sums);
    for (int64_t i = 0; i < count; ++i) totals[i] += sums[i];
  }
}

// The greatest or the first NaN of each column, and if asked for the first item that has it,
// counted from begin, which has a row.
template <bool kWinners, class T, class Rows>
void find_maximum(const Rows& rows, int64_t begin, int64_t end, int64_t count, Compute<T>* best, int32_t* winners) {
#ifdef __x86_64__
  if constexpr (!std::is_same_v<T, double>) {
    if (detail::has_avx2()) return detail::find_maximum_avx2<kWinners>(rows, begin, end, count, best, winners);
  }
#endif
  detail::find_maximum_by_rows<kWinners>(rows, begin, end, count, best, winners);
}

}  // namespace ortops
