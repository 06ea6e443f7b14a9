// Division by numbers that the host knows, as a product and a shift: a tenth of what a division costs.
#pragma once

#include <cstdint>

#include "device/index.h"

namespace ortops {

// Divides numbers below 2^31. (Granlund & Montgomery, Division by Invariant Integers using Multiplication, 1994)
struct Divisor {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(int64_t by) : divisor(narrow(by)) {
    while ((uint64_t(1) << shift) < divisor) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - divisor)) / divisor + 1);
  }

  ORTOPS_HOST_DEVICE uint32_t quotient(uint32_t n) const {
#ifdef __CUDA_ARCH__
    return (__umulhi(n, multiplier) + n) >> shift;
#else
    return static_cast<uint32_t>(((uint64_t(n) * multiplier >> 32) + n) >> shift);
#endif
  }
};

// Divides numbers below 2^63.
struct WideDivisor {
  uint64_t divisor = 1, multiplier = 1;
  uint32_t shift = 0;

  WideDivisor() = default;
  explicit WideDivisor(int64_t by) : divisor(by) {
    while ((uint64_t(1) << shift) < divisor) ++shift;
    const auto excess = static_cast<unsigned __int128>((uint64_t(1) << shift) - divisor) << 64;
    multiplier = static_cast<uint64_t>(excess / divisor + 1);
  }

  ORTOPS_HOST_DEVICE uint64_t quotient(uint64_t n) const {
#ifdef __CUDA_ARCH__
    return (__umul64hi(n, multiplier) + n) >> shift;
#else
    return (static_cast<uint64_t>(static_cast<unsigned __int128>(n) * multiplier >> 64) + n) >> shift;
#endif
  }
};

// A Walk over fewer than 2^31 elements.
struct FastWalk {
  int rank = 0;
  Divisor sizes[Walk::kMaxAxes];
  int64_t strides[Walk::kMaxAxes] = {};

  FastWalk() = default;
  explicit FastWalk(const Walk& walk) {
    for (int axis = 0; axis < walk.rank; ++axis) append(walk.sizes[axis], walk.strides[axis]);
  }

  void append(int64_t size, int64_t stride) {  // nothing is merged
    sizes[rank] = Divisor(size);
    strides[rank++] = stride;
  }

  ORTOPS_HOST_DEVICE int64_t operator()(uint32_t index) const {
    int64_t offset = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      const uint32_t rest = sizes[axis].quotient(index);
      offset += (index - rest * sizes[axis].divisor) * strides[axis];
      index = rest;
    }
    return rank > 0 ? offset + index * strides[0] : 0;
  }
};

}  // namespace ortops
