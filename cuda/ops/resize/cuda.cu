// Upsample2D and its gradient, one launch each.
//
// In both directions a thread owns a few neighbours of a row of the result (of the gradient: of d_x) and walks down a
// strip of rows. Columns are worked out once a thread, rows once a block. Down the strip a source row's columns are
// blended once and used for all rows that it has a share in: with twice the rows and columns a pixel of the result
// costs little more than one load of x, and of d_y each is loaded once. The gradient gathers: nothing is added up in
// memory.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/cuda.h"
#include "device/vector.cuh"
#include "gen/resize.h"
#include "ops/resize/map.h"

namespace ortops {
namespace resize {
namespace {

struct Tuning {
  static constexpr int threads = 256;
  static constexpr int strip =
      16;  // rows of the result a thread: its columns' and the strip's first rows' cost are spread
  static constexpr int blocks = 4;  // a multiprocessor should have; strips are made shorter for that
  static constexpr int chunk = 64;  // rows of d_y whose taps are in shared memory at a time
};

// What a thread owns is an item: of the planes' rows' vectors the one it is at in every row.
struct Launch {
  Problem problem;
  int64_t items;
  int vectors;  // a row
  int strip;    // rows
  int strips;
};

__device__ __forceinline__ int64_t quotient(int64_t a, int b) {
  return a >> 32 ? a / b : int64_t(uint32_t(a) / uint32_t(b));
}

// Of a share of 0, infinity makes NaN, as in PyTorch.
__device__ __forceinline__ float mix(float a, float b, float weight) { return fmaf(weight, b, (1 - weight) * a); }

template <int N>
__device__ __forceinline__ Vector<float, N> mix(const Vector<float, N>& a, const Vector<float, N>& b, float weight) {
  Vector<float, N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) result[i] = mix(a[i], b[i], weight);
  return result;
}

// --- forward: from a row of x to N elements of a row of y, its columns picked (`pick`) or blended (`blend`)

// N neighbours of one pixel: channels, or the pixel itself.
template <int kN, bool kBilinear>
struct Pixel {
  static constexpr int N = kN;
  int here, behind;
  float weight;

  __device__ __forceinline__ Pixel(const Axis& columns, int pixel, int vector) {
    const int column = vector * N / pixel, channel = vector * N - column * pixel;
    const auto tap = columns.tap<kBilinear>(column);
    here = tap.at * pixel + channel;
    behind = min(tap.at + 1, columns.in - 1) * pixel + channel;
    weight = tap.weight;
  }
  template <class T>
  __device__ __forceinline__ Vector<T, N> pick(const T* row) const {
    return load<N, Reuse::constant>(row + here);
  }
  template <class T>
  __device__ __forceinline__ Vector<float, N> blend(const T* row) const {
    return mix(to_float(load<N, Reuse::constant>(row + here)), to_float(load<N, Reuse::constant>(row + behind)),
               weight);
  }
};

// N pixels of one element, side by side. With kSlide, where there are no fewer columns in y than in x, neighbours read
// the same or neighbouring source pixels: each is loaded once.
template <int kN, bool kBilinear, bool kSlide>
struct Run {
  static constexpr int N = kN;
  int last;
  int at[kSlide ? 1 : N];
  uint32_t steps = 0;  // bit i: pixel i begins one source pixel behind pixel i - 1
  float weight[kBilinear ? N : 1];

