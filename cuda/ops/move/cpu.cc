// Moves on the CPU: row by row of the output, whole runs by memcpy. Work is shared out by elements, so that one long
// row occupies all threads as well as many short ones do.
#include <algorithm>
#include <cstring>
#include <vector>

#include "device/arrays.h"
#include "gen/move.h"
#include "ops/move/map.h"

namespace ortops {
namespace {

constexpr int64_t kGrain = 32768;  // bytes worth a thread's while
constexpr int64_t kBlock = 16384;  // bytes of an output that are written by several passes
constexpr int64_t kChunk = 512;    // elements that are summed at a time

// Walks the rows of a map's output.
class Rows {
 public:
  Rows(const Map& map, int64_t row) : map_(map) {
    for (int axis = map.rank - 2; axis >= 0; --axis) {
      index_[axis] = row % map.axes[axis].size;
      row /= map.axes[axis].size;
    }
  }
  void next() {
    for (int axis = map_.rank - 2; axis >= 0; --axis) {
      if (++index_[axis] < map_.axes[axis].size) return;
      index_[axis] = 0;
    }
  }
  int64_t t(int axis) const { return index_[axis] - map_.axes[axis].first; }

  // Where the row begins in the source (its t = 0), or false if nothing of it is there.
  bool locate(int64_t& offset) const {
    offset = map_.base;
    for (int i = 0; i < map_.rank - 1; ++i) {
      const MapAxis& axis = map_.axes[i];
      int64_t at = t(i);
      if (at < 0 || at >= axis.extent) {
        if (at < -axis.begin || at >= axis.extent + axis.end) return false;
        at = go_on(map_.beyond, at, axis.extent);
      }
      if (axis.step != 1) {
        if (at % axis.step) return false;
        at /= axis.step;
      }
      offset += at * axis.stride;
    }
    return true;
  }

 private:
  const Map& map_;
  int64_t index_[kMaxRank];
};

// Calls f(rows, row, begin, end) for pieces of rows.
template <class F>
void for_rows(const Map& map, int64_t grain, Context& context, F&& f) {
  const int64_t width = map.inner().size;
  context.parallel_for(map.rows() * width, grain, [&](int64_t begin, int64_t end) {
    int64_t row = begin / width, column = begin % width;
    Rows rows(map, row);
    while (begin < end) {
      const int64_t count = std::min(width - column, end - begin);
      f(rows, row, column, column + count);
      begin += count;
      column = 0;
      ++row;
      rows.next();
    }
  });
}

// y[0], y[1], ... = from[0], from[stride], ...
template <class T>
void gather(const T* from, int64_t stride, T* y, int64_t count) {
  if (stride == 1) {
    std::memcpy(y, from, count * sizeof(T));
  } else if (stride == 2) {
    for (int64_t i = 0; i < count; ++i) y[i] = from[2 * i];
  } else if (stride == -1) {
    for (int64_t i = 0; i < count; ++i) y[i] = from[-i];
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = from[i * stride];
  }
}

// Elements [begin, end) of a row that has its t = 0 at `source`.
template <class T>
void move_row(const Map& map, const T* source, T* y, int64_t begin, int64_t end, T fill) {
  const MapAxis& axis = map.inner();
  const int64_t low = std::clamp(axis.first, begin, end);
  const int64_t high = std::clamp(axis.first + axis.extent, low, end);
  const auto beside = [&](int64_t from, int64_t to) {
    if (map.beyond == Beyond::nothing) {
      std::fill(y + from, y + to, fill);
    } else {
      for (int64_t i = from; i < to; ++i) y[i] = source[go_on(map.beyond, i - axis.first, axis.extent) * axis.stride];
    }
  };
  if (begin < low) beside(begin, low);
  if (high < end) beside(high, end);
  if (low == high) return;
  if (axis.step == 1) {
    gather(source + (low - axis.first) * axis.stride, axis.stride, y + low, high - low);
  } else {
    std::fill(y + low, y + high, fill);
    for (int64_t t = (low - axis.first + axis.step - 1) / axis.step; t * axis.step < high - axis.first; ++t) {
      y[axis.first + t * axis.step] = source[t * axis.stride];
    }
  }
}

template <class T>
void move(const Map& map, const T* x, T* y, T fill, Context& context) {
  const int64_t width = map.inner().size;
  for_rows(map, kGrain / sizeof(T), context, [&](const Rows& rows, int64_t row, int64_t begin, int64_t end) {
    int64_t offset;
    if (rows.locate(offset)) {
      move_row(map, x + offset, y + row * width, begin, end, fill);
    } else {
      std::fill(y + row * width + begin, y + row * width + end, fill);
    }
  });
}

// Rows of kWidth elements (0: of `width`) from one after another to `pitch` apart.
template <int kWidth, class T>
void spread(const T* from, int64_t width, T* to, int64_t pitch, int64_t rows) {
  if (kWidth) width = kWidth;
  for (int64_t row = 0; row < rows; ++row) std::memcpy(to + row * pitch, from + row * width, width * sizeof(T));
}

// Calls f(at) for each place along the axis that a copy of its element t lies, the element's own first.
template <class F>
void for_copies(const MapAxis& axis, Beyond beyond, int64_t t, F&& f) {
  const int64_t n = axis.extent;
  f(t);
  switch (beyond) {
    case Beyond::reflect:
      if (t >= 1 && t <= axis.begin) f(-t);
      if (t <= n - 2 && t >= n - 1 - axis.end) f(2 * (n - 1) - t);
      break;
    case Beyond::circular:
      if (t >= n - axis.begin) f(t - n);
      if (t < axis.end) f(t + n);
      break;
    default:
      if (t == 0) {
        for (int64_t i = -axis.begin; i < 0; ++i) f(i);
      }
      if (t == n - 1) {
        for (int64_t i = n; i < n + axis.end; ++i) f(i);
      }
  }
}

}  // namespace

template <class T>
void constant_pad_cpu(const ConstantPadArgs<T>& a, Context& context) {
  move(pad_map(a.X, a), a.x, a.y, element_bits<T>(a.T_type, a.value), context);
}

template <class T>
void strided_slice_cpu(const StridedSliceArgs<T>& a, Context& context) {
  move(slice_map(a.X, a), a.x, a.y, T(), context);
}

template <class T>
void strided_slice_gradient_cpu(const StridedSliceGradientArgs<T>& a, Context& context) {
  move(slice_gradient_map(a.Y, a.X, a), a.d_y, a.d_x, T(), context);
}

template <class T>
void concatenate_gradient_cpu(const ConcatenateGradientArgs<T>& a, Context& context) {
  move(part_map(a.Y, a.X, a.axis, a.index), a.d_y, a.d_x, T(), context);
}

template <class T>
void concatenate_cpu(const ConcatenateArgs<T>& a, Context& context) {
  const Joined<T> joined(a.xs, a.X, a.axis);
  const int64_t block = kBlock / sizeof(T) / joined.width;
  if (block > 1 && joined.rows > 1) {  // short rows: input by input, as many rows at a time as stay in the cache
    context.parallel_for(joined.rows, block, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; row += block) {
        for (const auto& [data, width, piece_end] : joined.pieces) {
          const auto copy = width == 1   ? spread<1, T>
                            : width == 2 ? spread<2, T>
                            : width == 3 ? spread<3, T>
                                         : spread<0, T>;
          copy(data + row * width, width, a.y + row * joined.width + piece_end - width, joined.width,
               std::min(block, end - row));
        }
      }
    });
    return;
  }
  context.parallel_for(joined.rows * joined.width, kGrain / sizeof(T), [&](int64_t begin, int64_t end) {
    int64_t row = begin / joined.width, column = begin % joined.width;
    auto piece = std::upper_bound(joined.pieces.begin(), joined.pieces.end(), column,
                                  [](int64_t column, const auto& piece) { return column < piece.end; });
    while (begin < end) {
      const int64_t count = std::min(piece->end - column, end - begin);
      const T* from = piece->data + row * piece->width + (column - (piece->end - piece->width));
      std::memcpy(a.y + begin, from, count * sizeof(T));
      begin += count;
      column += count;
      if (++piece == joined.pieces.end()) {
        piece = joined.pieces.begin();
        column = 0;
        ++row;
      }
    }
  });
}

