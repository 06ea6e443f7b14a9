// Take, TakeAlongAxis and Embedding are reads by index as they stand (read.cuh).
//
// Embedding with a residual: a row of the table for each index, plus the residual. One pass: each row is read and
// written once, by 16 bytes where all tensors are aligned to that and by elements where not. The threads of a block
// share out its rows and, of each row, the vectors, so that narrow rows fill a block as well as wide ones. All offsets
// are 64-bit: tables may be of any size.
#include <algorithm>
#include <bit>
#include <cmath>

#include "core/cuda.h"
#include "device/index.h"
#include "device/vector.cuh"
#include "gen/index.h"
#include "ops/index/read.cuh"

namespace ortops {
namespace {

constexpr int kThreads = 256;

template <class T>
struct Residual {
  const T* data;
  Walk row;      // where the residual of a row begins
  int64_t step;  // from one element of a row to the next: 0 or 1
};

template <int N, class I, class T>
__global__ void __launch_bounds__(kThreads) add_rows(const I* indices, const T* table, const Residual<T> residual, T* y,
                                                     int64_t count, int64_t rows, int64_t width, int64_t* report) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.y) + threadIdx.y; i < count; i += gridDim.x * int64_t(blockDim.y)) {
    const int64_t index = indices[i];
    const bool inside = index >= -rows && index < rows;
    if (!inside && report && threadIdx.x == 0) {
      report[1] = index;
      report[0] = 1;
    }
    const T* from = table + (index < 0 ? index + rows : index) * width;
    const int64_t residual_row = residual.row(i);
    for (int64_t d = threadIdx.x * N; d < width; d += blockDim.x * N) {
      Vector<T, N> value;
      if (inside) {
        value = load<N, Reuse::constant>(from + d);
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) value[j] = from_float<T>(NAN);
      }
      Vector<float, N> sum = to_float(value);
      const Vector<float, N> more = to_float(load<N>(residual.data + residual_row + d * residual.step));
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += more[j];
      store(y + i * width + d, from_float<T>(sum));
    }
  }
}

// Whether every row of the residual begins where a vector of N may.
template <int N, class T>
bool is_aligned(const Residual<T>& residual) {
  bool aligned = residual.step == 1;
  for (int axis = 0; axis < residual.row.rank; ++axis) aligned = aligned && residual.row.strides[axis] % N == 0;
  return aligned;
}

}  // namespace

template <class I, class T>
void embedding_cuda(const EmbeddingArgs<I, T>& a, Context& context) {
  const int64_t count = a.S.size();
  if (!a.residual) {
    Shape table;
    table.rank = 2;
    table.dims[0] = a.V;
    table.dims[1] = a.D;
    return read_rows(slices(table, count, 0), a.indices, a.table, a.y, context);
  }
  Residual<T> residual = {a.residual, {}, a.residual_strides[a.S.rank]};
  for (int axis = 0; axis < a.S.rank; ++axis) residual.row.append(a.S[axis], a.residual_strides[axis]);

  const IndexReport report(context);
  const auto start = [&](auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t vectors = (a.D + N - 1) / N;
    const int threads = static_cast<int>(std::bit_ceil<uint64_t>(std::min<int64_t>(vectors, kThreads)));
    const dim3 block(threads, kThreads / threads);
    launch(add_rows<N, I, T>, grid_stride_blocks(count, block.y), block, 0, context, a.indices, a.table, residual, a.y,
           count, a.V, a.D, report.device());
  };
  constexpr int kVector = kWidth<T>;
  if (is_aligned<kVector>(a.D, {a.table, a.residual, a.y}) && is_aligned<kVector>(residual)) {
    start(std::integral_constant<int, kVector>());
  } else {
    start(std::integral_constant<int, 1>());
  }
  report.check("indices", a.V);
}

template <class I, class T>
void take_cuda(const TakeArgs<I, T>& a, Context& context) {
  read_rows(slices(a.X, a.J.size(), a.axis), a.indices, a.x, a.y, context);
}

template <class I, class T>
void take_along_axis_cuda(const TakeAlongAxisArgs<I, T>& a, Context& context) {
  read_rows(elements(a.X, a.J, dense_strides(a.J), a.axis), a.indices, a.x, a.y, context);
}

}  // namespace ortops
