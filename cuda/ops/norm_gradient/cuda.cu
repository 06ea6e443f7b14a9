// The gradients of LayerNorm and RMSNorm. With n = (v - mean) * rstd of the row v = x + residual, and d = d_y * scale:
//
//     d_x = (d - mean(d) - n * mean(d * n)) * rstd + d_sum,   d_scale = sum over the rows of d_y * n,   d_bias = of d_y
//
// (RMSNorm: mean and mean(d) are 0). One pass over memory: a group of threads, from one lane to a block, holds a row in
// registers, and takes row after row, so that each thread has the same columns in all of them: their sums for d_scale
// and d_bias stay in its registers. The next row is on its way while this one is reduced. In the end a block writes one
// row of partial sums; a second kernel adds those up. What is in no way held by a block is read twice.
#include <algorithm>
#include <type_traits>

#include "core/cuda.h"
#include "device/index.h"
#include "device/reduce.cuh"
#include "device/vector.cuh"
#include "gen/norm_gradient.h"

namespace ortops {
namespace {

struct Tuning {
  // Of a row that a thread holds, so that this, the sums of its columns and the next row go into 128 registers; with a
  // residual and a d_sum half as many, or as many without the next row.
  static constexpr int kElements = 16;
  static constexpr int kThreads = 256;     // of a block of several groups
  static constexpr int kMaxThreads = 512;  // of a multiprocessor: they have 64 KiB of float32 on the way, 32 of float16
  static constexpr int kRereadThreads = 1024;
  static constexpr int kColumnThreads = 256;
  static constexpr int kColumnBlocks = 8;  // of those a multiprocessor
  static constexpr int kTotalWarps = 16;   // of a block that adds up 32 columns of partial sums
};

template <class T>
struct Tensors {
  const T *d_y, *x, *scale, *residual, *d_sum;
  const float *mean, *rstd;
  T* d_x;
  float* partials;  // a row a block: of d_scale, then of d_bias; null where neither is wanted
  float inverse;    // of size
  int64_t rows, size;
};

// Elements a thread reads at a time: a vector of 16 bytes, or 4 single ones.
template <class T, bool kAligned>
constexpr int kRead = kAligned ? kWidth<T> : 4;

// The numbers of one row; none there is has zeros.
struct Statistics {
  float mean = 0, rstd = 0;

  template <bool kCenter, class T>
  static __device__ __forceinline__ Statistics of(const Tensors<T>& t, int64_t row) {
    Statistics s;
    if (row < t.rows) {
      if constexpr (kCenter) s.mean = t.mean[row];
      s.rstd = t.rstd[row];
    }
    return s;
  }
};

// A share of a row as it is in memory. kMore: there may be a residual, and a d_sum (else they take no registers).
template <class T, int N, bool kMore>
struct Piece {
  Vector<T, N> d_y, x, residual, d_sum;

  template <class S, class Step>
  __device__ __forceinline__ void read(const Tensors<T>& t, const S& share, int64_t row, Step step) {
    const int64_t at = row * t.size;
    d_y = share.template read<Reuse::none>(t.d_y + at, step);
    x = share.template read<Reuse::none>(t.x + at, step);
    if constexpr (kMore) {
      residual = share.where(t.residual).template read<Reuse::none>(t.residual + at, step);
      d_sum = share.where(t.d_sum).template read<Reuse::none>(t.d_sum + at, step);
    }
  }
  __device__ __forceinline__ Vector<float, N> normal(const Statistics& s) const {
    Vector<float, N> v = to_float(x);
    if constexpr (kMore) {
      const Vector<float, N> more = to_float(residual);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] += more[i];
    }
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = (v[i] - s.mean) * s.rstd;
    return v;
  }
  // Adds to mean(d) and mean(d * n), before they are divided.
  __device__ __forceinline__ void add_to(Pair& moments, const Statistics& s, const Vector<T, N>& scale) const {
    const Vector<float, N> n = normal(s), d = to_float(d_y), weight = to_float(scale);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      moments.first += d[i] * weight[i];
      moments.second += d[i] * weight[i] * n[i];
    }
  }
  __device__ __forceinline__ Vector<T, N> d_x(const Statistics& s, const Vector<T, N>& scale, Pair moments) const {
    const Vector<float, N> n = normal(s), d = to_float(d_y), weight = to_float(scale);
    Vector<float, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      result[i] = (d[i] * weight[i] - moments.first - n[i] * moments.second) * s.rstd;
    }
    if constexpr (kMore) {
      const Vector<float, N> more = to_float(d_sum);
#pragma unroll
      for (int i = 0; i < N; ++i) result[i] += more[i];
    }
    return from_float<T>(result);
  }
};

