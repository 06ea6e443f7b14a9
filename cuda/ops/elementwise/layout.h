// How the inputs of a call lie to each other: the axes of the result, with neighbours that are walked as one merged,
// and the strides at which each input is read along them (0 where it has one element for many).
#pragma once

#include <array>
#include <vector>

#include "core/op.h"

namespace ortops::elementwise {

struct Layout {
  int rank = 0;  // at least 1
  int64_t count = 1;
  std::array<int64_t, kMaxRank> sizes = {};
  std::vector<std::array<int64_t, kMaxRank>> strides;  // of each input

  // Whether the input is read as the result is written, from first to last.
  bool is_whole(size_t input) const { return rank == 1 && strides[input][0] == 1; }
  bool is_scalar(size_t input) const {
    for (int axis = 0; axis < rank; ++axis) {
      if (strides[input][axis]) return false;
    }
    return true;
  }
};

inline Layout layout_of(const std::vector<Shape>& shapes) {
  Shape full;
  for (const Shape& shape : shapes) full.rank = std::max(full.rank, shape.rank);
  for (int axis = 0; axis < full.rank; ++axis) {
    full.dims[axis] = 1;
    for (const Shape& shape : shapes) {
      const int at = axis - (full.rank - shape.rank);
      if (at >= 0 && shape[at] != 1) full.dims[axis] = shape[at];
    }
  }
  std::vector<std::array<int64_t, kMaxRank>> strides(shapes.size());
  for (size_t input = 0; input < shapes.size(); ++input) {
    const Shape& shape = shapes[input];
    int64_t stride = 1;
    for (int axis = full.rank - 1; axis >= 0; --axis) {
      const int at = axis - (full.rank - shape.rank);
      const int64_t size = at >= 0 ? shape[at] : 1;
      strides[input][axis] = size == 1 ? 0 : stride;
      stride *= size;
    }
  }
  Layout layout;
  layout.strides.resize(shapes.size());
  for (int axis = 0; axis < full.rank; ++axis) {
    const int64_t size = full[axis];
    layout.count *= size;
    if (size == 1) continue;
    bool merges = layout.rank > 0;
    for (size_t input = 0; input < shapes.size(); ++input) {
      merges = merges && layout.strides[input][layout.rank - 1] == strides[input][axis] * size;
    }
    const int place = merges ? layout.rank - 1 : layout.rank++;
    layout.sizes[place] = merges ? layout.sizes[place] * size : size;
    for (size_t input = 0; input < shapes.size(); ++input) layout.strides[input][place] = strides[input][axis];
  }
  if (layout.rank == 0) {
    layout.rank = 1;
    layout.sizes[0] = 1;
    for (auto& of_input : layout.strides) of_input[0] = 0;
  }
  return layout;
}

}  // namespace ortops::elementwise
