// Permute on the CPU: whole rows where the innermost axis stays, else tiles, turned in registers.
#include <algorithm>
#include <cstring>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "device/arrays.h"
#include "gen/permute.h"
#include "ops/permute/plan.h"

namespace ortops {
namespace {

constexpr int64_t kGrain = 32768;             // elements worth a thread's while
constexpr int64_t kTall = 256, kWide = 1024;  // of what a thread turns at once
constexpr int64_t kLine = 64;                 // bytes that memory moves by
constexpr int64_t kLarge = 8 << 20;           // bytes of y that no cache keeps until they are read
constexpr int64_t kAlias = 4096;              // bytes: rows so many apart share few places of a cache

// How rows of y are written: in place; or by whole lines, where parts of them would not stay in the cache until the
// rest comes; or these past the caches, which would read what they are to overwrite.
enum class Lines { in_place, whole, streamed };

template <Lines lines, class T>
ORTOPS_INLINE void write_line(T* to, const T* from) {
#ifdef __SSE2__
  if constexpr (lines == Lines::streamed) {
    for (int64_t i = 0; i < kLine / 16; ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
    }
    return;
  }
#endif
  std::memcpy(to, from, kLine);
}

// Ends what lines were streamed, before another thread reads them.
template <Lines lines>
ORTOPS_INLINE void finish() {
#ifdef __SSE2__
  if constexpr (lines == Lines::streamed) _mm_sfence();
#endif
}

// As many elements as the vectors have that every processor has.
template <class T>
constexpr int kSquare = 16 / sizeof(T);
template <class T>
using Lanes __attribute__((vector_size(16))) = T;

// The elements of the first, or second, halves of two rows in turn.
template <int kFirst, class T, int... i>
ORTOPS_INLINE Lanes<T> zip(Lanes<T> a, Lanes<T> b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (kFirst + i / 2 + i % 2 * int(sizeof...(i)))...);
}

// y[q][p] = x[p][q] of a square. To zip its first half of rows with its second moves each bit of an element's number
// (row, column) up by one: as often as a row's number has bits, and row and column have changed places.
template <class T>
ORTOPS_INLINE void turn_square(const T* x, int64_t x_stride, T* y, int64_t y_stride) {
  constexpr int N = kSquare<T>;
  using All = std::make_integer_sequence<int, N>;
  Lanes<T> rows[N], zipped[N];
#pragma GCC unroll 16
  for (int p = 0; p < N; ++p) std::memcpy(&rows[p], x + p * x_stride, sizeof(rows[p]));
#pragma GCC unroll 4
  for (int bit = 1; bit < N; bit *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < N / 2; ++i) {
      zipped[2 * i] = zip<0, T>(rows[i], rows[i + N / 2], All());
      zipped[2 * i + 1] = zip<N / 2, T>(rows[i], rows[i + N / 2], All());
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) rows[i] = zipped[i];
  }
#pragma GCC unroll 16
  for (int q = 0; q < N; ++q) std::memcpy(y + q * y_stride, &rows[q], sizeof(rows[q]));
}

template <class T>
ORTOPS_INLINE void turn(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows, int64_t columns) {
  constexpr int64_t N = kSquare<T>;
  for (int64_t column = 0; column < columns; column += N) {
    for (int64_t row = 0; row < rows; row += N) {
      const T* from = x + row * x_stride + column;
      T* to = y + column * y_stride + row;
      if (row + N <= rows && column + N <= columns) {
        turn_square(from, x_stride, to, y_stride);
        continue;
      }
      for (int64_t q = 0; q < std::min(N, columns - column); ++q) {
        for (int64_t p = 0; p < std::min(N, rows - row); ++p) to[q * y_stride + p] = from[p * x_stride + q];
      }
    }
  }
}

template <Lines lines, class T>
void turn_tile(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows, int64_t columns) {
  constexpr int64_t kRows = kLine / sizeof(T), kColumns = 16;
  alignas(kLine) T line[kColumns][kRows];
  const int64_t before = (kLine - reinterpret_cast<uintptr_t>(y) % kLine) % kLine / sizeof(T);  // the first whole line
  for (int64_t row = 0, next; row < rows; row = next) {
    next = std::min(rows, row < before ? before : row + kRows);
    if (lines == Lines::in_place || next - row < kRows) {
      turn(x + row * x_stride, x_stride, y + row, y_stride, next - row, columns);
      continue;
    }
    for (int64_t column = 0; column < columns; column += kColumns) {
      const int64_t n = std::min(kColumns, columns - column);
      turn(x + row * x_stride + column, x_stride, line[0], kRows, kRows, n);
      for (int64_t q = 0; q < n; ++q) write_line<lines>(y + (column + q) * y_stride + row, line[q]);
    }
  }
  finish<lines>();
}

