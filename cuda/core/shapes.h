// Matches the shapes of a call with an operator's shape line. The generated code calls a Binder for each input and
// output; ortops/_declare.py does the same in Python, and a test compares the two.
//
// The code is written once for two kinds of size: int64_t when a kernel runs, and `Symbol` when ONNX Runtime infers
// shapes.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/op.h"

namespace ortops {

// A size during shape inference: a number, a name, or neither (then it is another size each time).
struct Symbol {
  int64_t value = -1;
  std::string name;
};

inline bool is_number(int64_t size) { return size >= 0; }
inline bool is_number(const Symbol& size) { return size.value >= 0; }
inline int64_t number(int64_t size) { return size; }
inline int64_t number(const Symbol& size) { return size.value; }
inline bool is_set(int64_t size) { return size >= 0; }
inline bool is_set(const Symbol& size) { return size.value >= 0 || !size.name.empty(); }
inline std::string text(int64_t size) { return std::to_string(size); }
inline std::string text(const Symbol& size) {
  return is_number(size) ? std::to_string(size.value) : size.name.empty() ? "?" : size.name;
}

template <class Size>
std::string text(const BasicShape<Size>& shape) {
  std::string result = "[";
  for (int i = 0; i < shape.rank; ++i) result += (i ? ", " : "") + text(shape[i]);
  return result + "]";
}

template <class Size>
Size unset() {
  if constexpr (std::is_same_v<Size, int64_t>) {
    return -1;
  } else {
    return {};
  }
}

template <class Size>
BasicShape<Size> unset_run() {
  BasicShape<Size> run;
  run.rank = -1;
  return run;
}

// f of numbers; unknown where one of them is not a number.
template <class Size, class F, class... Sizes>
Size compute(F&& f, const Sizes&... sizes) {
  if (!(is_number(sizes) && ...)) return unset<Size>();
  if constexpr (std::is_same_v<Size, int64_t>) {
    return f(number(sizes)...);
  } else {
    return {f(number(sizes)...), {}};
  }
}

// Where a Binder reads the inputs that the host reads.
class HostInputs {
 public:
  virtual const void* input(int index) = 0;

 protected:
  ~HostInputs() = default;
};

template <class Size>
class Binder {
 public:
  // One axis of a shape line: a size or a run of axes that has a name, or a size that is computed.
  struct Axis {
    Axis(const char* name, Size& size) : name(name), size(&size) {}
    Axis(const char* name, BasicShape<Size>& run) : name(name), run(&run) {}
    Axis(const char* name, Size&& computed) : name(name), computed(computed) {}

    const char* name;
    Size* size = nullptr;
    BasicShape<Size>* run = nullptr;
    Size computed = unset<Size>();
  };
  using Axes = std::initializer_list<Axis>;

  // inputs[i] is null where the input is absent or its rank unknown.
  Binder(const BasicShape<Size>* const* inputs, int count, BasicShape<Size>* outputs)
      : inputs_(inputs), count_(count), outputs_(outputs) {}

  bool has(int index) const { return index < count_ && inputs_[index]; }

  // The shapes of a variadic input, from `index` on; rank -1 for one that is not known.
  std::vector<BasicShape<Size>> rest(int index) const {
    std::vector<BasicShape<Size>> shapes;
    for (int i = index; i < count_; ++i) shapes.push_back(inputs_[i] ? *inputs_[i] : unset_run<Size>());
    return shapes;
  }

  void read_from(HostInputs& inputs) { host_ = &inputs; }

  // What a host input holds, as a run of sizes. During inference only their number may be known.
  BasicShape<Size> held(int index, const char* name, bool optional) const {
    BasicShape<Size> values;
    if (!has(index)) return optional && index >= count_ ? values : host_ ? values : unset_run<Size>();
    const Size& count = (*inputs_[index])[0];
    if (!is_number(count)) return unset_run<Size>();
    if (number(count) > kMaxRank) {
      throw Error(std::string(name) + ": expected at most " + std::to_string(kMaxRank) + " values, got " + text(count));
    }
    values.rank = static_cast<int>(number(count));
    for (int i = 0; i < values.rank; ++i) values.dims[i] = unset<Size>();
    if constexpr (std::is_same_v<Size, int64_t>) {
      const auto* data = static_cast<const int64_t*>(host_->input(index));
      std::copy(data, data + values.rank, values.dims);
    }
    return values;
  }

