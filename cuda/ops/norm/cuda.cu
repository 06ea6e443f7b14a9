// LayerNorm and RMSNorm: y = (v - mean) * rstd * scale + bias over each row v = x + residual; RMSNorm has no mean and
// no bias.
//
// One pass over memory: x and residual are read once, y and sum are written once; a row waits in registers, as floats,
// while its statistics are taken. A row of up to 4 loads a lane has a warp to itself (no barrier, several rows a
// block), a longer one a block of as many threads as give each 4 loads in flight. What does not fit into the registers
// of a block is read again for each of the three steps, mostly out of L2.
//
// The variance is taken of d = v - mean, never as E[v^2] - mean^2, which cancels where the mean is large. The rounding
// of the mean itself is seen as E[d] in the same step and taken off, so a constant row gives exactly the bias.
#include <type_traits>

#include "core/cuda.h"
#include "device/index.h"
#include "device/reduce.cuh"
#include "device/vector.cuh"
#include "gen/norm.h"

namespace ortops {
namespace {

constexpr float kNoise = 0x1p-46f;  // the square of float's epsilon
constexpr int kSteps = 4;           // loads of 16 bytes a thread has in flight
constexpr int kWarpThreads = 128;   // of a block with a row a warp

template <class T>
struct Tensors {
  const T *x, *residual, *scale, *bias;
  T *y, *sum;
  float *mean, *rstd;
  float epsilon;
  int64_t rows, size;
};

// Elements a thread reads at a time: a vector of 16 bytes, or 4 single ones.
template <class T, bool kAligned>
constexpr int kElements = kAligned ? kWidth<T> : 4;

template <int N>
__device__ __forceinline__ void add(Vector<float, N>& to, const Vector<float, N>& what) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] += what[i];
}

// A row that stays in registers.
template <class T, int kCount, bool kAligned>
struct Held {
  static constexpr int N = kElements<T, kAligned>;
  static constexpr int kMaxThreads = 512;
  Share<N, kAligned, int> share;
  Vector<float, N> values[kCount];

  __device__ __forceinline__ Held(const Tensors<T>& t, int64_t row, int thread, int threads)
      : share{static_cast<int>(t.size), thread, threads} {
    const auto more = share.where(t.residual);
    Vector<T, N> x[kCount], residual[kCount];  // all loads before the first use of one
#pragma unroll
    for (int step = 0; step < kCount; ++step) {
      x[step] = share.template read<Reuse::none>(t.x + row * t.size, step);
      residual[step] = more.template read<Reuse::none>(t.residual + row * t.size, step);
    }
#pragma unroll
    for (int step = 0; step < kCount; ++step) {
      values[step] = to_float(x[step]);
      add(values[step], to_float(residual[step]));
    }
  }

  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int step = 0; step < kCount; ++step) f(step, values[step]);
  }
};

// A row that is read each time.
template <class T, bool kAligned>
struct Reread {
  static constexpr int N = kElements<T, kAligned>;
  static constexpr int kMaxThreads = 1024;
  Share<N, kAligned, int64_t> share;
  const T* x;
  const T* residual;

  __device__ __forceinline__ Reread(const Tensors<T>& t, int64_t row, int thread, int threads)
      : share{t.size, thread, threads},
        x(t.x + row * t.size),
        residual(t.residual ? t.residual + row * t.size : nullptr) {}

  template <class F>
  __device__ __forceinline__ void each(F f) const {
    for (int64_t step = 0; share.any(step); ++step) {
      Vector<float, N> values = to_float(share.read(x, step));
      if (residual) {
        add(values, to_float(share.read(residual, step)));
      }
      f(step, values);
    }
  }
};

