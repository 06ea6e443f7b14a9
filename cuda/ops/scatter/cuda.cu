// Writing by index: y = x, or zeros, with each update combined into the element or row that its index names. In float.
// Which of four ways, by shape:
//
// - few:    a block writes some rows of y; it looks through all the indices for the ones that name those. One launch.
// - tiles:  where each element has an index of its own. A block writes some lines along the axis, or a part of one; it
//           keeps them in shared memory and combines their updates there by atomic operations. One launch.
// - slices: where that would read the indices too often: atomic operations in global memory, slice by slice, so that
//           they meet in the cache (ops/scatter/slices.cuh).
// - sorted: the updates are sorted by the row they go to (device/segments.cuh).
//
// The order of sums is fixed but for tiles and slices, which a call that asks for `deterministic` does not take.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <type_traits>

#include "core/cuda.h"
#include "device/divide.h"
#include "device/segments.cuh"
#include "device/vector.cuh"
#include "gen/scatter.h"
#include "ops/index/read.cuh"
#include "ops/scatter/combine.cuh"
#include "ops/scatter/reduction.h"
#include "ops/scatter/slices.cuh"

namespace ortops {
namespace {

struct ScatterTuning {
  static constexpr int kThreads = 256;
  // Up to here looking through the indices is cheaper than the six to ten launches of a sort; one row may get them all.
  static constexpr int kFew = 256;
  static constexpr int kFewUnroll = 8;  // updates of a row that are on their way at a time
  static constexpr int kBlocks = 16;    // of `few` a multiprocessor, so that rows of y are shared out evenly
  static constexpr int kNarrow = 16;    // rows of fewer bytes are taken for elements, in tiles
  static constexpr int kTileThreads = 512;
  static constexpr int kTile = 10240;      // floats: 40 KiB, five blocks a multiprocessor
  static constexpr int kTileLines = 256;   // at most
  static constexpr int kColumns = 64;      // lines of a tile that lie side by side,
  static constexpr int kLeastColumns = 8;  // and at least
  static constexpr int64_t kFill = 8;      // parts of a line at most for the sake of more blocks
  static constexpr int64_t kLong = 32768;  // updates of a tile that are too many where most multiprocessors are idle
  // Each part of a line reads all of the line's indices. So many parts are always worth it; more, while what is read
  // is not more than kReread times what is written.
  static constexpr int64_t kParts = 4, kReread = 4;
};

template <class I, class T>
struct Scattering {
  IndexedRows rows;
  const I* indices;
  const T* updates;
  const T* x;  // null: zeros
  T* y;
  int64_t total;  // elements of y
  Reduction reduction;
  int64_t skip;  // an index, from 0 on, whose updates are left out; -1: none

