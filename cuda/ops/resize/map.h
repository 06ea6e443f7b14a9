// Which pixels of the source a pixel of the result is made of, along one axis, and the inverse of that: for both
// devices and both directions, so that a gradient goes exactly where the value came from.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/shapes.h"
#include "device/index.h"
#include "device/types.h"

namespace ortops::resize {

// Pixel `at`, and (bilinear) the share `weight` of the one behind it; 0 at the last pixel, which has none behind.
template <class Weight>
struct Tap {
  int at;
  Weight weight;
};

struct Axis {
  int in, out;
  float ratio;    // nearest by a scale, where PyTorch rounds to float32: source pixels a pixel; else 0
  double step;    // bilinear: source pixels a pixel
  double shift;   // bilinear: of a pixel's centre
  double pixels;  // a source pixel, about

  template <bool kBilinear, class Weight = float>
  ORTOPS_HOST_DEVICE Tap<Weight> tap(int pixel) const {
    if constexpr (kBilinear) {
      const double where = (pixel + shift) * step - shift;
      const double position = where > 0 ? where : 0;
      const int at = position < in - 1 ? static_cast<int>(position) : in - 1;
      return {at, at < in - 1 ? static_cast<Weight>(position - at) : Weight(0)};
    } else if (ratio > 0) {
      const float position = floorf(static_cast<float>(pixel) * ratio);
      return {position < static_cast<float>(in) ? static_cast<int>(position) : in - 1, Weight(0)};
    } else {
      const uint64_t product = uint64_t(pixel) * in;
      return {static_cast<int>(product >> 32 ? product / out : uint32_t(product) / uint32_t(out)), Weight(0)};
    }
  }

  // The first pixel of the result whose tap is at source pixel `at` or behind.
  template <bool kBilinear>
  ORTOPS_HOST_DEVICE int first(int at) const {
    if (at <= 0) return 0;
    if (at >= in) return out;
    if (!kBilinear && ratio == 0) {  // the least pixel with pixel * in >= at * out
      const uint64_t product = uint64_t(at) * out + (in - 1);
      return static_cast<int>(product >> 32 ? product / in : uint32_t(product) / uint32_t(in));
    }
    const double guess = (at + shift) * pixels - shift;
    int pixel = guess < out ? (guess > 0 ? static_cast<int>(guess) : 0) : out;
    while (pixel > 0 && tap<kBilinear>(pixel - 1).at >= at) --pixel;
    while (pixel < out && tap<kBilinear>(pixel).at < at) ++pixel;
    return pixel;
  }
};

// Whether neighbours never lie more than one source pixel apart, rounding included.
template <bool kBilinear>
bool is_dense(const Axis& axis) {
  if (kBilinear) return axis.step <= 1;
  return axis.ratio > 0 ? axis.ratio < 0.99f && axis.out < 1 << 24 : axis.in <= axis.out;
}

// Whether each source pixel has two pixels of its own, as by a scale of 2.
template <bool kBilinear>
bool is_double(const Axis& axis) {
  if (int64_t(axis.in) * 2 != axis.out) return false;
  return kBilinear ? axis.step == 0.5 && axis.shift == 0.5 : axis.ratio == 0 || axis.ratio == 0.5f;
}

template <class Attributes>
Axis axis_of(const Attributes& a, int axis, int64_t in, int64_t out) {
  Axis result = {narrow(in), narrow(out), 0, 0, 0, double(out) / double(in)};
  const double scale = a.scale.size ? shapes::exact_scale(a.scale[axis]) : 0;
  if (a.mode == Attributes::Mode::nearest) {
    result.ratio = scale > 0 ? static_cast<float>(1 / scale) : 0;
  } else if (a.align_corners) {
    result.step = out > 1 ? double(in - 1) / double(out - 1) : 0;
  } else {
    result.step = scale > 0 ? 1 / scale : double(in) / double(out);
    result.shift = 0.5;
  }
  if (result.step > 0) result.pixels = 1 / result.step;
  return result;
}

// A call of either layout: `planes` of rows.in (or .out) rows of columns.in (.out) pixels of `pixel` elements.
struct Problem {
  int64_t planes;
  int pixel;
  Axis rows, columns;
};

template <class Args>
Problem problem_of(const Args& a) {
  const bool channels_last = a.layout == Args::Layout::NHWC;
  return {channels_last ? a.N : a.N * a.C, channels_last ? narrow(a.C) : 1,
          axis_of(a, 0, a.H, shapes::upsampled(a.H, 0, a)), axis_of(a, 1, a.W, shapes::upsampled(a.W, 1, a))};
}

}  // namespace ortops::resize
