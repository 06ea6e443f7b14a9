// BroadcastTo and SumToSize.
//
// BroadcastTo is one pass over y, 16 bytes a thread; x is small, or read once. Its kernel counts in 32 bits: a larger y
// is written in pieces.
//
// SumToSize adds up rows or columns. Rows: a group of lanes has a sum to itself, or, where sums are few, a block or
// several. Columns: a thread adds 16 bytes of each of its rows to as many sums. Where several blocks have a part in a
// sum, and where short rows were taken for long ones, what they leave in scratch memory is added up by a second kernel
// of the same kind, in a fixed order.
#include <algorithm>
#include <bit>
#include <numeric>

#include "core/cuda.h"
#include "device/index.h"
#include "device/reduce.cuh"
#include "device/strided.cuh"
#include "device/vector.cuh"
#include "gen/broadcast.h"
#include "ops/broadcast/plan.h"

namespace ortops {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 8;    // of those that a multiprocessor holds at once
constexpr int kInFlight = 4;  // vectors that a thread has asked for at once
constexpr int kFewAcross = 8, kFewRows = 2 * kInFlight * kThreads / kFewAcross;  // of what is added up by one kernel

// How the runs of a sum are divided into chunks, of which each group of lanes takes every so many.
struct Rows {
  int64_t count;         // sums
  int64_t runs, inner;   // of a sum; of a run
  int64_t chunks, size;  // of a run; of a chunk
  int lanes;             // of a group: a power of two up to a warp
  int parts;             // blocks that have a part in a sum; 0: a group of lanes has a sum to itself
  Walk sum, run;
};

// What a thread adds up of the chunks first, first + step, ..
template <int N, class T>
__device__ __forceinline__ float sum_chunks(const T* x, const Rows& rows, int64_t first, int64_t step) {
  const int lane = threadIdx.x & (rows.lanes - 1);
  const int stride = rows.lanes * N;
  float total[kInFlight] = {};
  for (int64_t i = first; i < rows.runs * rows.chunks; i += step) {
    const int64_t run = rows.chunks == 1 ? i : i / rows.chunks;
    const int64_t begin = (i - run * rows.chunks) * rows.size, end = min(begin + rows.size, rows.inner);
    const T* from = x + rows.run(run);
    for (int64_t at = begin + lane * N; at < end; at += kInFlight * stride) {
      Vector<T, N> values[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        values[j] = load<N, Reuse::none>(from + at + j * stride, at + j * stride < end);
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const Vector<float, N> wide = to_float(values[j]);
#pragma unroll
        for (int k = 0; k < N; ++k) total[j] += wide[k];
      }
    }
  }
  return (total[0] + total[1]) + (total[2] + total[3]);
}

template <int N, class T, class Out>
__global__ void __launch_bounds__(kThreads) sum_rows(const T* x, Out* out, const __grid_constant__ Rows rows) {
  const int groups = kThreads / rows.lanes, group = threadIdx.x / rows.lanes;
  if (rows.parts == 0) {
    for (int64_t first = blockIdx.x * int64_t(groups); first < rows.count; first += gridDim.x * int64_t(groups)) {
      const int64_t i = first + group;
      float total = i < rows.count ? sum_chunks<N>(x + rows.sum(i), rows, 0, 1) : 0.0f;
      for (int mask = rows.lanes / 2; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
      if (i < rows.count && (threadIdx.x & (rows.lanes - 1)) == 0) out[i] = from_float<Out>(total);
    }
    return;
  }
  __shared__ float partials[kWarp];
  for (int64_t i = blockIdx.x; i < rows.count * rows.parts; i += gridDim.x) {
    const int64_t sum = i / rows.parts, part = i - sum * rows.parts;
    const float own = sum_chunks<N>(x + rows.sum(sum), rows, part * groups + group, int64_t(rows.parts) * groups);
    const float total = block_reduce(own, partials);
    if (threadIdx.x == 0) out[i] = from_float<Out>(total);
    __syncthreads();  // the partial sums have been read
  }
}

// Matrices whose columns are added up: each of `rows` rows of `width`, the last of which may end early.
struct Columns {
  int64_t count;  // matrices
  int64_t rows, width;
  int64_t last;   // elements of a matrix's last row
  int64_t apart;  // rows that lie evenly
  int64_t tiles;  // of columns
  int across;     // threads that have columns of their own: a power of two
  int parts;      // blocks that share out the rows
  Walk sum, run;
};

template <int N, bool kEven, class T, class Out>
__global__ void __launch_bounds__(kThreads, kEven ? 4 : 3)
    sum_columns(const T* x, Out* out, const __grid_constant__ Columns m) {
  __shared__ Vector<float, N> partial[kThreads];
  const int down = kThreads / m.across, row = threadIdx.x / m.across, across = threadIdx.x & (m.across - 1);
  const int64_t step = int64_t(m.parts) * down;
  for (int64_t i = blockIdx.x; i < m.count * m.tiles * m.parts; i += gridDim.x) {
    const int64_t rest = i / m.tiles, tile = i - rest * m.tiles;  // neighbours read neighbours
    const int64_t sum = rest / m.parts, part = rest - sum * m.parts;
    const int64_t column = (tile * m.across + across) * N;
    const T* from = x + m.sum(sum) + column;
    const auto row_at = [&](int64_t r) { return from + (kEven ? r * m.apart : m.run(r)); };
    const int64_t rows = column >= m.width ? 0 : m.rows - (column + N > m.last);  // of which all N columns are there
    const int64_t first = part * down + row;
    Vector<float, N> total = {};
    for (int64_t r = first; r < rows; r += kInFlight * step) {
      Vector<T, N> values[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const bool inside = r + j * step < rows;
        values[j] = load<N, Reuse::none>(row_at(kEven || inside ? r + j * step : r), inside);
      }
#pragma unroll
      for (int j = 0; j < kInFlight; j += 2) {
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] += to_float(values[j][k]) + to_float(values[j + 1][k]);
      }
    }
    if (N > 1 && column < m.last && column + N > m.last && (m.rows - 1) % step == first) {
      const T* end = row_at(m.rows - 1);
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] += column + k < m.last ? to_float(end[k]) : 0.0f;
    }
    partial[threadIdx.x] = total;
    __syncthreads();
    for (int half = down / 2; half > 0; half /= 2) {
      if (row < half) {
        const Vector<float, N> other = partial[threadIdx.x + half * m.across];
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] += other[k];
        partial[threadIdx.x] = total;
      }
      __syncthreads();
    }
    if (row == 0 && column < m.width) {
      Out* to = out + rest * m.width + column;
#pragma unroll
      for (int k = 0; k < N; ++k) to[k] = from_float<Out>(total[k]);
    }
  }
}

