// EmbeddingBag and its gradients on CUDA.
//
// Forward: a bag's columns are shared out among threads, a vector each, so that narrow rows leave room for many bags in
// a block. A thread reads a few indices ahead, then the vectors of as many rows at once, which hides the latency of
// rows that lie anywhere. Where bags are few and long, several groups of threads take turns at one of them and meet in
// shared memory.
//
// The table's gradient sorts the positions by their row (device/segments.cuh): every row is written once, and the
// result is the same bits every time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/cuda.h"
#include "device/index.h"
#include "device/reduce.cuh"
#include "device/segments.cuh"
#include "device/vector.cuh"
#include "gen/bag.h"
#include "ops/bag/bags.h"

namespace ortops {
namespace {

struct BagTuning {
  static constexpr int kThreads = SegmentTuning::kThreads;
  static constexpr int kFill = 1024;      // threads a multiprocessor, below which bags are shared out among groups
  static constexpr int kFewColumns = 32;  // of a block, then
  static constexpr int kDots = 4;         // positions whose products a thread has on their way at a time
};

// Factors of the rows; or their maximum, or the position of that.
enum class Pooling { plain, weighted, maximum, winner };

// Rows that a thread has on their way at a time, vectors of N. Of the widest, four and so few registers that four
// blocks fit a multiprocessor come to the copy's rate (1.0x on an H200, 1M rows of 128 in bags of 20); eight are 1.3x
// where they leave room for two blocks, and 1.8x where they are spilled.
template <int N, class T>
constexpr int kRowsOf = N < kWidth<T> ? 8 : 4;

constexpr bool is_maximum(Pooling pooling) { return pooling == Pooling::maximum || pooling == Pooling::winner; }

// What an index may be instead of a row.
constexpr int64_t kLeftOut = -1, kOutside = -2;

template <class I>
struct Rows {
  const I* indices;
  int64_t count;
  int64_t padding;
  int64_t* report;  // may be null

  __device__ __forceinline__ int64_t find(int64_t index) const {
    const int64_t row = index < 0 ? index + count : index;
    return static_cast<uint64_t>(row) >= static_cast<uint64_t>(count) ? kOutside : row == padding ? kLeftOut : row;
  }

