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
  static constexpr int kRows = 256;   // of the table that a block writes at most; their bounds are looked up at once
  static constexpr int kUnroll = 4;   // positions whose values are on their way at a time
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

// Writes every row of the table: the sum of its segment, and of what it starts with, if anything.
template <int N, class Combine, class T, class Source>
__global__ void __launch_bounds__(SegmentTuning::kThreads)
    sum_rows(const Segments segments, const Source source, const Partials partials, const int levels, T* table,
             const T* start, const int64_t table_rows, const int64_t width, const int64_t pitch,
             const int rows_per_block, const int tiles) {
  __shared__ int starts[SegmentTuning::kRows + 1];
  const int64_t first = int64_t(blockIdx.x) * rows_per_block;
  const int rows = static_cast<int>(min(int64_t(rows_per_block), table_rows - first));
  for (int i = threadIdx.y * blockDim.x + threadIdx.x; i <= rows; i += blockDim.x * blockDim.y) {
    const uint32_t row = static_cast<uint32_t>(first + i);
    int low = 0, high = segments.count;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (segments.rows[middle] < row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    starts[i] = low;
  }
  __syncthreads();
  for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t column = (int64_t(tile) * blockDim.x + threadIdx.x) * N;
    if (column >= width) continue;
    for (int i = threadIdx.y; i < rows; i += blockDim.y) {
      Vector<float, N> total = identity<N, Combine>();
      add_segment<Combine>(total, segments, source, partials, levels, starts[i], starts[i + 1], width, column);
      const int64_t at = (first + i) * pitch + column;
      if (start) {
        const Vector<float, N> before = to_float(load<N>(start + at));
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] = Combine()(before[k], total[k]);
      }
      store(table + at, from_float<T>(total));
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
  launch(detail::sum_rows<N, Combine, T, Source>, dim3(blocks, grid_y), threads.block, 0, context, segments, source,
         partials, levels, table, start, table_rows, width, pitch ? pitch : width, rows_per_block, threads.tiles);
}

}  // namespace ortops
