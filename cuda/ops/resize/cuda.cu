// Upsample2D and its gradient, one launch each.
//
// Twice the rows and columns is the common case, and has kernels of its own, which know their shares. Else a thread of
// the forward direction owns a few neighbours of a row of the result and walks down a strip of rows: columns are worked
// out once a thread, rows once a block, and a source row's columns are blended once and used for all rows that it has a
// share in. The gradient gathers, in an order that does not change: nothing is added up in memory of the device.
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
  static constexpr int strip = 16;  // rows of the result a thread has: what columns cost is spread over them
  static constexpr int blocks = 4;  // a multiprocessor should have; strips are made shorter for that
  // Rows of the smaller planes a thread has where there are twice as many in the others: more share those between
  // them, which costs registers.
  static constexpr int rows = 2, rows_of_pixels = 4;
  static constexpr int sums = 4096;  // in shared memory at most, unless a row has more: 16 KiB (bilinear: 32)
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

// --- backward

// The pixels of d_y that have a share in a source pixel, along one axis. Shares are told from the distance in source
// pixels: the positions of neighbours in d_y are a step apart. In front of the first source pixel and behind the last
// one there is no distance.
template <bool kBilinear>
struct Span {
  int begin, count;
  float distance, step;  // of the first pixel
  float least, most;

  Span() = default;
  __device__ __forceinline__ Span(const Axis& axis, int at) {
    begin = axis.first<true>(at - 1);
    count = axis.first<true>(at + 1) - begin;
    distance = static_cast<float>((begin + axis.shift) * axis.step - axis.shift - at);
    step = static_cast<float>(axis.step);
    least = at == 0 ? 0.0f : -1.0f;
    most = at == axis.in - 1 ? 0.0f : 1.0f;
  }
  __device__ __forceinline__ float share(int i) const {
    return 1 - fabsf(fminf(fmaxf(fmaf(static_cast<float>(i), step, distance), least), most));
  }
};
template <>
struct Span<false> {
  int begin, count;

  Span() = default;
  __device__ __forceinline__ Span(const Axis& axis, int at)
      : begin(axis.first<false>(at)), count(axis.first<false>(at + 1) - begin) {}
  __device__ __forceinline__ float share(int) const { return 1; }
};

// Planes of one element a pixel. A block makes a strip of rows of d_x (a row is one item): first, a thread a column of
// d_y, it adds up the rows of d_y that make each of them, by their shares, then the columns. What a sum is worth to the
// column of d_x that its own column lies at, and (bilinear) to the one behind that, is worked out on the way.
template <bool kBilinear, class T>
__global__ void __launch_bounds__(Tuning::threads)
    gather_rows(const T* __restrict__ d_y, T* __restrict__ d_x, const Launch launch) {
  constexpr int kLoads = 8;  // at once
  using Sum = Vector<float, kBilinear ? 2 : 1>;
  extern __shared__ float2 memory[];
  const Problem& p = launch.problem;
  const int out = p.columns.out, in = p.columns.in;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int64_t plane = blockIdx.x / launch.strips;
  const int begin = static_cast<int>(blockIdx.x % launch.strips) * launch.strip;
  const int height = min(launch.strip, p.rows.in - begin);
  Sum* sums = reinterpret_cast<Sum*>(memory);
  int* firsts = reinterpret_cast<int*>(sums + launch.strip * out);  // of pixels that lie at the columns from -1 on
  auto* taps = reinterpret_cast<Tap<float>*>(firsts + in + 2);
  const int top = p.rows.first<kBilinear>(kBilinear ? begin - 1 : begin);
  const int count = p.rows.first<kBilinear>(begin + height) - top;
  for (int i = thread; i < count; i += threads) taps[i] = p.rows.tap<kBilinear>(top + i);
  for (int i = thread; i < in + 2; i += threads) firsts[i] = p.columns.first<kBilinear>(i - 1);
  d_y += (plane * p.rows.out + top) * out;
  d_x += (plane * p.rows.in + begin) * in;
  __syncthreads();

  for (int column = thread; column < out; column += threads) {
    const float share = p.columns.tap<kBilinear>(column).weight;
    // The sums of row `current` of the strip and (bilinear) of the one behind it.
    int current = kBilinear ? -1 : 0;
    float upper = 0, lower = 0;
    const auto finish = [&] {
      if (current >= 0) {
        Sum& sum = sums[current * out + column];
        sum[0] = kBilinear ? (1 - share) * upper : upper;
        if constexpr (kBilinear) sum[1] = share * upper;
      }
      upper = lower;
      lower = 0;
      ++current;
    };
    const T* from = d_y + column;
    for (int base = 0; base < count; base += kLoads) {
      T values[kLoads];
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {  // the last is loaded again rather than not
        values[j] = load<1, Reuse::constant>(from)[0];
        if (base + j < count - 1) from += out;
      }
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        if (base + j >= count) break;
        const Tap<float> tap = taps[base + j];
        const float value = to_float(values[j]);
#pragma unroll 1
        while (current < tap.at - begin) finish();
        upper = kBilinear ? fmaf(1 - tap.weight, value, upper) : upper + value;
        if (kBilinear) lower = fmaf(tap.weight, value, lower);
      }
    }
#pragma unroll 1
    while (current < height) finish();
  }
  __syncthreads();

  for (int item = thread; item < height * in; item += threads) {
    const int row = static_cast<int>(uint32_t(item) / uint32_t(in)), column = item - row * in;
    const Sum* from = sums + row * out;
    const int own = firsts[column + 1], end = firsts[column + 2];
    float sum = 0;
    if constexpr (kBilinear) {
      for (int i = firsts[column]; i < own; ++i) sum += from[i][1];
    }
    for (int i = own; i < end; ++i) sum += from[i][0];
    d_x[item] = from_float<T>(sum);
  }
}