int blocks_for(int64_t work) {
  return static_cast<int>(std::min<int64_t>(work, int64_t(device_properties().multiprocessors) * kBlocks * 4));
}

template <class T, class Out>
void sum_rows_of(const T* x, Out* y, const Sums& s, Context& context) {
  constexpr int kMost = kWidth<T>;
  const bool aligned = is_aligned<kMost>(s.inner, {x});
  const int N = aligned ? kMost : 1;
  const int64_t vectors = s.inner / N, all = s.runs * vectors;
  const int64_t blocks = int64_t(device_properties().multiprocessors) * kBlocks;
  Rows rows = {s.count, s.runs, s.inner, 1, s.inner, 0, 0, s.sum, s.run};
  rows.lanes = static_cast<int>(std::bit_ceil<uint64_t>(std::min<int64_t>(vectors, kWarp)));
  const int64_t groups = kThreads / rows.lanes;
  if (s.count < blocks * groups / 2 && all > 2 * kInFlight * rows.lanes) {
    rows.parts =
        narrow(std::clamp<int64_t>(blocks / 2 / s.count, 1, std::max<int64_t>(1, all / (4 * kInFlight * kThreads))));
    const int64_t wanted = (rows.parts * groups + s.runs - 1) / s.runs;
    const int64_t least = rows.lanes * kInFlight;  // vectors of a chunk
    rows.size = (std::max(least, vectors / wanted) + least - 1) / least * least * N;
    rows.chunks = (s.inner + rows.size - 1) / rows.size;
  }
  const auto start = [&](auto* out) {
    using To = std::remove_pointer_t<decltype(out)>;
    const int64_t work = rows.parts ? rows.count * rows.parts : (rows.count + groups - 1) / groups;
    launch(aligned ? sum_rows<kMost, T, To> : sum_rows<1, T, To>, blocks_for(work), kThreads, 0, context, x, out, rows);
  };
  if (rows.parts <= 1) {
    start(y);
    return;
  }
  auto* partial = static_cast<float*>(context.scratch(s.count * rows.parts * sizeof(float)));
  start(partial);
  Sums rest = {.columns = false, .inner = rows.parts, .count = s.count, .runs = 1, .sum = {}, .run = {}};
  rest.sum.append(s.count, rows.parts);
  sum_rows_of(static_cast<const float*>(partial), y, rest, context);
}

