// What is repeated and what is added up: axes merged until those left alternate, for both devices.
#pragma once

#include <algorithm>

#include "core/op.h"
#include "device/index.h"

namespace ortops {

// How x is read along the axes of what it and `target` broadcast to: with a stride of 0 where it repeats.
inline Walk repeated(const Shape& x, const Shape& target) {
  const int rank = std::max(x.rank, target.rank);
  int64_t sizes[kMaxRank], strides[kMaxRank];
  int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    const int own = axis - (rank - x.rank), given = axis - (rank - target.rank);
    const bool repeats = own < 0 || x[own] == 1;
    sizes[axis] = !repeats ? x[own] : given < 0 ? 1 : target[given];
    strides[axis] = repeats ? 0 : stride;
    if (!repeats) stride *= x[own];
  }
  Walk walk;
  for (int axis = 0; axis < rank; ++axis) walk.append(sizes[axis], strides[axis]);
  return walk;
}

// x is a matrix of matrices: `sums` sums of `terms` runs of `inner` elements each. Either the elements of a run have
// a sum each (columns), or all runs of a sum are one sum (rows).
struct Sums {
  bool columns;
  int64_t inner = 1;
  int64_t count = 1;  // of sums, a row of `inner` of them being one
  int64_t runs = 1;   // of a sum
  Walk sum, run;      // where in x a sum and a run of it begin
};

// How x is added up to `like`, which broadcasts to it. Neither is empty in an axis that is kept.
inline Sums sums(const Shape& x, const Shape& like) {
  struct Axis {
    int64_t size, stride;
    bool kept;
  };
  Axis axes[kMaxRank];
  int rank = 0;
  int64_t stride = x.size();
  for (int axis = 0; axis < x.rank; ++axis) {
    const int at = axis - (x.rank - like.rank);
    stride /= x[axis];
    if (x[axis] == 1) continue;
    const bool kept = at >= 0 && like[at] == x[axis];
    if (rank > 0 && axes[rank - 1].kept == kept) {
      axes[rank - 1] = {axes[rank - 1].size * x[axis], stride, kept};
    } else {
      axes[rank++] = {x[axis], stride, kept};
    }
  }
  Sums result;
  result.columns = rank > 0 && axes[rank - 1].kept;
  if (rank > 0) result.inner = axes[--rank].size;
  for (int axis = 0; axis < rank; ++axis) {
    (axes[axis].kept ? result.sum : result.run).append(axes[axis].size, axes[axis].stride);
    (axes[axis].kept ? result.count : result.runs) *= axes[axis].size;
  }
  return result;
}

}  // namespace ortops
