// GroupNorm and its gradient.
//
// Three launches: sums of each channel of an image, or of a chunk of one; what they come to for each group (and over
// the images, for d_scale and d_bias); then the result. x is read twice, the second time out of L2 where it fits. A
// channel is a plane, which a warp or a block walks through, or with channels last a column, which each thread of a
// block has a few of. The first sums of the forward pass are the mean and the squared distances from it, of a chunk
// that is read once more out of L1: a mean far from 0 costs no digits.
#include <algorithm>
#include <type_traits>

#include "core/cuda.h"
#include "device/index.h"
#include "device/reduce.cuh"
#include "device/vector.cuh"
#include "ops/group_norm/problem.h"

namespace ortops {
namespace group_norm {
namespace {

struct Tuning {
  static constexpr int kThreads = 256;
  static constexpr int kSteps = 4;     // vectors that a thread loads before it uses the first
  static constexpr int kBlocks = 8;    // a multiprocessor, that long planes and columns are cut for
  static constexpr int kPlane = 4096;  // elements of a plane that a warp has
};

// Of a channel: its mean is the sum of the first two, which is no float; the squared distances from it.
struct Moments {
  float center, rest, squares;
};

template <class T>
struct Work {
  Problem<T> p;
  Moments* moments;    // [n, chunks, c]
  Pair* channel_sums;  // of the gradient, alike
  Pair* group_sums;    // [n, groups]: the two parts of the mean; of the gradient, what is taken off d
  int64_t chunk;       // elements of a plane, or rows
  int chunks, tiles;   // tiles: of a row, blockDim.x vectors each

  __host__ __device__ int64_t length(int64_t index) const { return min(chunk, p.s - index * chunk); }
};

// Where a thread begins, and how it goes on.
template <class T, int N, bool kLast>
struct Place {
  bool any;
  int64_t image, chunk, offset, stride;
  int channel, steps;

  explicit __device__ __forceinline__ Place(const Work<T>& w) {
    const Problem<T>& p = w.p;
    int64_t rest;
    if constexpr (kLast) {
      int64_t unit = blockIdx.x / w.chunks;
      chunk = blockIdx.x - unit * w.chunks;
      image = unit / w.tiles;
      channel = static_cast<int>((unit - image * w.tiles) * blockDim.x + threadIdx.x) * N;
      any = channel < p.c;
      if (!any) channel = 0;
      offset = (image * p.s + chunk * w.chunk + threadIdx.y) * p.c + channel;
      stride = blockDim.y * p.c;
      rest = (w.length(chunk) - threadIdx.y + blockDim.y - 1) / blockDim.y;
    } else {
      const int64_t unit = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
      int64_t plane = unit / w.chunks;
      chunk = unit - plane * w.chunks;
      any = plane < p.n * p.c;
      if (!any) plane = 0;
      image = plane / p.c;
      channel = static_cast<int>(plane - image * p.c);
      stride = blockDim.x * N;
      offset = plane * p.s + chunk * w.chunk + threadIdx.x * N;
      rest = (w.length(chunk) - threadIdx.x * N + stride - 1) / stride;
    }
    steps = any && rest > 0 ? static_cast<int>(rest) : 0;
  }

  // Whether this thread writes the sums.
  __device__ __forceinline__ bool first() const { return any && (kLast ? threadIdx.y : threadIdx.x) == 0; }