  // The input has exactly this shape; what has no value yet gets one.
  void input(int index, const char* name, Axes axes) {
    if (!has(index)) return;
    const BasicShape<Size>& came = *inputs_[index];
    int rest = came.rank;
    BasicShape<Size>* unknown = nullptr;
    uint32_t known = 0;  // the axes that had a value before this input, one bit each: what an error explains
    int position = 0;
    for (const Axis& axis : axes) {
      known |= uint32_t(axis.run ? axis.run->rank >= 0 : is_set(axis.size ? *axis.size : axis.computed)) << position++;
      if (!axis.run) {
        rest -= 1;
      } else if (axis.run->rank >= 0) {
        rest -= axis.run->rank;
      } else if (unknown) {
        return;  // an input that would tell where one run ends is of unknown rank
      } else {
        unknown = axis.run;
      }
    }
    if (rest < 0 || (rest > 0 && !unknown)) fail(name, axes, known, came, "shape");
    const auto unify = [&](Size& bound, const Size& size) {
      if (is_number(bound) && is_number(size)) {
        if (number(bound) != number(size)) fail(name, axes, known, came, "shape");
      } else if (!is_number(bound) && (is_number(size) || !is_set(bound))) {
        bound = size;
      }
    };
    int at = 0;
    for (const Axis& axis : axes) {
      if (!axis.run) {
        Size computed = axis.computed;
        unify(axis.size ? *axis.size : computed, came[at++]);
      } else if (axis.run == unknown) {
        unknown->rank = rest;
        for (int i = 0; i < rest; ++i) unknown->dims[i] = came[at++];
        unknown = nullptr;
      } else {
        for (int i = 0; i < axis.run->rank; ++i) unify(axis.run->dims[i], came[at++]);
      }
    }
  }

  // The input broadcasts to this shape. `strides` (may be null) gets the strides to read it with.
  void broadcast_input(int index, const char* name, Axes axes, Strides* strides) {
    if (!has(index)) return;
    const BasicShape<Size>& came = *inputs_[index];
    BasicShape<Size> full;
    if (!assemble(axes, full)) return;
    if (came.rank > full.rank) fail(name, axes, kAll, came, "a shape that broadcasts to");
    const int missing = full.rank - came.rank;
    int64_t stride = 1;
    if (strides) strides->rank = full.rank;
    for (int i = full.rank - 1; i >= 0; --i) {
      if (strides) strides->strides[i] = 0;
      if (i < missing) continue;
      const Size& size = came[i - missing];
      if (is_number(size) && number(size) == 1) continue;
      if (is_number(size) && is_number(full[i]) && number(size) != number(full[i])) {
        fail(name, axes, kAll, came, "a shape that broadcasts to");
      }
      if (strides) strides->strides[i] = stride;
      stride *= number(size);
    }
  }

  // Gives an output its shape; rank -1 where it is not known.
  void output(int index, Axes axes) {
    if (!assemble(axes, outputs_[index])) outputs_[index].rank = -1;
  }

 private:
  static constexpr uint32_t kAll = ~0u;

  static bool assemble(Axes axes, BasicShape<Size>& shape) {
    shape.rank = 0;
    for (const Axis& axis : axes) {
      const int count = axis.run ? axis.run->rank : 1;
      if (count < 0) return false;
      if (shape.rank + count > kMaxRank)
        throw Error("a shape of more than " + std::to_string(kMaxRank) + " axes is not supported");
      for (int i = 0; i < count; ++i) {
        shape.dims[shape.rank++] = axis.run ? (*axis.run)[i] : axis.size ? *axis.size : axis.computed;
      }
    }
    return true;
  }

  [[noreturn]] static void fail(const char* name, Axes axes, uint32_t explained, const BasicShape<Size>& came,
                                const char* what) {
    std::string line, known;
    int position = 0;
    std::vector<std::string> told;
    for (const Axis& axis : axes) {
      line += (line.empty() ? "" : " ") + std::string(axis.name);
      const std::string value = axis.run ? text(*axis.run) : text(axis.size ? *axis.size : axis.computed);
      const bool is_told = std::find(told.begin(), told.end(), axis.name) != told.end();
      if (!(explained >> position++ & 1) || value == axis.name || is_told) continue;  // 8 = 8 says nothing
      known += (known.empty() ? " with " : ", ") + std::string(axis.name) + " = " + value;
      told.push_back(axis.name);
    }
    throw Error(std::string(name) + ": expected " + what + " [" + line + "]" + known + ", got " + text(came));
  }

