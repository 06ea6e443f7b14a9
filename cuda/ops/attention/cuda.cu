// softmax(scale Q K' + mask) V without the matrix of scores (Dao et al., 2022): a block of threads keeps a tile of
// queries and goes over the keys a tile at a time, with the largest score so far and the sum of exponentials below it.
//
// Here: the choice between the ways to do that, and the one that takes everything: products by the float32 units, both
// operands of each through shared memory as float32, any head size, alignment and mask.
#include <climits>
#include <cstdlib>
#include <string_view>

#include "ops/attention/paths.h"

namespace ortops {
namespace {

using attention::MaskKind;
using attention::Problem;

// A tile has kSide x kSide threads, each with kRows x kColumns of the scores and of every kKeys channels of the result.
constexpr int kSide = 16;
constexpr int kColumns = 4;
constexpr int kKeys = kSide * kColumns;
constexpr int kDepth = 32;  // channels, then keys, of the operands that are in shared memory at once
constexpr int kPad = 4;     // floats between lines there: keeps them aligned to 16 bytes and off each other's banks
constexpr int kFewQueries = 16;

// Not measured: where our tensor-core kernel is taken although cuDNN would do. Of cuDNN it is known that launches
// dominate it at 128 keys of 32 channels, and that a mask costs it half as much again, besides two more kernels.
struct Tuning {
  int64_t mma_keys;         // up to so many keys
  int64_t mma_masked_keys;  // the same with a mask
  int64_t mma_size;         // and up to this head size
};
constexpr Tuning kTuning = {256, 512, 64};

// kRows of the tile's queries times kColumns of its channels or keys, for one step of the sum over `depth`.
template <int kRows, int kLine>
__device__ __forceinline__ void multiply(const float (*left)[kLine], const float (*right)[kKeys + kPad], int depth,
                                         int row, int column, float (*sums)[kColumns]) {
#pragma unroll 8
  for (int k = 0; k < depth; ++k) {
    const float4 b = *reinterpret_cast<const float4*>(&right[k][column]);
    float a[kRows];
    if constexpr (kRows == 4) {
      *reinterpret_cast<float4*>(a) = *reinterpret_cast<const float4*>(&left[k][row]);
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) a[i] = left[k][row + i];
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sums[i][0] += a[i] * b.x;
      sums[i][1] += a[i] * b.y;
      sums[i][2] += a[i] * b.z;
      sums[i][3] += a[i] * b.w;
    }
  }
}

// The largest or the sum over the threads that share a row: kSide neighbours of a warp.
template <class Combine>
__device__ __forceinline__ float row_reduce(float value, Combine combine) {
#pragma unroll
  for (int mask = kSide / 2; mask > 0; mask /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, mask));
  return value;
}

// kParts * kKeys channels of the result at most.
template <class T, int kRows, int kParts>
__global__ void __launch_bounds__(kSide* kSide) attend(const Problem p, int tiles) {
  constexpr int kQueries = kSide * kRows;
  __shared__ __align__(16) float left[kDepth][kQueries + kPad];    // queries, by channel
  __shared__ __align__(16) float right[kDepth][kKeys + kPad];      // keys by channel, then values by key
  __shared__ __align__(16) float weights[kKeys][kQueries + kPad];  // by key

  const int thread = threadIdx.x;
  const int row = thread / kSide * kRows, column = thread % kSide * kColumns;
  const int queries = static_cast<int>(p.queries), keys = static_cast<int>(p.keys);
  const int size = static_cast<int>(p.size), value_size = static_cast<int>(p.value_size);
  const int first_query = static_cast<int>(blockIdx.x % tiles) * kQueries;
  const unsigned sequence = blockIdx.x / tiles, heads = static_cast<unsigned>(p.heads);  // 64-bit divisions are slow
  const int64_t batch = sequence / heads, head = sequence % heads;
  const int64_t kv_head = static_cast<unsigned>(head) / static_cast<unsigned>(p.group);
  const T* query = static_cast<const T*>(p.query) + batch * p.query_steps.batch + head * p.query_steps.head;
  const T* key = static_cast<const T*>(p.key) + batch * p.key_steps.batch + kv_head * p.key_steps.head;
  const T* value = static_cast<const T*>(p.value) + batch * p.value_steps.batch + kv_head * p.value_steps.head;
  const int64_t mask_offset = batch * p.mask_steps[0] + head * p.mask_steps[1];

  int visible[kRows];  // keys that each query sees; none for those beyond the last
  float top[kRows], sum[kRows], result[kParts][kRows][kColumns];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int q = first_query + row + i;
    visible[i] = q < queries ? static_cast<int>(attention::visible_keys(q, p.diagonal, p.keys)) : 0;
    top[i] = -INFINITY;
    sum[i] = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) result[part][i][j] = 0;
    }
  }
  const int last_query = first_query + kQueries < queries ? first_query + kQueries - 1 : queries - 1;
  const int end = static_cast<int>(attention::visible_keys(last_query, p.diagonal, p.keys));

  for (int first_key = 0; first_key < end; first_key += kKeys) {
    __syncthreads();  // the last tile's weights have been read
    float scores[kRows][kColumns] = {};
    for (int channel = 0; channel < size; channel += kDepth) {
      __syncthreads();  // the last tile's values, or the last channels, have been read
      for (int i = thread; i < kQueries * kDepth; i += kSide * kSide) {
        const int q = i / kDepth, c = i % kDepth;
        const bool inside = first_query + q < queries && channel + c < size;
        left[c][q] = inside ? to_float(query[(first_query + q) * p.query_steps.position + channel + c]) : 0.0f;
      }
      for (int i = thread; i < kKeys * kDepth; i += kSide * kSide) {
        const int k = i / kDepth, c = i % kDepth;
        const bool inside = first_key + k < keys && channel + c < size;
        right[c][k] = inside ? to_float(key[(first_key + k) * p.key_steps.position + channel + c]) : 0.0f;
      }
      __syncthreads();
      multiply<kRows>(left, right, size - channel < kDepth ? size - channel : kDepth, row, column, scores);
    }

#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float largest = top[i];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int k = first_key + column + j;
        float score = -INFINITY;
        if (k < visible[i]) {
          score = scores[i][j] * p.scale;
          if (p.mask_kind != MaskKind::none) {
            const float bias = attention::mask_value<T>(
                p, mask_offset + (first_query + row + i) * p.mask_steps[2] + k * p.mask_steps[3]);
            score = bias == -INFINITY ? bias : score + bias;
          }
        }
        scores[i][j] = score;
        largest = fmaxf(largest, score);
      }
      largest = row_reduce(largest, [](float a, float b) { return fmaxf(a, b); });
      const float base = largest == -INFINITY ? 0.0f : largest;  // no key so far: all below are exp(-inf)
      const float shrink = expf(top[i] - base);
      top[i] = largest;
      sum[i] *= shrink;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float weight = expf(scores[i][j] - base);
        sum[i] += weight;
        weights[column + j][row + i] = weight;
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) result[part][i][j] *= shrink;
      }
    }