  // f(offset, x, d_y) for each vector.
  template <bool kGradient, class F>
  __device__ __forceinline__ void each(const Problem<T>& p, F f) const {
    for (int begin = 0; begin < steps; begin += Tuning::kSteps) {
      Vector<T, N> x[Tuning::kSteps], d_y[kGradient ? Tuning::kSteps : 1];
#pragma unroll
      for (int i = 0; i < Tuning::kSteps; ++i) {
        const int64_t at = offset + (begin + i) * stride;
        x[i] = load<N, Reuse::constant>(p.x + at, begin + i < steps);
        if constexpr (kGradient) d_y[i] = load<N, Reuse::constant>(p.d_y + at, begin + i < steps);
      }
#pragma unroll
      for (int i = 0; i < Tuning::kSteps; ++i) {
        if (begin + i < steps) f(offset + (begin + i) * stride, to_float(x[i]), to_float(d_y[kGradient ? i : 0]));
      }
    }
  }
};

// Channels of a vector.
template <int N, bool kLast>
constexpr int kChannels = kLast ? N : 1;

template <int kCount>
struct Coefficients {
  float mean[kCount], rstd[kCount], scale[kCount], bias[kCount];
  Pair sums[kCount];

  template <bool kForward, bool kGroupSums, class T>
  __device__ __forceinline__ void read(const Work<T>& w, int64_t image, int channel) {
    const Problem<T>& p = w.p;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t group = image * p.groups + (channel + i) / static_cast<int>(p.channels);
      mean[i] = kForward ? 0.0f : p.mean[group];
      rstd[i] = p.rstd[group];
      scale[i] = p.scale ? to_float(p.scale[channel + i]) : 1.0f;
      bias[i] = p.bias ? to_float(p.bias[channel + i]) : 0.0f;
      if constexpr (kGroupSums) sums[i] = w.group_sums[group];
    }
  }
};

// Of the threads that have the same channels; all of them get it. `turn`: of two calls in a row.
template <bool kLast, int kCount>
__device__ __forceinline__ void reduce(Pair (&sums)[kCount], [[maybe_unused]] int turn) {
  if constexpr (kLast) {
    __shared__ Pair columns[Tuning::kThreads * kCount];
    Pair* mine = columns + threadIdx.x * kCount;
    const int row = blockDim.x * kCount;
    for (int rows = blockDim.y, half; rows > 1; rows = half) {
      half = (rows + 1) / 2;
      const int y = threadIdx.y;
      if (y >= half && y < rows) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) mine[(y - half) * row + i] = sums[i];
      }
      __syncthreads();
      if (y < rows - half) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) sums[i] = sums[i] + mine[y * row + i];
      }
      __syncthreads();
    }
    if (threadIdx.y == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) mine[i] = sums[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = mine[i];
    __syncthreads();
  } else {
    __shared__ Pair partials[2][kWarp];
    if (blockDim.x == kWarp) {
      sums[0] = warp_reduce(sums[0]);
    } else {
      sums[0] = block_reduce(sums[0], partials[turn]);
    }
  }
}

template <class T, int N, bool kLast>
__global__ void __launch_bounds__(Tuning::kThreads) take_moments(const Work<T> w) {
  constexpr int kCount = kChannels<N, kLast>;
  const Place<T, N, kLast> place(w);
  const auto channel_of = [](int i) { return kLast ? i : 0; };
  Pair sums[kCount] = {};
  place.template each<false>(w.p, [&](int64_t, const Vector<float, N>& x, auto&&) {
#pragma unroll
    for (int i = 0; i < N; ++i) sums[channel_of(i)].first += x[i];
  });
  reduce<kLast>(sums, 0);
  const auto length = static_cast<float>(w.length(place.chunk));
  float mean[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    mean[i] = sums[i].first / length;
    sums[i] = {0, 0};
  }
  place.template each<false>(w.p, [&](int64_t, const Vector<float, N>& x, auto&&) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float d = x[i] - mean[channel_of(i)];
      sums[channel_of(i)].first += d;
      sums[channel_of(i)].second += d * d;
    }
  });
  reduce<kLast>(sums, 1);
  if (!place.first()) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float rest = sums[i].first / length;
    w.moments[(place.image * w.chunks + place.chunk) * w.p.c + place.channel + i] = {
        mean[i], rest, Max()(sums[i].second - sums[i].first * rest, 0.0f)};
  }
}