  // Reports too, which takes a branch an index.
  __device__ __forceinline__ int64_t row(int64_t index) const {
    const int64_t row = find(index);
    if (row == kOutside && report) {
      report[1] = index;
      report[0] = 1;
    }
    return row;
  }
};

// --- forward

// As Max, in one instruction where there is one.
__device__ __forceinline__ float greater(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return Max()(a, b);
#endif
}

template <class I, class T>
struct Pool {
  Bags<I> bags;
  Rows<I> rows;
  const T* table;
  const T* weights;
  bool mean;
  T* y;
  int32_t* winners;  // positions, -1: none
  int64_t width;
  int tiles;   // of a row
  int splits;  // groups of threads that share a bag
  int64_t* offset_report;
};

template <int N, Pooling pooling, class I, class T>
__global__ void __launch_bounds__(BagTuning::kThreads, pooling == Pooling::winner ? 3 : 4) pool(const Pool<I, T> a) {
  constexpr int kRows = kRowsOf<N, T>;
  constexpr bool kMaximum = is_maximum(pooling), kWinner = pooling == Pooling::winner;
  extern __shared__ float shared[];  // the groups' partial results, [N][thread], then the winners alike
  __shared__ int counts[BagTuning::kThreads];

  const int threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int split = threadIdx.y % a.splits;
  const int64_t bags_of_block = blockDim.y / a.splits;
  const bool in_use = threadIdx.y < bags_of_block * a.splits;
  int32_t* const shared_winners = reinterpret_cast<int32_t*>(shared + N * threads);

  const auto pool_bag = [&](int64_t bag, int tile) {
    const int64_t column = (int64_t(tile) * blockDim.x + threadIdx.x) * N;
    const bool has_column = column < a.width;
    Vector<float, N> total;
    Vector<int32_t, N> winner;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      total[k] = kMaximum ? -INFINITY : 0.0f;
      winner[k] = -1;
    }
    int kept = 0;
    bool outside = false;
    const bool has_bag = in_use && has_column && bag < a.bags.count;
    const int64_t begin = has_bag ? a.bags.begin(bag) : 0, end = has_bag ? a.bags.end(bag) : 0;
    const T* const table = a.table + column;
    const auto read_indices = [&](I(&indices)[kRows], int64_t position) {
      const int left = static_cast<int>(min(end - position, int64_t(kRows)));
#pragma unroll
      for (int j = 0; j < kRows; ++j) indices[j] = j < left ? a.rows.indices[position + j] : I(0);
    };
    I indices[kRows];
    int64_t position = begin + split * kRows;
    read_indices(indices, min(position, end));
    while (position < end) {
      const int left = static_cast<int>(min(end - position, int64_t(kRows)));
      bool use[kRows];
      Vector<T, N> values[kRows];
      float factors[kRows];
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int64_t row = j < left ? a.rows.find(indices[j]) : kLeftOut;
        use[j] = row >= 0;
        outside = outside || row == kOutside;
        kept += use[j];
        values[j] = load<N, Reuse::constant>(table + row * a.width, use[j]);
        if constexpr (pooling == Pooling::weighted) factors[j] = use[j] ? to_float(a.weights[position + j]) : 0.0f;
      }
      const int64_t next = position + a.splits * kRows;
      read_indices(indices, min(next, end));
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const Vector<float, N> row = to_float(values[j]);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          if constexpr (kWinner) {
            // The first of the bag, the greatest, the first NaN.
            const bool wins = winner[k] < 0 || (!(total[k] >= row[k]) && total[k] == total[k]);
            if (use[j] && wins) {
              total[k] = row[k];
              winner[k] = static_cast<int32_t>(position + j);
            }
          } else if constexpr (kMaximum) {
            if (use[j]) total[k] = greater(total[k], row[k]);
          } else if constexpr (pooling == Pooling::weighted) {
            total[k] += factors[j] * row[k];
          } else {
            total[k] += row[k];  // 0 where there is none
          }
        }
      }
      position = next;
    }
    if (outside && a.rows.report) {
      for (position = begin; position < end; ++position) a.rows.row(a.rows.indices[position]);
    }
    if (a.splits > 1) {
      __syncthreads();  // the bag before has been read
#pragma unroll
      for (int k = 0; k < N; ++k) {
        shared[k * threads + thread] = total[k];
        if constexpr (kWinner) shared_winners[k * threads + thread] = winner[k];
      }
      if (threadIdx.x == 0) counts[threadIdx.y] = outside ? -1 : kept;
      __syncthreads();
      if (split > 0) return;
      for (int other = 1; other < a.splits && in_use; ++other) {
        const int there = thread + other * blockDim.x;
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float more = shared[k * threads + there];
          if constexpr (kWinner) {
            const int32_t rival = shared_winners[k * threads + there];
            const bool both_nan = total[k] != total[k] && more != more;
            const bool greater = !(total[k] >= more) && total[k] == total[k];
            const bool earlier = (total[k] == more || both_nan) && rival < winner[k];
            if (rival >= 0 && (winner[k] < 0 || greater || earlier)) {
              total[k] = more;
              winner[k] = rival;
            }
          } else {
            total[k] = kMaximum ? greater(total[k], more) : total[k] + more;
          }
        }
        const int count = counts[threadIdx.y + other];
        outside = outside || count < 0;
        kept += count;
      }
    }
    if (!has_bag || split > 0) return;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (a.mean && kept > 1) total[k] /= static_cast<float>(kept);
      if (kMaximum && kept == 0) total[k] = 0.0f;
      if (outside) {
        total[k] = NAN;
        winner[k] = -1;
      }
    }
    if constexpr (kWinner) {
      store(a.winners + bag * a.width + column, winner);
    } else {
      store(a.y + bag * a.width + column, from_float<T>(total));
    }
  };

  for (int64_t first = blockIdx.x * bags_of_block; first < a.bags.count; first += gridDim.x * bags_of_block) {
    const int64_t bag = first + threadIdx.y / a.splits;
    if (a.offset_report && in_use && bag < a.bags.count && threadIdx.x == 0) {
      for (int64_t place = bag; place < (bag + 1 < a.bags.count ? bag + 1 : a.bags.offset_count); ++place) {
        if (a.bags.is_valid(place)) continue;
        a.offset_report[1] = place;
        a.offset_report[0] = 1;
      }
    }
    for (int tile = blockIdx.y; tile < a.tiles; tile += gridDim.y) pool_bag(bag, tile);
  }
}