  __device__ __forceinline__ Run(const Axis& columns, int, int vector) : last(columns.in - 1) {
    int before = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto tap = columns.tap<kBilinear>(vector * N + i);
      if constexpr (kBilinear) weight[i] = tap.weight;
      if (!kSlide || i == 0) {
        at[kSlide ? 0 : i] = tap.at;
      } else {
        steps |= uint32_t(tap.at != before) << i;
      }
      before = tap.at;
    }
  }
  template <class T>
  __device__ __forceinline__ Vector<T, N> pick(const T* row) const {
    Vector<T, N> result;
    int here = at[0];
    T value = load<1, Reuse::constant>(row + here)[0];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (!kSlide && i > 0) value = load<1, Reuse::constant>(row + at[i])[0];
      if (kSlide && steps >> i & 1) value = load<1, Reuse::constant>(row + ++here)[0];
      result[i] = value;
    }
    return result;
  }
  template <class T>
  __device__ __forceinline__ Vector<float, N> blend(const T* row) const {
    const auto value = [&](int column) { return to_float(load<1, Reuse::constant>(row + min(column, last))[0]); };
    Vector<float, N> result;
    int here = at[0];
    float left = value(here), right = value(here + 1);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (!kSlide && i > 0) {
        left = value(at[i]);
        right = value(at[i] + 1);
      }
      if (kSlide && steps >> i & 1) {
        left = right;
        right = value(++here + 1);
      }
      result[i] = mix(left, right, weight[i]);
    }
    return result;
  }
};

// N pixels of one element, side by side, where there are twice as many in y: pixel k of x makes the pair 2k and 2k + 1,
// each (bilinear) of three quarters of it and a quarter of the neighbour on that side. At the ends it is its own
// neighbour.
template <int kN, bool kBilinear>
struct Pairs {
  static constexpr int N = kN;
  int begin;
  bool is_first, is_last;

  __device__ __forceinline__ Pairs(const Axis& columns, int, int vector)
      : begin(N / 2 * vector), is_first(vector == 0), is_last(N / 2 * (vector + 1) == columns.in) {}
  template <class T>
  __device__ __forceinline__ Vector<T, N> pick(const T* row) const {
    const Vector<T, N / 2> values = load<N / 2, Reuse::constant>(row + begin);
    Vector<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] = values[i / 2];
    return result;
  }
  template <class T>
  __device__ __forceinline__ Vector<float, N> blend(const T* row) const {
    row += begin;
    const Vector<float, N / 2> values = to_float(load<N / 2, Reuse::constant>(row));
    float quarters[N / 2 + 2];
    quarters[0] = 0.25f * to_float(load<1, Reuse::constant>(row - !is_first)[0]);
    quarters[N / 2 + 1] = 0.25f * to_float(load<1, Reuse::constant>(row + N / 2 - is_last)[0]);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) quarters[i + 1] = 0.25f * values[i];
    Vector<float, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] = fmaf(0.75f, values[i / 2], quarters[i % 2 ? i / 2 + 2 : i / 2]);
    return result;
  }
};

template <class Reader, bool kBilinear, class T>
__global__ void __launch_bounds__(Tuning::threads)
    expand(const T* __restrict__ x, T* __restrict__ y, const Launch launch) {
  constexpr int N = Reader::N;
  __shared__ Tap<float> taps[Tuning::strip];
  const Problem& p = launch.problem;
  const int begin = static_cast<int>(blockIdx.x % launch.strips) * launch.strip;
  const int count = min(launch.strip, p.rows.out - begin);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < count) taps[thread] = p.rows.tap<kBilinear>(begin + thread);
  __syncthreads();
  const int64_t item = int64_t(blockIdx.x / launch.strips) * blockDim.x + threadIdx.x;
  if (item >= launch.items) return;
  const int64_t plane = quotient(item, launch.vectors);
  const int vector = static_cast<int>(item - plane * launch.vectors);
  const Reader reader(p.columns, p.pixel, vector);
  const int from_row = p.columns.in * p.pixel, to_row = p.columns.out * p.pixel;
  x += plane * p.rows.in * from_row;
  y += (plane * p.rows.out + begin) * to_row + int64_t(vector) * N;
  int current = taps[0].at;
  if constexpr (kBilinear) {
    const auto row = [&](int at) { return reader.blend(x + int64_t(min(at, p.rows.in - 1)) * from_row); };
    Vector<float, N> upper = row(current), lower = row(current + 1);
    for (int i = 0; i < count; ++i, y += to_row) {
      const Tap<float> tap = taps[i];
      if (tap.at != current) {
        upper = tap.at == current + 1 ? lower : row(tap.at);
        lower = row(tap.at + 1);
        current = tap.at;
      }
      store(y, from_float<T>(mix(upper, lower, tap.weight)));
    }
  } else {
    Vector<T, N> value = reader.pick(x + int64_t(current) * from_row);
    for (int i = 0; i < count; ++i, y += to_row) {
      const int at = taps[i].at;
      if (at != current) value = reader.pick(x + int64_t(at) * from_row);
      current = at;
      store(y, value);
    }
  }
}

