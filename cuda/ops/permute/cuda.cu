// Permute, by one of four kernels, each of which reads and writes every byte once:
//
// - What is small is read element by element: it comes from the cache anyway, and nothing has to be set up.
// - The innermost axis stays: rows are copied, 16 bytes a thread. Rows of 16 bytes and less are elements of that size.
// - It moves: tiles of the planes that it and the new innermost axis span are turned in shared memory. Both sides move
//   by 16 bytes; the elements change places between shared memory and registers.
// - It moves and one of the two is short (channels, say): blocks of x, in which what is dense in x and what is dense in
//   y lie whole, go through shared memory by elements.
#include <algorithm>
#include <numeric>

#include "core/cuda.h"
#include "device/divide.h"
#include "device/index.h"
#include "device/strided.cuh"
#include "device/vector.cuh"
#include "gen/permute.h"
#include "ops/permute/plan.h"

namespace ortops {
namespace {

constexpr int kThreads = 256;
constexpr int kShort = 64;  // bytes: a tile of shorter rows is mostly empty

struct Extent {
  int64_t size, in, out;  // strides in x and in y
};

// --- Tiles

// y[q][p] = x[p][q], for planes that lie anywhere.
struct Planes {
  int64_t rows, columns;       // p, q
  int64_t x_stride, y_stride;  // of p in x, of q in y
  Divisor row_tiles, column_tiles;
  FastWalk from, to;  // where a plane begins
  bool x_aligned, y_aligned;
};

// A tile has 8 * N * kP rows of x, and 8 * kQ chunks (16 bytes, N elements) of each. The chunks of a row change places
// among each eight by a number that differs from row to row, so that what is written as rows of x and read as rows of y
// meets each bank of shared memory as seldom as can be.
template <class T, int kP, int kQ>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 8 : 5)
    turn_tiles(const T* x, T* y, const __grid_constant__ Planes planes) {
  constexpr int N = kWidth<T>, kRows = 8 * N * kP, kChunks = 8 * kQ, kColumns = kChunks * N;
  constexpr int kEach = kRows * kChunks / kThreads;  // chunks of a thread
  static_assert(kEach >= 1);
  __shared__ Vector<T, N> tile[kRows * kChunks];
  const auto place = [](int row, int chunk) { return row * kChunks + (chunk ^ ((N == 1 ? row : row / N + row) & 7)); };
  const auto element = [&](int row, int column) -> T& { return tile[place(row, column / N)][column % N]; };

  const uint32_t rest = planes.row_tiles.quotient(blockIdx.x);  // neighbours write neighbours
  const uint32_t plane = planes.column_tiles.quotient(rest);
  const int64_t row0 = int64_t(blockIdx.x - rest * planes.row_tiles.divisor) * kRows;
  const int64_t column0 = int64_t(rest - plane * planes.column_tiles.divisor) * kColumns;
  const int rows = static_cast<int>(min(planes.rows - row0, int64_t(kRows)));
  const int columns = static_cast<int>(min(planes.columns - column0, int64_t(kColumns)));
  x += planes.from(plane) + row0 * planes.x_stride + column0;
  y += planes.to(plane) + column0 * planes.y_stride + row0;

  if (planes.x_aligned) {
    Vector<T, N> values[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = threadIdx.x + i * kThreads, row = at / kChunks, chunk = at % kChunks;
      values[i] = load<N, Reuse::none>(x + row * planes.x_stride + chunk * N, row < rows && chunk * N < columns);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = threadIdx.x + i * kThreads;
      tile[place(at / kChunks, at % kChunks)] = values[i];
    }
  } else {
    for (int i = 0; i < kEach; ++i) {
      T values[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int at = threadIdx.x + (i * N + j) * kThreads, row = at / kColumns, column = at % kColumns;
        values[j] = load<1>(x + row * planes.x_stride + column, row < rows && column < columns)[0];
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int at = threadIdx.x + (i * N + j) * kThreads;
        element(at / kColumns, at % kColumns) = values[j];
      }
    }
  }
  __syncthreads();

  if (planes.y_aligned) {
    constexpr int W = sizeof(T) < 4 ? 4 / sizeof(T) : 1;  // rows of y of a thread: what it reads at once, a word
#pragma unroll
    for (int i = 0; i < kEach / W; ++i) {
      // Eight neighbours write 8 chunks of a row of y, the next eight those of another row.
      const int at = threadIdx.x + i * kThreads, part = at / 32 % kP;
      const int column = (at / 32 / kP * 4 + at / 8 % 4) * W, row = (part * 8 + at % 8) * N;
      Vector<T, W> words[N];
#pragma unroll
      for (int j = 0; j < N; ++j) words[j] = reinterpret_cast<const Vector<T, W>&>(element(row + j, column));
#pragma unroll
      for (int w = 0; w < W; ++w) {
        Vector<T, N> value;
#pragma unroll
        for (int j = 0; j < N; ++j) value[j] = words[j][w];
        if (column + w < columns && row < rows) stream(y + (column + w) * planes.y_stride + row, value);
      }
    }
  } else {
#pragma unroll 4
    for (int i = 0; i < kEach * N; ++i) {
      const int at = threadIdx.x + i * kThreads, column = at / kRows, row = at % kRows;
      if (column < columns && row < rows) y[column * planes.y_stride + row] = element(row, column);
    }
  }
}

template <class T, int kP, int kQ>
void start_tiles(const T* x, T* y, Planes planes, int64_t count, Context& context) {
  constexpr int N = kWidth<T>;
  const int64_t row_tiles = (planes.rows + 8 * N * kP - 1) / (8 * N * kP);
  const int64_t column_tiles = (planes.columns + 8 * N * kQ - 1) / (8 * N * kQ);
  planes.row_tiles = Divisor(row_tiles);
  planes.column_tiles = Divisor(column_tiles);
  launch(turn_tiles<T, kP, kQ>, narrow(row_tiles * column_tiles * count), kThreads, 0, context, x, y, planes);
}

template <class T>
void turn_planes(const T* x, T* y, const Extent* axes, int rank, int q, Context& context) {
  constexpr int N = kWidth<T>;
  const int p = rank - 1;
  Planes planes = {axes[p].size, axes[q].size, axes[p].in, axes[q].out, {}, {}, {}, {}, false, false};
  bool x_aligned = planes.x_stride % N == 0 && is_aligned<N>(planes.columns, {x});
  bool y_aligned = planes.y_stride % N == 0 && is_aligned<N>(planes.rows, {static_cast<const T*>(y)});
  int64_t count = 1;
  for (int axis = 0; axis < p; ++axis) {
    if (axis == q) continue;
    planes.from.append(axes[axis].size, axes[axis].in);
    planes.to.append(axes[axis].size, axes[axis].out);
    x_aligned = x_aligned && axes[axis].in % N == 0;
    y_aligned = y_aligned && axes[axis].out % N == 0;
    count *= axes[axis].size;
  }
  planes.x_aligned = x_aligned;
  planes.y_aligned = y_aligned;
  // Sides of 128 bytes where the plane has no more, else of 256; fewer for 16 bits, as measured on an H200.
  const bool low = planes.rows <= 8 * N, slim = planes.columns <= 8 * N;
  if constexpr (N == 16) {
    start_tiles<T, 1, 1>(x, y, planes, count, context);
  } else if constexpr (N <= 2) {
    start_tiles<T, 2, 2>(x, y, planes, count, context);
  } else if (low && (slim || N == 8)) {
    start_tiles<T, 1, 1>(x, y, planes, count, context);
  } else if (slim) {
    start_tiles<T, 2, 1>(x, y, planes, count, context);
  } else if (low || N == 8) {
    start_tiles<T, 1, 2>(x, y, planes, count, context);
  } else {
    start_tiles<T, 2, 2>(x, y, planes, count, context);
  }
}

// --- Blocks

// Elements of a block; the loads that a thread has in flight.
template <class T>
constexpr int kVolume = (sizeof(T) > 8 ? 4 : 8) * kThreads;

// An axis of a block, in the order of x or of y.
struct Side {
  Divisor size;
  int stride;   // in that tensor
  int within;   // in the block, which lies in shared memory in the order of x
  int limited;  // 1, 2: one of the two axes along which the last block may end early; 0: none
};

struct Blocks {
  int volume, count, sides, axes;
  Side x[Walk::kMaxAxes], y[Walk::kMaxAxes];
  // The blocks: how many along each axis, their steps in x and in y, and which of the limited axes this is.
  Divisor sizes[Walk::kMaxAxes];
  int64_t x_steps[Walk::kMaxAxes], y_steps[Walk::kMaxAxes];
  int limited[Walk::kMaxAxes];
  int64_t limits[2];  // the sizes of the two axes
  int lengths[2];     // of a block along them
};

template <class T>
__global__ void __launch_bounds__(kThreads, 3) move_blocks(const T* x, T* y, const __grid_constant__ Blocks b) {
  constexpr int kEach = kVolume<T> / kThreads;
  constexpr int kRow = 128 / sizeof(T), kPad = sizeof(T) < 4 ? 4 / sizeof(T) : 1;  // so that strides meet all banks
  __shared__ T block[kVolume<T> + kVolume<T> / kRow * kPad];
  __shared__ int x_at[kVolume<T>], y_at[kVolume<T>];  // where elements are along the limited axes
  const auto padded = [](int at) { return at + at / kRow * kPad; };

  // Where this thread's elements lie relative to the block, -1 where it has none. Every block is alike in this.
  int from[kEach], to[kEach], within[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int element = threadIdx.x + i * kThreads;
    const auto locate = [&](const Side* sides, int& offset, int& at) {
      uint32_t rest = element;
      int inside = 0;
      offset = at = 0;
      for (int axis = b.sides - 1; axis >= 0; --axis) {
        const uint32_t quotient = sides[axis].size.quotient(rest);
        const int coordinate = static_cast<int>(rest - quotient * sides[axis].size.divisor);
        offset += coordinate * sides[axis].stride;
        inside += coordinate * sides[axis].within;
        at += sides[axis].limited == 1 ? coordinate : sides[axis].limited == 2 ? coordinate << 16 : 0;
        rest = quotient;
      }
      if (element >= b.volume) offset = -1;
      return padded(inside);
    };
    locate(b.x, from[i], x_at[element]);
    within[i] = locate(b.y, to[i], y_at[element]);
  }

  for (int64_t i = blockIdx.x; i < b.count; i += gridDim.x) {
    const T* x_block = x;
    T* y_block = y;
    int64_t ends[] = {b.lengths[0], b.lengths[1]};
    uint32_t rest = i;
    for (int axis = b.axes - 1; axis >= 0; --axis) {
      const uint32_t quotient = b.sizes[axis].quotient(rest);
      const int64_t coordinate = rest - quotient * b.sizes[axis].divisor;
      x_block += coordinate * b.x_steps[axis];
      y_block += coordinate * b.y_steps[axis];
      if (b.limited[axis] == 1) ends[0] = b.limits[0] - coordinate * b.lengths[0];
      if (b.limited[axis] == 2) ends[1] = b.limits[1] - coordinate * b.lengths[1];
      rest = quotient;
    }
    const bool whole = ends[0] >= b.lengths[0] && ends[1] >= b.lengths[1];
    const auto inside = [&](int offset, int at) {
      return offset >= 0 && (whole || ((at & 0xffff) < ends[0] && at >> 16 < ends[1]));
    };
    T values[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      values[j] = load<1>(x_block + from[j], inside(from[j], x_at[threadIdx.x + j * kThreads]))[0];
    }
    __syncthreads();  // the block before has been read
#pragma unroll
    for (int j = 0; j < kEach; ++j) block[padded(threadIdx.x + j * kThreads)] = values[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (inside(to[j], y_at[threadIdx.x + j * kThreads])) y_block[to[j]] = block[within[j]];
    }
  }
}

// The block's length along each axis: `bytes` dense in x and in y, the rest of its volume along y's innermost axes.
// False if that is more than a block holds.
template <class T>
bool choose_lengths(const Extent* axes, const int* by_x, int rank, int bytes, int* lengths) {
  std::fill(lengths, lengths + rank, 1);
  const auto grow = [&](auto axis_at) {
    int64_t dense = 1;
    for (int i = rank - 1; i >= 0 && dense * int64_t(sizeof(T)) < bytes; --i) {
      const int axis = axis_at(i);
      const int64_t wanted = (bytes / int64_t(sizeof(T)) + dense - 1) / dense;
      lengths[axis] = static_cast<int>(std::min(axes[axis].size, std::max<int64_t>(lengths[axis], wanted)));
      dense *= lengths[axis];
      if (lengths[axis] < axes[axis].size) break;
    }
  };
  grow([&](int i) { return by_x[i]; });
  grow([](int i) { return i; });
  int64_t volume = 1;
  for (int axis = 0; axis < rank; ++axis) volume *= lengths[axis];
  if (volume > kVolume<T>) return false;
  for (int axis = rank - 1; axis >= 0; --axis) {
    const int64_t rest = volume / lengths[axis];
    lengths[axis] = static_cast<int>(std::min(axes[axis].size, kVolume<T> / rest));
    volume = rest * lengths[axis];
    if (lengths[axis] < axes[axis].size) break;
  }
  return true;
}

// False where it is not for this kernel: offsets within a block that 32 bits do not hold.
template <class T>
bool move_by_blocks(const T* x, T* y, const Extent* axes, int rank, Context& context) {
  int by_x[Walk::kMaxAxes], lengths[Walk::kMaxAxes];
  std::iota(by_x, by_x + rank, 0);
  std::sort(by_x, by_x + rank, [&](int a, int b) { return axes[a].in > axes[b].in; });
  int bytes = 128;
  while (!choose_lengths<T>(axes, by_x, rank, bytes, lengths)) bytes /= 2;

  Blocks b = {};
  b.volume = b.lengths[0] = b.lengths[1] = 1;
  int limited = 0;
  int tags[Walk::kMaxAxes] = {}, within[Walk::kMaxAxes] = {};
  int64_t count = 1, x_span = 0, y_span = 0;
  for (int axis = 0; axis < rank; ++axis) {
    const int64_t steps = (axes[axis].size + lengths[axis] - 1) / lengths[axis];
    if (axes[axis].size % lengths[axis] != 0) {
      if (limited == 2) return false;
      b.limits[limited] = axes[axis].size;
      b.lengths[limited] = lengths[axis];
      tags[axis] = ++limited;
    }
    b.volume *= lengths[axis];
    x_span += (lengths[axis] - 1) * axes[axis].in;
    y_span += (lengths[axis] - 1) * axes[axis].out;
    count *= steps;
    if (steps == 1) continue;
    b.sizes[b.axes] = Divisor(steps);
    b.x_steps[b.axes] = lengths[axis] * axes[axis].in;
    b.y_steps[b.axes] = lengths[axis] * axes[axis].out;
    b.limited[b.axes++] = tags[axis];
  }
  if (std::max({x_span, y_span, count}) >> 31) return false;
  b.count = static_cast<int>(count);
  int stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    within[by_x[i]] = stride;
    stride *= lengths[by_x[i]];
  }
  b.sides = 0;
  for (int i = 0; i < rank; ++i) {
    if (lengths[i] > 1) b.y[b.sides++] = {Divisor(lengths[i]), static_cast<int>(axes[i].out), within[i], tags[i]};
  }
  int side = 0;
  for (int i = 0; i < rank; ++i) {
    const int axis = by_x[i];
    if (lengths[axis] > 1) {
      b.x[side++] = {Divisor(lengths[axis]), static_cast<int>(axes[axis].in), within[axis], tags[axis]};
    }
  }
  launch(move_blocks<T>, grid_stride_blocks(count, 1, 3), kThreads, 0, context, x, y, b);
  return true;
}