template <class T, class Out>
void sum_columns_of(const T* x, Out* y, const Sums& s, Context& context) {
  constexpr int kMost = kWidth<T>;
  const int64_t multiprocessors = device_properties().multiprocessors;
  Columns m = {s.count, s.runs, s.inner, 0, 0, 1, 1, 1, s.sum, s.run};
  // What is small is done by one kernel, with many threads to a column. Else rows that are short, or not all aligned,
  // are taken several as one, which is.
  const bool small = s.runs <= kFewRows && s.count * s.inner <= multiprocessors * 2 * kWarp;
  int64_t together = 1;
  if (!small && (s.inner % kMost != 0 || s.inner < kWarp * kMost)) {
    const int64_t aligned = kMost / std::gcd<int64_t>(kMost, s.inner);
    const int64_t long_enough = std::max<int64_t>(1, kWarp * kMost / (aligned * s.inner));
    const bool possible = s.run.rank == 1 && (s.count == 1 || s.runs * s.inner % kMost == 0);
    if (possible && 4 * aligned * long_enough <= s.runs) together = aligned * long_enough;
  }
  m.width *= together;
  m.rows = (s.runs + together - 1) / together;
  m.last = s.runs * s.inner - (m.rows - 1) * m.width;
  if (together > 1) {
    m.run = {};
    m.run.append(m.rows, m.width);
  }
  m.apart = m.run.strides[0];
  const bool aligned = is_aligned<kMost>(m.width, {x}), even = m.run.rank <= 1;
  const int N = aligned ? kMost : 1;
  const int64_t vectors = (m.width + N - 1) / N;
  m.across = static_cast<int>(std::bit_ceil<uint64_t>(std::min<int64_t>(vectors, small ? kFewAcross : 2 * kWarp)));
  m.tiles = (vectors + m.across - 1) / m.across;
  const int64_t down = kThreads / m.across, tasks = m.count * m.tiles;
  const int64_t blocks = multiprocessors * kBlocks;
  m.parts = narrow(std::clamp<int64_t>(blocks / tasks, 1, std::max<int64_t>(1, m.rows / (4 * kInFlight * down))));
  const auto start = [&](auto* out) {
    using To = std::remove_pointer_t<decltype(out)>;
    const auto kernel = aligned ? (even ? sum_columns<kMost, true, T, To> : sum_columns<kMost, false, T, To>)
                                : (even ? sum_columns<1, true, T, To> : sum_columns<1, false, T, To>);
    launch(kernel, blocks_for(tasks * m.parts), kThreads, 0, context, x, out, m);
  };
  if (m.parts == 1 && together == 1) {
    start(y);
    return;
  }
  auto* partial = static_cast<float*>(context.scratch(m.count * m.parts * m.width * sizeof(float)));
  start(partial);
  Sums rest = {.columns = true, .inner = s.inner, .count = s.count, .runs = m.parts * together, .sum = {}, .run = {}};
  rest.sum.append(s.count, rest.runs * s.inner);
  rest.run.append(rest.runs, s.inner);
  sum_columns_of(static_cast<const float*>(partial), y, rest, context);
}

template <class T>
__global__ void zeros(T* y, const int64_t count) {
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < count; i += gridDim.x * int64_t(kThreads))
    y[i] = from_float<T>(0.0f);
}

}  // namespace

template <class T>
void broadcast_to_cuda(const BroadcastToArgs<T>& a, Context& context) {
  copy_strided(a.x, a.y, repeated(a.X, a.shape), context);
}

template <class T>
void sum_to_size_cuda(const SumToSizeArgs<T>& a, Context& context) {
  if (a.X.size() == 0) {
    const int64_t count = a.L.size();
    launch(zeros<T>, grid_stride_blocks(count, kThreads), kThreads, 0, context, a.y, count);
    return;
  }
  const Sums s = sums(a.X, a.L);
  if (s.columns && s.runs == 1) {
    copy_dense(a.x, a.y, a.X.size(), context);
  } else if (s.columns) {
    sum_columns_of(a.x, a.y, s, context);
  } else {
    sum_rows_of(a.x, a.y, s, context);
  }
}

}  // namespace ortops