  Scattering without_updates() const {
    Scattering result = *this;
    result.rows.count = result.rows.rank = 0;
    return result;
  }
};

// The row of y that a row of updates goes to; -1 where it goes to none.
template <class I>
__device__ __forceinline__ int64_t target_of(const RowWalk<false>& walk, const I* indices, uint32_t row, int64_t skip,
                                             int64_t* report) {
  int64_t at, place;
  walk.find(row, at, place);
  const int64_t axis = walk.inside(indices[at], report);
  return axis < 0 || axis == skip ? -1 : place + axis * walk.step;
}

// --- few ------------------------------------------------------------------------------------------------------------

template <int N, class Combine, class I, class T>
__global__ void __launch_bounds__(ScatterTuning::kThreads)
    scatter_few(const RowWalk<false> walk, const I* indices, const int count, const T* updates, const T* x, T* y,
                const int64_t y_rows, const int64_t width, const int64_t pitch, const int rows_per_block,
                const int64_t skip, int64_t* report) {
  constexpr int kThreads = ScatterTuning::kThreads, kFew = ScatterTuning::kFew, kUnroll = ScatterTuning::kFewUnroll;
  static_assert(kFew == kThreads);
  __shared__ int rows[kFew], positions[kFew];  // of the updates that go to this block's rows, in order
  __shared__ int found[kThreads / 32];
  const int64_t first = int64_t(blockIdx.x) * rows_per_block;
  const int row_count = static_cast<int>(min(int64_t(rows_per_block), y_rows - first));
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;  // the block is one of kThreads, whatever its shape
  int64_t target = -1;
  if (thread < count) target = target_of(walk, indices, thread, skip, blockIdx.x == 0 ? report : nullptr);
  const bool here = target >= first && target < first + row_count;
  const unsigned votes = __ballot_sync(0xffffffffu, here);
  if (thread % 32 == 0) found[thread / 32] = __popc(votes);
  __syncthreads();
  int matches = 0, before = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (warp < thread / 32) before += found[warp];
    matches += found[warp];
  }
  if (here) {
    const int slot = before + __popc(votes & ((1u << thread % 32) - 1));
    rows[slot] = static_cast<int>(target - first);
    positions[slot] = thread;
  }
  __syncthreads();
  for (int row = threadIdx.y; row < row_count; row += blockDim.y) {
    for (int64_t column = int64_t(threadIdx.x) * N; column < pitch; column += int64_t(blockDim.x) * N) {
      const int64_t at = (first + row) * pitch + column;
      Vector<T, N> value = load<N, Reuse::none>(x + at, x != nullptr);
      if (matches > 0 && column < width) {
        Vector<float, N> total = to_float(value);
        for (int match = 0; match < matches; match += kUnroll) {
          Vector<T, N> more[kUnroll];
          bool mine[kUnroll];
#pragma unroll
          for (int i = 0; i < kUnroll; ++i) {
            mine[i] = match + i < matches && rows[min(match + i, kFew - 1)] == row;
            more[i] = load<N, Reuse::none>(updates + (mine[i] ? positions[match + i] : 0) * width + column, mine[i]);
          }
#pragma unroll
          for (int i = 0; i < kUnroll; ++i) {
            if (!mine[i]) continue;
#pragma unroll
            for (int j = 0; j < N; ++j) total[j] = Combine()(total[j], to_float(more[i][j]));
          }
        }
        value = from_float<T>(total);
      }
      store(y + at, value);
    }
  }
}

template <class I, class T>
void run_few(const Scattering<I, T>& s, int64_t* report, Context& context) {
  const int64_t pitch = s.rows.table_row, y_rows = s.total / pitch;
  const IndexedRows rows = s.rows.numbered();
  const auto start = [&](auto n, auto combine) {
    constexpr int N = decltype(n)::value;
    constexpr int kThreads = ScatterTuning::kThreads;
    const int columns = static_cast<int>(std::bit_ceil<uint64_t>(std::min<int64_t>((pitch + N - 1) / N, kThreads)));
    const dim3 block(columns, kThreads / columns);
    const int64_t shared_out = int64_t(device_properties().multiprocessors) * ScatterTuning::kBlocks;
    int64_t rows_per_block = (y_rows + shared_out - 1) / shared_out;
    rows_per_block = (rows_per_block + block.y - 1) / block.y * block.y;
    const int blocks = narrow((y_rows + rows_per_block - 1) / rows_per_block);
    launch(scatter_few<N, decltype(combine), I, T>, blocks, block, 0, context, RowWalk<false>(rows), s.indices,
           narrow(rows.count), s.updates, s.x, s.y, y_rows, s.rows.width, pitch, narrow(rows_per_block), s.skip,
           report);
  };
  with_reduction(s.reduction, [&](auto combine) {
    constexpr int kVector = kWidth<T>;
    if (s.rows.width % kVector == 0 && is_aligned<kVector>(pitch, {s.updates, s.x, static_cast<const T*>(s.y)})) {
      start(std::integral_constant<int, kVector>(), combine);
    } else {
      start(std::integral_constant<int, 1>(), combine);
    }
  });
}

// --- tiles ----------------------------------------------------------------------------------------------------------

// y is taken for lines along the axis: [outer][size][inner]. A tile is `lines` of them, at `size` places each.
struct Tiles {
  int64_t size, inner, all_lines;
  int lines, places, parts;  // of a tile; of a line
  int groups;                // of lines; where inner > 1 they lie in one `outer` each, so many there
  uint32_t updates;          // of a line
  int64_t update_step, index_step;
  bool side_by_side;  // inner > 1: then lines is a power of two
  Divisor by_updates, by_lines, by_parts, by_groups;
  // The other axes, over which lines are numbered; a line has updates where it is below the limits.
  int rank;
  Divisor sizes[kMaxRank];
  int64_t limits[kMaxRank], update_strides[kMaxRank], index_strides[kMaxRank];
};

template <class Combine, class I, class T>
__global__ void __launch_bounds__(ScatterTuning::kTileThreads)
    scatter_tiles(const Tiles t, const I* __restrict__ indices, const T* __restrict__ updates, const T* x, T* y,
                  const bool aligned, int64_t* report) {
  constexpr int kThreads = ScatterTuning::kTileThreads, N = kWidth<T>;
  extern __shared__ __align__(32) float tile[];
  __shared__ int64_t first_update[ScatterTuning::kTileLines], first_index[ScatterTuning::kTileLines];
  const int group = t.by_parts.quotient(blockIdx.x);
  const int begin = (blockIdx.x - group * t.parts) * t.places;
  const int places = static_cast<int>(min(int64_t(t.places), t.size - begin));
  int64_t first_line, start;  // start: where the tile begins in y
  int lines;
  if (t.side_by_side) {
    const int outer = t.by_groups.quotient(group);
    const int64_t column = int64_t(group - outer * t.groups) * t.lines;
    first_line = outer * t.inner + column;
    lines = static_cast<int>(min(int64_t(t.lines), t.inner - column));
    start = (outer * t.size + begin) * t.inner + column;
  } else {
    first_line = int64_t(group) * t.lines;
    lines = static_cast<int>(min(int64_t(t.lines), t.all_lines - first_line));
    start = first_line * t.size + begin;
  }
  for (int line = threadIdx.x; line < lines; line += kThreads) {
    uint32_t rest = static_cast<uint32_t>(first_line + line);
    int64_t update = 0, index = 0;
    for (int axis = t.rank - 1; axis >= 0; --axis) {
      const uint32_t next = t.sizes[axis].quotient(rest);
      const int64_t at = rest - next * t.sizes[axis].divisor;
      if (at >= t.limits[axis]) update = INT64_MIN / 2;
      update += at * t.update_strides[axis];
      index += at * t.index_strides[axis];
      rest = next;
    }
    first_update[line] = update;
    first_index[line] = index;
  }
  // One run of y, or rows of `lines`.
  const int run = lines * places;
  const int vectors = t.side_by_side || !aligned ? 0 : run / N;
  if (x && !t.side_by_side) {
    for (int i = threadIdx.x; i < vectors; i += kThreads) {
      store(tile + i * N, ordered<Combine>(to_float(load<N, Reuse::none>(x + start + i * N))));
    }
    for (int i = vectors * N + threadIdx.x; i < run; i += kThreads) tile[i] = ordered<Combine>(to_float(x[start + i]));
  } else if (x) {
    for (int i = threadIdx.x; i < t.lines * places; i += kThreads) {
      const int place = t.by_lines.quotient(i), line = i - place * t.lines;
      if (line < lines) tile[i] = ordered<Combine>(to_float(x[start + place * t.inner + line]));
    }
  } else {
    for (int i = threadIdx.x * 4; i < t.lines * places; i += kThreads * 4) store(tile + i, Vector<float, 4>{});
  }
  __syncthreads();
  const uint32_t count = (t.side_by_side ? t.lines : lines) * t.updates;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint32_t quotient = t.side_by_side ? t.by_lines.quotient(i) : t.by_updates.quotient(i);
    const uint32_t update = t.side_by_side ? quotient : i - quotient * t.updates;
    const uint32_t line = t.side_by_side ? i - quotient * t.lines : quotient;
    if (line >= uint32_t(lines) || first_update[line] < 0) continue;
    int64_t index = indices[first_index[line] + update * t.index_step];
    if (index < -t.size || index >= t.size) {
      if (report) {
        report[1] = index;
        report[0] = 1;
      }
      continue;
    }
    index += index < 0 ? t.size - begin : -int64_t(begin);
    if (index < 0 || index >= places) continue;
    const float value = to_float(updates[first_update[line] + update * t.update_step]);
    const int at = static_cast<int>(t.side_by_side ? index * t.lines + line : line * places + index);
    combine_atomically<Combine>(tile + at, value);
  }
  __syncthreads();
  if (t.side_by_side) {
    for (int i = threadIdx.x; i < t.lines * places; i += kThreads) {
      const int place = t.by_lines.quotient(i), line = i - place * t.lines;
      if (line < lines) y[start + place * t.inner + line] = from_float<T>(tile[i]);
    }
    return;
  }
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    store(y + start + i * N, from_float<T>(load<N>(tile + i * N)));
  }
  for (int i = vectors * N + threadIdx.x; i < run; i += kThreads) y[start + i] = from_float<T>(tile[i]);
}

