// y = activation(x weight + bias) + residual: one product by cuBLASLt, whose epilogue does bias, in 16-bit types
// tanh-GELU (its tanh is the processor's, good for 11 bits), and the residual where no activation comes before it. For
// the rest one pass over y in place follows, at the speed of memory (residual, y in, y out).
//
// That pass reads what the product has rounded to T. An activation's slope is at most 1.13, so this adds at most 0.57
// epsilon of the value before it to the half epsilon of the last rounding: what PyTorch's linear followed by an
// activation gives, and where it is steep relative to its value (the negative tails of gelu and silu), not below what
// rounding x did. A product stored as float32 would double the traffic. On Hopper, cuda_sm90.cu does large products
// without either cost.
#include "core/cuda.h"
#include "device/vector.cuh"
#include "ops/linear/cuda_sm90.h"
#include "ops/linear/math.h"
#include "vendor/cublaslt.h"

namespace ortops {
namespace {

constexpr int kThreads = 256;

template <class T, class Activation, bool kAligned>
__global__ void __launch_bounds__(kThreads) finish(const T* residual, T* y, int64_t count) {
  const Share<kWidth<T>, kAligned, int64_t> share = {count, static_cast<int>(threadIdx.x), kThreads};
  for (int64_t step = blockIdx.x; share.any(step); step += gridDim.x) {
    auto values = to_float(share.read(y, step));
    Vector<float, kWidth<T>> added = {};
    if (residual) added = to_float(share.template read<Reuse::none>(residual, step));
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) values[i] = Activation()(values[i]) + added[i];
    share.write(y, step, from_float<T>(values));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) fill_rows(const T* row, T* y, int64_t columns, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < count; i += gridDim.x * int64_t(kThreads)) {
    y[i] = row ? row[i % columns] : from_float<T>(0.0f);
  }
}

template <class T>
constexpr vendor::DType dtype() {
  if (std::is_same_v<T, float16>) return vendor::DType::float16;
  if (std::is_same_v<T, bfloat16>) return vendor::DType::bfloat16;
  return vendor::DType::float32;
}

template <class T>
bool is_fused(LinearAttributes::Activation activation) {
  using enum LinearAttributes::Activation;
  return activation == none || (activation == gelu_tanh && sizeof(T) == 2);
}

vendor::Epilogue epilogue(LinearAttributes::Activation activation, bool with_bias) {
  using enum vendor::Epilogue;
  switch (activation) {
    case LinearAttributes::Activation::gelu_tanh:
      return with_bias ? gelu_tanh_bias : gelu_tanh;
    default:
      return with_bias ? bias : none;
  }
}

// What the product leaves undone.
struct Rest {
  LinearAttributes::Activation activation;
  bool residual;
};

template <class T>
Rest multiply(const LinearArgs<T>& a, Context& context) {
  using Activation = LinearAttributes::Activation;
  const int64_t m = a.outer.size();
  if (a.K == 0) {
    launch(fill_rows<T>, grid_stride_blocks(m * a.N, kThreads), kThreads, 0, context, a.bias, a.y, a.N, m * a.N);
    return {a.activation, a.residual != nullptr};
  }
  const bool fused = is_fused<T>(a.activation);
  vendor::Gemm gemm;
  gemm.m = m;
  gemm.n = a.N;
  gemm.k = a.K;
  gemm.weight_out_in = a.weight_layout == LinearAttributes::WeightLayout::out_in;
  gemm.ldx = a.K;
  gemm.ldw = gemm.weight_out_in ? a.K : a.N;
  gemm.ldc = gemm.ldd = a.N;
  gemm.type = dtype<T>();
  gemm.epilogue = epilogue(fused ? a.activation : Activation::none, a.bias != nullptr);
  gemm.x = a.x;
  gemm.w = a.weight;
  gemm.bias = a.bias;
  gemm.c = a.activation == Activation::none ? a.residual : nullptr;
  gemm.d = a.y;
  vendor::gemm(gemm, context.scratch(vendor::gemm_workspace()), vendor::gemm_workspace(), context.stream());
  return {fused ? Activation::none : a.activation, a.residual && !gemm.c};
}

}  // namespace

template <class T>
void linear_cuda(const LinearArgs<T>& a, Context& context) {
#ifdef ORTOPS_SM90
  if constexpr (sizeof(T) == 2) {
    if (linear::sm90_takes(a)) return linear::sm90(a, context);
  }
#endif
  const Rest rest = multiply(a, context);
  if (rest.activation == LinearAttributes::Activation::none && !rest.residual) return;
  const int64_t count = a.outer.size() * a.N;
  const T* residual = rest.residual ? a.residual : nullptr;
  const bool aligned = is_aligned<kWidth<T>>(count, {static_cast<const T*>(a.y), residual});
  linear::with_activation<T>(rest.activation, [&](auto activation) {
    using F = decltype(activation);
    const auto kernel = aligned ? finish<T, F, true> : finish<T, F, false>;
    launch(kernel, grid_stride_blocks(count / kWidth<T>, kThreads), kThreads, 0, context, residual, a.y, count);
  });
}

}  // namespace ortops
