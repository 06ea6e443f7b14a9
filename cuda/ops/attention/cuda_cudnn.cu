// Attention by cuDNN: one call of it, and around it what it does not know. A boolean mask becomes one that is added, in
// the form the mask has (nothing is expanded); a query without any key, of which cuDNN makes NaN, is cleared
// afterwards.
#include <algorithm>

#include "ops/attention/paths.h"
#include "vendor/cudnn.h"

namespace ortops {
namespace {

using attention::MaskKind;
using attention::Problem;
using attention::Steps;

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int64_t kMaxSize = 256;

template <class T>
__global__ void to_bias(const bool* mask, T* bias, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < count; i += gridDim.x * int64_t(kThreads)) {
    bias[i] = from_float<T>(mask[i] ? 0.0f : -INFINITY);
  }
}

// The ranges that one row of the mask speaks for: of each axis that it broadcasts over all, of the others one.
struct Range {
  int64_t begin, end;
};
__device__ __forceinline__ Range range(int64_t index, int64_t count, int64_t size) {
  return count == 1 ? Range{0, size} : Range{index, index + 1};
}

// A warp looks at one row of the mask until it finds a key that is kept: nearly always among the first.
template <class T>
__global__ void clear_rows_without_key(const Problem p, int64_t batches, int64_t heads, int64_t queries) {
  const int lane = threadIdx.x % kWarp;
  const int64_t first = (blockIdx.x * int64_t(kThreads) + threadIdx.x) / kWarp,
                warps = gridDim.x * int64_t(kThreads / kWarp);
  for (int64_t i = first; i < batches * heads * queries; i += warps) {
    const int64_t q = i % queries, h = i / queries % heads, b = i / queries / heads;
    const int64_t visible = attention::visible_keys(q, p.diagonal, p.keys);
    const int64_t offset = b * p.mask_steps[0] + h * p.mask_steps[1] + q * p.mask_steps[2];
    bool found = false;
    for (int64_t k = lane; k - lane < visible && !found; k += kWarp) {
      found = __any_sync(0xffffffffu,
                         k < visible && attention::mask_value<T>(p, offset + k * p.mask_steps[3]) != -INFINITY);
    }
    if (found) continue;
    const Range rb = range(b, batches, p.batch), rh = range(h, heads, p.heads), rq = range(q, queries, p.queries);
    for (int64_t batch = rb.begin; batch < rb.end; ++batch) {
      for (int64_t head = rh.begin; head < rh.end; ++head) {
        for (int64_t query = rq.begin; query < rq.end; ++query) {
          T* y = static_cast<T*>(p.y) + batch * p.y_steps.batch + head * p.y_steps.head + query * p.y_steps.position;
          for (int64_t c = lane; c < p.value_size; c += kWarp) y[c] = {};
        }
      }
    }
  }
}

// Absent once, absent for good: it is not looked for in every call.
bool available() {
  static const bool available = [] {
    std::string why_not;
    return vendor::cudnn_available(&why_not);
  }();
  return available;
}

template <class T>
bool attend(const Problem& p, Context& context) {
  vendor::Attention a;
  a.type = std::is_same_v<T, float16> ? vendor::DType::float16 : vendor::DType::bfloat16;
  a.batch = p.batch;
  a.heads = p.heads;
  a.kv_heads = p.kv_heads;
  a.q_len = p.queries;
  a.kv_len = p.keys;
  a.head_dim = p.size;
  a.value_dim = p.value_size;
  const auto strides = [](const Steps& steps) -> std::array<int64_t, 4> {
    return {steps.batch, steps.head, steps.position, 1};
  };
  a.q_strides = strides(p.query_steps);
  a.k_strides = strides(p.key_steps);
  a.v_strides = strides(p.value_steps);
  a.o_strides = strides(p.y_steps);
  a.scale = p.scale;
  const bool causal = p.diagonal < p.keys - 1;  // else even the first query sees all
  if (causal) a.causal = p.diagonal == 0 ? vendor::Causal::top_left : vendor::Causal::bottom_right;
  if (a.causal == vendor::Causal::bottom_right && (p.diagonal < 0 || p.mask)) return false;

  int64_t mask_size = 1;
  if (p.mask) {
    if (p.mask_steps[3] != 1 || (p.mask_kind == MaskKind::additive && reinterpret_cast<uintptr_t>(p.mask) % 16 != 0))
      return false;
    const int64_t full[4] = {p.batch, p.heads, p.queries, p.keys};
    for (int axis = 3; axis >= 0; --axis) {
      a.bias_dims[axis] = p.mask_steps[axis] == 0 ? 1 : full[axis];
      a.bias_strides[axis] = mask_size;
      mask_size *= a.bias_dims[axis];
    }
  }

  std::string why_not;
  const auto plan = vendor::attention_plan(a, context.stream(), &why_not);
  if (!plan) return false;
  vendor::AttentionPointers pointers;
  pointers.q = p.query;
  pointers.k = p.key;
  pointers.v = p.value;
  pointers.o = p.y;
  pointers.bias = p.mask;
  if (p.mask_kind == MaskKind::boolean) {
    T* bias = static_cast<T*>(context.scratch(mask_size * sizeof(T)));
    launch(to_bias<T>, grid_stride_blocks(mask_size, kThreads), kThreads, 0, context, static_cast<const bool*>(p.mask),
           bias, mask_size);
    pointers.bias = bias;
  }
  const size_t bytes = vendor::workspace(*plan);
  vendor::run(*plan, pointers, bytes ? context.scratch(bytes) : nullptr, context.stream());
  if (p.mask) {
    const int64_t queries = causal ? p.queries : a.bias_dims[2];
    const int64_t rows = a.bias_dims[0] * a.bias_dims[1] * queries;
    launch(clear_rows_without_key<T>, grid_stride_blocks(rows * kWarp, kThreads), kThreads, 0, context, p,
           a.bias_dims[0], a.bias_dims[1], queries);
  }
  return true;
}

}  // namespace

bool attention::attend_cudnn(const Problem& p, Context& context) {
  if (!is_vectorised(p) || std::max(p.size, p.value_size) > kMaxSize || !available()) return false;
  return p.type == Type::float16 ? attend<float16>(p, context) : attend<bfloat16>(p, context);
}

}  // namespace ortops