// Any others, N neighbours of a pixel a thread.
template <int kN, bool kBilinear, class T>
__global__ void __launch_bounds__(Tuning::threads)
    gather_pixels(const T* __restrict__ d_y, T* __restrict__ d_x, const Launch launch) {
  constexpr int N = kN, kRows = 2, kColumns = kBilinear ? 4 : 2;  // loads at once
  __shared__ Span<kBilinear> spans[Tuning::strip];
  const Problem& p = launch.problem;
  const int begin = static_cast<int>(blockIdx.x % launch.strips) * launch.strip;
  const int height = min(launch.strip, p.rows.in - begin);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < height) spans[thread] = Span<kBilinear>(p.rows, begin + thread);
  __syncthreads();
  const int64_t item = int64_t(blockIdx.x / launch.strips) * blockDim.x + threadIdx.x;
  if (item >= launch.items) return;
  const int64_t plane = quotient(item, launch.vectors);
  const int vector = static_cast<int>(item - plane * launch.vectors);
  const int column = static_cast<int>(uint32_t(vector) * uint32_t(N) / uint32_t(p.pixel));
  const Span<kBilinear> across(p.columns, column);
  const int from_row = p.columns.out * p.pixel, to_row = p.columns.in * p.pixel;
  d_y += plane * p.rows.out * from_row + across.begin * p.pixel + (vector * N - column * p.pixel);
  d_x += (plane * p.rows.in + begin) * to_row + int64_t(vector) * N;
  for (int row = 0; row < height; ++row, d_x += to_row) {
    const Span<kBilinear> down = spans[row];
    Vector<float, N> sum = {};
    for (int i = 0; i < down.count; i += kRows) {
      const T* from = d_y + int64_t(down.begin + i) * from_row;
      for (int k = 0; k < across.count; k += kColumns, from += kColumns * p.pixel) {
        Vector<T, N> values[kRows][kColumns];
#pragma unroll
        for (int j = 0; j < kRows * kColumns; ++j) {
          const int y = j / kColumns, x = j % kColumns;
          values[y][x] = load<N, Reuse::constant>(from + y * int64_t(from_row) + x * p.pixel,
                                                  i + y < down.count && k + x < across.count);
        }
#pragma unroll
        for (int y = 0; y < kRows; ++y) {
#pragma unroll
          for (int x = 0; x < kColumns; ++x) {
            const float share = down.share(i + y) * across.share(k + x);
            const Vector<float, N> value = to_float(values[y][x]);
#pragma unroll
            for (int e = 0; e < N; ++e) sum[e] = fmaf(share, value[e], sum[e]);
          }
        }
      }
    }
    store(d_x, from_float<T>(sum));
  }
}

// --- twice the rows and columns: source pixel k makes the pair 2k and 2k + 1, each (bilinear) of three quarters of it
// and a quarter of the neighbour on that side. At the ends it is its own neighbour.
//
// A thread has N neighbours of kRows rows of x or d_x, and loads all that these are made of at once.

struct Doubling {
  int64_t items;
  int rows, row;  // elements a row
  int pixel;
  int vectors;  // a row
  int groups;   // of kRows rows a plane
};