template <class T>
void copy_rows(const T* x, T* y, Walk rows, Context& context) {
  const int64_t width = rows.sizes[rows.rank - 1], step = rows.strides[rows.rank - 1];
  --rows.rank;
  int64_t count = 1;
  for (int axis = 0; axis < rows.rank; ++axis) count *= rows.sizes[axis];
  const int64_t group = rows.rank ? rows.sizes[rows.rank - 1] : 1;  // rows whose places need no division
  const int64_t apart = rows.rank ? rows.strides[rows.rank - 1] : 0;
  constexpr int64_t kPerLine = kLine / sizeof(T);
  const bool streams = step == 1 && width % kPerLine == 0 && count * width * int64_t(sizeof(T)) >= kLarge &&
                       reinterpret_cast<uintptr_t>(y) % kLine == 0;
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end;) {
      const T* from = x + rows(row);
      const int64_t last = std::min(end, row - row % group + group);
      for (; row < last; ++row, from += apart) {
        T* to = y + row * width;
        if (streams) {
          for (int64_t i = 0; i < width; i += kPerLine) write_line<Lines::streamed>(to + i, from + i);
        } else if (step == 1 && width * int64_t(sizeof(T)) >= 32) {
          std::memcpy(to, from, width * sizeof(T));
        } else {
          for (int64_t i = 0; i < width; ++i) to[i] = from[i * step];
        }
      }
    }
    if (streams) finish<Lines::streamed>();
  };
  context.parallel_for(count, std::max<int64_t>(1, kGrain / width), copy);
}

// Turns the planes of x's innermost axis q and of y's innermost axis p.
template <class T>
void turn_planes(const T* x, T* y, const Walk& walk, int q, Context& context) {
  const int p = walk.rank - 1;
  const int64_t rows = walk.sizes[p], columns = walk.sizes[q], x_stride = walk.strides[p];
  Walk from, to;
  int64_t y_stride = 1, stride = 1, planes = 1;
  int64_t strides[Walk::kMaxAxes];
  for (int axis = walk.rank - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= walk.sizes[axis];
  }
  for (int axis = 0; axis < p; ++axis) {
    if (axis == q) {
      y_stride = strides[axis];
      continue;
    }
    // Not merged, so that both have the same axes.
    from.sizes[from.rank] = to.sizes[to.rank] = walk.sizes[axis];
    from.strides[from.rank++] = walk.strides[axis];
    to.strides[to.rank++] = strides[axis];
    planes *= walk.sizes[axis];
  }
  const auto bytes = [](int64_t count) { return count * int64_t(sizeof(T)); };
  const auto turn_any = bytes(y_stride) % kLine == 0 && bytes(stride) >= kLarge ? turn_tile<Lines::streamed, T>
                        : bytes(y_stride) % kAlias == 0                         ? turn_tile<Lines::whole, T>
                                                                                : turn_tile<Lines::in_place, T>;
  const int64_t across = (columns + kWide - 1) / kWide, down = (rows + kTall - 1) / kTall;
  const auto turn_tiles = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % down * kTall, column = i / down % across * kWide, plane = i / down / across;
      turn_any(x + from(plane) + row * x_stride + column, x_stride, y + to(plane) + column * y_stride + row, y_stride,
               std::min(kTall, rows - row), std::min(kWide, columns - column));
    }
  };
  const int64_t tile = std::min(kTall, rows) * std::min(kWide, columns);
  context.parallel_for(planes * across * down, std::max<int64_t>(1, kGrain / tile), turn_tiles);
}

}  // namespace

template <class T>
void permute_cpu(const PermuteArgs<T>& a, Context& context) {
  const Walk walk = permuted(a.X, a.perm);
  const int dense = dense_axis(walk);
  if (walk.rank <= 1) {
    const auto copy = [&](int64_t begin, int64_t end) {
      std::memcpy(a.y + begin, a.x + begin, (end - begin) * sizeof(T));
    };
    context.parallel_for(a.X.size(), 8 * kGrain, copy);
  } else if (dense == walk.rank - 1) {
    copy_rows(a.x, a.y, walk, context);
  } else {
    turn_planes(a.x, a.y, walk, dense, context);
  }
}

}  // namespace ortops