  const BasicShape<Size>* const* inputs_;
  int count_;
  BasicShape<Size>* outputs_;
  HostInputs* host_ = nullptr;
};

// The shape functions of shape lines; their twins are in ortops/_shapes.py, and tests/test_frame.py compares the two.
// They take sizes and runs of axes, and the operator's attributes last. A function of sizes is only called when all are
// known.
namespace shapes {

constexpr int64_t floor_divide(int64_t a, int64_t b) { return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0)); }

// A convolution's output along a spatial axis.
template <class Attributes>
int64_t conv(int64_t size, int64_t kernel, int64_t axis, const Attributes& a) {
  const int spatial = a.pads.size / 2;
  const int64_t span = a.dilations[axis] * (kernel - 1) + 1;
  return std::max<int64_t>(0, floor_divide(size + a.pads[axis] + a.pads[axis + spatial] - span, a.strides[axis]) + 1);
}

// A pooling's output along a spatial axis. With ceil_mode a last window that would begin in the padding behind is left
// out.
template <class Attributes>
int64_t pool(int64_t size, int64_t axis, const Attributes& a) {
  const int spatial = a.pads.size / 2;
  const int64_t span = a.dilations[axis] * (a.kernel_shape[axis] - 1) + 1;
  const int64_t padded = size + a.pads[axis] + a.pads[axis + spatial] - span;
  if (!a.ceil_mode) return std::max<int64_t>(0, floor_divide(padded, a.strides[axis]) + 1);
  const int64_t windows = floor_divide(padded + a.strides[axis] - 1, a.strides[axis]) + 1;
  const bool outside = (windows - 1) * a.strides[axis] >= size + a.pads[axis];
  return std::max<int64_t>(0, windows - outside);
}

// The number that was rounded to a node's 32 bits: the fraction of the smallest denominator that rounds to it, if that
// is up to 4096; or the 32 bits themselves. So a scale of 1.1 or 4/3 is in a node what it is in PyTorch.
inline double exact_scale(float scale) {
  for (int denominator = 1; denominator <= 4096; ++denominator) {
    const double fraction = std::nearbyint(double(scale) * denominator) / denominator;
    if (static_cast<float>(fraction) == scale) return fraction;
  }
  return scale;
}

// Height and width of a plane that is resized to a size or by a scale, as PyTorch has it: rounded down.
template <class Size, class Attributes>
BasicShape<Size> upsampled_plane(const Size& height, const Size& width, const Attributes& a) {
  if (a.mode == Attributes::Mode::nearest && a.align_corners) {
    throw Error("attribute align_corners: expected False with mode nearest, got True");
  }
  if (!(a.size.size == 2 && a.scale.size == 0) && !(a.size.size == 0 && a.scale.size == 2)) {
    throw Error(
        "attributes size and scale: expected two numbers (height, width) in one of them and none in the other, got " +
        std::to_string(a.size.size) + " and " + std::to_string(a.scale.size));
  }
  for (int i = 0; i < a.size.size; ++i) {
    if (a.size[i] <= 0 || a.size[i] >> 31) {
      throw Error("attribute size: expected sizes from 1 to 2147483647, got " + std::to_string(a.size[i]));
    }
  }
  for (int i = 0; i < a.scale.size; ++i) {
    if (!(a.scale[i] > 0 && std::isfinite(a.scale[i]))) {
      throw Error("attribute scale: expected finite numbers above 0, got " + std::to_string(a.scale[i]));
    }
  }
  BasicShape<Size> result;
  for (const Size* extent : {&height, &width}) {
    const int axis = result.rank++;
    if (is_number(*extent) && number(*extent) == 0) {
      throw Error("x: expected planes of at least one pixel, got one of none");
    }
    result.dims[axis] = unset<Size>();
    if (!a.size.size && !is_number(*extent)) continue;
    double pixels = 0;
    if (a.size.size) {
      pixels = static_cast<double>(a.size[axis]);
    } else {
      pixels = std::floor(static_cast<double>(number(*extent)) * exact_scale(a.scale[axis]));
      if (!(pixels >= 1 && pixels < 0x1p31)) {
        throw Error("attribute scale: expected at least 1 and less than 2^31 pixels, got " + text(*extent) +
                    " scaled to " + std::to_string(pixels));
      }
    }
    if constexpr (std::is_same_v<Size, int64_t>) {
      result.dims[axis] = static_cast<int64_t>(pixels);
    } else {
      result.dims[axis] = {static_cast<int64_t>(pixels), {}};
    }
  }
  return result;
}

