// Writing by index on the CPU. The updates of each row of the table are gathered (a counting sort), combined in order
// in float, and the row is written once. Only single float32 and float64 elements are combined where they lie.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "device/arrays.h"
#include "gen/scatter.h"
#include "ops/index/read.h"
#include "ops/scatter/reduction.h"

namespace ortops {
namespace {

constexpr int64_t kChunk = 512;    // elements that are combined at a time
constexpr int64_t kGrain = 16384;  // elements worth a thread's while
constexpr int64_t kNarrow = 8;     // rows of fewer elements are not sorted
constexpr int64_t kBuffers = 16;

template <class Float>
ORTOPS_INLINE Float combined(Reduction reduction, Float a, Float b) {
  switch (reduction) {
    case Reduction::add:
      return a + b;
    case Reduction::mul:
      return a * b;
    case Reduction::min:
      return a < b || a != a ? a : b;
    case Reduction::max:
      break;
  }
  return a > b || a != a ? a : b;
}

#define ORTOPS_COMBINE(Float)                                                                        \
  ORTOPS_CLONES void combine(Reduction reduction, Float* into, const Float* values, int64_t count) { \
    switch (reduction) {                                                                             \
      case Reduction::add:                                                                           \
        for (int64_t i = 0; i < count; ++i) into[i] = combined(Reduction::add, into[i], values[i]);  \
        break;                                                                                       \
      case Reduction::mul:                                                                           \
        for (int64_t i = 0; i < count; ++i) into[i] = combined(Reduction::mul, into[i], values[i]);  \
        break;                                                                                       \
      case Reduction::min:                                                                           \
        for (int64_t i = 0; i < count; ++i) into[i] = combined(Reduction::min, into[i], values[i]);  \
        break;                                                                                       \
      case Reduction::max:                                                                           \
        for (int64_t i = 0; i < count; ++i) into[i] = combined(Reduction::max, into[i], values[i]);  \
        break;                                                                                       \
    }                                                                                                \
  }
ORTOPS_COMBINE(float)
ORTOPS_COMBINE(double)
#undef ORTOPS_COMBINE

// y = x, or zeros where x is null, combined with each row of updates at its place.
template <class I, class T>
struct Scattering {
  IndexedRows rows;
  const I* indices;
  const T* updates;
  const T* x;
  T* y;
  int64_t total;  // elements of y
  Reduction reduction = Reduction::add;
  std::optional<int64_t> skip = {};  // an index whose updates are left out

  // Calls f(row, place) for the rows begin..end that are written somewhere.
  template <class F>
  void for_each(int64_t begin, int64_t end, F&& f) const {
    if (!skip) return for_each_place(rows, indices, begin, end, f);
    for_each_place(rows, indices, begin, end, [&](int64_t row, int64_t place) {
      const int64_t begins = rows.size * rows.step;  // of a slab that the axis runs through
      if (place % begins / rows.step != *skip) f(row, place);
    });
  }

  void start(int64_t begin, int64_t end) const {
    if (x) {
      std::memcpy(y + begin, x + begin, (end - begin) * sizeof(T));
    } else {
      std::memset(static_cast<void*>(y + begin), 0, (end - begin) * sizeof(T));
    }
  }

  // `parts` of the updates, one behind the other, go to slabs of y of their own. Each slab is filled in one go, in
  // float.
  void by_slabs(Context& context, int64_t parts, int64_t slab) const {
    constexpr bool kInPlace = std::is_same_v<T, Compute<T>>;
    if (parts * slab != total) start_all(context);
    // A float buffer each, unless y is one: no more of them than there may be threads.
    const int64_t pieces = kInPlace ? parts : std::min(parts, kBuffers);
    auto* buffers = kInPlace ? nullptr : static_cast<Compute<T>*>(context.scratch(pieces * slab * sizeof(Compute<T>)));
    const int64_t part = rows.count / parts, width = rows.width;
    const auto fill = [&](auto how, int64_t at, Compute<T>* buffer) {
      int64_t base = 0;
      for_each_run(rows, at * part, at * part + 1, [&](int64_t, int64_t, int64_t, int64_t place) { base = place; });
      Compute<T>* into = buffer;
      if constexpr (kInPlace) {
        start(base, base + slab);
        into = y + base;
      } else if (x) {
        widen(x + base, into, slab);
      } else {
        std::fill_n(into, slab, Compute<T>(0));
      }
      for_each(at * part, (at + 1) * part, [&](int64_t row, int64_t place) {
        for (int64_t i = 0; i < width; ++i) {
          Compute<T>& element = into[place - base + i];
          element = combined(decltype(how)::value, element, to_compute(updates[row * width + i]));
        }
      });
      if constexpr (!kInPlace) narrow(into, y + base, slab);
    };
    const auto all = [&](auto how) {
      const int64_t work = (slab + part * width) * (parts / pieces);
      context.parallel_for(pieces, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; ++piece) {
          for (int64_t at = piece * parts / pieces; at < (piece + 1) * parts / pieces; ++at) {
            fill(how, at, kInPlace ? nullptr : buffers + piece * slab);
          }
        }
      });
    };
    switch (reduction) {
      case Reduction::add:
        return all(std::integral_constant<Reduction, Reduction::add>());
      case Reduction::mul:
        return all(std::integral_constant<Reduction, Reduction::mul>());
      case Reduction::min:
        return all(std::integral_constant<Reduction, Reduction::min>());
      case Reduction::max:
        return all(std::integral_constant<Reduction, Reduction::max>());
    }
  }