template <class F>
__device__ __forceinline__ void each_sum(int64_t chunks, int64_t channels, F f) {  // f(chunk, channel of the group)
#pragma unroll 2
  for (int64_t i = threadIdx.x; i < chunks * channels; i += blockDim.x) {
    const int64_t chunk = i / channels;
    f(chunk, i - chunk * channels);
  }
}

// A block a group.
template <class T>
__global__ void __launch_bounds__(Tuning::kThreads) join_moments(const Work<T> w, float* means, float* rstds) {
  __shared__ float sums[kWarp], squares[kWarp];
  const Problem<T>& p = w.p;
  const int64_t image = blockIdx.x / p.groups, first = (blockIdx.x - image * p.groups) * p.channels;
  const Moments* moments = w.moments + image * w.chunks * p.c + first;
  const float count = static_cast<float>(p.s) * static_cast<float>(p.channels);
  const float center = count > 0 ? moments[0].center : 0.0f;
  float sum = 0, square = 0;
  each_sum(w.chunks, p.channels, [&](int64_t chunk, int64_t channel) {
    const Moments some = moments[chunk * p.c + channel];
    sum += (some.center - center + some.rest) * static_cast<float>(w.length(chunk));
  });
  const float rest = block_reduce(sum, sums) / count;
  each_sum(w.chunks, p.channels, [&](int64_t chunk, int64_t channel) {
    const Moments some = moments[chunk * p.c + channel];
    const float d = some.center - center + some.rest - rest;
    square += some.squares + d * d * static_cast<float>(w.length(chunk));
  });
  square = block_reduce(square, squares);
  if (threadIdx.x > 0) return;
  w.group_sums[blockIdx.x] = {center, rest};
  if (means) means[blockIdx.x] = center + rest;
  rstds[blockIdx.x] = rsqrtf(square / count + p.epsilon);
}

template <class T, int N, bool kLast>
__global__ void __launch_bounds__(Tuning::kThreads) apply(const Work<T> w) {
  const Place<T, N, kLast> place(w);
  Coefficients<kChannels<N, kLast>> c;
  c.template read<true, true>(w, place.image, place.channel);
  place.template each<false>(w.p, [&](int64_t at, const Vector<float, N>& x, auto&&) {
    Vector<float, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int k = kLast ? i : 0;
      y[i] = (x[i] - c.sums[k].first - c.sums[k].second) * c.rstd[k] * c.scale[k] + c.bias[k];
      if (w.p.silu) y[i] = math::silu(y[i]);
    }
    store(w.p.result + at, from_float<T>(y));
  });
}

// The gradient behind the affine map, out of the one that arrives.
__device__ __forceinline__ float before_activation(float d_y, float n, float scale, float bias, bool silu) {
  return silu ? d_y * silu_slope(n * scale + bias) : d_y;
}

template <class T, int N, bool kLast>
__global__ void __launch_bounds__(Tuning::kThreads) take_gradients(const Work<T> w) {
  constexpr int kCount = kChannels<N, kLast>;
  const Place<T, N, kLast> place(w);
  Coefficients<kCount> c;
  c.template read<false, false>(w, place.image, place.channel);
  Pair sums[kCount] = {};
  place.template each<true>(w.p, [&](int64_t, const Vector<float, N>& x, const Vector<float, N>& d_y) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int k = kLast ? i : 0;
      const float n = (x[i] - c.mean[k]) * c.rstd[k];
      const float d = before_activation(d_y[i], n, c.scale[k], c.bias[k], w.p.silu);
      sums[k] = sums[k] + Pair{d, d * n};
    }
  });
  reduce<kLast>(sums, 0);
  if (!place.first()) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    w.channel_sums[(place.image * w.chunks + place.chunk) * w.p.c + place.channel + i] = sums[i];
  }
}