// One axis of `upsampled_plane`.
template <class Attributes>
int64_t upsampled(int64_t extent, int64_t axis, const Attributes& a) {
  return upsampled_plane(extent, extent, a)[static_cast<int>(axis)];
}

// A shape less the reduced axes, or with 1 in their place. No axes means all.
template <class Size, class Attributes>
BasicShape<Size> reduce(const BasicShape<Size>& shape, const Attributes& a) {
  if (shape.rank < 0) return shape;
  bool reduced[kMaxRank] = {};
  for (int i = 0; i < a.axes.size; ++i) {
    const int64_t axis = a.axes[i] < 0 ? a.axes[i] + shape.rank : a.axes[i];
    if (axis < 0 || axis >= shape.rank || reduced[axis]) {
      throw Error("attribute axes: expected distinct axes from " + std::to_string(-shape.rank) + " to " +
                  std::to_string(shape.rank - 1) + ", got " + std::to_string(a.axes[i]));
    }
    reduced[axis] = true;
  }
  BasicShape<Size> result;
  for (int i = 0; i < shape.rank; ++i) {
    if (a.axes.size && !reduced[i]) {
      result.dims[result.rank++] = shape[i];
    } else if (a.keepdims) {
      if constexpr (std::is_same_v<Size, int64_t>) {
        result.dims[result.rank++] = 1;
      } else {
        result.dims[result.rank++] = {1, {}};
      }
    }
  }
  return result;
}

// A shape with the selected axis shortened to k, which is the attribute or the one number of `count`; whole without
// either.
template <class Size, class Attributes>
BasicShape<Size> top_k(const BasicShape<Size>& shape, const BasicShape<Size>& count, const Attributes& a) {
  if (shape.rank < 0) return shape;
  if (a.axis < -shape.rank || a.axis >= shape.rank) {
    throw Error(shape.rank == 0 ? "attribute axis: expected an input of at least one axis, got a scalar"
                                : "attribute axis: expected an axis from " + std::to_string(-shape.rank) + " to " +
                                      std::to_string(shape.rank - 1) + ", got " + std::to_string(a.axis));
  }
  if (a.k && count.rank > 0) throw Error("attribute k: expected either the attribute k or the input k_input, got both");
  BasicShape<Size> result = shape;
  Size& size = result.dims[a.axis < 0 ? a.axis + shape.rank : a.axis];
  const auto check = [&](const char* name, int64_t k) {
    if (k < 0 || (is_number(size) && k > number(size))) {
      throw Error(std::string(name) + ": expected a number from 0 to the size " + text(size) + " of axis " +
                  std::to_string(a.axis) + ", got k = " + std::to_string(k));
    }
  };
  if (a.k) {
    check("attribute k", *a.k);
    size = compute<Size>([&]() { return *a.k; });
  } else if (count.rank < 0) {
    size = unset<Size>();
  } else if (count.rank > 0) {
    if constexpr (std::is_same_v<Size, int64_t>) check("k_input", count[0]);
    size = count[0];
  }
  return result;
}

// How many bags there are: the rows of a matrix of indices, or one for each offset.
template <class Size, class Attributes>
BasicShape<Size> bags(const BasicShape<Size>& indices, const Size& offsets, const Attributes& a) {
  if (indices.rank < 0) return indices;
  BasicShape<Size> result;
  result.rank = 1;
  if (indices.rank == 2) {
    if (is_set(offsets)) throw Error("offsets: expected none, as indices of rank 2 have a bag a row");
    result.dims[0] = indices[0];
    return result;
  }
  if (indices.rank != 1) {
    throw Error("indices: expected rank 1 (with offsets) or 2, got rank " + std::to_string(indices.rank));
  }
  if (is_number(offsets)) {
    if (number(offsets) < a.include_last_offset) {
      throw Error("offsets: expected at least one, as include_last_offset has the last one end the last bag, got none");
    }
    result.dims[0] = compute<Size>([&](int64_t count) { return count - a.include_last_offset; }, offsets);
  } else if (std::is_same_v<Size, int64_t>) {
    throw Error("offsets: missing; indices of rank 1 need them, to say where each bag begins");
  } else {
    result.dims[0] = a.include_last_offset ? unset<Size>() : offsets;
  }
  return result;
}

