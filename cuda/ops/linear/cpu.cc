// y = activation(x weight + bias) + residual. The product is ONNX Runtime's own; what follows it is one pass over y, by
// all threads. There is no 16-bit product on the CPU: those types are widened to float, in blocks of columns and rows
// such that the scratch memory stays bounded whatever the sizes; each weight is widened once a call, x once for each
// block of columns.
#include <algorithm>

#include "device/arrays.h"
#include "ops/linear/math.h"

namespace ortops {
namespace {

constexpr int64_t kWideElements = 4 << 20;  // of a block that is widened: 16 MiB
constexpr int64_t kGrain = 16384;           // elements a thread takes at least; a task costs about as much as 500
constexpr int64_t kChunk = 512;  // floats that go through the steps of the last pass together, in the L1 cache

template <class Activation>
ORTOPS_CLONES void activate(float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = Activation()(values[i]);
}

// y = activation(z + bias) + residual for some elements of a row. `z` may be y itself.
template <class T, class Activation>
void finish(const float* z, const T* bias, const T* residual, T* y, int64_t count, Activation) {
  float values[kChunk];
  for (int64_t at = 0; at < count; at += kChunk) {
    const int64_t n = std::min(kChunk, count - at);
    std::copy_n(z + at, n, values);
    if (bias) add(values, bias + at, n);
    activate<Activation>(values, n);
    if (residual) add(values, residual + at, n);
    narrow(values, y + at, n);
  }
}

// A block of a matrix that is stored in rows of `stride` elements.
template <class T>
void widen_block(const T* from, int64_t rows, int64_t columns, int64_t stride, float* to, Context& context) {
  context.parallel_for(rows, std::max<int64_t>(1, 4 * kGrain / columns), [&](int64_t begin, int64_t end) {
    if (columns == stride) return widen(from + begin * columns, to + begin * columns, (end - begin) * columns);
    for (int64_t row = begin; row < end; ++row) widen(from + row * stride, to + row * columns, columns);
  });
}

// The last pass, over a block of y. `product` is dense, or null where K is 0.
template <class T>
void finish_block(const LinearArgs<T>& a, const float* product, int64_t first_row, int64_t rows, int64_t first_column,
                  int64_t columns, Context& context) {
  linear::with_activation<T>(a.activation, [&](auto activation) {
    context.parallel_for(rows, std::max<int64_t>(1, kGrain / columns), [&](int64_t begin, int64_t end) {
      const T* bias = a.bias ? a.bias + first_column : nullptr;
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = (first_row + row) * a.N + first_column;
        finish(product + row * columns, bias, a.residual ? a.residual + at : nullptr, a.y + at, columns, activation);
      }
    });
  });
}

}  // namespace

template <class T>
void linear_cpu(const LinearArgs<T>& a, Context& context) {
  const int64_t m = a.outer.size();
  const bool out_in = a.weight_layout == LinearAttributes::WeightLayout::out_in;
  if constexpr (std::is_same_v<T, float>) {
    const bool bias_only = a.bias && !a.residual && a.activation == LinearAttributes::Activation::none;
    if (a.K == 0) {
      std::fill_n(a.y, m * a.N, 0.0f);
    } else {
      context.gemm({m, a.N, a.K, a.x, a.weight, out_in, bias_only ? a.bias : nullptr, a.y});
      if (bias_only) return;
    }
    if (!a.bias && !a.residual && a.activation == LinearAttributes::Activation::none) return;
    finish_block(a, a.y, 0, m, 0, a.N, context);
  } else {
    // Blocks of 16 at least: a weight with more than 256 Ki rows takes more scratch memory.
    const int64_t depth = std::max<int64_t>(a.K, 1);
    const int64_t block_n = std::min(a.N, std::max<int64_t>(16, kWideElements / depth));
    const int64_t block_m = std::min(m, std::max<int64_t>(16, kWideElements / std::max(depth, block_n)));
    auto* w = static_cast<float*>(context.scratch((a.K * block_n + block_m * (a.K + block_n)) * sizeof(float)));
    float* x = w + a.K * block_n;
    float* product = x + block_m * a.K;
    for (int64_t column = 0; column < a.N; column += block_n) {
      const int64_t n = std::min(block_n, a.N - column);
      if (a.K == 0) {
        std::fill_n(product, block_m * n, 0.0f);
      } else if (out_in) {
        widen_block(a.weight + column * a.K, n, a.K, a.K, w, context);
      } else {
        widen_block(a.weight + column, a.K, n, a.N, w, context);
      }
      for (int64_t row = 0; row < m; row += block_m) {
        const int64_t rows = std::min(block_m, m - row);
        if (a.K > 0) {
          widen_block(a.x + row * a.K, rows, a.K, a.K, x, context);
          context.gemm({rows, n, a.K, x, w, out_in, nullptr, product});
        }
        finish_block(a, product, row, rows, column, n, context);
      }
    }
  }
}

}  // namespace ortops
