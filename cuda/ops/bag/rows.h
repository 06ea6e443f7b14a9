// Sums and maxima of rows that lie anywhere, on the CPU. A block of columns is worked on at a time, whose results stay
// in registers while all rows pass; what a later row has there is fetched meanwhile, which is most of the time where
// the table is larger than the caches.
//
// The lists of rows go on for kAhead rows behind their end, of what will be asked for next, or of anything.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/arrays.h"
#include "device/types.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace ortops {

constexpr int64_t kColumns = 512;  // that are worked on at a time
constexpr int kAhead = 16;         // rows that are fetched before their turn

template <class T>
ORTOPS_INLINE void fetch(const T* row, int64_t count) {
  constexpr int64_t kLine = 64;  // bytes of a cache line
  for (int64_t byte = 0; byte < count * int64_t(sizeof(T)); byte += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(row) + byte);
  }
}

namespace detail {

// For any processor, a column at a time.
template <class T, class C = Compute<T>>
ORTOPS_INLINE void sum_columns(const T* const* rows, const C* factors, int64_t n, int64_t begin, int64_t end,
                               C* totals) {
  for (int64_t column = begin; column < end; ++column) {
    C total = totals[column];
    for (int64_t r = 0; r < n; ++r) total += factors[r] * to_compute(rows[r][column]);
    totals[column] = total;
  }
}

template <class T, class C = Compute<T>>
ORTOPS_INLINE void find_maximum_of_columns(const T* const* rows, const int32_t* places, int64_t n, int64_t begin,
                                           int64_t end, C* best, int32_t* winners) {
  for (int64_t column = begin; column < end; ++column) {
    C greatest = best[column];
    int32_t winner = winners ? winners[column] : 0;
    for (int64_t r = 0; r < n; ++r) {
      const C value = to_compute(rows[r][column]);
      const bool keep = (greatest >= value) | (greatest != greatest);
      greatest = keep ? greatest : value;
      winner = keep || !winners ? winner : places[r];
    }
    best[column] = greatest;
    if (winners) winners[column] = winner;
  }
}

#ifdef __x86_64__
// For processors since 2013 (x86-64-v3): by vectors of 8 floats. The last vector of a count that is no multiple of 8
// overlaps the one before it: both come to the same, and the last one is read before the others are written.
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

template <int kVectors, class T>
ORTOPS_AVX2 inline void sum_block(const T* const* rows, const float* factors, int64_t n, int64_t column,
                                  const float* from, float* to) {
  __m256 sums[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = _mm256_loadu_ps(from + 8 * v);
  for (int64_t r = 0; r < n; ++r) {
    const T* const row = rows[r] + column;
    fetch(rows[r + kAhead] + column, 8 * kVectors);
    const __m256 factor = _mm256_broadcast_ss(factors + r);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[v] = _mm256_fmadd_ps(factor, load8(row + 8 * v), sums[v]);
  }
  for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(to + 8 * v, sums[v]);
}

template <class T>
ORTOPS_AVX2 void sum_rows_avx2(const T* const* rows, const float* factors, int64_t n, int64_t count, float* totals) {
  if (count < 8) return sum_columns(rows, factors, n, 0, count, totals);
  const int64_t last = count - 8;
  float behind[8];
  if (count % 8 > 0) sum_block<1>(rows, factors, n, last, totals + last, behind);
  int64_t column = 0;
  const auto blocks = [&]<int kVectors>() ORTOPS_AVX2 {
    for (; column + 8 * kVectors <= count; column += 8 * kVectors) {
      sum_block<kVectors>(rows, factors, n, column, totals + column, totals + column);
    }
  };
  blocks.template operator()<8>();
  blocks.template operator()<4>();
  blocks.template operator()<2>();
  blocks.template operator()<1>();
  if (count % 8 > 0) std::memcpy(totals + last, behind, sizeof(behind));
}

template <int kVectors, bool kWinners, class T>
ORTOPS_AVX2 inline void find_maximum_of_block(const T* const* rows, const int32_t* places, int64_t n, int64_t column,
                                              const float* from, float* to, const int32_t* winners_from,
                                              int32_t* winners_to) {
  __m256 best[kVectors], winners[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    best[v] = _mm256_loadu_ps(from + 8 * v);
    if (kWinners) winners[v] = _mm256_loadu_ps(reinterpret_cast<const float*>(winners_from + 8 * v));
  }
  for (int64_t r = 0; r < n; ++r) {
    const T* const row = rows[r] + column;
    fetch(rows[r + kAhead] + column, 8 * kVectors);
    const __m256 place = kWinners ? _mm256_castsi256_ps(_mm256_set1_epi32(places[r])) : __m256();
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m256 value = load8(row + 8 * v);
      const __m256 is_nan = _mm256_cmp_ps(best[v], best[v], _CMP_UNORD_Q);
      const __m256 keep = _mm256_or_ps(_mm256_cmp_ps(best[v], value, _CMP_GE_OQ), is_nan);
      best[v] = _mm256_blendv_ps(value, best[v], keep);
      if (kWinners) winners[v] = _mm256_blendv_ps(place, winners[v], keep);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    _mm256_storeu_ps(to + 8 * v, best[v]);
    if (kWinners) _mm256_storeu_ps(reinterpret_cast<float*>(winners_to + 8 * v), winners[v]);
  }
}

template <bool kWinners, class T>
ORTOPS_AVX2 void find_maximum_avx2(const T* const* rows, const int32_t* places, int64_t n, int64_t count, float* best,
                                   int32_t* winners) {
  if (count < 8) return find_maximum_of_columns(rows, places, n, 0, count, best, winners);
  const int64_t last = count - 8;
  float behind[8];
  int32_t winners_behind[8];
  if (count % 8 > 0) {
    find_maximum_of_block<1, kWinners>(rows, places, n, last, best + last, behind, winners + last, winners_behind);
  }
  int64_t column = 0;
  const auto blocks = [&]<int kVectors>() ORTOPS_AVX2 {
    for (; column + 8 * kVectors <= count; column += 8 * kVectors) {
      int32_t* const here = winners + column;
      find_maximum_of_block<kVectors, kWinners>(rows, places, n, column, best + column, best + column, here, here);
    }
  };
  blocks.template operator()<4>();
  blocks.template operator()<1>();
  if (count % 8 == 0) return;
  std::memcpy(best + last, behind, sizeof(behind));
  if (kWinners) std::memcpy(winners + last, winners_behind, sizeof(winners_behind));
}
#endif

}  // namespace detail

// totals += the rows times their factors
template <class T>
void sum_rows(const T* const* rows, const Compute<T>* factors, int64_t n, int64_t count, Compute<T>* totals) {
#ifdef __x86_64__
  if constexpr (!std::is_same_v<T, double>) {
    if (detail::has_avx2()) return detail::sum_rows_avx2(rows, factors, n, count, totals);
  }
#endif
  detail::sum_columns(rows, factors, n, 0, count, totals);
}

// best = the greatest of it and the rows, or the first NaN; and where winners are asked for (they may be null), the
// place of the first row that has it.
template <class T>
void find_maximum(const T* const* rows, const int32_t* places, int64_t n, int64_t count, Compute<T>* best,
                  int32_t* winners) {
#ifdef __x86_64__
  if constexpr (!std::is_same_v<T, double>) {
    if (detail::has_avx2()) {
      return winners ? detail::find_maximum_avx2<true>(rows, places, n, count, best, winners)
                     : detail::find_maximum_avx2<false>(rows, places, n, count, best, winners);
    }
  }
#endif
  detail::find_maximum_of_columns(rows, places, n, 0, count, best, winners);
}

// The rows of many items that come one after the other, looked up some hundred at a time: the ones that are left out
// are gone, and rows can be fetched before their turn. `find(item, row, factor)` tells whether an item has a row.
template <class T, class Find>
class RowWindow {
 public:
  using C = Compute<T>;
  struct Run {
    const T* const* rows;
    const C* factors;
    const int32_t* places;  // of the rows, counted from `from`
    int64_t count;
    int64_t end;  // the item behind them
  };