// The shape that all the shapes broadcast to (numpy's rule).
template <class Size, class Attributes>
BasicShape<Size> broadcast(const std::vector<BasicShape<Size>>& inputs, const Attributes&) {
  BasicShape<Size> result;
  for (const auto& shape : inputs) {
    if (shape.rank < 0) return shape;
    result.rank = std::max(result.rank, shape.rank);
  }
  for (int axis = 0; axis < result.rank; ++axis) {
    Size& size = result.dims[axis];
    bool first = true;
    for (const auto& shape : inputs) {
      const int at = axis - (result.rank - shape.rank);
      if (at < 0) continue;
      const Size& came = shape[at];
      const bool one = is_number(came) && number(came) == 1;
      if (first || (is_number(size) && number(size) == 1)) {
        size = came;
      } else if (is_number(size) && is_number(came) && !one && number(size) != number(came)) {
        throw Error("expected shapes that broadcast together, got " + text(shape) + " beside a size of " + text(size) +
                    " in axis " + std::to_string(axis));
      } else if (!is_number(size) && is_number(came) && !one) {
        size = came;  // an unknown size must be this or 1
      } else if (!is_number(size) && !is_number(came) && text(size) != text(came)) {
        size = unset<Size>();
      }
      first = false;
    }
  }
  return result;
}

// The shape that a shape and a target, which is what an input named `shape` holds, broadcast to.
template <class Size, class Attributes>
BasicShape<Size> expand(const BasicShape<Size>& shape, const BasicShape<Size>& target, const Attributes& a) {
  if (shape.rank < 0 || target.rank < 0) return unset_run<Size>();
  if constexpr (std::is_same_v<Size, int64_t>) {
    if (std::any_of(target.dims, target.dims + target.rank, [](int64_t size) { return size < 0; })) {
      throw Error("shape: expected sizes from 0 on (1 keeps the size of x), got " + text(target));
    }
  }
  try {
    return broadcast<Size>({shape, target}, a);
  } catch (const Error&) {
    throw Error("shape: expected sizes that x of shape " + text(shape) + " broadcasts with, got " + text(target));
  }
}

// As many channels, if they make groups of one size.
template <class Attributes>
int64_t grouped(int64_t channels, const Attributes& a) {
  if (channels % a.groups != 0) {
    throw Error("attribute groups: expected a divisor of the " + std::to_string(channels) + " channels of x, got " +
                std::to_string(a.groups));
  }
  return channels;
}

// A shape with its axes in another order. No perm reverses them.
template <class Size, class Attributes>
BasicShape<Size> permute(const BasicShape<Size>& shape, const Attributes& a) {
  if (shape.rank < 0) return shape;
  BasicShape<Size> result;
  result.rank = shape.rank;
  uint32_t taken = 0;
  for (int i = 0; i < shape.rank; ++i) {
    const int64_t axis = a.perm.size == 0 ? shape.rank - 1 - i : a.perm[i] < 0 ? a.perm[i] + shape.rank : a.perm[i];
    if (axis >= 0 && axis < shape.rank) {
      taken |= uint32_t(1) << axis;
      result.dims[i] = shape[axis];
    }
  }
  if ((a.perm.size != 0 && a.perm.size != shape.rank) || taken != (uint32_t(1) << shape.rank) - 1) {
    std::string got;
    for (int i = 0; i < a.perm.size; ++i) got += (i ? ", " : "") + std::to_string(a.perm[i]);
    throw Error("attribute perm: expected each axis of x, which has " + std::to_string(shape.rank) + ", once, got [" +
                got + "]");
  }
  return result;
}

// The first shape, if it broadcasts to the second.
template <class Size, class Attributes>
BasicShape<Size> sum_to(const BasicShape<Size>& like, const BasicShape<Size>& shape, const Attributes&) {
  if (like.rank < 0 || shape.rank < 0) return like;
  bool fits = like.rank <= shape.rank;
  for (int back = 1; fits && back <= like.rank; ++back) {
    const Size &a = like[like.rank - back], &b = shape[shape.rank - back];
    fits = !is_number(a) || number(a) == 1 || !is_number(b) || number(a) == number(b);
  }
  if (!fits) {
    throw Error("like: expected a shape that broadcasts to that of x, " + text(shape) + ", got " + text(like));
  }
  return like;
}

