// A permutation with what costs nothing taken out of it, for both devices.
#pragma once

#include "core/op.h"
#include "device/index.h"

namespace ortops {

// How x is read in the order of y. Axes of size 1 are left out, and neighbours that stay neighbours are one axis: a
// permutation that moves nothing has one axis at most.
inline Walk permuted(const Shape& x, const IntList& perm) {
  int64_t strides[kMaxRank];
  int64_t stride = 1;
  for (int axis = x.rank - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= x[axis];
  }
  Walk walk;
  for (int i = 0; i < x.rank; ++i) {
    const int64_t axis = perm.size == 0 ? x.rank - 1 - i : perm[i] < 0 ? perm[i] + x.rank : perm[i];
    walk.append(x[static_cast<int>(axis)], strides[axis]);
  }
  return walk;
}

// The axis of the walk along which x is dense; -1 where there is none.
inline int dense_axis(const Walk& walk) {
  for (int axis = 0; axis < walk.rank; ++axis) {
    if (walk.strides[axis] == 1) return axis;
  }
  return -1;
}

}  // namespace ortops