template <int N, Pooling pooling, class I, class T>
void launch_pool(Pool<I, T> a, Context& context) {
  using Tuning = BagTuning;
  const int64_t vectors = (a.width + N - 1) / N;
  const int64_t fill = int64_t(device_properties().multiprocessors) * Tuning::kFill;
  const bool few = a.bags.count * vectors < fill;
  const RowThreads threads(vectors, few ? Tuning::kFewColumns : Tuning::kThreads);
  const int64_t average = a.bags.positions / a.bags.count;
  const int groups = threads.block.y;
  int splits = 1;
  while (2 * splits <= groups && average > splits * kRowsOf<N, T> && a.bags.count * vectors * splits < fill)
    splits *= 2;
  a.tiles = threads.tiles;
  a.splits = splits;
  const int64_t bags_of_block = groups / splits;
  const int64_t blocks = (a.bags.count + bags_of_block - 1) / bags_of_block;
  const size_t partials = size_t(threads.block.x) * groups * N * sizeof(float);
  const size_t shared = splits > 1 ? partials * (pooling == Pooling::winner ? 2 : 1) : 0;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks, std::numeric_limits<int>::max())),
                  std::min(threads.tiles, 65535));
  launch(pool<N, pooling, I, T>, grid, threads.block, shared, context, a);
}

// --- gradients

// Where each position goes: the row of its index, and what its values are found by.
template <class I>
__global__ void __launch_bounds__(BagTuning::kThreads)
    find_rows(const Bags<I> bags, const Rows<I> rows, uint32_t* const to, uint32_t* const numbers,
              uint32_t* const bag_of, int* const counts) {
  for (int64_t position = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; position < bags.positions;
       position += int64_t(gridDim.x) * blockDim.x) {
    const int64_t bag = bags.of(position);
    const int64_t row = rows.row(rows.indices[position]);
    const bool kept = bag >= 0 && row >= 0;
    to[position] = static_cast<uint32_t>(kept ? row : rows.count);
    if (bag_of) {
      bag_of[position] = static_cast<uint32_t>(bag);
      numbers[position] = static_cast<uint32_t>(position);
    } else {
      numbers[position] = static_cast<uint32_t>(bag);
    }
    if (counts && kept) {  // neighbours are of one bag, as a rule: one of them counts for all
      const unsigned peers = __match_any_sync(__activemask(), bag);
      if (threadIdx.x % kWarp == __ffs(peers) - 1) atomicAdd(counts + bag, __popc(peers));
    }
  }
}

enum class Flow { plain, weighted, won };

// What reaches a position: its bag's row of d_y times a factor, or the part of it that the position has won.
template <Flow flow, class T>
struct BagSource {
  const T* d_y;
  int64_t width;
  const uint32_t* bag_of;  // plain: positions go by the numbers of their bags
  const T* weights;
  const int* counts;  // may be null
  const int32_t* winners;

  struct Place {
    const T* d;
    const int32_t* winners;
    int32_t position;
    float factor;
  };

  __device__ __forceinline__ Place find(uint32_t number) const {
    const int64_t offset = (flow == Flow::plain ? number : bag_of[number]) * width;
    Place place = {d_y + offset, nullptr, static_cast<int32_t>(number), 1.0f};
    if constexpr (flow == Flow::plain) {
      if (counts) place.factor = 1.0f / static_cast<float>(counts[number]);
    } else if constexpr (flow == Flow::weighted) {
      place.factor = to_float(weights[number]);
    } else {
      place.winners = winners + offset;
    }
    return place;
  }

