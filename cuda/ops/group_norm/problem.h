// What GroupNorm and its gradient have in common, and the CPU and CUDA: x is [n, c, s] or, with channels last, [n, s,
// c], and a group has `channels` of the c.
#pragma once

#include "device/math.h"
#include "gen/group_norm.h"

namespace ortops::group_norm {

template <class T>
struct Problem {
  const T *x, *d_y, *scale, *bias;  // scale and bias may be null
  const float *mean, *rstd;         // of the gradient
  T* result;                        // y or d_x
  int64_t n, c, s, groups, channels;
  float epsilon;
  bool silu, channels_last;
};

template <class Args>
auto problem_of(const Args& a) {
  Problem<std::remove_const_t<std::remove_reference_t<decltype(*a.x)>>> p = {};
  p.x = a.x;
  p.scale = a.scale;
  p.bias = a.bias;
  p.n = a.N;
  p.c = a.C;
  p.s = a.D.size();
  p.groups = a.groups;
  p.channels = a.C / a.groups;
  p.silu = a.activation == Args::Activation::silu;
  p.channels_last = a.layout == Args::Layout::NHWC;
  return p;
}

// The derivative of z sigmoid(z).
ORTOPS_HOST_DEVICE float silu_slope(float z) {
  const float s = math::sigmoid(z);
  return s * (1 + z * (1 - s));
}

}  // namespace ortops::group_norm
