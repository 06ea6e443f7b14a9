// The gradients of LayerNorm and RMSNorm on the CPU: the formula of cuda.cu. The rows are cut into pieces, by their
// number and size alone; each has sums of its own for d_scale and d_bias, which are added up in the end.
#include <algorithm>
#include <type_traits>

#include "device/arrays.h"
#include "gen/norm_gradient.h"

namespace ortops {
namespace {

constexpr int64_t kTile = 2048;    // floats of a row that are converted and held at a time
constexpr int64_t kPiece = 65536;  // elements a piece has at least
constexpr int64_t kMaxPieces = 64;
constexpr int kLanes = 16;     // of 8 to 64, with vectors of 4, 8 and 16 floats
constexpr int64_t kRows = 64;  // whose sums of columns are taken before they go to those of the piece
constexpr int64_t kRun = 512;  // floats that are added up before they go to a double

template <class T>
struct Tensors {
  const T *d_y, *x, *residual, *d_sum;
  const float *scale, *mean, *rstd;
  T* d_x;
  int64_t rows, size;
};

struct Moments {
  double d = 0, along = 0;  // of d = d_y * scale, and of d * n
};

// Of one row, or a tile of it.
struct Part {
  const float *v, *d_y, *scale;
  float mean, rstd;
};

template <bool kCenter>
ORTOPS_INLINE void add_elements(const Part& row, int64_t begin, int count, float* __restrict__ d_scale,
                                float* __restrict__ d_bias, float* __restrict__ d, float* __restrict__ along) {
  for (int lane = 0; lane < count; ++lane) {
    const int64_t i = begin + lane;
    const float n = (row.v[i] - row.mean) * row.rstd;
    const float weighted = row.d_y[i] * row.scale[i];
    if (kCenter) d[lane] += weighted;
    along[lane] += weighted * n;
    d_scale[i] += row.d_y[i] * n;
    if (kCenter) d_bias[i] += row.d_y[i];
  }
}

// Adds to the moments of the row, and to the sums of its columns.
template <bool kCenter>
ORTOPS_INLINE void accumulate_any(const Part& row, int64_t count, float* d_scale, float* d_bias, Moments& moments) {
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t end = std::min(count, begin + kRun);
    float d[kLanes] = {}, along[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) add_elements<kCenter>(row, i, kLanes, d_scale, d_bias, d, along);
    add_elements<kCenter>(row, i, static_cast<int>(end - i), d_scale, d_bias, d, along);
    for (int lane = 0; lane < kLanes; ++lane) {
      moments.d += d[lane];
      moments.along += along[lane];
    }
  }
}
ORTOPS_CLONES void accumulate(const Part& row, int64_t count, float* d_scale, float* d_bias, Moments& moments) {
  accumulate_any<true>(row, count, d_scale, d_bias, moments);
}
ORTOPS_CLONES void accumulate(const Part& row, int64_t count, float* d_scale, Moments& moments) {
  accumulate_any<false>(row, count, d_scale, nullptr, moments);
}

ORTOPS_CLONES void finish(const Part& row, float d, float along, float* __restrict__ d_x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float n = (row.v[i] - row.mean) * row.rstd;
    d_x[i] = (row.d_y[i] * row.scale[i] - d - n * along) * row.rstd;
  }
}

template <bool kCenter, class T>
void pass_back_row(const Tensors<T>& t, int64_t index, float* d_scale, float* d_bias) {
  float v_buffer[kTile], d_y_buffer[kTile], d_x_buffer[kTile];
  const int64_t at = index * t.size;
  Part row = {nullptr, nullptr, nullptr, kCenter ? t.mean[index] : 0.0f, t.rstd[index]};
  const auto each_tile = [&](auto f) {
    for (int64_t begin = 0; begin < t.size; begin += kTile) {
      const int64_t count = std::min(kTile, t.size - begin);
      if (count < t.size || !row.v) {  // else the whole row is held
        row.v = gather(t.x + at + begin, t.residual ? t.residual + at + begin : nullptr, count, v_buffer);
        row.d_y = gather<T>(t.d_y + at + begin, nullptr, count, d_y_buffer);
        row.scale = t.scale + begin;
      }
      f(begin, count);
    }
  };
  Moments moments;
  each_tile([&](int64_t begin, int64_t count) {
    if constexpr (kCenter) {
      accumulate(row, count, d_scale + begin, d_bias + begin, moments);
    } else {
      accumulate(row, count, d_scale + begin, moments);
    }
  });
  const auto d = static_cast<float>(moments.d / t.size), along = static_cast<float>(moments.along / t.size);
  each_tile([&](int64_t begin, int64_t count) {
    float* d_x = d_x_buffer;
    if constexpr (std::is_same_v<T, float>) d_x = t.d_x + at + begin;
    finish(row, d, along, d_x, count);
    if (t.d_sum) add(d_x, t.d_sum + at + begin, count);
    if constexpr (!std::is_same_v<T, float>) narrow(d_x, t.d_x + at + begin, count);
  });
}

template <bool kCenter, class T>
void start(Tensors<T> t, const T* scale, T* d_scale, T* d_bias, Context& context) {
  constexpr int64_t kSums = 1 + kCenter;
  const auto floats = [&](int64_t count) { return static_cast<float*>(context.scratch(count * sizeof(float))); };
  if constexpr (std::is_same_v<T, float>) {
    t.scale = scale;
  } else {
    float* wide = floats(t.size);
    widen(scale, wide, t.size);
    t.scale = wide;
  }
  const int64_t pieces =
      std::clamp<int64_t>(t.rows * t.size / kPiece, 1, std::min(kMaxPieces, std::max<int64_t>(t.rows, 1)));
  const int64_t width = kSums * t.size;
  float* sums = floats(2 * pieces * width);
  context.parallel_for(pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      float *mine = sums + piece * width, *some = sums + (pieces + piece) * width;
      std::fill_n(mine, width, 0.0f);
      const int64_t end = t.rows * (piece + 1) / pieces;
      for (int64_t begin = t.rows * piece / pieces; begin < end; begin += kRows) {
        std::fill_n(some, width, 0.0f);
        for (int64_t row = begin; row < std::min(end, begin + kRows); ++row) {
          pass_back_row<kCenter>(t, row, some, some + t.size);
        }
        add(mine, some, width);
      }
    }
  });
  for (int64_t piece = 1; piece < pieces; ++piece) add(sums, sums + piece * width, width);
  if (d_scale) narrow(sums, d_scale, t.size);
  if (d_bias) narrow(sums + t.size, d_bias, t.size);
}

}  // namespace

template <class T>
void layer_norm_gradient_cpu(const LayerNormGradientArgs<T>& a, Context& context) {
  start<true, T>({a.d_y, a.x, a.residual, a.d_sum, nullptr, a.mean, a.rstd, a.d_x, a.outer.size(), a.D.size()}, a.scale,
                 a.d_scale, a.d_bias, context);
}

template <class T>
void rms_norm_gradient_cpu(const RMSNormGradientArgs<T>& a, Context& context) {
  start<false, T>({a.d_y, a.x, a.residual, a.d_sum, nullptr, nullptr, a.rstd, a.d_x, a.outer.size(), a.D.size()},
                  a.scale, a.d_scale, nullptr, context);
}

}  // namespace ortops
