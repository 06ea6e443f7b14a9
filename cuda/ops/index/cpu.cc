// Reading by index on the CPU: a copy of a row for each index; Embedding adds a residual on the way.
#include <algorithm>

#include "device/arrays.h"
#include "device/index.h"
#include "gen/index.h"
#include "ops/index/read.h"

namespace ortops {
namespace {

constexpr int64_t kChunk = 512;    // elements that are added at a time
constexpr int64_t kGrain = 16384;  // elements worth a thread's while

}  // namespace

template <class I, class T>
void take_cpu(const TakeArgs<I, T>& a, Context& context) {
  read_rows(slices(a.X, a.J.size(), a.axis), a.indices, a.x, a.y, context);
}

template <class I, class T>
void take_along_axis_cpu(const TakeAlongAxisArgs<I, T>& a, Context& context) {
  read_rows(elements(a.X, a.J, dense_strides(a.J), a.axis), a.indices, a.x, a.y, context);
}

template <class I, class T>
void embedding_cpu(const EmbeddingArgs<I, T>& a, Context& context) {
  const int64_t width = a.D;
  if (!a.residual) {
    Shape table;
    table.rank = 2;
    table.dims[0] = a.V;
    table.dims[1] = width;
    return read_rows(slices(table, a.S.size(), 0), a.indices, a.table, a.y, context);
  }
  Walk residual_row;
  for (int axis = 0; axis < a.S.rank; ++axis) residual_row.append(a.S[axis], a.residual_strides[axis]);
  const int64_t residual_step = a.residual_strides[a.S.rank];
  const auto look_up = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t index = a.indices[row];
      if (index < -a.V || index >= a.V) throw_index_error("indices", index, a.V);
      const T* from = a.table + (index < 0 ? index + a.V : index) * width;
      T* y = a.y + row * width;
      const T* residual = a.residual + residual_row(row);
      for (int64_t begin = 0; begin < width; begin += kChunk) {
        const int64_t count = std::min(kChunk, width - begin);
        Compute<T> sum[kChunk];
        widen(from + begin, sum, count);
        if (residual_step == 1) {
          add(sum, residual + begin, count);
        } else {
          const Compute<T> same = to_compute(*residual);
          for (int64_t d = 0; d < count; ++d) sum[d] += same;
        }
        narrow(sum, y + begin, count);
      }
    }
  };
  context.parallel_for(a.S.size(), std::max<int64_t>(1, kGrain / width), look_up);
}

}  // namespace ortops
