// How the elements of one tensor are found in another, axis by axis. Padding, slicing and their gradients are such
// maps; the kernels know no more of them.
#pragma once

#include <cmath>
#include <limits>

#include "core/shapes.h"

namespace ortops {

// Index i of the output reads, along this axis, element t = i - first of the source if t is in [0, extent). With a step
// only the multiples of it are read, at t / step. In [-begin, 0) and [extent, extent + end) the map goes on by its
// `Beyond`; elsewhere there is nothing to read.
struct MapAxis {
  int64_t size;   // of the output
  int64_t first;  // not negative
  int64_t extent;
  int64_t stride;  // of the source, in elements
  int64_t step = 1;
  int64_t begin = 0, end = 0;

  bool complete() const { return first == 0 && extent == size && step == 1 && begin == 0 && end == 0; }
};

enum class Beyond { nothing, reflect, replicate, circular };

// Where an index before or behind [0, extent) reads.
ORTOPS_HOST_DEVICE int64_t go_on(Beyond beyond, int64_t t, int64_t extent) {
  switch (beyond) {
    case Beyond::reflect:
      return t < 0 ? -t : 2 * (extent - 1) - t;
    case Beyond::circular:
      return t < 0 ? t + extent : t - extent;
    default:
      return t < 0 ? 0 : extent - 1;
  }
}

struct Map {
  int rank = 0;  // at least 1 when it is finished
  MapAxis axes[kMaxRank];
  int64_t base = 0;  // where t = 0 along every axis is
  Beyond beyond = Beyond::nothing;

  const MapAxis& inner() const { return axes[rank - 1]; }

  // The next axis inward. Axes that are walked as one are merged.
  void append(const MapAxis& axis) {
    if (axis.size == 1 && axis.complete()) return;
    if (rank > 0 && axis.complete()) {
      MapAxis& outer = axes[rank - 1];
      if (outer.step == 1 && outer.begin == 0 && outer.end == 0 && outer.stride == axis.stride * axis.size) {
        outer.size *= axis.size;
        outer.first *= axis.size;
        outer.extent *= axis.size;
        outer.stride = axis.stride;
        return;
      }
    }
    axes[rank++] = axis;
  }
  Map finished() const {
    Map map = *this;
    if (rank == 0) map.axes[map.rank++] = {1, 0, 1, 1};
    return map;
  }