// The tiles for updates of shape `part`; nothing where they would read indices too often, or be too many to count.
std::optional<Tiles> tiles_for(const Shape& x, const Shape& part, const Strides& index_strides, int64_t axis) {
  using Tuning = ScatterTuning;
  if (axis < 0) axis += x.rank;
  constexpr int64_t kMost = int64_t(1) << 30;
  Tiles t = {};
  t.size = x[static_cast<int>(axis)];
  t.inner = 1;
  t.all_lines = x.size() / t.size;
  const Strides update_strides = dense_strides(part);
  for (int i = 0; i < x.rank; ++i) {
    if (i > axis) t.inner *= x[i];
    if (i == axis || x[i] == 1) continue;
    if (x[i] > kMost) return {};
    t.sizes[t.rank] = Divisor(x[i]);
    t.limits[t.rank] = part[i];
    t.update_strides[t.rank] = update_strides[i];
    t.index_strides[t.rank++] = index_strides[i];
  }
  const int64_t updates = part[static_cast<int>(axis)];
  if (t.all_lines > kMost || t.size > kMost || updates > kMost / Tuning::kTileLines) return {};
  t.updates = static_cast<uint32_t>(updates);
  t.update_step = update_strides[axis];
  t.index_step = index_strides[axis];
  t.side_by_side = t.inner > 1;
  const int64_t multiprocessors = device_properties().multiprocessors;
  t.lines = t.side_by_side ? static_cast<int>(std::bit_ceil<uint64_t>(std::min<int64_t>(t.inner, Tuning::kColumns)))
                           : static_cast<int>(std::clamp<int64_t>(Tuning::kTile / t.size, 1, Tuning::kTileLines));
  if (t.side_by_side) {  // fewer lines and more parts where there would not be a block for each multiprocessor
    const int64_t all = x.size() / Tuning::kTile;
    while (t.lines > Tuning::kLeastColumns && std::max(all, t.all_lines / t.lines) < multiprocessors) t.lines /= 2;
  }
  const int most = Tuning::kTile / t.lines;
  t.parts = narrow((t.size + most - 1) / most);
  if (t.side_by_side) {
    const int64_t fill = std::min({multiprocessors * t.lines / t.all_lines, Tuning::kReread * x.size() / part.size(),
                                   (t.size + 15) / 16, Tuning::kFill});
    t.parts = narrow(std::max<int64_t>(t.parts, fill));
  }
  t.places = narrow((t.size + t.parts - 1) / t.parts);
  if (t.parts > 1) t.places = std::min(most, (t.places + 15) / 16 * 16);
  t.parts = narrow((t.size + t.places - 1) / t.places);
  if (!t.side_by_side && t.parts == 1) {  // enough blocks to fill the chip
    const int64_t blocks = multiprocessors * 4;
    const int fill = static_cast<int>(std::clamp<int64_t>(t.all_lines / blocks, 1, t.lines));
    t.lines = fill >= 16 ? fill / 16 * 16 : fill;
  }
  t.groups = narrow(t.side_by_side ? (t.inner + t.lines - 1) / t.lines : (t.all_lines + t.lines - 1) / t.lines);
  const int64_t blocks = (t.side_by_side ? t.all_lines / t.inner * t.groups : t.groups) * t.parts;
  if (4 * blocks < multiprocessors && t.lines * updates > Tuning::kLong) return {};
  if (blocks > kMost || (t.parts > Tuning::kParts && t.parts * part.size() > Tuning::kReread * x.size())) return {};
  t.by_updates = Divisor(std::max<int64_t>(1, updates));
  t.by_lines = Divisor(t.lines);
  t.by_parts = Divisor(t.parts);
  t.by_groups = Divisor(t.groups);
  return t;
}

