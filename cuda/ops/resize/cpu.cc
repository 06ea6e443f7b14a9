// Upsample2D and its gradient on the CPU. Both directions blend whole rows first, in loops over neighbours in memory,
// and pick columns on the way from or to the narrower rows of x, so that this is done once for each of those.
#include <algorithm>
#include <cstring>

#include "device/arrays.h"
#include "gen/resize.h"
#include "ops/resize/map.h"

namespace ortops {
namespace resize {
namespace {

constexpr int64_t kGrain = 16384;  // elements worth a thread's while

template <class T>
T* scratch(Context& context, int64_t count) {
  return static_cast<T*>(context.scratch(count * sizeof(T)));
}

// Of a share of 0, infinity makes NaN, as in PyTorch.
template <class W>
ORTOPS_INLINE void blend_loop(const W* a, const W* b, W weight, W* sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] = a[i] * (1 - weight) + b[i] * weight;
}
ORTOPS_CLONES void blend(const float* a, const float* b, float weight, float* sum, int64_t count) {
  blend_loop(a, b, weight, sum, count);
}
ORTOPS_CLONES void blend(const double* a, const double* b, double weight, double* sum, int64_t count) {
  blend_loop(a, b, weight, sum, count);
}

// sum += weight * addend
template <class W>
ORTOPS_INLINE void add_loop(W* sum, const W* addend, W weight, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += weight * addend[i];
}
ORTOPS_CLONES void add_scaled(float* sum, const float* addend, float weight, int64_t count) {
  add_loop(sum, addend, weight, count);
}
ORTOPS_CLONES void add_scaled(double* sum, const double* addend, double weight, int64_t count) {
  add_loop(sum, addend, weight, count);
}

// The columns that the pixels of a row are made of.
template <class W>
struct Columns {
  const int *at, *behind;
  const W* weight;
  int count, pixel;
};

template <class W>
ORTOPS_INLINE void blend_columns_loop(const W* row, const Columns<W>& columns, W* result) {
  for (int i = 0; i < columns.count; ++i) {
    result[i] = row[columns.at[i]] * (1 - columns.weight[i]) + row[columns.behind[i]] * columns.weight[i];
  }
}
ORTOPS_CLONES void blend_single(const float* row, const Columns<float>& columns, float* result) {
  blend_columns_loop(row, columns, result);
}
ORTOPS_CLONES void blend_single(const double* row, const Columns<double>& columns, double* result) {
  blend_columns_loop(row, columns, result);
}

// Two rows and their columns at once.
template <class W>
ORTOPS_INLINE void blend_rows_loop(const W* upper, const W* lower, W weight, const Columns<W>& columns, W* result) {
  for (int i = 0; i < columns.count; ++i) {
    const int at = columns.at[i], behind = columns.behind[i];
    const W share = columns.weight[i], rest = 1 - share;
    const W above = upper[at] * rest + upper[behind] * share, below = lower[at] * rest + lower[behind] * share;
    result[i] = above * (1 - weight) + below * weight;
  }
}
ORTOPS_CLONES void blend_rows(const float* upper, const float* lower, float weight, const Columns<float>& columns,
                              float* result) {
  blend_rows_loop(upper, lower, weight, columns, result);
}
ORTOPS_CLONES void blend_rows(const double* upper, const double* lower, double weight, const Columns<double>& columns,
                              double* result) {
  blend_rows_loop(upper, lower, weight, columns, result);
}

template <class W>
void blend_columns(const W* row, const Columns<W>& columns, W* result) {
  if (columns.pixel == 1) return blend_single(row, columns, result);
  const int64_t pixel = columns.pixel;
  for (int i = 0; i < columns.count; ++i) {
    blend(row + columns.at[i] * pixel, row + columns.behind[i] * pixel, columns.weight[i], result + i * pixel, pixel);
  }
}

template <class T>
ORTOPS_INLINE void pick_loop(const T* row, const int* at, int count, T* result) {
  for (int i = 0; i < count; ++i) result[i] = row[at[i]];
}
ORTOPS_CLONES void pick(const uint16_t* row, const int* at, int count, uint16_t* result) {
  pick_loop(row, at, count, result);
}
ORTOPS_CLONES void pick(const uint32_t* row, const int* at, int count, uint32_t* result) {
  pick_loop(row, at, count, result);
}
ORTOPS_CLONES void pick(const uint64_t* row, const int* at, int count, uint64_t* result) {
  pick_loop(row, at, count, result);
}

// Twice the rows and columns.
template <class T>
ORTOPS_INLINE void double_loop(const T* __restrict__ from, int64_t rows, int64_t count, T* __restrict__ to) {
  for (int64_t row = 0; row < rows; ++row, from += count, to += 4 * count) {
    T* __restrict__ next = to + 2 * count;
    for (int64_t i = 0; i < count; ++i) to[2 * i] = to[2 * i + 1] = next[2 * i] = next[2 * i + 1] = from[i];
  }
}
ORTOPS_CLONES void double_rows(const uint16_t* from, int64_t rows, int64_t count, uint16_t* to) {
  double_loop(from, rows, count, to);
}
ORTOPS_CLONES void double_rows(const uint32_t* from, int64_t rows, int64_t count, uint32_t* to) {
  double_loop(from, rows, count, to);
}
ORTOPS_CLONES void double_rows(const uint64_t* from, int64_t rows, int64_t count, uint64_t* to) {
  double_loop(from, rows, count, to);
}

template <size_t kBytes>
using Bits = std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>;

template <bool kBilinear, class W>
const Tap<W>* taps_of(const Axis& axis, Context& context) {
  Tap<W>* taps = scratch<Tap<W>>(context, axis.out);
  for (int i = 0; i < axis.out; ++i) taps[i] = axis.tap<kBilinear, W>(i);
  return taps;
}

// Calls f(row, plane, row of the plane) for rows begin..end of planes of `height` rows.
template <class F>
void for_rows(int64_t begin, int64_t end, int height, F&& f) {
  int64_t plane = begin / height;
  int at = static_cast<int>(begin % height);
  for (int64_t row = begin; row < end; ++row) {
    f(row, plane, at);
    if (++at == height) {
      at = 0;
      ++plane;
    }
  }
}

template <class T>
void nearest(const Problem& p, const T* x, T* y, Context& context) {
  const int in = p.columns.in, out = p.columns.out;
  if (p.pixel == 1 && is_double<false>(p.rows) && is_double<false>(p.columns)) {
    const auto rows = [&](int64_t begin, int64_t end) {
      double_rows(x + begin * in, end - begin, in, y + begin * 4 * in);
    };
    return context.parallel_for(p.planes * p.rows.in, std::max<int64_t>(1, kGrain / (4 * in)), rows);
  }
  int* at = scratch<int>(context, out);
  for (int i = 0; i < out; ++i) at[i] = p.columns.tap<false>(i).at;
  const int64_t from_row = int64_t(in) * p.pixel, to_row = int64_t(out) * p.pixel;
  const Tap<float>* taps = taps_of<false, float>(p.rows, context);
  const auto rows = [&](int64_t begin, int64_t end) {
    int64_t before = -1;
    for_rows(begin, end, p.rows.out, [&](int64_t row, int64_t plane, int of_plane) {
      const int64_t source = plane * p.rows.in + taps[of_plane].at;
      const T* from = x + source * from_row;
      T* to = y + row * to_row;
      if (source == before) {
        std::memcpy(to, to - to_row, to_row * sizeof(T));
      } else if (p.pixel > 1) {
        for (int i = 0; i < out; ++i) {
          std::memcpy(to + int64_t(i) * p.pixel, from + int64_t(at[i]) * p.pixel, p.pixel * sizeof(T));
        }
      } else {
        pick(from, at, out, to);
      }
      before = source;
    });
  };
  context.parallel_for(p.planes * p.rows.out, std::max<int64_t>(1, kGrain / to_row), rows);
}

template <class T>
void bilinear(const Problem& p, const T* x, T* y, Context& context) {
  using W = Compute<T>;
  const int in = p.columns.in, out = p.columns.out;
  int* at = scratch<int>(context, out);
  int* behind = scratch<int>(context, out);
  W* weight = scratch<W>(context, out);
  for (int i = 0; i < out; ++i) {
    const auto tap = p.columns.tap<true, W>(i);
    at[i] = tap.at;
    behind[i] = std::min(tap.at + 1, in - 1);
    weight[i] = tap.weight;
  }
  const Columns<W> columns = {at, behind, weight, out, p.pixel};
  const int64_t from_row = int64_t(in) * p.pixel, to_row = int64_t(out) * p.pixel;
  const Tap<W>* taps = taps_of<true, W>(p.rows, context);
  const bool once = p.pixel == 1 && p.rows.step > 1;  // a blended row would hardly be used again
  const int64_t rows = p.planes * p.rows.out;
  const int64_t pieces = std::min<int64_t>(64, rows);
  const int64_t stride = from_row + 3 * to_row;
  W* memory = scratch<W>(context, pieces * stride);
  const auto piece = [&](int64_t index) {
    W* source = memory + index * stride;
    W* blended[2] = {source + from_row, source + from_row + to_row};
    W* result = blended[1] + to_row;
    int64_t held[2] = {-1, -1};
    // A source row with its columns blended; the last two of them are kept.
    const auto row_of = [&](int64_t row) {
      const int slot = static_cast<int>(row & 1);
      if (held[slot] != row) {
        if constexpr (std::is_same_v<T, W>) {
          blend_columns(x + row * from_row, columns, blended[slot]);
        } else {
          widen(x + row * from_row, source, from_row);
          blend_columns(source, columns, blended[slot]);
        }
        held[slot] = row;
      }
      return static_cast<const W*>(blended[slot]);
    };
    for_rows(rows * index / pieces, rows * (index + 1) / pieces, p.rows.out,
             [&](int64_t row, int64_t plane, int of_plane) {
               const Tap<W> tap = taps[of_plane];
               const int64_t first = plane * p.rows.in + tap.at, second = first + (tap.at < p.rows.in - 1);
               T* to = y + row * to_row;
               if constexpr (std::is_same_v<T, W>) {
                 if (once) return blend_rows(x + first * from_row, x + second * from_row, tap.weight, columns, to);
               }
               const W* upper = row_of(first);
               const W* lower = row_of(second);
               if constexpr (std::is_same_v<T, W>) {
                 blend(upper, lower, tap.weight, to, to_row);
               } else {
                 blend(upper, lower, tap.weight, result, to_row);
                 narrow(result, to, to_row);
               }
             });
  };
  const int64_t grain = std::max<int64_t>(1, kGrain * pieces / (rows * to_row));
  context.parallel_for(pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) piece(i);
  });
}