  // `last` is behind the last item that is asked for, `count` how many columns are.
  RowWindow(Find find, int64_t last, int64_t count) : find_(find), last_(last), count_(count) {}

  // The rows of the items begin..end, or of the first ones of them. Items are asked for in their order.
  Run take(int64_t begin, int64_t end, int64_t from = 0) {
    if (begin >= end_) fill(begin);
    const int64_t until = std::min(end, end_);
    const int first = slots_[begin - begin_], behind = slots_[until - begin_];
    for (int i = first; i < behind; ++i) places_[i] = static_cast<int32_t>(items_[i] + begin_ - from);
    return {rows_ + first, factors_ + first, places_ + first, behind - first, until};
  }

 private:
  static constexpr int kItems = 256;

  void fill(int64_t begin) {
    begin_ = begin;
    end_ = std::min(last_, begin + kItems);
    int n = 0;
    for (int64_t item = begin; item < end_; ++item) {
      slots_[item - begin] = n;
      if (!find_(item, rows_[n], factors_[n])) continue;
      if (n < kAhead) fetch(rows_[n], count_);
      items_[n++] = static_cast<int>(item - begin);
    }
    slots_[end_ - begin] = n;
    std::fill_n(rows_ + n, kAhead, n > 0 ? rows_[n - 1] : nullptr);
  }

  Find find_;
  int64_t last_, count_;
  int64_t begin_ = 0, end_ = 0;
  int slots_[kItems + 1];  // how many rows come before an item
  int items_[kItems + 1];
  int32_t places_[kItems + 1];
  const T* rows_[kItems + kAhead];
  C factors_[kItems + 1];
};

}  // namespace ortops