  template <int N>
  __device__ __forceinline__ Vector<float, N> read(const Place& place, int64_t column, bool inside) const {
    Vector<float, N> d = to_float(load<N>(place.d + column, inside));
    if constexpr (flow == Flow::won) {
      const Vector<int32_t, N> winner = load<N>(place.winners + column, inside);
#pragma unroll
      for (int k = 0; k < N; ++k) d[k] = winner[k] == place.position ? d[k] : 0.0f;
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) d[k] *= place.factor;
    }
    return d;
  }
};

// A block looks up the bags and rows of as many positions as it has threads; then groups of `lanes` neighbours take a
// few of them at a time.
template <int N, class I, class T>
__global__ void __launch_bounds__(BagTuning::kThreads)
    dot_rows(const Bags<I> bags, const Rows<I> rows, const T* d_y, const T* table, T* d_weights, const int64_t width,
             const int lanes) {
  constexpr int kDots = BagTuning::kDots, kThreads = BagTuning::kThreads;
  __shared__ int64_t row_of[kThreads];  // kLeftOut too where there is no bag
  __shared__ int64_t bag_of[kThreads];
  const int group = threadIdx.x / lanes, lane = threadIdx.x % lanes, groups = kThreads / lanes;
  for (int64_t first = blockIdx.x * int64_t(kThreads); first < bags.positions; first += gridDim.x * int64_t(kThreads)) {
    const int count = static_cast<int>(min(int64_t(kThreads), bags.positions - first));
    __syncthreads();  // those before have been read
    if (threadIdx.x < count) {
      const int64_t position = first + threadIdx.x, bag = bags.of(position);
      const int64_t row = rows.row(rows.indices[position]);
      bag_of[threadIdx.x] = bag;
      row_of[threadIdx.x] = bag < 0 ? kLeftOut : row;
    }
    __syncthreads();
    for (int begin = 0; begin < count; begin += groups * kDots) {
      const int mine = begin + group * kDots;
      const T* d[kDots];
      const T* values[kDots];
      bool use[kDots];
      float sums[kDots] = {};
#pragma unroll
      for (int j = 0; j < kDots; ++j) {
        use[j] = mine + j < count && row_of[mine + j] >= 0;
        d[j] = d_y + (use[j] ? bag_of[mine + j] * width : 0);
        values[j] = table + (use[j] ? row_of[mine + j] * width : 0);
      }
      for (int64_t column = int64_t(lane) * N; column < width; column += int64_t(lanes) * N) {
        Vector<T, N> x[kDots], y[kDots];
#pragma unroll
        for (int j = 0; j < kDots; ++j) {
          x[j] = load<N, Reuse::constant>(d[j] + column, use[j]);
          y[j] = load<N, Reuse::constant>(values[j] + column, use[j]);
        }
#pragma unroll
        for (int j = 0; j < kDots; ++j) {
          const Vector<float, N> a = to_float(x[j]), b = to_float(y[j]);
#pragma unroll
          for (int k = 0; k < N; ++k) sums[j] += a[k] * b[k];
        }
      }
#pragma unroll
      for (int j = 0; j < kDots; ++j) {
        for (int mask = lanes / 2; mask > 0; mask /= 2) sums[j] += shuffle_xor(sums[j], mask);
        if (lane == 0 && mine + j < count) {
          d_weights[first + mine + j] = from_float<T>(row_of[mine + j] == kOutside ? NAN : sums[j]);
        }
      }
    }
  }
}

}  // namespace