// A thread's share of a whole row.
template <class T, int N, int kSteps, bool kMore>
struct Held {
  Piece<T, N, kMore> pieces[kSteps];
  Statistics statistics;

  template <bool kCenter, class S>
  __device__ __forceinline__ void read(const Tensors<T>& t, const S& share, int64_t row) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) pieces[step].read(t, share, row, step);
    statistics = Statistics::of<kCenter>(t, row);
  }
};

template <class T, int N>
struct ColumnSums {
  Vector<float, N> d_scale = {}, d_bias = {};

  template <bool kCenter, class P>
  __device__ __forceinline__ void add(const P& piece, const Statistics& s) {
    const Vector<float, N> n = piece.normal(s), d = to_float(piece.d_y);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      d_scale[i] += d[i] * n[i];
      if constexpr (kCenter) d_bias[i] += d[i];
    }
  }
};

// Over the lanes of a group: a part of a warp, a warp, or several warps, which meet at a barrier of their own.
__device__ __forceinline__ Pair group_reduce(Pair value, int lanes, int group, Pair* partials) {
  if (lanes < kWarp) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) value = value + shuffle_xor(value, mask);
    return value;
  }
  value = warp_reduce(value);
  const int warps = lanes / kWarp;
  if (warps == 1) return value;
  if (threadIdx.x % kWarp == 0) partials[threadIdx.x / kWarp] = value;
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(lanes) : "memory");
  Pair result = partials[group * warps];
#pragma unroll 4
  for (int warp = 1; warp < warps; ++warp) result = result + partials[group * warps + warp];
  return result;
}

// kCenter: of LayerNorm. kElements: of a row, each thread. kAhead: the next row is read before this one is reduced.
// `lanes`: of a group, of which a block has several.
template <class T, bool kAligned, bool kMore, bool kCenter, int kElements, bool kAhead>
__global__ void __launch_bounds__(Tuning::kMaxThreads) pass_back(const Tensors<T> t, int lanes) {
  constexpr int N = kRead<T, kAligned>, kSteps = kElements / N;
  const int groups = blockDim.x / lanes, group = threadIdx.x / lanes, lane = threadIdx.x - group * lanes;
  const int size = static_cast<int>(t.size);
  __shared__ Pair partials[2][Tuning::kMaxThreads / kWarp];  // in turns: one may still be read when the next is written
  extern __shared__ __align__(32) float columns[];           // of each group, where there are several

  const auto share = [&](int64_t row) { return Share<N, kAligned, int>{row < t.rows ? size : 0, lane, lanes}; };
  Vector<T, N> scale[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) scale[step] = share(0).template read<Reuse::constant>(t.scale, step);

  ColumnSums<T, N> sums[kSteps];
  Held<T, N, kSteps, kMore> now, next;
  const int64_t stride = int64_t(gridDim.x) * groups;
  int64_t first = int64_t(blockIdx.x) * groups;
  int turn = 0;
  if constexpr (kAhead) next.template read<kCenter>(t, share(first + group), first + group);
  for (; first < t.rows; first += stride) {  // as often in each thread
    const int64_t row = first + group;
    if constexpr (kAhead) {
      now = next;
      next.template read<kCenter>(t, share(row + stride), row + stride);
    } else {
      now.template read<kCenter>(t, share(row), row);
    }

    Pair moments = {0, 0};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      now.pieces[step].add_to(moments, now.statistics, scale[step]);
      sums[step].template add<kCenter>(now.pieces[step], now.statistics);
    }
    moments = group_reduce(moments, lanes, group, partials[turn]);
    turn ^= 1;
    moments = {kCenter ? moments.first * t.inverse : 0.0f, moments.second * t.inverse};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      share(row).write(t.d_x + row * t.size, step, now.pieces[step].d_x(now.statistics, scale[step], moments));
    }
  }

  if (!t.partials) return;