template <int kRows>
struct Place {
  bool active;  // threads behind the last item repeat it: lanes ask each other
  int64_t plane;
  int begin, vector;

  __device__ __forceinline__ explicit Place(const Doubling& all) {
    const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    active = thread < all.items;
    const int64_t item = active ? thread : all.items - 1;
    const int64_t line = quotient(item, all.vectors);
    vector = static_cast<int>(item - line * all.vectors);
    plane = quotient(line, all.groups);
    begin = static_cast<int>(line - plane * all.groups) * kRows;
  }
};

// What lies beside the vector of a lane in its row: of other lanes, or loaded, or at the ends the vector's own.
struct Beside {
  static constexpr unsigned kAll = 0xffffffff;
  int lane;
  bool is_first, is_last;

  __device__ __forceinline__ Beside(int vector, int vectors)
      : lane(static_cast<int>(threadIdx.x % 32)), is_first(vector == 0), is_last(vector == vectors - 1) {}
  __device__ __forceinline__ bool is_outer() const { return lane == 0 ? !is_first : lane == 31 && !is_last; }
  __device__ __forceinline__ float left(float first, float last, float outer) const {
    const float other = __shfl_up_sync(kAll, last, 1);
    return is_first ? first : lane == 0 ? outer : other;
  }
  __device__ __forceinline__ float right(float first, float last, float outer) const {
    const float other = __shfl_down_sync(kAll, first, 1);
    return is_last ? last : lane == 31 ? outer : other;
  }
};

__device__ __forceinline__ int clamp(int at, int end) { return min(max(at, 0), end - 1); }

template <int kRows, bool kBilinear, class T>
__global__ void __launch_bounds__(Tuning::threads)
    twice(const T* __restrict__ x, T* __restrict__ y, const Doubling all) {
  constexpr int N = kWidth<T> / 2, kHalo = kBilinear;
  const Place<kRows> place(all);
  const Beside beside(place.vector, all.vectors);
  const T* from = x + place.plane * all.rows * all.row + N * place.vector;
  T* to = y + (place.plane * all.rows + place.begin) * 4 * all.row + 2 * N * place.vector;
  Vector<T, N> rows[kRows + 2 * kHalo];
  T outer[kRows + 2 * kHalo] = {};
#pragma unroll
  for (int i = 0; i < kRows + 2 * kHalo; ++i) {
    rows[i] = load<N, Reuse::constant>(from + int64_t(clamp(place.begin + i - kHalo, all.rows)) * all.row);
  }
  if (kBilinear && beside.is_outer()) {
    from += beside.lane == 0 ? -1 : N;
#pragma unroll
    for (int i = 0; i < kRows + 2 * kHalo; ++i) {
      outer[i] = load<1, Reuse::constant>(from + int64_t(clamp(place.begin + i - kHalo, all.rows)) * all.row)[0];
    }
  }
  const auto save = [&](int i, const Vector<T, 2 * N>& value) {
    if (place.active && place.begin + i / 2 < all.rows) store(to + int64_t(i) * 2 * all.row, value);
  };
  if constexpr (kBilinear) {
    Vector<float, 2 * N> wide[kRows + 2];
#pragma unroll
    for (int i = 0; i < kRows + 2; ++i) {
      const Vector<float, N> values = to_float(rows[i]);
      const float left = beside.left(values[0], values[N - 1], to_float(outer[i]));
      const float right = beside.right(values[0], values[N - 1], to_float(outer[i]));
#pragma unroll
      for (int e = 0; e < N; ++e) {
        wide[i][2 * e] = fmaf(0.75f, values[e], 0.25f * (e > 0 ? values[max(e - 1, 0)] : left));
        wide[i][2 * e + 1] = fmaf(0.75f, values[e], 0.25f * (e < N - 1 ? values[min(e + 1, N - 1)] : right));
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
      const Vector<float, 2 * N>&near = wide[i / 2 + 1], &far = wide[i % 2 ? i / 2 + 2 : i / 2];
      Vector<float, 2 * N> result;
#pragma unroll
      for (int e = 0; e < 2 * N; ++e) result[e] = fmaf(0.75f, near[e], 0.25f * far[e]);
      save(i, from_float<T>(result));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
      Vector<T, 2 * N> result;
#pragma unroll
      for (int e = 0; e < 2 * N; ++e) result[e] = rows[i / 2][e / 2];
      save(i, result);
    }
  }
}

template <int kRows, bool kBilinear, class T>
__global__ void __launch_bounds__(Tuning::threads)
    twice_gradient(const T* __restrict__ d_y, T* __restrict__ d_x, const Doubling all) {
  constexpr int N = kWidth<T> / 2, kHalo = kBilinear, kCount = 2 * (kRows + kHalo);
  const Place<kRows> place(all);
  const Beside beside(place.vector, all.vectors);
  const T* from = d_y + place.plane * all.rows * 4 * all.row + 2 * N * place.vector;
  T* to = d_x + (place.plane * all.rows + place.begin) * all.row + N * place.vector;
  const auto offset = [&](int i) { return int64_t(clamp(2 * place.begin + i - kHalo, 2 * all.rows)) * (2 * all.row); };
  Vector<T, 2 * N> rows[kCount];
  T outer[kCount] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) rows[i] = load<2 * N, Reuse::constant>(from + offset(i));
  if (kBilinear && beside.is_outer()) {
    from += beside.lane == 0 ? -1 : 2 * N;
#pragma unroll
    for (int i = 0; i < kCount; ++i) outer[i] = load<1, Reuse::constant>(from + offset(i))[0];
  }
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    Vector<float, N> result;
    const auto down = [&](auto value) {  // of the rows' values at one place
      if constexpr (kBilinear) {
        return 0.75f * (value(2 * k + 1) + value(2 * k + 2)) + 0.25f * (value(2 * k) + value(2 * k + 3));
      } else {
        return value(2 * k) + value(2 * k + 1);
      }
    };
    float sums[2 * N];
#pragma unroll
    for (int e = 0; e < 2 * N; ++e) sums[e] = down([&](int i) { return to_float(rows[i][e]); });
    if constexpr (kBilinear) {
      const float other = down([&](int i) { return to_float(outer[i]); });
      const float left = beside.left(sums[0], sums[2 * N - 1], other);
      const float right = beside.right(sums[0], sums[2 * N - 1], other);
#pragma unroll
      for (int e = 0; e < N; ++e) {
        const float far =
            (e > 0 ? sums[max(2 * e - 1, 0)] : left) + (e < N - 1 ? sums[min(2 * e + 2, 2 * N - 1)] : right);
        result[e] = 0.75f * (sums[2 * e] + sums[2 * e + 1]) + 0.25f * far;
      }
    } else {
#pragma unroll
      for (int e = 0; e < N; ++e) result[e] = sums[2 * e] + sums[2 * e + 1];
    }
    if (place.active && place.begin + k < all.rows) store(to + int64_t(k) * all.row, from_float<T>(result));
  }
}

