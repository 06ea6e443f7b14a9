// Permute on the CPU: whole rows where the innermost axis stays, else squares that fit in the first cache.
#include <algorithm>
#include <cstring>

#include "device/arrays.h"
#include "gen/permute.h"
#include "ops/permute/plan.h"

namespace ortops {
namespace {

constexpr int64_t kGrain = 32768;  // elements worth a thread's while
constexpr int64_t kSquare = 16;    // of a block that is turned at once
constexpr int64_t kStrip = 64;     // rows of y that are written in turn: a line of x holds a part of each

// y[q][p] = x[p][q], of which `rows` p and `columns` q. Through a copy, so that rows of both are read and written
// whole.
template <class T>
ORTOPS_INLINE void turn(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows, int64_t columns) {
  T block[kSquare][kSquare];
  if (rows == kSquare && columns == kSquare) {
    for (int64_t p = 0; p < kSquare; ++p) std::memcpy(block[p], x + p * x_stride, sizeof(block[p]));
    for (int64_t q = 0; q < kSquare; ++q) {
      T line[kSquare];
      for (int64_t p = 0; p < kSquare; ++p) line[p] = block[p][q];
      std::memcpy(y + q * y_stride, line, sizeof(line));
    }
    return;
  }
  for (int64_t q = 0; q < columns; ++q) {
    for (int64_t p = 0; p < rows; ++p) y[q * y_stride + p] = x[p * x_stride + q];
  }
}

template <class T>
void copy_rows(const T* x, T* y, Walk rows, Context& context) {
  const int64_t width = rows.sizes[rows.rank - 1], step = rows.strides[rows.rank - 1];
  --rows.rank;
  int64_t count = 1;
  for (int axis = 0; axis < rows.rank; ++axis) count *= rows.sizes[axis];
  const int64_t group = rows.rank ? rows.sizes[rows.rank - 1] : 1;  // rows whose places need no division
  const int64_t apart = rows.rank ? rows.strides[rows.rank - 1] : 0;
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end;) {
      const T* from = x + rows(row);
      const int64_t last = std::min(end, row - row % group + group);
      for (; row < last; ++row, from += apart) {
        T* to = y + row * width;
        if (step == 1 && width * int64_t(sizeof(T)) >= 32) {
          std::memcpy(to, from, width * sizeof(T));
        } else {
          for (int64_t i = 0; i < width; ++i) to[i] = from[i * step];
        }
      }
    }
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
  const int64_t strips = (columns + kStrip - 1) / kStrip;
  const auto turn_strips = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t plane = i / strips, left = i % strips * kStrip, right = std::min(left + kStrip, columns);
      const T* x_plane = x + from(plane);
      T* y_plane = y + to(plane);
      for (int64_t row = 0; row < rows; row += kSquare) {
        for (int64_t column = left; column < right; column += kSquare) {
          turn(x_plane + row * x_stride + column, x_stride, y_plane + column * y_stride + row, y_stride,
               std::min(kSquare, rows - row), std::min(kSquare, right - column));
        }
      }
    }
  };
  context.parallel_for(planes * strips, std::max<int64_t>(1, kGrain / (rows * std::min(kStrip, columns))), turn_strips);
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