// A block a group; then one for each 32 channels, for d_scale and d_bias.
template <class T>
__global__ void __launch_bounds__(Tuning::kThreads) join_gradients(const Work<T> w, T* d_scale, T* d_bias) {
  const Problem<T>& p = w.p;
  if (blockIdx.x < p.n * p.groups) {
    __shared__ Pair partials[kWarp];
    const int64_t image = blockIdx.x / p.groups, first = (blockIdx.x - image * p.groups) * p.channels;
    const Pair* channel_sums = w.channel_sums + image * w.chunks * p.c + first;
    Pair sum = {0, 0};
    each_sum(w.chunks, p.channels, [&](int64_t chunk, int64_t channel) {
      const Pair some = channel_sums[chunk * p.c + channel];
      const float scale = p.scale ? to_float(p.scale[first + channel]) : 1.0f;
      sum = sum + Pair{some.first * scale, some.second * scale};
    });
    sum = block_reduce(sum, partials);
    const float count = static_cast<float>(p.s) * static_cast<float>(p.channels);
    if (threadIdx.x == 0) w.group_sums[blockIdx.x] = {sum.first / count, sum.second / count};
    return;
  }
  constexpr int kRows = Tuning::kThreads / kWarp;
  __shared__ Pair columns[kRows][kWarp];
  const int lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp;
  const int64_t channel = (blockIdx.x - p.n * p.groups) * kWarp + lane;
  Pair sum = {0, 0};
  if (channel < p.c) {
#pragma unroll 4
    for (int64_t i = row; i < p.n * w.chunks; i += kRows) sum = sum + w.channel_sums[i * p.c + channel];
  }
  columns[row][lane] = sum;
  __syncthreads();
  if (row > 0 || channel >= p.c) return;
#pragma unroll
  for (int other = 1; other < kRows; ++other) sum = sum + columns[other][lane];
  if (d_scale) d_scale[channel] = from_float<T>(sum.second);
  if (d_bias) d_bias[channel] = from_float<T>(sum.first);
}

template <class T, int N, bool kLast>
__global__ void __launch_bounds__(Tuning::kThreads) pass_back(const Work<T> w) {
  const Place<T, N, kLast> place(w);
  Coefficients<kChannels<N, kLast>> c;
  c.template read<false, true>(w, place.image, place.channel);
  place.template each<true>(w.p, [&](int64_t at, const Vector<float, N>& x, const Vector<float, N>& d_y) {
    Vector<float, N> d_x;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int k = kLast ? i : 0;
      const float n = (x[i] - c.mean[k]) * c.rstd[k];
      const float d = before_activation(d_y[i], n, c.scale[k], c.bias[k], w.p.silu) * c.scale[k];
      d_x[i] = (d - c.sums[k].first - n * c.sums[k].second) * c.rstd[k];
    }
    store(w.p.result + at, from_float<T>(d_x));
  });
}

// Calls f(vector width, channels last, blocks, threads) with how the work is cut; not where there is none.
template <class T, class F>
void cut(Work<T>& w, F f) {
  const Problem<T>& p = w.p;
  w.chunks = 0;
  w.tiles = w.chunk = 1;
  if (p.n * p.c * p.s == 0) return;
  const int64_t most = int64_t(Tuning::kBlocks) * device_properties().multiprocessors;
  const auto with = [&](auto width, auto last) {
    constexpr int N = width();
    const auto cut_into = [&](int64_t units, int64_t least) {
      const int64_t pieces = std::max<int64_t>(1, most / units);
      w.chunk = std::max((p.s + pieces - 1) / pieces, least);
      w.chunk = (w.chunk + least - 1) / least * least;
      w.chunks = narrow((p.s + w.chunk - 1) / w.chunk);
    };
    if constexpr (last()) {
      const int vectors = narrow(p.c / N);
      w.tiles = (vectors + Tuning::kThreads - 1) / Tuning::kThreads;
      const int across = (vectors + w.tiles - 1) / w.tiles, rows = Tuning::kThreads / across;
      cut_into(p.n * w.tiles, int64_t(rows) * Tuning::kSteps);
      f(width, last, narrow(p.n * w.tiles * w.chunks), dim3(across, rows));
    } else if (p.s <= Tuning::kPlane) {
      constexpr int kPlanes = Tuning::kThreads / kWarp;
      w.chunk = p.s;
      w.chunks = 1;
      f(width, last, narrow((p.n * p.c + kPlanes - 1) / kPlanes), dim3(kWarp, kPlanes));
    } else {
      cut_into(p.n * p.c, int64_t(Tuning::kThreads) * N * Tuning::kSteps);
      f(width, last, narrow(p.n * p.c * w.chunks), dim3(Tuning::kThreads, 1));
    }
  };
  constexpr std::integral_constant<int, kWidth<T>> wide = {};
  constexpr std::integral_constant<int, 1> single = {};
  const bool aligned =
      is_aligned<kWidth<T>>(p.channels_last ? p.c : p.s, {p.x, p.d_y, static_cast<const T*>(p.result)});
  if (p.channels_last) {
    aligned ? with(wide, std::true_type()) : with(single, std::true_type());
  } else {
    aligned ? with(wide, std::false_type()) : with(single, std::false_type());
  }
}