// The same for pixels of several elements, which have their neighbours elsewhere.
template <int kRows, bool kBilinear, class T>
__global__ void __launch_bounds__(Tuning::threads)
    twice_gradient_of_pixels(const T* __restrict__ d_y, T* __restrict__ d_x, const Doubling all) {
  constexpr int N = kWidth<T>, kHalo = kBilinear, kAcross = 2 + 2 * kHalo, kCount = 2 * (kRows + kHalo);
  const Place<kRows> place(all);
  const int column = static_cast<int>(uint32_t(place.vector) * uint32_t(N) / uint32_t(all.pixel));
  const int columns = all.row / all.pixel;
  const T* from = d_y + place.plane * all.rows * 4 * all.row + (N * place.vector - column * all.pixel);
  T* to = d_x + (place.plane * all.rows + place.begin) * all.row + N * place.vector;
  int across[kAcross];
#pragma unroll
  for (int j = 0; j < kAcross; ++j) across[j] = clamp(2 * column + j - kHalo, 2 * columns) * all.pixel;
  if (!place.active) return;
  Vector<float, N> sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const T* row = from + int64_t(clamp(2 * place.begin + i - kHalo, 2 * all.rows)) * (2 * all.row);
    Vector<T, N> values[kAcross];
#pragma unroll
    for (int j = 0; j < kAcross; ++j) values[j] = load<N, Reuse::constant>(row + across[j]);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const float near = to_float(values[kHalo][e]) + to_float(values[kHalo + 1][e]);
      sums[i][e] =
          kBilinear ? 0.75f * near + 0.25f * (to_float(values[0][e]) + to_float(values[kAcross - 1][e])) : near;
    }
    const int k = (i - 1) / 2 - kHalo;  // whose last row this was
    if (i % 2 == 0 || k < 0) continue;
    Vector<float, N> result;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const float near = sums[i - kHalo][e] + sums[i - kHalo - 1][e];
      result[e] = kBilinear ? 0.75f * near + 0.25f * (sums[i][e] + sums[max(i - 3, 0)][e]) : near;
    }
    if (place.begin + k < all.rows) store(to + int64_t(k) * all.row, from_float<T>(result));
  }
}