// The axis that an attribute names, from 0 on.
template <class Size>
int axis_of(const BasicShape<Size>& shape, int64_t axis) {
  if (shape.rank == 0) throw Error("attribute axis: expected an input of at least one axis, got one of none");
  if (axis < -shape.rank || axis >= shape.rank) {
    throw Error("attribute axis: expected from " + std::to_string(-shape.rank) + " to " +
                std::to_string(shape.rank - 1) + ", got " + std::to_string(axis));
  }
  return static_cast<int>(axis < 0 ? axis + shape.rank : axis);
}

// A shape with the axes of the indices in the place of one axis.
template <class Size, class Attributes>
BasicShape<Size> take(const BasicShape<Size>& x, const BasicShape<Size>& indices, const Attributes& a) {
  if (x.rank < 0 || indices.rank < 0) return unset_run<Size>();
  const int axis = axis_of(x, a.axis);
  if (x.rank - 1 + indices.rank > kMaxRank) {
    throw Error("a shape of more than " + std::to_string(kMaxRank) + " axes is not supported");
  }
  BasicShape<Size> result;
  for (int i = 0; i < axis; ++i) result.dims[result.rank++] = x[i];
  for (int i = 0; i < indices.rank; ++i) result.dims[result.rank++] = indices[i];
  for (int i = axis + 1; i < x.rank; ++i) result.dims[result.rank++] = x[i];
  return result;
}

// The shape that was taken from, where it fits.
template <class Size, class Attributes>
BasicShape<Size> take_gradient(const BasicShape<Size>& d_y, const BasicShape<Size>& indices, const BasicShape<Size>& x,
                               const Attributes& a) {
  const BasicShape<Size> y = take(x, indices, a);
  if (y.rank < 0 || d_y.rank < 0) return x;
  bool fits = d_y.rank == y.rank;
  for (int i = 0; fits && i < y.rank; ++i) {
    fits = !is_number(d_y[i]) || !is_number(y[i]) || number(d_y[i]) == number(y[i]);
  }
  if (!fits) throw Error("d_y: expected the shape " + text(y) + " of what was taken, got " + text(d_y));
  return x;
}

// The shape of what is read along an axis of x, or written: no larger than x but along that axis.
template <class Size, class Attributes>
BasicShape<Size> along(const BasicShape<Size>& x, const BasicShape<Size>& part, const Attributes& a) {
  if (x.rank < 0) return part;
  const int axis = axis_of(x, a.axis);
  if (part.rank < 0) return part;
  bool fits = part.rank == x.rank;
  for (int i = 0; fits && i < x.rank; ++i) {
    fits = i == axis || !is_number(part[i]) || !is_number(x[i]) || number(part[i]) <= number(x[i]);
  }
  if (!fits) {
    throw Error("expected a shape of the rank of " + text(x) + ", no larger but in axis " + std::to_string(axis) +
                ", got " + text(part));
  }
  return part;
}

// The shape that is written into along an axis, where the part fits.
template <class Size, class Attributes>
BasicShape<Size> scatter(const BasicShape<Size>& x, const BasicShape<Size>& part, const Attributes& a) {
  along(x, part, a);
  return x;
}

// The attribute `axes`, counted from the front; none given means all. Returns how many there are.
template <class Attributes>
int chosen_axes(int rank, const Attributes& a, int (&chosen)[kMaxRank]) {
  bool taken[kMaxRank] = {};
  for (int i = 0; i < a.axes.size; ++i) {
    const int64_t axis = a.axes[i] < 0 ? a.axes[i] + rank : a.axes[i];
    if (axis < 0 || axis >= rank || taken[axis]) {
      throw Error("attribute axes: expected distinct axes from " + std::to_string(-rank) + " to " +
                  std::to_string(rank - 1) + ", got " + std::to_string(a.axes[i]));
    }
    taken[axis] = true;
    chosen[i] = static_cast<int>(axis);
  }
  if (a.axes.size) return a.axes.size;
  for (int axis = 0; axis < rank; ++axis) chosen[axis] = axis;
  return rank;
}

// No tensor is longer. Sums of a few numbers below it fit in 64 bits.
constexpr int64_t kLongest = int64_t(1) << 48;

struct Padding {
  int64_t begin = 0, end = 0;
};

