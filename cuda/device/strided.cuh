// Copies from memory with strides to dense memory: what is repeated, sliced, or has its outer axes in another order.
//
// One pass over what is written, 16 bytes a thread. Where the innermost axis is dense and its rows are aligned they are
// also read by 16 bytes. The kernels count in 32 bits: more is copied in pieces.
#pragma once

#include <algorithm>

#include "core/cuda.h"
#include "device/divide.h"
#include "device/index.h"
#include "device/vector.cuh"

namespace ortops {
namespace strided {

constexpr int kThreads = 256;

constexpr int kInFlight = 2;  // vectors of a thread; blocks that begin anew are faster than a loop in fewer

// Of y, `count` vectors; `from` tells where in x one is, or, where kRepeat, its one element.
template <int N, bool kRepeat, class T>
__global__ void __launch_bounds__(kThreads)
    copy_vectors(const T* x, T* y, const uint32_t count, const __grid_constant__ FastWalk from) {
  const uint32_t first = blockIdx.x * (kThreads * kInFlight) + threadIdx.x;
  Vector<T, N> values[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const uint32_t at = first + i * kThreads;
    if constexpr (kRepeat) {
      const T one = x[at < count ? from(at) : 0];
#pragma unroll
      for (int j = 0; j < N; ++j) values[i][j] = one;
    } else {
      values[i] = load<N, Reuse::constant>(x + from(at), at < count);
    }
  }
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const uint32_t at = first + i * kThreads;
    if (at < count) store(y + int64_t(at) * N, values[i]);
  }
}

// Of y, `count` elements in rows of any size; `row` tells where in x a row begins.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    copy_elements(const T* x, T* y, const uint32_t count, const Divisor width, const int64_t step,
                  const __grid_constant__ FastWalk row, const bool aligned) {
  const uint32_t vectors = (count + N - 1) / N;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < vectors; i += gridDim.x * kThreads) {
    const uint32_t first = i * N;
    uint32_t at = width.quotient(first), column = first - at * width.divisor;
    const T* from = x + row(at);
    Vector<T, N> value;
    if (step == 1 && column + N <= width.divisor && reinterpret_cast<uintptr_t>(from + column) % sizeof(value) == 0) {
      value = load<N, Reuse::constant>(from + column);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (first + j < count) value[j] = from[column * step];
        if (++column == width.divisor && first + j + 1 < count) {
          column = 0;
          from = x + row(++at);
        }
      }
    }
    if (aligned && first + N <= count) {
      store(y + first, value);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (first + j < count) y[first + j] = value[j];
      }
    }
  }
}

}  // namespace strided

// Copies what the walk reads of x, in its order, to y.
template <class T>
void copy_strided(const T* x, T* y, const Walk& walk, Context& context) {
  constexpr int N = kWidth<T>;
  constexpr int64_t kMost = (int64_t(1) << 31) - strided::kThreads * N;
  int64_t count = 1;
  for (int axis = 0; axis < walk.rank; ++axis) count *= walk.sizes[axis];
  if (count > kMost) {
    const int64_t slice = count / walk.sizes[0];
    int64_t most = std::max<int64_t>(1, kMost / slice);
    if (most > N) most -= most % N;  // so that all pieces are aligned
    for (int64_t begin = 0; begin < walk.sizes[0]; begin += most) {
      Walk piece;
      piece.append(std::min(most, walk.sizes[0] - begin), walk.strides[0]);
      for (int axis = 1; axis < walk.rank; ++axis) piece.append(walk.sizes[axis], walk.strides[axis]);
      copy_strided(x + begin * walk.strides[0], y + begin * slice, piece, context);
    }
    return;
  }
  Walk rows = walk;
  const int64_t width = rows.rank ? rows.sizes[rows.rank - 1] : 1;
  const int64_t step = rows.rank ? rows.strides[rows.rank - 1] : 0;
  if (rows.rank) --rows.rank;
  bool aligned = width % N == 0 && is_aligned<N>(N, {static_cast<const T*>(y)});
  if (step != 0) {
    aligned = aligned && step == 1 && is_aligned<N>(N, {x});
    for (int axis = 0; axis < rows.rank; ++axis) aligned = aligned && rows.strides[axis] % N == 0;
  }
  if (!aligned) {
    launch(strided::copy_elements<N, T>, grid_stride_blocks((count + N - 1) / N, strided::kThreads), strided::kThreads,
           0, context, x, y, static_cast<uint32_t>(count), Divisor(width), step, FastWalk(rows),
           is_aligned<N>(N, {static_cast<const T*>(y)}));
    return;
  }
  rows.append(width / N, step * N);
  launch(step ? strided::copy_vectors<N, false, T> : strided::copy_vectors<N, true, T>,
         narrow((count / N + strided::kThreads * strided::kInFlight - 1) / (strided::kThreads * strided::kInFlight)),
         strided::kThreads, 0, context, x, y, static_cast<uint32_t>(count / N), FastWalk(rows));
}

template <class T>
void copy_dense(const T* x, T* y, int64_t count, Context& context) {
  Walk all;
  all.append(count, 1);
  copy_strided(x, y, all, context);
}

}  // namespace ortops
