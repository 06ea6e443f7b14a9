// LayerNorm and RMSNorm on the CPU: the formula of cuda.cu, the row in a buffer that stays in the first-level cache.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "device/arrays.h"
#include "gen/norm.h"

namespace ortops {
namespace {

constexpr int64_t kTile = 4096;    // floats of a row that are converted and held at a time
constexpr int64_t kChunk = 512;    // floats of a result on their way to its type
constexpr int64_t kGrain = 16384;  // elements worth a thread's while
constexpr int kLanes = 16;         // of 8 to 64, with vectors of 4, 8 and 16 floats
constexpr int64_t kRun = 256;      // floats whose squares are added up before they go to a double

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
    widen(weight, wide, size);
    return wide;
  }
}

// Sums have lanes, of which compilers make vectors.
ORTOPS_CLONES double sum_of(const float* v, int64_t count) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += v[i + lane];
  }
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += v[i];
  double total = 0;
  for (double lane : lanes) total += lane;
  return total;
}

ORTOPS_CLONES double squares_of(const float* v, float center, float rest, int64_t count) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t end = std::min(count, begin + kRun);
    float lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float d = v[i + lane] - center - rest;
        lanes[lane] += d * d;
      }
    }
    for (int lane = 0; i < end; ++i, ++lane) {
      const float d = v[i] - center - rest;
      lanes[lane] += d * d;
    }
    for (float lane : lanes) total += lane;
  }
  return total;
}

ORTOPS_CLONES void scaled(const float* v, float center, float rest, float rstd, const float* scale, const float* bias,
                          float* y, int64_t count) {
  if (bias) {
    for (int64_t i = 0; i < count; ++i) y[i] = (v[i] - center - rest) * rstd * scale[i] + bias[i];
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = (v[i] - center - rest) * rstd * scale[i];
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

  double mean = 0, squares = 0;
  if (kCenter) {  // in double: there is no telling how far from 0 the row is
    each_tile([&](const float* v, int64_t, int64_t count) { mean += sum_of(v, count); });
    mean /= t.size;
  }
  const float center = static_cast<float>(mean);
  const float rest = static_cast<float>(mean - center);
  each_tile([&](const float* v, int64_t, int64_t count) { squares += squares_of(v, center, rest, count); });
  const float rstd = static_cast<float>(1 / std::sqrt(squares / t.size + t.epsilon));

  if (t.mean) t.mean[row] = center;
  if (t.rstd) t.rstd[row] = rstd;
  each_tile([&](const float* v, int64_t begin, int64_t count) {
    if (t.sum) narrow(v, t.sum + row * t.size + begin, count);
    T* y = t.y + row * t.size + begin;
    const float* scale = t.scale + begin;
    const float* bias = t.bias ? t.bias + begin : nullptr;
    if constexpr (std::is_same_v<T, float>) {
      scaled(v, center, rest, rstd, scale, bias, y, count);
    } else {
      float result[kChunk];
      for (int64_t at = 0; at < count; at += kChunk) {
        const int64_t n = std::min(kChunk, count - at);
        scaled(v + at, center, rest, rstd, scale + at, bias ? bias + at : nullptr, result, n);
        narrow(result, y + at, n);
      }
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