// --- Elements

constexpr int64_t kSmall = 8192;  // elements

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather(const T* x, T* y, const int count, const __grid_constant__ FastWalk from) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) y[i] = x[from(i)];
}

// --- Which

template <class T>
struct Twice;
template <>
struct Twice<uint8_t> {
  using Type = uint16_t;
};
template <>
struct Twice<uint16_t> {
  using Type = uint32_t;
};
template <>
struct Twice<uint32_t> {
  using Type = uint64_t;
};
template <>
struct Twice<uint64_t> {
  using Type = Vector<uint64_t, 2>;
};

template <class T>
void permute_walk(const T* x, T* y, const Walk& walk, Context& context) {
  const int last = walk.rank - 1, dense = dense_axis(walk);
  if (walk.rank <= 1) {
    copy_strided(x, y, walk, context);
    return;
  }
  if (dense == last) {
    if constexpr (sizeof(T) < 16) {  // rows as wider elements
      using Wide = typename Twice<T>::Type;
      bool pairs = is_aligned<2>(walk.sizes[last], {x, static_cast<const T*>(y)});
      Walk wide;
      for (int axis = 0; axis < last; ++axis) {
        pairs = pairs && walk.strides[axis] % 2 == 0;
        wide.append(walk.sizes[axis], walk.strides[axis] / 2);
      }
      wide.append(walk.sizes[last] / 2, 1);
      if (pairs) {
        permute_walk(reinterpret_cast<const Wide*>(x), reinterpret_cast<Wide*>(y), wide, context);
        return;
      }
    }
    if (walk.sizes[last] * int64_t(sizeof(T)) >= kShort) {
      copy_strided(x, y, walk, context);
      return;
    }
  }
  Extent axes[Walk::kMaxAxes];
  int64_t stride = 1;
  for (int axis = last; axis >= 0; --axis) {
    axes[axis] = {walk.sizes[axis], walk.strides[axis], stride};
    stride *= walk.sizes[axis];
  }
  if (stride <= kSmall) {
    const int count = static_cast<int>(stride);
    launch(gather<T>, (count + kThreads - 1) / kThreads, kThreads, 0, context, x, y, count, FastWalk(walk));
    return;
  }
  const int64_t least = (kShort + int64_t(sizeof(T)) - 1) / int64_t(sizeof(T));
  if (dense != last && walk.sizes[last] >= least && walk.sizes[dense] >= least) {
    turn_planes(x, y, axes, walk.rank, dense, context);
  } else if (!move_by_blocks(x, y, axes, walk.rank, context)) {
    copy_strided(x, y, walk, context);
  }
}

}  // namespace

template <class T>
void permute_cuda(const PermuteArgs<T>& a, Context& context) {
  permute_walk(a.x, a.y, permuted(a.X, a.perm), context);
}

}  // namespace ortops