template <class Element>
Element* scratch(int64_t count, Context& context) {
  return static_cast<Element*>(context.scratch(std::max<int64_t>(count, 1) * sizeof(Element)));
}

template <class T>
void forward(const Problem<T>& p, float* means, float* rstds, Context& context) {
  Work<T> w = {p, nullptr, nullptr, nullptr, 1, 0, 1};
  const int groups = narrow(p.n * p.groups);
  if (!rstds) rstds = scratch<float>(groups, context);
  w.group_sums = scratch<Pair>(groups, context);
  w.p.rstd = rstds;
  cut(w, [&](auto width, auto last, int blocks, dim3 threads) {
    w.moments = scratch<Moments>(p.n * w.chunks * p.c, context);
    launch(take_moments<T, width(), last()>, blocks, threads, 0, context, w);
  });
  if (groups > 0) launch(join_moments<T>, groups, Tuning::kThreads, 0, context, w, means, rstds);
  cut(w, [&](auto width, auto last, int blocks, dim3 threads) {
    launch(apply<T, width(), last()>, blocks, threads, 0, context, w);
  });
}

template <class T>
void backward(const Problem<T>& p, T* d_scale, T* d_bias, Context& context) {
  Work<T> w = {p, nullptr, nullptr, nullptr, 1, 0, 1};
  w.group_sums = scratch<Pair>(p.n * p.groups, context);
  cut(w, [&](auto width, auto last, int blocks, dim3 threads) {
    w.channel_sums = scratch<Pair>(p.n * w.chunks * p.c, context);
    launch(take_gradients<T, width(), last()>, blocks, threads, 0, context, w);
  });
  const int blocks = narrow(p.n * p.groups + (d_scale || d_bias ? (p.c + kWarp - 1) / kWarp : 0));
  if (blocks > 0) launch(join_gradients<T>, blocks, Tuning::kThreads, 0, context, w, d_scale, d_bias);
  cut(w, [&](auto width, auto last, int blocks, dim3 threads) {
    launch(pass_back<T, width(), last()>, blocks, threads, 0, context, w);
  });
}

}  // namespace
}  // namespace group_norm

template <class T>
void group_norm_cuda(const GroupNormArgs<T>& a, Context& context) {
  auto p = group_norm::problem_of(a);
  p.epsilon = a.epsilon;
  p.result = a.y;
  group_norm::forward<T>(p, a.mean, a.rstd, context);
}

template <class T>
void group_norm_gradient_cuda(const GroupNormGradientArgs<T>& a, Context& context) {
  auto p = group_norm::problem_of(a);
  p.d_y = a.d_y;
  p.mean = a.mean;
  p.rstd = a.rstd;
  p.result = a.d_x;
  group_norm::backward<T>(p, a.d_scale, a.d_bias, context);
}

}  // namespace ortops