#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part * kKeys >= value_size) break;
      for (int k0 = 0; k0 < kKeys; k0 += kDepth) {
        __syncthreads();  // the weights are written, and what was in `right` has been read
        for (int i = thread; i < kDepth * kKeys; i += kSide * kSide) {
          const int k = i / kKeys, c = i % kKeys;
          const bool inside = first_key + k0 + k < keys && part * kKeys + c < value_size;
          right[k][c] =
              inside ? to_float(value[(first_key + k0 + k) * p.value_steps.position + part * kKeys + c]) : 0.0f;
        }
        __syncthreads();
        multiply<kRows>(weights + k0, right, kDepth, row, column, result[part]);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float total = row_reduce(sum[i], [](float a, float b) { return a + b; });
    const float factor = total == 0 ? 0.0f : 1 / total;
    const int q = first_query + row + i;
    if (q >= queries) continue;
    T* y = static_cast<T*>(p.y) + batch * p.y_steps.batch + head * p.y_steps.head + q * p.y_steps.position;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int channel = part * kKeys + column + j;
        if (channel < value_size) y[channel] = from_float<T>(result[part][i][j] * factor);
      }
    }
  }
}

template <class T, int kRows, int kParts>
void attend_tiles(const Problem& p, Context& context) {
  constexpr int kQueries = kSide * kRows;
  const int64_t tiles = (p.queries + kQueries - 1) / kQueries;
  const int64_t blocks = p.batch * p.heads * tiles;
  if (blocks > INT_MAX) {
    throw Error("query: expected at most " + std::to_string(INT_MAX) + " tiles of " + std::to_string(kQueries) +
                " positions over all heads, got " + std::to_string(blocks));
  }
  launch(attend<T, kRows, kParts>, static_cast<unsigned>(blocks), kSide * kSide, 0, context, p,
         static_cast<int>(tiles));
}

template <class T>
void attend_general(const Problem& p, Context& context) {
  if (p.queries <= kFewQueries) return attend_tiles<T, 1, attention::kMaxHeadSize / kKeys>(p, context);
  if (p.value_size <= kKeys) return attend_tiles<T, 4, 1>(p, context);
  if (p.value_size <= 2 * kKeys) return attend_tiles<T, 4, 2>(p, context);
  return attend_tiles<T, 4, attention::kMaxHeadSize / kKeys>(p, context);
}

// ORTOPS_ATTENTION=general, mma or cudnn tries no other way (but the general one, where that cannot take the call): for
// tests and benchmarks.
std::string_view wish() {
  const char* const value = std::getenv("ORTOPS_ATTENTION");
  const std::string_view wish = value ? value : "";
  if (!wish.empty() && wish != "general" && wish != "mma" && wish != "cudnn") {
    throw Error("the environment variable ORTOPS_ATTENTION: expected general, mma or cudnn, got " + std::string(wish));
  }
  return wish;
}

bool prefers_mma(const Problem& p) {
  const int64_t keys = p.mask_kind == MaskKind::none ? kTuning.mma_keys : kTuning.mma_masked_keys;
  return p.keys <= keys && p.size <= kTuning.mma_size && p.value_size <= kTuning.mma_size;
}

bool attend_specially(const Problem& p, Context& context) {
  const std::string_view only = wish();
  if (only == "general") return false;
  if (only == "mma") return attention::attend_mma(p, context);
  if (only == "cudnn") return attention::attend_cudnn(p, context);
  if (prefers_mma(p)) return attention::attend_mma(p, context) || attention::attend_cudnn(p, context);
  return attention::attend_cudnn(p, context) || attention::attend_mma(p, context);
}

template <class T>
void attend_any(const Problem& p, Context& context) {
  if (attention::is_vectorised(p) && attend_specially(p, context)) return;
  attend_general<T>(p, context);
}

}  // namespace

template <class T, class M>
void scaled_dot_product_attention_cuda(const ScaledDotProductAttentionArgs<T, M>& a, Context& context) {
  attend_any<T>(attention::problem_of(a), context);
}

template <class T, class M>
void packed_qkv_attention_cuda(const PackedQKVAttentionArgs<T, M>& a, Context& context) {
  attend_any<T>(attention::problem_of(a), context);
}

}  // namespace ortops
