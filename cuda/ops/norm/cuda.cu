// LayerNorm and RMSNorm: y = (v - mean) * rstd * scale + bias over each row v = x + residual; RMSNorm has no mean and
// no bias.
//
// One pass over memory: x and residual are read once, y and sum are written once; a row waits in registers, as floats,
// while its statistics are taken. A short row has half a warp or a warp to itself (no barrier, several rows a block), a
// longer one a block. What does not fit into the registers of a block is read again for each step, mostly out of L2.
//
// The sums of v and v^2 are taken in one reduction. Where the mean is not large against the standard deviation, they
// give the variance, E[v^2] - mean^2, without cancellation. Where it is, as in a constant row, the variance is taken of
// d = v - mean in a second reduction; the rounding of the mean itself is seen as E[d] there and taken off, so a
// constant row gives exactly the bias.
#include <limits>
#include <type_traits>

#include "core/cuda.h"
#include "device/index.h"
#include "device/reduce.cuh"
#include "device/vector.cuh"
#include "gen/norm.h"

namespace ortops {
namespace {

// Measured on an H200, float16 and float32: 1.08 of the copy floor at 16384x4096, 3.2 us (LayerNorm) and 3.8 us (with a
// residual) at 8192x384. Fewer loads a thread or a cap on registers cost up to half as much again; a grid of blocks
// that stay, reading scale and bias before the reduction, and starts that overlap the kernel before gained nothing.
struct Tuning {
  static constexpr int kThreads = 128;  // of a block that has several rows
  static constexpr int kLoads = 4;      // of a thread, in a block that has one
  static constexpr int kMaxThreads = 512;
  static constexpr int kRereadThreads = 1024;  // of a block that reads its row again
};

// How many times the variance the squared mean may be: each doubling costs E[v^2] - mean^2 a bit.
constexpr float kMaxBias = 4;
constexpr float kMaxFloat = std::numeric_limits<float>::max();

template <int value>
constexpr std::integral_constant<int, value> constant = {};

template <class T>
struct Tensors {
  const T *x, *residual, *scale, *bias;
  T *y, *sum;
  float *mean, *rstd;
  float epsilon, inverse;  // inverse: of size
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

// A row that stays in registers. kResidual: there may be one.
template <class T, int kCount, bool kAligned, bool kResidual>
struct Held {
  static constexpr int N = kElements<T, kAligned>;
  const Tensors<T>& t;
  Share<N, kAligned, int> share;
  Vector<float, N> values[kCount];

  __device__ __forceinline__ Held(const Tensors<T>& t, int64_t row, int thread, int threads)
      : t(t), share{row < t.rows ? static_cast<int>(t.size) : 0, thread, threads} {
    Vector<T, N> x[kCount], residual[kResidual ? kCount : 1];  // all loads before the first use of one
#pragma unroll
    for (int step = 0; step < kCount; ++step) x[step] = share.template read<Reuse::none>(t.x + row * t.size, step);
    if constexpr (kResidual) {
      const auto more = share.where(t.residual);
#pragma unroll
      for (int step = 0; step < kCount; ++step) {
        residual[step] = more.template read<Reuse::none>(t.residual + row * t.size, step);
      }
    }
#pragma unroll
    for (int step = 0; step < kCount; ++step) {
      values[step] = to_float(x[step]);
      if constexpr (kResidual) add(values[step], to_float(residual[step]));
    }
  }

  __device__ __forceinline__ Vector<float, N> scale(int step) const {
    return to_float(share.template read<Reuse::constant>(t.scale, step));
  }
  __device__ __forceinline__ Vector<float, N> bias(int step) const {
    return to_float(share.where(t.bias).template read<Reuse::constant>(t.bias, step));
  }

  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int step = 0; step < kCount; ++step) f(step, values[step]);
  }
  __device__ __forceinline__ void subtract(float what) {
#pragma unroll
    for (int step = 0; step < kCount; ++step) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[step][i] -= what;
    }
  }
};

// A row that is read each time.
template <class T, bool kAligned>
struct Reread {
  static constexpr int N = kElements<T, kAligned>;
  Share<N, kAligned, int64_t> share, biased;
  const T *x, *residual, *scales, *biases;
  float first = 0, second = 0;  // what was subtracted, as their sum is not a float

  __device__ __forceinline__ Reread(const Tensors<T>& t, int64_t row, int thread, int threads)
      : share{t.size, thread, threads},
        biased(share.where(t.bias)),
        x(t.x + row * t.size),
        residual(t.residual ? t.residual + row * t.size : nullptr),
        scales(t.scale),
        biases(t.bias) {}

  template <class F>
  __device__ __forceinline__ void each(F f) const {
    for (int64_t step = 0; share.any(step); ++step) {
      Vector<float, N> values = to_float(share.read(x, step));
      if (residual) add(values, to_float(share.read(residual, step)));
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = values[i] - first - second;
      f(step, values);
    }
  }
  __device__ __forceinline__ void subtract(float what) {
    first = second;
    second = what;
  }
  __device__ __forceinline__ Vector<float, N> scale(int64_t step) const {
    return to_float(share.template read<Reuse::constant>(scales, step));
  }
  __device__ __forceinline__ Vector<float, N> bias(int64_t step) const {
    return to_float(biased.template read<Reuse::constant>(biases, step));
  }
};