// What the attributes `pads` and `axes` put before and behind each axis.
template <class Attributes>
void padding(int rank, const Attributes& a, Padding (&result)[kMaxRank]) {
  int axes[kMaxRank];
  const int count = chosen_axes(rank, a, axes);
  if (a.pads.size != 2 * count) {
    throw Error("attribute pads: expected " + std::to_string(2 * count) + " values, the beginnings of " +
                std::to_string(count) + " axes and then their ends, got " + std::to_string(a.pads.size));
  }
  for (int i = 0; i < count; ++i) {
    const Padding pads = {a.pads[i], a.pads[i + count]};
    if (std::min(pads.begin, pads.end) <= -kLongest || std::max(pads.begin, pads.end) >= kLongest) {
      throw Error("attribute pads: expected values between -2^48 and 2^48, got " + std::to_string(pads.begin) +
                  " and " + std::to_string(pads.end));
    }
    result[axes[i]] = pads;
  }
}

// Throws where an axis of that size cannot be cropped and padded so.
template <class Attributes>
void check_padding(int64_t size, Padding pads, int axis, const Attributes& a) {
  using Mode = decltype(a.mode);
  const int64_t kept = size + std::min<int64_t>(pads.begin, 0) + std::min<int64_t>(pads.end, 0);
  if (kept < 0) {
    throw Error("attribute pads: expected to crop at most the " + std::to_string(size) + " elements of axis " +
                std::to_string(axis) + ", got " + std::to_string(pads.begin) + " and " + std::to_string(pads.end));
  }
  const int64_t most = a.mode == Mode::reflect              ? std::max<int64_t>(kept - 1, 0)
                       : a.mode == Mode::circular           ? kept
                       : a.mode == Mode::replicate && !kept ? 0
                                                            : kLongest;
  if (std::max(pads.begin, pads.end) > most) {
    throw Error("attribute pads: expected at most " + std::to_string(most) +
                " elements by this mode on each side of axis " + std::to_string(axis) + ", of which " +
                std::to_string(kept) + " elements are kept, got " + std::to_string(std::max(pads.begin, pads.end)));
  }
}

// A shape with `pads` added: first those before each of the axes, then those behind; negative ones crop.
template <class Size, class Attributes>
BasicShape<Size> padded(BasicShape<Size> shape, const Attributes& a) {
  if (shape.rank < 0) return shape;
  Padding pads[kMaxRank];
  padding(shape.rank, a, pads);
  for (int axis = 0; axis < shape.rank; ++axis) {
    const auto [begin, end] = pads[axis];
    if (is_number(shape[axis])) check_padding(number(shape[axis]), pads[axis], axis, a);
    if (begin || end) {
      shape.dims[axis] = compute<Size>([&](int64_t size) { return size + begin + end; }, shape[axis]);
    }
  }
  return shape;
}

// The shape that becomes this one when it is padded.
template <class Size, class Attributes>
BasicShape<Size> unpadded(BasicShape<Size> shape, const Attributes& a) {
  if (shape.rank < 0) return shape;
  Padding pads[kMaxRank];
  padding(shape.rank, a, pads);
  for (int axis = 0; axis < shape.rank; ++axis) {
    const auto [begin, end] = pads[axis];
    if (is_number(shape[axis])) {
      const int64_t size = number(shape[axis]);
      if (size < begin + end) {
        throw Error("attribute pads: expected no more than the " + std::to_string(size) + " elements of axis " +
                    std::to_string(axis) + ", got " + std::to_string(begin) + " and " + std::to_string(end));
      }
      check_padding(size - begin - end, pads[axis], axis, a);
    }
    if (begin || end) {
      shape.dims[axis] = compute<Size>([&](int64_t size) { return size - begin - end; }, shape[axis]);
    }
  }
  return shape;
}

// x[start], x[start + step], ...: `count` elements of an axis.
struct Slice {
  int64_t start = 0, step = 1, count = 0;
};

// start:end:step of an axis, by numpy's rules.
constexpr Slice slice(int64_t size, int64_t start, int64_t end, int64_t step) {
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
  start = start < 0 ? std::max(start + size, low) : std::min(start, high);
  end = end < 0 ? std::max(end + size, low) : std::min(end, high);
  const int64_t span = step < 0 ? start - end : end - start;
  const uint64_t stride = step < 0 ? 0 - uint64_t(step) : uint64_t(step);
  return {start, step, span > 0 ? int64_t(uint64_t(span - 1) / stride) + 1 : 0};
}