template <class T, class Row, bool kCenter, bool kWarpARow>
__global__ void __launch_bounds__(kWarpARow ? kWarpThreads : Row::kMaxThreads) normalize(const Tensors<T> t) {
  constexpr int N = Row::N;
  const int threads = kWarpARow ? kWarp : blockDim.x;
  const int thread = threadIdx.x % threads;
  const int64_t row = blockIdx.x * int64_t(blockDim.x / threads) + threadIdx.x / threads;
  if (row >= t.rows) return;  // a whole warp does
  const auto reduce = [](auto value, auto& partials) {
    if constexpr (kWarpARow) {
      return warp_reduce(value);
    } else {
      return block_reduce(value, partials);
    }
  };
  [[maybe_unused]] __shared__ float sums[kWarp];
  [[maybe_unused]] __shared__ Pair moments[kWarp];

  const Row values(t, row, thread, threads);
  const auto& share = values.share;
  const float size = t.size;
  float mean = 0;
  if constexpr (kCenter) {
    float sum = 0;
    values.each([&](auto, const Vector<float, N>& v) {
      float part = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) part += v[i];
      sum += part;
    });
    mean = reduce(sum, sums) / size;
  }
  Pair moment = {0, 0};
  values.each([&](auto step, const Vector<float, N>& v) {
    Pair part = {0, 0};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float d = share.has(step, i) ? v[i] - mean : 0.0f;
      if constexpr (kCenter) part.first += d;
      part.second += d * d;
    }
    moment = moment + part;
  });
  float rest = 0;  // what rounding left of the mean
  float variance;
  if constexpr (kCenter) {
    moment = reduce(moment, moments);
    rest = moment.first / size;
    variance = Max()(moment.second / size - rest * rest, 0.0f);
    if (rest * rest < kNoise * variance) rest = 0;
  } else {
    variance = reduce(moment.second, sums) / size;
  }
  const float rstd = 1.0f / sqrtf(variance + t.epsilon);

  if (thread == 0) {
    if (t.mean) t.mean[row] = mean + rest;
    if (t.rstd) t.rstd[row] = rstd;
  }
  const auto biased = share.where(kCenter && t.bias);
  const auto summed = share.where(t.sum);
  values.each([&](auto step, const Vector<float, N>& v) {
    const Vector<float, N> scale = to_float(share.template read<Reuse::constant>(t.scale, step));
    Vector<float, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = (v[i] - mean - rest) * rstd * scale[i];
    if constexpr (kCenter) add(y, to_float(biased.template read<Reuse::constant>(t.bias, step)));
    summed.write(t.sum + row * t.size, step, from_float<T>(v));
    share.write(t.y + row * t.size, step, from_float<T>(y));
  });
}

template <bool kCenter, class T>
void start(const Tensors<T>& t, Context& context) {
  const auto with = [&](auto aligned) {
    constexpr bool kAligned = decltype(aligned)::value;
    using Block = Held<T, kSteps, kAligned>;
    const auto warp_a_row = [&](auto steps) {
      const int64_t blocks = (t.rows + kWarpThreads / kWarp - 1) / (kWarpThreads / kWarp);
      launch(normalize<T, Held<T, decltype(steps)::value, kAligned>, kCenter, true>, narrow(blocks), kWarpThreads, 0,
             context, t);
    };
    const int64_t loads = (t.size + Block::N - 1) / Block::N;
    if (loads <= kWarp) {
      warp_a_row(std::integral_constant<int, 1>());
    } else if (loads <= 2 * kWarp) {
      warp_a_row(std::integral_constant<int, 2>());
    } else if (loads <= kSteps * kWarp) {
      warp_a_row(std::integral_constant<int, kSteps>());
    } else if (loads <= kSteps * Block::kMaxThreads) {
      const int warps = static_cast<int>((loads + kSteps * kWarp - 1) / (kSteps * kWarp));
      launch(normalize<T, Block, kCenter, false>, narrow(t.rows), warps * kWarp, 0, context, t);
    } else {
      launch(normalize<T, Reread<T, kAligned>, kCenter, false>, narrow(t.rows), Reread<T, kAligned>::kMaxThreads, 0,
             context, t);
    }
  };
  if (is_aligned<kWidth<T>>(t.size, {t.x, t.residual, t.scale, t.bias, t.y, t.sum})) {
    with(std::true_type());
  } else {
    with(std::false_type());
  }
}

}  // namespace

template <class T>
void layer_norm_cuda(const LayerNormArgs<T>& a, Context& context) {
  start<true, T>({a.x, a.residual, a.scale, a.bias, a.y, a.sum, a.mean, a.rstd, a.epsilon, a.outer.size(), a.D.size()},
                 context);
}

template <class T>
void rms_norm_cuda(const RMSNormArgs<T>& a, Context& context) {
  start<false, T>(
      {a.x, a.residual, a.scale, nullptr, a.y, a.sum, nullptr, a.rstd, a.epsilon, a.outer.size(), a.D.size()}, context);
}

}  // namespace ortops