// kLanes: of a row, or 0 where it has the block.
template <class T, class Row, bool kCenter, int kLanes, int kThreads>
__global__ void __launch_bounds__(kThreads) normalize(const Tensors<T> t) {
  constexpr int N = Row::N;
  int threads = blockDim.x, thread = threadIdx.x;
  int64_t row = blockIdx.x;
  if constexpr (kLanes > 0) {
    threads = kLanes;
    thread = threadIdx.x % kLanes;
    row = row * (kThreads / kLanes) + threadIdx.x / kLanes;
  }
  const auto reduce = [](auto value, auto& partials) {
    if constexpr (kLanes > 0) {
      return warp_reduce<kLanes>(value);
    } else {
      return block_reduce(value, partials);
    }
  };
  [[maybe_unused]] __shared__ Pair sums[kWarp], moments[kWarp];
  [[maybe_unused]] __shared__ float squares[kWarp];

  Row values(t, row, thread, threads);  // without elements where there is no such row
  Pair moment = {0, 0};
  values.each([&](auto step, const Vector<float, N>& v) {
    if (t.sum) values.share.write(t.sum + row * t.size, step, from_float<T>(v));
    Pair part = {v[0], v[0] * v[0]};
#pragma unroll
    for (int i = 1; i < N; ++i) part = part + Pair{v[i], v[i] * v[i]};
    moment = moment + part;
  });
  float mean = 0;
  float variance;
  if constexpr (kCenter) {
    moment = reduce(moment, sums);
    mean = moment.first * t.inverse;
    variance = moment.second * t.inverse - mean * mean;
    values.subtract(mean);
    const bool biased = !(mean * mean <= kMaxBias * variance && variance <= kMaxFloat);
    if (__any_sync(0xffffffffu, biased)) {
      moment = {0, 0};
      values.each([&](auto step, const Vector<float, N>& v) {
        Pair part = {0, 0};
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float d = values.share.has(step, i) ? v[i] : 0.0f;
          part.first += d;
          part.second += d * d;
        }
        moment = moment + part;
      });
      moment = reduce(moment, moments);
      if (biased) {  // a row does not depend on its neighbours in the warp
        const float rest = moment.first / t.size;
        variance = Max()(moment.second / t.size - rest * rest, 0.0f);
        values.subtract(rest);
        mean += rest;
      }
    }
  } else {
    variance = reduce(moment.second, squares) * t.inverse;
  }
  const float rstd = rsqrtf(variance + t.epsilon);

  if (thread == 0 && row < t.rows) {
    if (t.mean) t.mean[row] = mean;
    if (t.rstd) t.rstd[row] = rstd;
  }
  values.each([&](auto step, const Vector<float, N>& v) {
    const Vector<float, N> scale = values.scale(step);
    Vector<float, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = v[i] * rstd * scale[i];
    if constexpr (kCenter) add(y, values.bias(step));
    values.share.write(t.y + row * t.size, step, from_float<T>(y));
  });
}

template <bool kCenter, class T>
void start(const Tensors<T>& t, Context& context) {
  const auto with = [&](auto aligned, auto residual) {
    constexpr bool kAligned = aligned();
    const int64_t loads = (t.size + kElements<T, kAligned> - 1) / kElements<T, kAligned>;
    const auto rows_a_block = [&](auto lanes, auto steps) {
      constexpr int kRows = Tuning::kThreads / lanes();
      using Row = Held<T, steps(), kAligned, residual()>;
      launch(normalize<T, Row, kCenter, lanes(), Tuning::kThreads>, narrow((t.rows + kRows - 1) / kRows),
             Tuning::kThreads, 0, context, t);
    };
    if (loads <= 16) {
      rows_a_block(constant<16>, constant<1>);
    } else if (loads <= 3 * 16) {
      rows_a_block(constant<16>, constant<3>);
    } else if (loads <= 2 * kWarp) {
      rows_a_block(constant<kWarp>, constant<2>);
    } else if (loads <= 3 * kWarp) {
      rows_a_block(constant<kWarp>, constant<3>);
    } else if (loads <= 4 * kWarp) {
      rows_a_block(constant<kWarp>, constant<4>);
    } else if (loads <= Tuning::kLoads * Tuning::kMaxThreads) {
      using Row = Held<T, Tuning::kLoads, kAligned, residual()>;
      const int warps = static_cast<int>((loads + Tuning::kLoads * kWarp - 1) / (Tuning::kLoads * kWarp));
      launch(normalize<T, Row, kCenter, 0, Tuning::kMaxThreads>, narrow(t.rows), warps * kWarp, 0, context, t);
    } else {
      launch(normalize<T, Reread<T, kAligned>, kCenter, 0, Tuning::kRereadThreads>, narrow(t.rows),
             Tuning::kRereadThreads, 0, context, t);
    }
  };
  if (!is_aligned<kWidth<T>>(t.size, {t.x, t.residual, t.scale, t.bias, t.y, t.sum})) {
    with(std::false_type(), std::true_type());
  } else if (t.residual) {
    with(std::true_type(), std::true_type());
  } else {
    with(std::true_type(), std::false_type());
  }
}

}  // namespace

template <class T>
void layer_norm_cuda(const LayerNormArgs<T>& a, Context& context) {
  const int64_t size = a.D.size();
  start<true, T>(
      {a.x, a.residual, a.scale, a.bias, a.y, a.sum, a.mean, a.rstd, a.epsilon, 1.0f / size, a.outer.size(), size},
      context);
}

template <class T>
void rms_norm_cuda(const RMSNormArgs<T>& a, Context& context) {
  const int64_t size = a.D.size();
  start<false, T>(
      {a.x, a.residual, a.scale, nullptr, a.y, a.sum, nullptr, a.rstd, a.epsilon, 1.0f / size, a.outer.size(), size},
      context);
}

}  // namespace ortops