template <class I, class T>
void run_tiles(const Tiles& t, const Scattering<I, T>& s, int64_t* report, Context& context) {
  const int64_t blocks = (t.side_by_side ? t.all_lines / t.inner * t.groups : t.groups) * t.parts;
  const int64_t step = t.parts > 1 ? std::gcd(t.size, int64_t(t.places)) : t.lines * t.size;  // what tiles begin at
  const bool aligned = is_aligned<kWidth<T>>(step, {s.x, static_cast<const T*>(s.y)});
  with_reduction(s.reduction, [&](auto combine) {
    launch(scatter_tiles<decltype(combine), I, T>, static_cast<int>(blocks), ScatterTuning::kTileThreads,
           (size_t(t.lines) * t.places + 3) / 4 * 4 * sizeof(float), context, t, s.indices, s.updates, s.x, s.y,
           aligned, report);
  });
}

// --- sorted ---------------------------------------------------------------------------------------------------------

template <class I>
__global__ void __launch_bounds__(ScatterTuning::kThreads)
    find_targets(const RowWalk<false> walk, const I* indices, const int count, const uint32_t y_rows,
                 const int64_t skip, uint32_t* rows, uint32_t* positions, int64_t* report) {
  const uint32_t row = blockIdx.x * ScatterTuning::kThreads + threadIdx.x;
  if (row >= uint32_t(count)) return;
  const int64_t target = target_of(walk, indices, row, skip, report);
  rows[row] = target < 0 ? y_rows : static_cast<uint32_t>(target);
  positions[row] = row;
}