template <class I, class T>
void embedding_bag_cuda(const EmbeddingBagArgs<I, T>& a, Context& context) {
  const BagMode mode = bag_mode(a);
  const IndexReport report(context), offset_report(context);
  const Bags<I> bags = bags_of(a);
  const Pool<I, T> pool = {bags,
                           {a.indices, a.V, padding_row(a), report.device()},
                           a.table,
                           a.weights,
                           mode == BagMode::mean,
                           a.y,
                           nullptr,
                           a.D,
                           0,
                           0,
                           a.offsets ? offset_report.device() : nullptr};
  with_vector<T>(a.D, {a.table, a.y}, [&](auto width) {
    constexpr int N = decltype(width)::value;
    if (mode == BagMode::max) {
      launch_pool<N, Pooling::maximum>(pool, context);
    } else if (a.weights) {
      launch_pool<N, Pooling::weighted>(pool, context);
    } else {
      launch_pool<N, Pooling::plain>(pool, context);
    }
  });
  if (const auto place = offset_report.read()) throw Error(valid_offset(*place, bags.positions));
  report.check("indices", a.V);
}

template <class I, class T>
void embedding_bag_gradient_cuda(const EmbeddingBagGradientArgs<I, T>& a, Context& context) {
  const BagMode mode = bag_mode(a);
  const IndexReport report(context);
  const Bags<I> bags = bags_of(a);
  check_bags(bags, a.B);
  const Rows<I> rows = {a.indices, a.V, padding_row(a), report.device()};
  const auto allocate = [&](int64_t count, auto element) {
    return static_cast<decltype(element)*>(context.scratch(std::max<int64_t>(1, count) * sizeof(element)));
  };
  SegmentSort sort(bags.positions, a.V, context);
  const bool plain = mode != BagMode::max && !a.weights;
  uint32_t* const bag_of = plain ? nullptr : allocate(bags.positions, uint32_t());
  int* const counts = mode == BagMode::mean ? allocate(bags.count, int()) : nullptr;
  if (counts) ORTOPS_CUDA_CHECK(cudaMemsetAsync(counts, 0, bags.count * sizeof(int), stream_of(context)));
  if (bags.positions > 0) {
    launch(find_rows<I>, grid_stride_blocks(bags.positions, BagTuning::kThreads), BagTuning::kThreads, 0, context, bags,
           rows, sort.rows(), sort.positions(), bag_of, counts);
  }
  const Segments segments = sort.sort();
  int32_t* winners = nullptr;
  if (mode == BagMode::max && bags.count > 0) {
    winners = allocate(bags.count * a.D, int32_t());
    const Pool<I, T> pool = {bags, rows, a.table, nullptr, false, nullptr, winners, a.D, 0, 0, nullptr};
    with_vector<T>(a.D, {a.table},
                   [&](auto width) { launch_pool<decltype(width)::value, Pooling::winner>(pool, context); });
  }
  with_vector<T>(a.D, {a.d_y, a.d_table}, [&](auto width) {
    constexpr int N = decltype(width)::value;
    const auto sum = [&](auto flow) {
      const BagSource<decltype(flow)::value, T> source = {a.d_y, a.D, bag_of, a.weights, counts, winners};
      sum_segments<N>(segments, source, a.d_table, a.V, a.D, context);
    };
    if (mode == BagMode::max) {
      sum(std::integral_constant<Flow, Flow::won>());
    } else if (a.weights) {
      sum(std::integral_constant<Flow, Flow::weighted>());
    } else {
      sum(std::integral_constant<Flow, Flow::plain>());
    }
  });
  report.check("indices", a.V);
}

template <class I, class T>
void embedding_bag_weights_gradient_cuda(const EmbeddingBagWeightsGradientArgs<I, T>& a, Context& context) {
  const IndexReport report(context);
  const Bags<I> bags = bags_of(a);
  check_bags(bags, a.B);
  const Rows<I> rows = {a.indices, a.V, padding_row(a), report.device()};
  with_vector<T>(a.D, {a.d_y, a.table}, [&](auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t vectors = (a.D + N - 1) / N;
    const int lanes = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(vectors, 1, kWarp))));
    launch(dot_rows<N, I, T>, grid_stride_blocks(bags.positions, BagTuning::kThreads), BagTuning::kThreads, 0, context,
           bags, rows, a.d_y, a.table, a.d_weights, a.D, lanes);
  });
  report.check("indices", a.V);
}

}  // namespace ortops
