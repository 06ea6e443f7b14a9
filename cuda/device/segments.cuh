// Sums of the rows that go to one row of a table: gradients of look-ups, additions by index.
//
// The positions are sorted by the row they go to (CUB's radix sort, which keeps the positions of one row in order).
// Then each row of the table is summed in registers and written once, the ones that nothing goes to as well, so that
// the table is neither cleared before nor read. The order of every sum is fixed by the sizes alone: the same input
// gives the same bits. A row to which a great many positions go is not left to one thread: the sums of whole chunks of
// positions, and of whole chunks of chunks, that go to one row are formed before.
#pragma once

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <limits>
#include <string>
#include <type_traits>

#include "core/cuda.h"
#include "device/index.h"
#include "device/vector.cuh"

namespace ortops {

struct SegmentTuning {
  static constexpr int kThreads = 256;
  static constexpr int kRows = 256;  // of the table that a block writes at most; their bounds are looked up at once
  static constexpr int kUnroll = 4;  // positions of a row whose values are on their way at a time
  static constexpr int kFirsts =
      2;  // rows whose first positions are so; more of them cost more registers than they gain
  static constexpr int kChunk = 128;  // positions in a chunk, and chunks in a chunk of chunks
  static constexpr int kBlocks = 4;   // a multiprocessor that a small table is shared out to
};

// Calls f(integral_constant<int, N>) with the most elements that rows of `width` elements can be read by: 16 bytes, a
// word, or one.
template <class T, class F>
void with_vector(int64_t width, std::initializer_list<const T*> pointers, F&& f) {
  constexpr int kWord = 4 / sizeof(T);
  if (is_aligned<kWidth<T>>(width, pointers)) {
    f(std::integral_constant<int, kWidth<T>>());
  } else if (kWord > 1 && is_aligned<kWord>(width, pointers)) {
    f(std::integral_constant<int, kWord>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

// The threads of a block that share out rows of `vectors` vectors: x is a vector of a row's tile, y is a row.
struct RowThreads {
  int tiles;  // of a row
  dim3 block;

  explicit RowThreads(int64_t vectors, int most_columns = SegmentTuning::kThreads) {
    tiles = narrow((vectors + most_columns - 1) / most_columns);
    const int columns = narrow((vectors + tiles - 1) / tiles);
    block = dim3(columns, SegmentTuning::kThreads / columns);
  }
};

// Positions, sorted by the row that they go to.
struct Segments {
  const uint32_t* rows;
  const uint32_t* positions;
  int count;
};

// Sorts. A kernel of the caller's writes, for each of `count` positions, the row it goes to (`table_rows`: none) and
// the number by which the source of the sums finds its values: the position, as a rule.
class SegmentSort {
 public:
  SegmentSort(int64_t count, int64_t table_rows, Context& context)
      : context_(context), count_(narrow(count)), bits_(std::bit_width(static_cast<uint64_t>(table_rows))) {
    if (table_rows >= std::numeric_limits<uint32_t>::max()) {
      throw Error("a table of " + std::to_string(table_rows) + " rows: sums on CUDA go to at most 4294967294");
    }
    const size_t stride = (count_ + 63) / 64 * 64;
    memory_ = static_cast<uint32_t*>(context.scratch(std::max<size_t>(1, 4 * stride) * sizeof(uint32_t)));
    rows_ = cub::DoubleBuffer<uint32_t>(memory_, memory_ + stride);
    positions_ = cub::DoubleBuffer<uint32_t>(memory_ + 2 * stride, memory_ + 3 * stride);
  }

  uint32_t* rows() { return rows_.Current(); }
  uint32_t* positions() { return positions_.Current(); }

  Segments sort() {
    if (count_ > 0) {
      size_t bytes = 0;
      const auto step = [&](void* memory) {
        ORTOPS_CUDA_CHECK(
            cub::DeviceRadixSort::SortPairs(memory, bytes, rows_, positions_, count_, 0, bits_, stream_of(context_)));
      };
      step(nullptr);
      step(context_.scratch(std::max<size_t>(1, bytes)));
    }
    return {rows_.Current(), positions_.Current(), count_};
  }

 private:
  Context& context_;
  int count_;
  int bits_;
  uint32_t* memory_;
  cub::DoubleBuffer<uint32_t> rows_, positions_;
};

// A source of sums tells where the values of a position are (`find`), which may take loads of its own, and then reads
// some of them; so that several positions are on their way at once. This one has a row of `values` for each position.
template <class T>
struct RowSource {
  using Element = T;
  const T* values;
  int64_t width;

  __device__ __forceinline__ const T* find(uint32_t position) const { return values + position * width; }

  template <int N>
  __device__ __forceinline__ Vector<float, N> read(const T* row, int64_t column, bool inside) const {
    return to_float(load<N>(row + column, inside));
  }
};

// How sums are formed: other reductions take the place of the addition.
struct SegmentSum {
  static constexpr float kIdentity = 0;
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

template <int N, class Combine>
__device__ __forceinline__ Vector<float, N> identity() {
  Vector<float, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) result[k] = Combine::kIdentity;
  return result;
}

namespace detail {

// The sums of whole chunks of positions that go to one row, [chunk][width]; first the chunks, then chunks of chunks.
// The others are not written.
struct Partials {
  float* sums[2];
};

constexpr int kPartialLevels = 2;

template <class Combine, int N, class Source>
__device__ __forceinline__ void add_positions(Vector<float, N>& total, const Segments& segments, const Source& source,
                                              int begin, int end, int64_t column) {
  constexpr int kUnroll = SegmentTuning::kUnroll;
  for (int i = begin; i < end; i += kUnroll) {
    decltype(source.find(0)) places[kUnroll];
    Vector<float, N> values[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) places[j] = source.find(segments.positions[i + j < end ? i + j : i]);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) values[j] = source.template read<N>(places[j], column, i + j < end);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      if (i + j < end) {
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] = Combine()(total[k], values[j][k]);
      }
    }
  }
}

template <class Combine, int N>
__device__ __forceinline__ void add_partials(Vector<float, N>& total, const float* sums, int begin, int end,
                                             int64_t width, int64_t column) {
#pragma unroll 4
  for (int i = begin; i < end; ++i) {
    const Vector<float, N> sum = load<N>(sums + i * width + column);
#pragma unroll
    for (int k = 0; k < N; ++k) total[k] = Combine()(total[k], sum[k]);
  }
}

// Adds what lies at positions begin..end, all of one row. `level` partial sums may be made use of.
template <class Combine, int N, class Source>
__device__ __forceinline__ void add_segment(Vector<float, N>& total, const Segments& segments, const Source& source,
                                            const Partials& partials, int level, int begin, int end, int64_t width,
                                            int64_t column) {
  constexpr int kChunk = SegmentTuning::kChunk;
  const int first = begin / kChunk + (begin % kChunk != 0), last = end / kChunk;
  if (level < 1 || first >= last) return add_positions<Combine>(total, segments, source, begin, end, column);
  add_positions<Combine>(total, segments, source, begin, first * kChunk, column);
  const int outer_first = first / kChunk + (first % kChunk != 0), outer_last = last / kChunk;
  if (level < 2 || outer_first >= outer_last) {
    add_partials<Combine>(total, partials.sums[0], first, last, width, column);
  } else {
    add_partials<Combine>(total, partials.sums[0], first, outer_first * kChunk, width, column);
    add_partials<Combine>(total, partials.sums[1], outer_first, outer_last, width, column);
    add_partials<Combine>(total, partials.sums[0], outer_last * kChunk, last, width, column);
  }
  add_positions<Combine>(total, segments, source, last * kChunk, end, column);
}

// Writes partials.sums[level] of the chunks (`size` positions each) that go to one row.
template <int N, class Combine, class Source>
__global__ void __launch_bounds__(SegmentTuning::kThreads)
    sum_chunks(const Segments segments, const Source source, const Partials partials, const int level, const int chunks,
               const int size, const uint32_t table_rows, const int64_t width, const int tiles) {
  for (int chunk = blockIdx.x * blockDim.y + threadIdx.y; chunk < chunks; chunk += gridDim.x * blockDim.y) {
    const int begin = chunk * size, end = begin + size;
    const uint32_t row = segments.rows[begin];
    if (row >= table_rows || row != segments.rows[end - 1]) continue;
    for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
      const int64_t column = (int64_t(tile) * blockDim.x + threadIdx.x) * N;
      if (column >= width) continue;
      Vector<float, N> total = identity<N, Combine>();
      add_segment<Combine>(total, segments, source, partials, level, begin, end, width, column);
      store(partials.sums[level] + chunk * width + column, total);
    }
  }
}

// Where a row's positions begin, found by a warp, 32 places at a time.
__device__ __forceinline__ int find_start(const Segments& segments, uint32_t row) {
  int low = 0, high = segments.count;
  while (low < high) {
    const int step = (high - low + 31) / 32, at = low + static_cast<int>(threadIdx.x % 32) * step;
    const int below = __popc(__ballot_sync(0xffffffffu, at < high && segments.rows[min(at, high - 1)] < row));
    if (below == 0) break;
    high = min(high, low + below * step);
    low += (below - 1) * step + 1;
  }
  return low;
}

// Where the positions of the rows first..first + count begin, and end. For all threads of a block.
__device__ __forceinline__ void find_starts(const Segments& segments, int64_t first, int count, int* starts) {
  __shared__ int range[2];
  if (threadIdx.x < 64) {
    const int end = threadIdx.x / 32;
    const int found = find_start(segments, static_cast<uint32_t>(first + (end ? count : 0)));
    if (threadIdx.x % 32 == 0) range[end] = found;
  }
  __syncthreads();
  const int begin = range[0], end = range[1];
  for (int i = begin + static_cast<int>(threadIdx.x); i <= end; i += blockDim.x) {
    const int before = i > begin ? static_cast<int>(segments.rows[i - 1] - first) : -1;
    const int row = i < end ? static_cast<int>(segments.rows[i] - first) : count;
    for (int r = before + 1; r <= row; ++r) starts[r] = i;
  }
  __syncthreads();
}

// What is not read again should not displace what is.
template <class T, int N>
__device__ __forceinline__ void store_once(T* to, const Vector<T, N>& value) {
  if constexpr (sizeof(value) == 16) {
    __stcs(reinterpret_cast<uint4*>(to), bit_cast<uint4>(value));
  } else {
    store(to, value);
  }
}

// Writes every row of the table: the sum of its segment, and of what it starts with, if anything. The threads of a
// block are `columns` by rows.
template <int N, class Combine, class T, class Source>
__global__ void __launch_bounds__(SegmentTuning::kThreads)
    sum_rows(const Segments segments, const Source source, const Partials partials, const int levels, T* table,
             const T* start, const int64_t table_rows, const int64_t width, const int64_t pitch,
             const int rows_per_block, const int columns, const int tiles) {
  constexpr int kFirsts = SegmentTuning::kFirsts;
  __shared__ int starts[SegmentTuning::kRows + 1];
  const int64_t first = int64_t(blockIdx.x) * rows_per_block;
  const int rows = static_cast<int>(min(int64_t(rows_per_block), table_rows - first));
  find_starts(segments, first, rows, starts);
  const int thread_row = threadIdx.x / columns, row_step = SegmentTuning::kThreads / columns;
  if (thread_row >= row_step) return;
  for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t column = (int64_t(tile) * columns + threadIdx.x - thread_row * columns) * N;
    if (column >= width) continue;
    for (int i = thread_row; i < rows; i += row_step * kFirsts) {
      decltype(source.find(0)) places[kFirsts];
      Vector<float, N> totals[kFirsts];
      bool any[kFirsts];
#pragma unroll
      for (int j = 0; j < kFirsts; ++j) {
        const int row = i + j * row_step;
        any[j] = row < rows && starts[row] < starts[row + 1];
        if (any[j]) places[j] = source.find(segments.positions[starts[row]]);
      }
#pragma unroll
      for (int j = 0; j < kFirsts; ++j) totals[j] = source.template read<N>(places[j], column, any[j]);
#pragma unroll
      for (int j = 0; j < kFirsts; ++j) {
        const int row = i + j * row_step;
        if (row >= rows) break;
        Vector<float, N> total = any[j] ? totals[j] : identity<N, Combine>();
        if (starts[row] + 1 < starts[row + 1]) {
          add_segment<Combine>(total, segments, source, partials, levels, starts[row] + 1, starts[row + 1], width,
                               column);
        }
        const int64_t at = (first + row) * pitch + column;
        if (start) {
          const Vector<float, N> before = to_float(load<N>(start + at));
#pragma unroll
          for (int k = 0; k < N; ++k) total[k] = Combine()(before[k], total[k]);
        }
        store_once(table + at, from_float<T>(total));
      }
    }
  }
}

}  // namespace detail