// Calls f(axis, start, end, step) for each axis that is sliced.
template <class Attributes, class F>
void for_slices(int rank, const Attributes& a, F&& f) {
  int axes[kMaxRank];
  int count = a.starts.size;
  if (a.axes.size) {
    count = chosen_axes(rank, a, axes);
  } else if (count > rank) {
    throw Error("attribute starts: expected at most " + std::to_string(rank) + " values, one for each axis, got " +
                std::to_string(count));
  } else {
    for (int axis = 0; axis < count; ++axis) axes[axis] = axis;
  }
  const auto check = [&](const char* name, int size) {
    if (size == count) return;
    throw Error(std::string("attribute ") + name + ": expected " + std::to_string(count) +
                " values, one for each axis that is sliced, got " + std::to_string(size));
  };
  check("starts", a.starts.size);
  check("ends", a.ends.size);
  if (a.steps.size) check("steps", a.steps.size);
  for (int i = 0; i < a.steps.size; ++i) {
    if (a.steps[i] == 0) throw Error("attribute steps: expected steps other than 0");
  }
  for (int i = 0; i < count; ++i) f(axes[i], a.starts[i], a.ends[i], a.steps.size ? a.steps[i] : 1);
}

// The shape of x[start:end:step, ...], by numpy's rules.
template <class Size, class Attributes>
BasicShape<Size> sliced(BasicShape<Size> shape, const Attributes& a) {
  if (shape.rank < 0) return shape;
  for_slices(shape.rank, a, [&](int axis, int64_t start, int64_t end, int64_t step) {
    const auto length = [&](int64_t size) { return slice(size, start, end, step).count; };
    shape.dims[axis] = compute<Size>(length, shape[axis]);
  });
  return shape;
}

// Throws where d_y has not the shape that is expected.
template <class Size>
void check_part(const BasicShape<Size>& part, const BasicShape<Size>& expected, const char* what) {
  if (part.rank < 0 || expected.rank < 0) return;
  bool fits = part.rank == expected.rank;
  for (int i = 0; fits && i < part.rank; ++i) {
    fits = !is_number(part[i]) || !is_number(expected[i]) || number(part[i]) == number(expected[i]);
  }
  if (!fits)
    throw Error(std::string("d_y: expected the shape ") + what + ", " + text(expected) + ", got " + text(part));
}

// The shape, of which the first one is to be that slice.
template <class Size, class Attributes>
BasicShape<Size> unsliced(const BasicShape<Size>& part, const BasicShape<Size>& shape, const Attributes& a) {
  check_part(part, sliced(shape, a), "of the slice");
  return shape;
}

// The shape of the inputs one behind the other along an axis.
template <class Size, class Attributes>
BasicShape<Size> concatenated(const std::vector<BasicShape<Size>>& inputs, const Attributes& a) {
  if (inputs.empty()) throw Error("xs: expected at least one input");
  const auto known = std::find_if(inputs.begin(), inputs.end(), [](const auto& shape) { return shape.rank >= 0; });
  if (known == inputs.end()) return unset_run<Size>();
  BasicShape<Size> result = *known;
  const int axis = axis_of(result, a.axis);
  for (const auto& shape : inputs) {
    if (&shape == &*known) continue;
    bool fits = shape.rank < 0 || shape.rank == result.rank;
    for (int i = 0; fits && i < shape.rank; ++i) {
      if (i == axis || !is_number(shape[i])) continue;
      if (!is_number(result[i])) result.dims[i] = shape[i];
      fits = number(result[i]) == number(shape[i]);
    }
    if (!fits) {
      throw Error("xs: expected shapes that differ in axis " + std::to_string(axis) + " alone, got " + text(*known) +
                  " and " + text(shape));
    }
    const Size beside = shape.rank < 0 ? unset<Size>() : shape[axis];
    result.dims[axis] = compute<Size>([](int64_t a, int64_t b) { return a + b; }, result[axis], beside);
  }
  return result;
}

// The shape of one of the inputs, that all together have the first shape.
template <class Size, class Attributes>
BasicShape<Size> part_of_concatenated(const BasicShape<Size>& whole, const std::vector<BasicShape<Size>>& inputs,
                                      const Attributes& a) {
  if (a.index < 0 || a.index >= static_cast<int64_t>(inputs.size())) {
    throw Error("attribute index: expected the number of an input, from 0 to " + std::to_string(inputs.size()) +
                " (not included), got " + std::to_string(a.index));
  }
  check_part(whole, concatenated(inputs, a), "of all inputs together");
  return inputs[a.index];
}

}  // namespace shapes

}  // namespace ortops