template <class I, class T>
void run_sorted(const Scattering<I, T>& s, int64_t* report, Context& context) {
  const int64_t pitch = s.rows.table_row, y_rows = s.total / pitch, width = s.rows.width;
  SegmentSort sort(s.rows.count, y_rows, context);
  const int count = narrow(s.rows.count);
  constexpr int kThreads = ScatterTuning::kThreads;
  launch(find_targets<I>, (count - 1) / kThreads + 1, kThreads, 0, context, RowWalk<false>(s.rows.numbered()),
         s.indices, count, static_cast<uint32_t>(y_rows), s.skip, sort.rows(), sort.positions(), report);
  const Segments segments = sort.sort();
  if (width < pitch) run_few(s.without_updates(), nullptr, context);  // what no update reaches
  with_reduction(s.reduction, [&](auto combine) {
    const int64_t multiple = std::gcd(width, pitch);
    with_vector<T>(multiple, {s.updates, s.x, static_cast<const T*>(s.y)}, [&](auto n) {
      sum_segments<decltype(n)::value, decltype(combine)>(segments, RowSource<T>{s.updates, width}, s.y, y_rows, width,
                                                          context, s.x, pitch);
    });
  });
}

// In a fixed order.
template <class I, class T>
void scatter_in_order(const Scattering<I, T>& s, int64_t* report, Context& context) {
  if (s.rows.count * s.rows.width == 0) {
    run_few(s.without_updates(), nullptr, context);
  } else if (s.rows.count <= ScatterTuning::kFew) {
    run_few(s, report, context);
  } else {
    run_sorted(s, report, context);
  }
}

// Updates of shape `part` into `shape`, with indices at these strides.
template <class I, class T>
void scatter_elements(const Scattering<I, T>& s, const Shape& shape, const Shape& part, const Strides& index_strides,
                      int64_t axis, bool any_order, Context& context) {
  const IndexReport report(context);
  const auto scatter = [&] {
    const int64_t updates = s.rows.count * s.rows.width;
    if (any_order && updates > 0 && s.rows.width * int64_t(sizeof(T)) < ScatterTuning::kNarrow) {
      if (const auto tiles = tiles_for(shape, part, index_strides, axis)) {
        return run_tiles(*tiles, s, report.device(), context);
      }
      if (s.rows.count > ScatterTuning::kFew && slices_fit<T>(updates, s.total)) {
        const Slices slices(shape, part, axis);
        return with_reduction(s.reduction, [&](auto combine) {
          run_slices<decltype(combine)>(slices, s.rows, s.indices, s.updates, s.x, s.y, report.device(), context);
        });
      }
    }
    scatter_in_order(s, report.device(), context);
  };
  scatter();
  report.check("indices", s.rows.size);
}

}  // namespace

template <class I, class T>
void scatter_add_cuda(const ScatterAddArgs<I, T>& a, Context& context) {
  const Scattering<I, T> s{
      elements(a.X, a.U, a.indices_strides, a.axis), a.indices, a.updates, a.x, a.y, a.X.size(), reduction_of(a), -1};
  // Extremes are the same in any order.
  const bool any_order = s.reduction == Reduction::min || s.reduction == Reduction::max || !a.deterministic;
  scatter_elements(s, a.X, a.U, a.indices_strides, a.axis, any_order, context);
}

template <class I, class T>
void take_along_axis_gradient_cuda(const TakeAlongAxisGradientArgs<I, T>& a, Context& context) {
  const Strides strides = dense_strides(a.J);
  const Scattering<I, T> s{
      elements(a.X, a.J, strides, a.axis), a.indices, a.d_y, nullptr, a.d_x, a.X.size(), Reduction::add, -1};
  scatter_elements(s, a.X, a.J, strides, a.axis, !a.deterministic, context);
}

template <class I, class T>
void take_gradient_cuda(const TakeGradientArgs<I, T>& a, Context& context) {
  const IndexedRows rows = slices(a.X, a.J.size(), a.axis);
  const Scattering<I, T> s{rows,  a.indices,  a.d_y,          nullptr,
                           a.d_x, a.X.size(), Reduction::add, skipped(a.padding_idx, rows.size).value_or(-1)};
  const IndexReport report(context);
  scatter_in_order(s, report.device(), context);
  report.check("indices", rows.size);
}

// TakeAlongAxis, with indices that may be one for many.
template <class I, class T>
void scatter_add_gradient_cuda(const ScatterAddGradientArgs<I, T>& a, Context& context) {
  read_rows(elements(a.X, a.U, a.indices_strides, a.axis), a.indices, a.d_y, a.d_updates, context);
}

}  // namespace ortops