// table[r] = the sum over the positions that go to row r of what the source has for them, for all rows, in float. N
// elements at a time are read and written: with_vector() says how many, of the table and of what the source reads. The
// sums may begin with what `start` has there (it may be the table itself), and rows may lie `pitch` apart, not `width`.
template <int N, class Combine = SegmentSum, class T, class Source>
void sum_segments(const Segments& segments, const Source& source, T* table, int64_t table_rows, int64_t width,
                  Context& context, const T* start = nullptr, int64_t pitch = 0) {
  using Tuning = SegmentTuning;
  if (table_rows == 0 || width == 0) return;
  const RowThreads threads((width + N - 1) / N);
  const int grid_y = std::min(threads.tiles, 65535);
  detail::Partials partials = {};
  int levels = 0;
  int64_t size = Tuning::kChunk;
  // Chunks only help where a segment may hold one that lies anywhere.
  for (; levels < detail::kPartialLevels && segments.count >= 2 * size; ++levels, size *= Tuning::kChunk) {
    const int chunks = narrow(segments.count / size);
    partials.sums[levels] = static_cast<float*>(context.scratch(chunks * width * sizeof(float)));
    const int blocks = grid_stride_blocks(chunks, threads.block.y);
    launch(detail::sum_chunks<N, Combine, Source>, dim3(blocks, grid_y), threads.block, 0, context, segments, source,
           partials, levels, chunks, static_cast<int>(size), static_cast<uint32_t>(table_rows), width, threads.tiles);
  }
  const int64_t shared_out = int64_t(device_properties().multiprocessors) * Tuning::kBlocks;
  const int rows_per_block =
      static_cast<int>(std::clamp<int64_t>((table_rows + shared_out - 1) / shared_out, 1, Tuning::kRows));
  const int blocks = narrow((table_rows + rows_per_block - 1) / rows_per_block);
  launch(detail::sum_rows<N, Combine, T, Source>, dim3(blocks, grid_y), Tuning::kThreads, 0, context, segments, source,
         partials, levels, table, start, table_rows, width, pitch ? pitch : width, rows_per_block,
         static_cast<int>(threads.block.x), threads.tiles);
}

}  // namespace ortops