#pragma unroll
  for (int which = 0; which <= kCenter; ++which) {
    float* result = t.partials + (int64_t(blockIdx.x) * (1 + kCenter) + which) * size;
    float* mine = groups == 1 ? result : columns + group * size;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      share(0).write(mine, step, which == 0 ? sums[step].d_scale : sums[step].d_bias);
    }
    if (groups == 1) continue;
    __syncthreads();
    for (int column = threadIdx.x; column < size; column += blockDim.x) {
      float total = columns[column];
      for (int other = 1; other < groups; ++other) total += columns[other * size + column];
      result[column] = total;
    }
    __syncthreads();
  }
}

// d_x of a row that no group can hold: read once for the moments, and again.
template <class T, bool kAligned, bool kCenter>
__global__ void __launch_bounds__(Tuning::kRereadThreads) pass_back_long(const Tensors<T> t) {
  constexpr int N = kRead<T, kAligned>;
  __shared__ Pair partials[kWarp];
  const int64_t row = blockIdx.x;
  const Share<N, kAligned, int64_t> share{t.size, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
  const Statistics statistics = Statistics::of<kCenter>(t, row);
  const auto each = [&](auto f) {
#pragma unroll 2
    for (int64_t step = 0; share.any(step); ++step) {
      Piece<T, N, true> piece;
      piece.read(t, share, row, step);
      f(step, piece, share.template read<Reuse::constant>(t.scale, step));
    }
  };
  Pair moments = {0, 0};
  each([&](int64_t, const auto& piece, const auto& scale) {
    Pair some = {0, 0};
    piece.add_to(some, statistics, scale);
    moments = moments + some;
  });
  moments = block_reduce(moments, partials);
  moments = {kCenter ? moments.first * t.inverse : 0.0f, moments.second * t.inverse};
  each([&](int64_t step, const auto& piece, const auto& scale) {
    share.write(t.d_x + row * t.size, step, piece.d_x(statistics, scale, moments));
  });
}

// Partial sums of columns, a row of them for each blockIdx.y.
template <class T, bool kAligned, bool kCenter>
__global__ void __launch_bounds__(Tuning::kColumnThreads) sum_columns(const Tensors<T> t) {
  constexpr int N = kRead<T, kAligned>;
  const Share<N, kAligned, int64_t> share{t.size, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
  const int64_t step = blockIdx.x;
  ColumnSums<T, N> sums;
#pragma unroll 4
  for (int64_t row = blockIdx.y; row < t.rows; row += gridDim.y) {
    Piece<T, N, true> piece;
    piece.read(t, share, row, step);
    sums.template add<kCenter>(piece, Statistics::of<kCenter>(t, row));
  }
  float* result = t.partials + int64_t(blockIdx.y) * (1 + kCenter) * t.size;
  share.write(result, step, sums.d_scale);
  if constexpr (kCenter) share.write(result + t.size, step, sums.d_bias);
}

// d_scale and d_bias out of `count` rows of partial sums.
template <class T>
__global__ void __launch_bounds__(Tuning::kTotalWarps* kWarp)
    total(const float* partials, int count, int64_t size, int64_t width, T* d_scale, T* d_bias) {
  __shared__ float sums[Tuning::kTotalWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = int64_t(blockIdx.x) * kWarp + lane;  // of `width`, which is size or twice that
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int row = warp; row < count; row += Tuning::kTotalWarps) sum += partials[row * width + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= width) return;
#pragma unroll
  for (int other = 1; other < Tuning::kTotalWarps; ++other) sum += sums[other][lane];
  T* to = column < size ? d_scale : d_bias;
  if (to) to[column < size ? column : column - size] = from_float<T>(sum);
}

template <int value>
constexpr std::integral_constant<int, value> constant = {};

template <bool kCenter, class T>
void start(Tensors<T> t, T* d_scale, T* d_bias, Context& context) {
  constexpr int kSums = 1 + kCenter;
  const bool sums = d_scale || d_bias;
  const int multiprocessors = device_properties().multiprocessors;
  int count = 0;  // rows of partial sums
  const auto allocate = [&] {
    if (sums) t.partials = static_cast<float*>(context.scratch(sizeof(float) * count * kSums * t.size));
  };
  const auto with = [&](auto aligned, auto more) {
    constexpr bool kAligned = aligned();
    constexpr int N = kRead<T, kAligned>;
    const auto hold = [&](auto elements, auto ahead) {
      const int needed = static_cast<int>((t.size + elements() - 1) / elements());
      int lanes = (needed + kWarp - 1) / kWarp * kWarp;
      while (lanes <= kWarp && lanes / 2 >= needed) lanes /= 2;
      // Few rows are spread over the chip; the threads of a block come to whole warps.
      const int least = std::max(1, kWarp / lanes), most = std::max(1, Tuning::kThreads / lanes);
      const int spread = static_cast<int>(std::clamp<int64_t>(t.rows / (2 * multiprocessors), 1, most));
      const int groups = (spread + least - 1) / least * least;
      const int threads = groups * lanes;
      const int resident = multiprocessors * (Tuning::kMaxThreads / std::max(threads, Tuning::kThreads));
      count = static_cast<int>(std::min<int64_t>((t.rows + groups - 1) / groups, resident));
      allocate();
      const size_t shared = groups > 1 ? sizeof(float) * groups * t.size : 0;
      launch(pass_back<T, kAligned, more(), kCenter, elements(), ahead()>, count, threads, shared, context, t, lanes);
    };
    constexpr int kElements = more() ? Tuning::kElements / 2 : Tuning::kElements;
    if (t.size <= Tuning::kMaxThreads * kElements) return hold(constant<kElements>, std::true_type());
    if constexpr (kAligned && more()) {
      if (t.size <= Tuning::kMaxThreads * kElements * 2) return hold(constant<kElements * 2>, std::false_type());
    }
    launch(pass_back_long<T, kAligned, kCenter>, narrow(t.rows), Tuning::kRereadThreads, 0, context, t);
    if (!sums) return;
    const int tiles = narrow((t.size + Tuning::kColumnThreads * N - 1) / (Tuning::kColumnThreads * N));
    count = std::clamp(Tuning::kColumnBlocks * multiprocessors / tiles, 1,
                       static_cast<int>(std::min<int64_t>(t.rows, 1024)));
    allocate();
    launch(sum_columns<T, kAligned, kCenter>, dim3(tiles, count), Tuning::kColumnThreads, 0, context, t);
  };
  if (t.rows == 0) {
    // Sums of nothing.
  } else if (!is_aligned<kWidth<T>>(t.size, {t.d_y, t.x, t.scale, t.residual, t.d_sum, t.d_x})) {
    with(std::false_type(), std::true_type());
  } else if (t.residual || t.d_sum) {
    with(std::true_type(), std::true_type());
  } else {
    with(std::true_type(), std::false_type());
  }
  if (!sums) return;
  const int64_t width = t.size * kSums;
  launch(total<T>, narrow((width + kWarp - 1) / kWarp), Tuning::kTotalWarps * kWarp, 0, context, t.partials, count,
         t.size, width, d_scale, d_bias);
}

}  // namespace

template <class T>
void layer_norm_gradient_cuda(const LayerNormGradientArgs<T>& a, Context& context) {
  const int64_t size = a.D.size();
  start<true, T>(
      {a.d_y, a.x, a.scale, a.residual, a.d_sum, a.mean, a.rstd, a.d_x, nullptr, 1.0f / size, a.outer.size(), size},
      a.d_scale, a.d_bias, context);
}

template <class T>
void rms_norm_gradient_cuda(const RMSNormGradientArgs<T>& a, Context& context) {
  const int64_t size = a.D.size();
  start<false, T>(
      {a.d_y, a.x, a.scale, a.residual, a.d_sum, nullptr, a.rstd, a.d_x, nullptr, 1.0f / size, a.outer.size(), size},
      a.d_scale, nullptr, context);
}

}  // namespace ortops
