// Index arithmetic for the host and for device code.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "device/types.h"

namespace ortops {

// What a launch and a 32-bit kernel count in.
inline int narrow(int64_t value) {
  if (value != static_cast<int>(value)) throw std::length_error("a size beyond the 32 bits that the kernel counts in");
  return static_cast<int>(value);
}

// Where the element of a row-major index lies in memory with strides. Axes that are walked as one are merged by the
// host, so that there are few, and a stride of 0 repeats.
struct Walk {
  static constexpr int kMaxAxes = 16;
  int rank = 0;
  int64_t sizes[kMaxAxes] = {};
  int64_t strides[kMaxAxes] = {};

  void append(int64_t size, int64_t stride) {
    if (size == 1) return;
    if (rank > 0 && strides[rank - 1] == stride * size) {
      sizes[rank - 1] *= size;
      strides[rank - 1] = stride;
      return;
    }
    sizes[rank] = size;
    strides[rank++] = stride;
  }

  ORTOPS_HOST_DEVICE int64_t operator()(int64_t index) const {
    int64_t offset = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      int64_t rest;
      if (index >> 32 == 0 && sizes[axis] >> 32 == 0) {  // a 64-bit division takes a hundred instructions
        rest = uint32_t(index) % uint32_t(sizes[axis]);
        index = uint32_t(index) / uint32_t(sizes[axis]);
      } else {
        rest = index % sizes[axis];
        index /= sizes[axis];
      }
      offset += rest * strides[axis];
    }
    return rank > 0 ? offset + index * strides[0] : 0;
  }
};

}  // namespace ortops