// --- backward: from a row of d_y to N elements of a row of d_x, before rows are blended

// N neighbours of one pixel: channels, or the pixel itself. Shares are told from the distance in source pixels: the
// positions of neighbours in d_y are `step` apart.
template <int kN, bool kBilinear>
struct GatherPixel {
  static constexpr int N = kN;
  static constexpr int kRows = 2;  // that are loaded at once
  int begin, count, pixel;
  float distance, step;  // of the first
  float least, most;  // what the distance is bounded by: in front of the first pixel and behind the last there is none

  __device__ __forceinline__ GatherPixel(const Axis& columns, int pixel, int vector) : pixel(pixel) {
    const int column = vector * N / pixel, channel = vector * N - column * pixel;
    const int first = columns.first<kBilinear>(kBilinear ? column - 1 : column);
    count = columns.first<kBilinear>(column + 1) - first;
    begin = first * pixel + channel;
    distance = static_cast<float>((first + columns.shift) * columns.step - columns.shift - column);
    step = static_cast<float>(columns.step);
    least = column == 0 ? 0.0f : -1.0f;
    most = column == columns.in - 1 ? 0.0f : 1.0f;
  }
  template <class T>
  __device__ __forceinline__ Vector<float, N> fetch(const T* row) const {
    Vector<float, N> sum;
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = 0;
    row += begin;
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      const Vector<float, N> value = to_float(load<N, Reuse::constant>(row + int64_t(k) * pixel));
      const float away = fminf(fmaxf(fmaf(static_cast<float>(k), step, distance), least), most);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = kBilinear ? fmaf(1 - fabsf(away), value[i], sum[i]) : sum[i] + value[i];
    }
    return sum;
  }
  __device__ __forceinline__ Vector<float, N> sum_of(const Vector<float, N>& sum) const { return sum; }
};

// N pixels of one element, side by side, where there are twice as many in d_y: pixel k is made of its pair, 2k and 2k +
// 1 (bilinear: three quarters of each), and (a quarter) of the neighbours of the pair. The first and the last have a
// neighbour less, and of their own one the more.
template <int kN, bool kBilinear>
struct GatherPairs {
  static constexpr int N = kN;
  static constexpr int kRows = 4;
  int begin;
  bool is_first, is_last;

  __device__ __forceinline__ GatherPairs(const Axis& columns, int, int vector)
      : begin(2 * N * vector), is_first(vector == 0), is_last((vector + 1) * N == columns.in) {}
  template <class T>
  struct Part {
    Vector<T, 2 * N> pairs;
    T left, right;
  };
  template <class T>
  __device__ __forceinline__ Part<T> fetch(const T* row) const {
    row += begin;
    Part<T> part;
    part.pairs = load<2 * N, Reuse::constant>(row);
    if constexpr (kBilinear) {
      part.left = load<1, Reuse::constant>(row - !is_first)[0];
      part.right = load<1, Reuse::constant>(row + 2 * N - is_last)[0];
    }
    return part;
  }
  template <class T>
  __device__ __forceinline__ Vector<float, N> sum_of(const Part<T>& part) const {
    const Vector<float, 2 * N> pairs = to_float(part.pairs);
    Vector<float, N> sum;
    if constexpr (kBilinear) {
      const float left = to_float(part.left), right = to_float(part.right);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float outer =
            (i > 0 ? pairs[max(2 * i - 1, 0)] : left) + (i < N - 1 ? pairs[min(2 * i + 2, 2 * N - 1)] : right);
        sum[i] = 0.75f * (pairs[2 * i] + pairs[2 * i + 1]) + 0.25f * outer;
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = pairs[2 * i] + pairs[2 * i + 1];
    }
    return sum;
  }
};