// --- launching

// `height` rows of `row` items to write, strips of them a block.
Launch plan_of(const Problem& problem, int64_t lines, int height, int row, int threads) {
  Launch plan = {problem, lines * row, row, Tuning::strip, 0};
  const int64_t blocks = (plan.items + threads - 1) / threads;
  const int64_t wanted = int64_t(Tuning::blocks) * device_properties().multiprocessors;
  while (plan.strip > 1 && blocks * ((height + plan.strip - 1) / plan.strip) < wanted) plan.strip /= 2;
  plan.strips = (height + plan.strip - 1) / plan.strip;
  return plan;
}

// `height` rows of `row` elements to write, N to a thread.
template <int N, class T>
void start(void (*kernel)(const T*, T*, const Launch), const Problem& problem, int height, int row, const T* from,
           T* to, Context& context) {
  const Launch plan = plan_of(problem, problem.planes, height, row / N, Tuning::threads);
  const int64_t blocks = (plan.items + Tuning::threads - 1) / Tuning::threads;
  launch(kernel, dim3(narrow(blocks * plan.strips)), dim3(Tuning::threads), 0, context, from, to, plan);
}

template <int N, int kRows, class T>
void start_twice(void (*kernel)(const T*, T*, const Doubling), const Problem& p, const T* from, T* to,
                 Context& context) {
  const int row = p.columns.in * p.pixel, vectors = row / N, groups = (p.rows.in + kRows - 1) / kRows;
  const Doubling all = {p.planes * groups * vectors, p.rows.in, row, p.pixel, vectors, groups};
  const int64_t blocks = (all.items + Tuning::threads - 1) / Tuning::threads;
  launch(kernel, dim3(narrow(blocks)), dim3(Tuning::threads), 0, context, from, to, all);
}

template <bool kBilinear>
bool is_twice(const Problem& p) {
  return is_double<kBilinear>(p.rows) && is_double<kBilinear>(p.columns);
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
    if (is_twice<kBilinear>(p) && is_aligned<kVector / 2, T>(p.columns.in, {x})) {
      constexpr int kRows = Tuning::rows;
      start_twice<kVector / 2, kRows>(twice<kRows, kBilinear, T>, p, x, y, context);
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
  const int out = p.columns.out;
  narrow(int64_t(out) * p.pixel);
  const int row = narrow(int64_t(p.columns.in) * p.pixel);
  if (is_aligned<kVector, T>(p.pixel, {d_y, d_x})) {
    if (is_twice<kBilinear>(p)) {
      constexpr int kRows = Tuning::rows_of_pixels;
      start_twice<kVector, kRows>(twice_gradient_of_pixels<kRows, kBilinear, T>, p, d_y, d_x, context);
    } else {
      start<kVector, T>(gather_pixels<kVector, kBilinear, T>, p, p.rows.in, row, d_y, d_x, context);
    }
    return;
  }
  if (p.pixel == 1) {
    if (is_twice<kBilinear>(p) && is_aligned<kVector, T>(out, {d_y}) && is_aligned<kVector / 2, T>(row, {d_x})) {
      constexpr int kRows = Tuning::rows;
      return start_twice<kVector / 2, kRows>(twice_gradient<kRows, kBilinear, T>, p, d_y, d_x, context);
    }
    Launch plan = plan_of(p, p.planes, p.rows.in, 1, 1);
    plan.strip = std::clamp(Tuning::sums / out, 1, plan.strip);
    plan.strips = (p.rows.in + plan.strip - 1) / plan.strip;
    const double taps = (plan.strip + 2) * p.rows.pixels + 4;  // no fewer than there are rows of d_y to a strip
    const double bytes = double(plan.strip) * out * (kBilinear ? 8 : 4) + (row + 2) * 4.0 + taps * sizeof(Tap<float>);
    if (bytes < 48 * 1024) {
      const int most = std::max(row, out), passes = (most + Tuning::threads - 1) / Tuning::threads;
      const int threads = ((most + passes - 1) / passes + 31) / 32 * 32;
      return launch(gather_rows<kBilinear, T>, dim3(narrow(plan.items * plan.strips)), dim3(threads),
                    static_cast<size_t>(bytes) + 1, context, d_y, d_x, plan);
    }
  }
  start<1, T>(gather_pixels<1, kBilinear, T>, p, p.rows.in, row, d_y, d_x, context);
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