  int64_t rows() const {
    int64_t product = 1;
    for (int axis = 0; axis < rank - 1; ++axis) product *= axes[axis].size;
    return product;
  }
};

inline void row_major(const Shape& shape, int64_t (&strides)[kMaxRank]) {
  int64_t stride = 1;
  for (int axis = shape.rank - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
}

template <class Attributes>
Beyond beyond_of(const Attributes& a) {
  using Mode = typename Attributes::Mode;
  if (a.mode == Mode::reflect) return Beyond::reflect;
  if (a.mode == Mode::replicate) return Beyond::replicate;
  if (a.mode == Mode::circular) return Beyond::circular;
  return Beyond::nothing;
}

// From the output of ConstantPad to x.
template <class Attributes>
Map pad_map(const Shape& x, const Attributes& a) {
  Map map;
  map.beyond = beyond_of(a);
  shapes::Padding pads[kMaxRank];
  shapes::padding(x.rank, a, pads);
  int64_t strides[kMaxRank];
  row_major(x, strides);
  for (int i = 0; i < x.rank; ++i) {
    const int64_t begin = std::max<int64_t>(pads[i].begin, 0), end = std::max<int64_t>(pads[i].end, 0);
    const int64_t cropped = begin - pads[i].begin;
    const int64_t kept = x[i] - cropped - (end - pads[i].end);
    map.base += cropped * strides[i];
    const bool more = map.beyond != Beyond::nothing;
    map.append({begin + kept + end, begin, kept, strides[i], 1, more ? begin : 0, more ? end : 0});
  }
  return map.finished();
}

// From the output of PadGradient to d_y: to what an element of x became itself. Its copies lie `begin` before and `end`
// behind.
template <class Attributes>
Map pad_gradient_map(const Shape& d_y, const Attributes& a) {
  Map map;
  map.beyond = beyond_of(a);
  shapes::Padding pads[kMaxRank];
  shapes::padding(d_y.rank, a, pads);
  int64_t strides[kMaxRank];
  row_major(d_y, strides);
  for (int i = 0; i < d_y.rank; ++i) {
    const int64_t begin = std::max<int64_t>(pads[i].begin, 0), end = std::max<int64_t>(pads[i].end, 0);
    map.base += begin * strides[i];
    map.append(
        {d_y[i] - pads[i].begin - pads[i].end, begin - pads[i].begin, d_y[i] - begin - end, strides[i], 1, begin, end});
  }
  return map.finished();
}

// From the output of StridedSlice to x.
template <class Attributes>
Map slice_map(const Shape& x, const Attributes& a) {
  Map map;
  shapes::Slice slices[kMaxRank];
  for (int i = 0; i < x.rank; ++i) slices[i].count = x[i];
  shapes::for_slices(x.rank, a, [&](int axis, int64_t start, int64_t end, int64_t step) {
    slices[axis] = shapes::slice(x[axis], start, end, step);
  });
  int64_t strides[kMaxRank];
  row_major(x, strides);
  for (int i = 0; i < x.rank; ++i) {
    const auto [start, step, count] = slices[i];
    map.base += start * strides[i];
    map.append({count, 0, count, count > 1 ? step * strides[i] : strides[i]});
  }
  return map.finished();
}

// From the output of StridedSliceGradient, of x's shape, to d_y.
template <class Attributes>
Map slice_gradient_map(const Shape& d_y, const Shape& x, const Attributes& a) {
  Map map;
  shapes::Slice slices[kMaxRank];
  for (int i = 0; i < x.rank; ++i) slices[i].count = x[i];
  shapes::for_slices(x.rank, a, [&](int axis, int64_t start, int64_t end, int64_t step) {
    slices[axis] = shapes::slice(x[axis], start, end, step);
  });
  int64_t strides[kMaxRank];
  row_major(d_y, strides);
  for (int i = 0; i < x.rank; ++i) {
    auto [first, step, count] = slices[i];
    int64_t stride = strides[i];
    if (count <= 1) step = 1;
    if (step < 0) {  // the same from the other end
      first += (count - 1) * step;
      map.base += (count - 1) * stride;
      step = -step;
      stride = -stride;
    }
    map.append({x[i], count ? first : 0, count ? (count - 1) * step + 1 : 0, stride, step});
  }
  return map.finished();
}

// From the output of ConcatenateGradient, an input's part, to d_y.
inline Map part_map(const Shape& d_y, const std::vector<Shape>& inputs, int64_t axis, int64_t index) {
  Map map;
  int64_t strides[kMaxRank];
  row_major(d_y, strides);
  if (axis < 0) axis += d_y.rank;
  for (int64_t i = 0; i < index; ++i) map.base += inputs[i][axis] * strides[axis];
  for (int i = 0; i < d_y.rank; ++i) map.append({inputs[index][i], 0, inputs[index][i], strides[i]});
  return map.finished();
}

// The element that a number becomes: for integers toward zero, and the type's least or greatest where it is beyond.
template <class Bits>
Bits element_bits(Type type, float value) {
  const auto bits = [](auto element) {
    Bits result = 0;
    static_assert(sizeof(element) <= 8);
    std::memcpy(&result, &element, std::min(sizeof(element), sizeof(result)));
    return result;
  };
  const auto whole = [&]<class I>(I) {
    using Limits = std::numeric_limits<I>;
    if (value >= static_cast<float>(Limits::max())) return bits(Limits::max());
    if (value <= static_cast<float>(Limits::min())) return bits(Limits::min());
    return bits(static_cast<I>(value));
  };
  switch (type) {
    case Type::float32:
      return bits(value);
    case Type::float64:
      return bits(static_cast<double>(value));
    case Type::float16:
      return bits(from_float<float16>(value));
    case Type::bfloat16:
      return bits(from_float<bfloat16>(value));
    case Type::bool_:
      return bits(uint8_t(value != 0));
    case Type::int8:
      return whole(int8_t());
    case Type::int16:
      return whole(int16_t());
    case Type::int32:
      return whole(int32_t());
    case Type::int64:
      return whole(int64_t());
    case Type::uint8:
      return whole(uint8_t());
    case Type::uint16:
      return whole(uint16_t());
    case Type::uint32:
      return whole(uint32_t());
    case Type::uint64:
      return whole(uint64_t());
    case Type::none:
      break;
  }
  throw std::logic_error("an element type that is none");
}

// The inputs of a Concatenate that hold anything, as pieces of the output's rows.
template <class T>
struct Joined {
  struct Piece {
    const T* data;
    int64_t width, end;  // of each row: the elements from `end - width` on
  };
  std::vector<Piece> pieces;
  int64_t rows = 1, width = 0;

  Joined(const std::vector<const T*>& inputs, const std::vector<Shape>& shapes, int64_t axis) {
    const int rank = shapes[0].rank;
    if (axis < 0) axis += rank;
    for (int i = 0; i < axis; ++i) rows *= shapes[0][i];
    for (size_t i = 0; i < inputs.size(); ++i) {
      int64_t piece = 1;
      for (int d = static_cast<int>(axis); d < rank; ++d) piece *= shapes[i][d];
      if (piece == 0) continue;
      width += piece;
      pieces.push_back({inputs[i], piece, width});
    }
  }
};

}  // namespace ortops