  void start_all(Context& context) const {
    context.parallel_for(total, kGrain, [&](int64_t begin, int64_t end) { start(begin, end); });
  }

  template <class Position>
  void by_rows(Context& context) const {
    const int64_t pitch = rows.table_row, table_rows = total / pitch, width = rows.width;
    auto* ends = static_cast<Position*>(context.scratch((table_rows + 2 + rows.count) * sizeof(Position)));
    auto* positions = ends + table_rows + 2;
    std::fill_n(ends, table_rows + 2, Position(0));
    // Counts one place on, so that the numbers that become each row's end while it is filled start as its begin.
    for_each(0, rows.count, [&](int64_t, int64_t place) { ++ends[place / pitch + 2]; });
    for (int64_t row = 2; row < table_rows + 2; ++row) ends[row] += ends[row - 1];
    for_each(0, rows.count,
             [&](int64_t row, int64_t place) { positions[ends[place / pitch + 1]++] = static_cast<Position>(row); });
    const int64_t work = pitch + rows.count * width / table_rows;
    context.parallel_for(table_rows, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) {
      Compute<T> sum[kChunk], values[kChunk];
      for (int64_t row = begin; row < end; ++row) {
        const Position first = ends[row], last = ends[row + 1];
        if (first == last) {
          start(row * pitch, (row + 1) * pitch);
          continue;
        }
        for (int64_t at = 0; at < width; at += kChunk) {
          const int64_t count = std::min(kChunk, width - at);
          Position position = first;
          widen(x ? x + row * pitch + at : updates + positions[position++] * width + at, sum, count);
          for (; position < last; ++position) {
            const T* from = updates + positions[position] * width + at;
            if (reduction == Reduction::add) {
              add(sum, from, count);
            } else {
              widen(from, values, count);
              combine(reduction, sum, values, count);
            }
          }
          narrow(sum, y + row * pitch + at, count);
        }
        if (width < pitch) start(row * pitch + width, (row + 1) * pitch);
      }
    });
  }

  void operator()(Context& context, int64_t parts, int64_t slab) const {
    if (rows.count * rows.width == 0) return start_all(context);
    if (rows.width < kNarrow) return by_slabs(context, parts, slab);
    if (rows.count >> 31 == 0) {
      by_rows<uint32_t>(context);
    } else {
      by_rows<int64_t>(context);
    }
  }
};

// The product of the sizes before an axis.
int64_t size_before(const Shape& shape, int64_t axis) {
  int64_t size = 1;
  for (int i = 0; i < (axis < 0 ? axis + shape.rank : axis); ++i) size *= shape[i];
  return size;
}

}  // namespace

template <class I, class T>
void scatter_add_cpu(const ScatterAddArgs<I, T>& a, Context& context) {
  const IndexedRows rows = elements(a.X, a.U, a.indices_strides, a.axis);
  const Scattering<I, T> scattering{rows, a.indices, a.updates, a.x, a.y, a.X.size(), reduction_of(a)};
  scattering(context, size_before(a.U, a.axis), a.X.size() / size_before(a.X, a.axis));
}

template <class I, class T>
void take_along_axis_gradient_cpu(const TakeAlongAxisGradientArgs<I, T>& a, Context& context) {
  const IndexedRows rows = elements(a.X, a.J, dense_strides(a.J), a.axis);
  const Scattering<I, T> scattering{rows, a.indices, a.d_y, nullptr, a.d_x, a.X.size()};
  scattering(context, size_before(a.J, a.axis), a.X.size() / size_before(a.X, a.axis));
}

template <class I, class T>
void take_gradient_cpu(const TakeGradientArgs<I, T>& a, Context& context) {
  const IndexedRows rows = slices(a.X, a.J.size(), a.axis);
  const Scattering<I, T> scattering{rows,  a.indices,  a.d_y,          nullptr,
                                    a.d_x, a.X.size(), Reduction::add, skipped(a.padding_idx, rows.size)};
  scattering(context, size_before(a.X, a.axis), a.X.size() / size_before(a.X, a.axis));
}

// TakeAlongAxis, with indices that may be one for many.
template <class I, class T>
void scatter_add_gradient_cpu(const ScatterAddGradientArgs<I, T>& a, Context& context) {
  read_rows(elements(a.X, a.U, a.indices_strides, a.axis), a.indices, a.d_y, a.d_updates, context);
}

}  // namespace ortops
