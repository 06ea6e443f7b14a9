// SequencePool: mean, maximum or first of the rows of each sequence that its mask keeps, and the length of that made 1.
//
// One kernel, one pass: what the mask leaves out is not even read. A block has a tile of one sequence's columns; its
// threads are columns (a vector of 16 bytes each, where all is aligned to that) by groups, which take every so many
// rows and meet in shared memory. With `normalize` a block has all columns of its sequence: one tile, or, beyond 512
// vectors, tile after tile, twice over: first for the length.
#include <algorithm>
#include <type_traits>

#include "core/cuda.h"
#include "device/index.h"
#include "device/reduce.cuh"
#include "device/vector.cuh"
#include "gen/sequence.h"

namespace ortops {
namespace {

constexpr int kThreads = 512;
constexpr int kRows = 4;      // that a thread has in flight
constexpr int kColumns = 64;  // of a tile, where a sequence may be shared out among blocks

using Mode = SequencePoolAttributes::Mode;

struct Layout {
  int columns, groups;  // of a block's threads
  int tiles;            // of a sequence
  Mode mode;
  bool normalize;
};

template <int N, class T, class M>
__global__ void __launch_bounds__(kThreads)
    pool(const T* x, const M* mask, T* y, const int length, const int64_t size, const Layout layout) {
  __shared__ float partial[kThreads * N];  // [group][column][N]
  __shared__ int counts[kWarp], firsts[kWarp];
  __shared__ float lengths[kWarp];
  const auto [columns, groups, tiles, mode, normalize] = layout;
  const int column = threadIdx.x % columns, group = threadIdx.x / columns;
  const int64_t sequence = normalize ? blockIdx.x : blockIdx.x / tiles;
  x += sequence * length * size;
  mask += sequence * length;
  y += sequence * size;

  int begin = 0, end = length;
  if (mode == Mode::first) {
    int first = length;
    for (int s = threadIdx.x; s < length && first == length; s += blockDim.x) {
      if (mask[s] != M(0)) first = s;
    }
    begin = block_reduce(first, firsts, Min());
    end = min(begin + 1, length);
  }
  const auto combine = [mode = mode](float a, float b) { return mode == Mode::max ? Max()(a, b) : a + b; };
  const float nothing = mode == Mode::max ? -INFINITY : 0.0f;

  // Leaves a tile's result at the beginning of `partial`.
  const auto pool_tile = [&](int64_t tile) {
    const int64_t at = (tile * columns + column) * N;
    int kept = 0;
    Vector<float, N> total;
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] = nothing;
    if (group < groups) {
      for (int s = begin + group; s < end; s += kRows * groups) {
        bool keep[kRows];
        Vector<T, N> rows[kRows];
#pragma unroll
        for (int j = 0; j < kRows; ++j) keep[j] = s + j * groups < end && mask[s + j * groups] != M(0);
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          rows[j] = load<N, Reuse::none>(x + (s + j * groups) * size + at, keep[j] && at < size);
        }
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          const Vector<float, N> row = to_float(rows[j]);
#pragma unroll
          for (int i = 0; i < N; ++i) total[i] = combine(total[i], keep[j] ? row[i] : nothing);
          kept += keep[j];
        }
      }
    }
    __syncthreads();  // the tile before has been written
    if (group < groups) {
#pragma unroll
      for (int i = 0; i < N; ++i) partial[threadIdx.x * N + i] = total[i];
    }
    const int count = block_reduce(column == 0 ? kept : 0, counts);
    __syncthreads();
    for (int i = threadIdx.x; i < columns * N; i += blockDim.x) {
      float sum = partial[i];
      for (int g = 1; g < groups; ++g) sum = combine(sum, partial[g * columns * N + i]);
      if (mode != Mode::max) sum /= max(count, 1);
      partial[i] = count > 0 ? sum : 0.0f;
    }
  };
  const auto each_element = [&](int64_t tile, auto f) {
    for (int i = threadIdx.x; i < columns * N; i += blockDim.x) {
      if (tile * columns * N + i < size) f(tile * columns * N + i, partial[i]);
    }
  };

  if (!normalize) {
    const int64_t tile = blockIdx.x % tiles;
    pool_tile(tile);
    each_element(tile, [&](int64_t at, float value) { y[at] = from_float<T>(value); });
    return;
  }
  float squares = 0;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    pool_tile(tile);
    each_element(tile, [&](int64_t, float value) { squares += value * value; });
  }
  const float norm = Max()(sqrtf(block_reduce(squares, lengths)), 1e-12f);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tiles > 1) pool_tile(tile);
    each_element(tile, [&](int64_t at, float value) { y[at] = from_float<T>(value / norm); });
  }
}

}  // namespace

template <class T, class M>
void sequence_pool_cuda(const SequencePoolArgs<T, M>& a, Context& context) {
  const auto start = [&](auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t vectors = (a.D + N - 1) / N;
    Layout layout;
    layout.columns = static_cast<int>(std::min<int64_t>(vectors, a.normalize ? kThreads : kColumns));
    layout.groups = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(kThreads / layout.columns, a.S)));
    layout.tiles = narrow((vectors + layout.columns - 1) / layout.columns);
    layout.mode = a.mode;
    layout.normalize = a.normalize;
    const int threads = (layout.columns * layout.groups + kWarp - 1) / kWarp * kWarp;
    launch(pool<N, T, M>, narrow(a.normalize ? a.B : a.B * layout.tiles), threads, 0, context, a.x, a.mask, a.y,
           narrow(a.S), a.D, layout);
  };
  if (is_aligned<kWidth<T>>(a.D, {a.x, a.y})) {
    start(std::integral_constant<int, kWidth<T>>());
  } else {
    start(std::integral_constant<int, 1>());
  }
}

}  // namespace ortops