template <class T>
void pad_gradient_cpu(const PadGradientArgs<T>& a, Context& context) {
  const Map map = pad_gradient_map(a.Y, a);
  const MapAxis& inner = map.inner();
  const auto piece = [&](const Rows& rows, T* d_x, int64_t begin, int64_t end) {
    const int64_t low = std::clamp(inner.first, begin, end);
    const int64_t high = std::clamp(inner.first + inner.extent, low, end);
    Compute<T> sum[kChunk] = {}, term[kChunk];
    const auto add_row = [&](const T* d_y) {  // d_y[0] became of t = 0
      widen(d_y + (low - inner.first), term, high - low);
      add(sum, term, high - low);
      const auto add_copies = [&](int64_t from, int64_t to) {
        for (int64_t i = std::max(from, low - inner.first); i < std::min(to, high - inner.first); ++i) {
          bool own = true;
          for_copies(inner, map.beyond, i, [&](int64_t at) {
            if (!own) sum[i - (low - inner.first)] += to_compute(d_y[at]);
            own = false;
          });
        }
      };
      // Only what lies as near to an end as the pads are long has copies.
      const int64_t n = inner.extent;
      const int64_t near = std::max(inner.begin, inner.end) + 1;
      add_copies(0, std::min(near, n));
      add_copies(std::max(near, n - near), n);
    };
    // Every combination of copies along the other axes.
    const auto add_rows = [&](auto&& self, int axis, int64_t offset) -> void {
      if (axis == map.rank - 1) return add_row(a.d_y + offset);
      const int64_t t = rows.t(axis);
      if (t < 0 || t >= map.axes[axis].extent) return;
      for_copies(map.axes[axis], map.beyond, t,
                 [&](int64_t at) { self(self, axis + 1, offset + at * map.axes[axis].stride); });
    };
    if (low < high) add_rows(add_rows, 0, map.base);
    std::fill(d_x + begin, d_x + low, T());
    std::fill(d_x + high, d_x + end, T());
    narrow(sum, d_x + low, high - low);
  };
  for_rows(map, kGrain / sizeof(T) / 4, context, [&](const Rows& rows, int64_t row, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kChunk)
      piece(rows, a.d_x + row * inner.size, at, std::min(at + kChunk, end));
  });
}

}  // namespace ortops