template <class Gather, bool kBilinear, class T>
__global__ void __launch_bounds__(Tuning::threads)
    contract(const T* __restrict__ d_y, T* __restrict__ d_x, const Launch launch) {
  constexpr int N = Gather::N, kRows = Gather::kRows;
  __shared__ Tap<float> taps[Tuning::chunk];
  __shared__ int limits[2];
  const Problem& p = launch.problem;
  const int begin = static_cast<int>(blockIdx.x % launch.strips) * launch.strip;
  const int end = min(begin + launch.strip, p.rows.in);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 2) limits[thread] = p.rows.first<kBilinear>(thread ? end : kBilinear ? begin - 1 : begin);
  const int64_t item = int64_t(blockIdx.x / launch.strips) * blockDim.x + threadIdx.x;
  const bool active = item < launch.items;
  const int64_t plane = active ? quotient(item, launch.vectors) : 0;
  const int vector = active ? static_cast<int>(item - plane * launch.vectors) : 0;
  const Gather gather(p.columns, p.pixel, vector);
  const int from_row = p.columns.out * p.pixel, to_row = p.columns.in * p.pixel;
  d_y += plane * p.rows.out * from_row;
  d_x += plane * p.rows.in * to_row + int64_t(vector) * N;
  __syncthreads();

  // The sums of row `current` and (bilinear) of the one behind it. Rows that are not of this strip are not written.
  int current = kBilinear ? max(begin - 1, 0) : begin;
  Vector<float, N> upper, lower;
#pragma unroll
  for (int i = 0; i < N; ++i) upper[i] = lower[i] = 0;
  const auto finish = [&] {
    if (current >= begin && current < end) store(d_x + int64_t(current) * to_row, from_float<T>(upper));
    upper = lower;
#pragma unroll
    for (int i = 0; i < N; ++i) lower[i] = 0;
    ++current;
  };
  const int stop = limits[1];
  const T* from = d_y + int64_t(limits[0]) * from_row;
  for (int base = limits[0]; base < stop; base += Tuning::chunk) {
    const int count = min(Tuning::chunk, stop - base);
    __syncthreads();
    if (thread < count) taps[thread] = p.rows.tap<kBilinear>(base + thread);
    __syncthreads();
    if (!active) continue;
    for (int row = 0; row < count; row += kRows) {
      decltype(gather.fetch(from)) parts[kRows];
#pragma unroll
      for (int j = 0; j < kRows; ++j) {  // the last of a chunk are loaded again rather than not
        if (j > 0 && row + j < count) from += from_row;
        parts[j] = gather.fetch(from);
      }
      from += from_row;
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (row + j >= count) break;
        const Vector<float, N> sum = gather.sum_of(parts[j]);
        const Tap<float> tap = taps[row + j];
#pragma unroll 1
        while (current < tap.at) finish();
#pragma unroll
        for (int i = 0; i < N; ++i) {
          upper[i] = fmaf(1 - tap.weight, sum[i], upper[i]);
          if (kBilinear) lower[i] = fmaf(tap.weight, sum[i], lower[i]);
        }
      }
    }
  }
  if (!active) return;
#pragma unroll 1
  while (current < end) finish();
}

// --- launching

