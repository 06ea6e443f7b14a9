// LayerNorm and RMSNorm on the CPU: the formula of cuda.cu, the row in a buffer that stays in the first-level cache.
#include <algorithm>
#include <cmath>

#include "gen/norm.h"

namespace ortops {
namespace {

constexpr int64_t kTile = 4096;    // floats of a row that are converted and held at a time
constexpr int64_t kGrain = 16384;  // elements worth a thread's while
constexpr int kLanes = 16;  // running sums: the compiler makes vectors of them, and their error is that much smaller

template <class T>
struct Tensors {
  const T *x, *residual, *scale, *bias;
  T *y, *sum;
  float *mean, *rstd;
  float epsilon;
  int64_t rows, size;
};

// v = x + residual, as floats: in place where that is what x holds.
template <class T>
const float* gather(const T* x, const T* residual, int64_t count, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    if (!residual) return x;
  }
  if (residual) {
    for (int64_t i = 0; i < count; ++i) buffer[i] = to_float(x[i]) + to_float(residual[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) buffer[i] = to_float(x[i]);
  }
  return buffer;
}

// The sums of v - mean and of its square.
void add_moments(const float* v, int64_t count, float mean, double& first, double& second) {
  float sums[kLanes] = {}, squares[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float d = v[i + lane] - mean;
      sums[lane] += d;
      squares[lane] += d * d;
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    const float d = v[i] - mean;
    sums[lane] += d;
    squares[lane] += d * d;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    first += sums[lane];
    second += squares[lane];
  }
}

template <bool kCenter, class T>
void normalize_row(const Tensors<T>& t, int64_t row) {
  float buffer[kTile];
  const T* x = t.x + row * t.size;
  const T* residual = t.residual ? t.residual + row * t.size : nullptr;
  const float* held = nullptr;  // the whole row, if it is one tile
  const auto each_tile = [&](auto f) {
    for (int64_t begin = 0; begin < t.size; begin += kTile) {
      const int64_t count = std::min(kTile, t.size - begin);
      const float* v = held ? held : gather(x + begin, residual ? residual + begin : nullptr, count, buffer);
      if (count == t.size) held = v;
      f(v, begin, count);
    }
  };

  double mean = 0, first = 0, second = 0;
  if (kCenter) {
    double unused = 0;
    each_tile([&](const float* v, int64_t, int64_t count) { add_moments(v, count, 0, mean, unused); });
    mean /= t.size;
  }
  const float center = static_cast<float>(mean);
  each_tile([&](const float* v, int64_t, int64_t count) { add_moments(v, count, center, first, second); });
  const double rest = kCenter ? first / t.size : 0;  // what rounding left of the mean
  double variance = second / t.size - rest * rest;
  if (variance < 0) variance = 0;
  const float rstd = static_cast<float>(1 / std::sqrt(variance + t.epsilon));
  const float shift = static_cast<float>(rest);

  if (t.mean) t.mean[row] = center + shift;
  if (t.rstd) t.rstd[row] = rstd;
  each_tile([&](const float* v, int64_t begin, int64_t count) {
    if (t.sum) {
      T* sum = t.sum + row * t.size + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] = from_float<T>(v[i]);
    }
    T* y = t.y + row * t.size + begin;
    const T* scale = t.scale + begin;
    if (t.bias) {
      const T* bias = t.bias + begin;
      for (int64_t i = 0; i < count; ++i) {
        y[i] = from_float<T>((v[i] - center - shift) * rstd * to_float(scale[i]) + to_float(bias[i]));
      }
    } else {
      for (int64_t i = 0; i < count; ++i) y[i] = from_float<T>((v[i] - center - shift) * rstd * to_float(scale[i]));
    }
  });
}

template <bool kCenter, class T>
void start(const Tensors<T>& t, Context& context) {
  context.parallel_for(t.rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, t.size)),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t row = begin; row < end; ++row) normalize_row<kCenter>(t, row);
                       });
}

}  // namespace

template <class T>
void layer_norm_cpu(const LayerNormArgs<T>& a, Context& context) {
  const Tensors<T> t = {a.x,    a.residual, a.scale,   a.bias,         a.y,       a.sum,
                        a.mean, a.rstd,     a.epsilon, a.outer.size(), a.D.size()};
  start<true>(t, context);
}

template <class T>
void rms_norm_cpu(const RMSNormArgs<T>& a, Context& context) {
  const Tensors<T> t = {a.x,     a.residual, a.scale,   nullptr,        a.y,       a.sum,
                        nullptr, a.rstd,     a.epsilon, a.outer.size(), a.D.size()};
  start<false>(t, context);
}

}  // namespace ortops
