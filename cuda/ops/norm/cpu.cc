// LayerNorm and RMSNorm on the CPU: the formula of cuda.cu, the row in a buffer that stays in the first-level cache.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "gen/norm.h"

namespace ortops {
namespace {

constexpr int64_t kTile = 4096;    // floats of a row that are converted and held at a time
constexpr int64_t kGrain = 16384;  // elements worth a thread's while
constexpr int kLanes = 8;          // 16 and 32 were measured to be 1.2 and 1.5 times slower
constexpr int64_t kRun = 256;

template <class T>
struct Tensors {
  const T *x, *residual;
  const float *scale, *bias;
  T *y, *sum;
  float *mean, *rstd;
  float epsilon;
  int64_t rows, size;
};

// A weight as floats, which every row uses.
template <class T>
const float* widened(const T* weight, int64_t size, Context& context) {
  if constexpr (std::is_same_v<T, float>) {
    return weight;
  } else {
    if (!weight) return nullptr;
    auto* wide = static_cast<float*>(context.scratch(size * sizeof(float)));
    for (int64_t i = 0; i < size; ++i) wide[i] = to_float(weight[i]);
    return wide;
  }
}

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

// The sum of f(v), in lanes of which the compiler makes vectors; what runs of them come to is added up as doubles.
template <class Lane, class F>
double sum_of(const float* v, int64_t count, F f) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t end = std::min(count, begin + kRun);
    Lane lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += f(v[i + lane]);
    }
    for (int lane = 0; i < end; ++i, ++lane) lanes[lane] += f(v[i]);
    for (int lane = 0; lane < kLanes; ++lane) total += lanes[lane];
  }
  return total;
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

  double mean = 0, squares = 0;
  if (kCenter) {  // in double: there is no telling how far from 0 the row is
    each_tile([&](const float* v, int64_t, int64_t count) {
      mean += sum_of<double>(v, count, [](float value) { return value; });
    });
    mean /= t.size;
  }
  const float center = static_cast<float>(mean);
  const float rest = static_cast<float>(mean - center);
  each_tile([&](const float* v, int64_t, int64_t count) {
    squares += sum_of<float>(v, count, [=](float value) {
      const float d = value - center - rest;
      return d * d;
    });
  });
  const float rstd = static_cast<float>(1 / std::sqrt(squares / t.size + t.epsilon));

  if (t.mean) t.mean[row] = center;
  if (t.rstd) t.rstd[row] = rstd;
  each_tile([&](const float* v, int64_t begin, int64_t count) {
    if (t.sum) {
      T* sum = t.sum + row * t.size + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] = from_float<T>(v[i]);
    }
    T* y = t.y + row * t.size + begin;
    const float* scale = t.scale + begin;
    if (t.bias) {
      const float* bias = t.bias + begin;
      for (int64_t i = 0; i < count; ++i) {
        y[i] = from_float<T>((v[i] - center - rest) * rstd * scale[i] + bias[i]);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) y[i] = from_float<T>((v[i] - center - rest) * rstd * scale[i]);
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
  const int64_t size = a.D.size();
  const float* scale = widened(a.scale, size, context);
  const float* bias = widened(a.bias, size, context);
  start<true, T>({a.x, a.residual, scale, bias, a.y, a.sum, a.mean, a.rstd, a.epsilon, a.outer.size(), size}, context);
}

template <class T>
void rms_norm_cpu(const RMSNormArgs<T>& a, Context& context) {
  const int64_t size = a.D.size();
  const float* scale = widened(a.scale, size, context);
  start<false, T>({a.x, a.residual, scale, nullptr, a.y, a.sum, nullptr, a.rstd, a.epsilon, a.outer.size(), size},
                  context);
}

}  // namespace ortops