// `height` rows of `row` elements to write, N to a thread.
template <int N, class T>
void start(void (*kernel)(const T*, T*, const Launch), const Problem& problem, int height, int row, const T* from,
           T* to, Context& context) {
  Launch plan = {problem, problem.planes * (row / N), row / N, Tuning::strip, 0};
  const int64_t blocks = (plan.items + Tuning::threads - 1) / Tuning::threads;
  const int64_t wanted = int64_t(Tuning::blocks) * device_properties().multiprocessors;
  while (plan.strip > 1 && blocks * ((height + plan.strip - 1) / plan.strip) < wanted) plan.strip /= 2;
  plan.strips = (height + plan.strip - 1) / plan.strip;
  launch(kernel, dim3(narrow(blocks * plan.strips)), dim3(Tuning::threads), 0, context, from, to, plan);
}

template <bool kBilinear, class T>
void upsample(const Problem& p, const T* x, T* y, Context& context) {
  constexpr int kVector = kWidth<T>;
  narrow(int64_t(p.columns.in) * p.pixel);
  const int row = narrow(int64_t(p.columns.out) * p.pixel);
  const auto with = [&](auto type) {
    using Reader = typename decltype(type)::type;
    start<Reader::N, T>(expand<Reader, kBilinear, T>, p, p.rows.out, row, x, y, context);
  };
  if (p.pixel == 1 && is_aligned<kVector, T>(row, {y})) {
    if (is_double<kBilinear>(p.columns) && is_aligned<kVector / 2, T>(p.columns.in, {x})) {
      with(std::type_identity<Pairs<kVector, kBilinear>>());
    } else if (is_dense<kBilinear>(p.columns)) {
      with(std::type_identity<Run<kVector, kBilinear, true>>());
    } else {
      with(std::type_identity<Run<kVector, kBilinear, false>>());
    }
  } else if (is_aligned<kVector, T>(p.pixel, {x, y})) {
    with(std::type_identity<Pixel<kVector, kBilinear>>());
  } else {
    with(std::type_identity<Pixel<1, kBilinear>>());
  }
}

template <bool kBilinear, class T>
void upsample_gradient(const Problem& p, const T* d_y, T* d_x, Context& context) {
  constexpr int kVector = kWidth<T>;
  narrow(int64_t(p.columns.out) * p.pixel);
  const int row = narrow(int64_t(p.columns.in) * p.pixel);
  const auto with = [&](auto type) {
    using Gather = typename decltype(type)::type;
    start<Gather::N, T>(contract<Gather, kBilinear, T>, p, p.rows.in, row, d_y, d_x, context);
  };
  const bool pairs = p.pixel == 1 && is_double<kBilinear>(p.columns);
  if (pairs && is_aligned<kVector, T>(p.columns.out, {d_y}) && is_aligned<kVector / 2, T>(row, {d_x})) {
    with(std::type_identity<GatherPairs<kVector / 2, kBilinear>>());
  } else if (is_aligned<kVector, T>(p.pixel, {d_y, d_x})) {
    with(std::type_identity<GatherPixel<kVector, kBilinear>>());
  } else {
    with(std::type_identity<GatherPixel<1, kBilinear>>());
  }
}

}  // namespace
}  // namespace resize

template <class T>
void upsample2d_cuda(const Upsample2DArgs<T>& a, Context& context) {
  const resize::Problem p = resize::problem_of(a);
  if (a.mode == Upsample2DAttributes::Mode::nearest) {
    resize::upsample<false>(p, a.x, a.y, context);
  } else {
    resize::upsample<true>(p, a.x, a.y, context);
  }
}

template <class T>
void upsample2d_gradient_cuda(const Upsample2DGradientArgs<T>& a, Context& context) {
  const resize::Problem p = resize::problem_of(a);
  if (a.mode == Upsample2DGradientAttributes::Mode::nearest) {
    resize::upsample_gradient<false>(p, a.d_y, a.d_x, context);
  } else {
    resize::upsample_gradient<true>(p, a.d_y, a.d_x, context);
  }
}

}  // namespace ortops