template <bool kBilinear, class T>
void gradient(const Problem& p, const T* d_y, T* d_x, Context& context) {
  using W = Compute<T>;
  const int in = p.columns.in, out = p.columns.out;
  // The columns [begins[k], ends[k]) of d_y, with their shares from shares[first[k]] on, make column k of d_x.
  int* begins = scratch<int>(context, in);
  int* ends = scratch<int>(context, in);
  int64_t* first = scratch<int64_t>(context, in);
  W* shares = scratch<W>(context, 2 * int64_t(out));
  int64_t count = 0;
  for (int k = 0; k < in; ++k) {
    begins[k] = p.columns.first<kBilinear>(kBilinear ? k - 1 : k);
    ends[k] = p.columns.first<kBilinear>(k + 1);
    first[k] = count;
    for (int i = begins[k]; i < ends[k]; ++i) {
      const auto tap = p.columns.tap<kBilinear, W>(i);
      shares[count++] = tap.at == k ? 1 - tap.weight : tap.weight;
    }
  }
  const int64_t from_row = int64_t(out) * p.pixel, to_row = int64_t(in) * p.pixel;
  const Tap<W>* taps = taps_of<kBilinear, W>(p.rows, context);
  const int64_t rows = p.planes * p.rows.in;
  const int64_t pieces = std::min<int64_t>(64, rows);
  const int64_t stride = 2 * from_row + to_row;
  W* memory = scratch<W>(context, pieces * stride);
  const auto piece = [&](int64_t index) {
    W* sum = memory + index * stride;  // of the rows of d_y, its columns still apart
    W* wide = sum + from_row;
    W* result = wide + from_row;
    for_rows(rows * index / pieces, rows * (index + 1) / pieces, p.rows.in, [&](int64_t row, int64_t plane, int at) {
      const int begin = p.rows.first<kBilinear>(kBilinear ? at - 1 : at), end = p.rows.first<kBilinear>(at + 1);
      std::fill(sum, sum + from_row, W(0));
      for (int i = begin; i < end; ++i) {
        const Tap<W> tap = taps[i];
        const T* from = d_y + (plane * p.rows.out + i) * from_row;
        const W share = tap.at == at ? 1 - tap.weight : tap.weight;
        if constexpr (std::is_same_v<T, W>) {
          add_scaled(sum, from, share, from_row);
        } else {
          widen(from, wide, from_row);
          add_scaled(sum, wide, share, from_row);
        }
      }
      for (int k = 0; k < in; ++k) {
        const W* share = shares + first[k];
        if (p.pixel == 1) {
          W total = 0;
          for (int i = begins[k]; i < ends[k]; ++i) total += *share++ * sum[i];
          result[k] = total;
        } else {
          W* total = result + int64_t(k) * p.pixel;
          std::fill(total, total + p.pixel, W(0));
          for (int i = begins[k]; i < ends[k]; ++i) add_scaled(total, sum + int64_t(i) * p.pixel, *share++, p.pixel);
        }
      }
      narrow(result, d_x + row * to_row, to_row);
    });
  };
  const int64_t grain = std::max<int64_t>(1, kGrain * pieces / (rows * std::max(from_row, to_row)));
  context.parallel_for(pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) piece(i);
  });
}

}  // namespace
}  // namespace resize

template <class T>
void upsample2d_cpu(const Upsample2DArgs<T>& a, Context& context) {
  const resize::Problem p = resize::problem_of(a);
  if (a.mode == Upsample2DAttributes::Mode::nearest) {
    using Bits = resize::Bits<sizeof(T)>;
    resize::nearest(p, reinterpret_cast<const Bits*>(a.x), reinterpret_cast<Bits*>(a.y), context);
  } else {
    resize::bilinear(p, a.x, a.y, context);
  }
}

template <class T>
void upsample2d_gradient_cpu(const Upsample2DGradientArgs<T>& a, Context& context) {
  const resize::Problem p = resize::problem_of(a);
  if (a.mode == Upsample2DGradientAttributes::Mode::nearest) {
    resize::gradient<false>(p, a.d_y, a.d_x, context);
  } else {
    resize::gradient<true>(p, a.d_y, a.d_x, context);
  }
}

}  // namespace ortops
