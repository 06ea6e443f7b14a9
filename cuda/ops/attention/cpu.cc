// softmax(scale Q K' + mask) V a block of queries at a time: two products by ONNX Runtime's own kernel, and between
// them one pass over scores that have not left the cache. The queries of all heads that share a key and value head are
// stacked, so that grouped heads and single queries make large products too.
//
// Q, K and V are read where they lie if they are float32 and their rows follow each other, else copied head by head.
// The rows of the softmax are left unnormalised: y has fewer elements to divide than the scores.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "device/arrays.h"
#include "ops/attention/problem.h"

namespace ortops {
namespace {

using attention::MaskKind;
using attention::Problem;
using attention::Steps;

constexpr int64_t kBlockScores = 64 * 1024;  // 256 KiB of them, within the second cache of a core
constexpr int64_t kBlockRows = 256;
constexpr int64_t kMinBlockRows = 16;
constexpr int64_t kPlainProduct = 2048;  // multiplications; below, the call of ONNX Runtime costs more than the product
constexpr int64_t kLeastPieces = 16;     // that the work is cut into, so that no thread waits long for another
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// a or b by the bits of `mask`. Of two floats that take some computing compilers would make a branch, and no vectors.
ORTOPS_INLINE float choose(uint32_t mask, float a, float b) {
  return detail::bit_cast<float>((detail::bit_cast<uint32_t>(a) & mask) | (detail::bit_cast<uint32_t>(b) & ~mask));
}

// exp of x <= 0, within 2 ulp: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]; 0 where the result would be subnormal.
ORTOPS_INLINE float exp_of_negative(float x) {
  const float shifted = x * 1.44269504f + 0x1.8p23f;  // the nearest integer, in the last bits
  const float n = shifted - 0x1.8p23f;
  const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  float p = r * 1.3888889e-3f + 8.3333333e-3f;
  p = p * r + 4.1666667e-2f;
  p = p * r + 1.6666667e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = (detail::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u;
  return choose(x < -87.0f ? ~0u : 0u, 0, p * detail::bit_cast<float>(exponent));
}

// A float as an integer of the same order, and back: compilers vectorise the maximum of integers, of floats (for their
// NaN) not.
ORTOPS_INLINE int32_t ordered(float x) {
  const int32_t bits = detail::bit_cast<int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
ORTOPS_INLINE float unordered(int32_t bits) { return detail::bit_cast<float>(bits ^ ((bits >> 31) & 0x7fffffff)); }

// score scale + bias, and -inf where the bias is, whatever the score. Returns the largest.
ORTOPS_CLONES float add_bias(float* scores, const float* bias, float scale, int64_t count) {
  int32_t top = ordered(-kInfinity);
  for (int64_t j = 0; j < count; ++j) {
    const float score = choose(bias[j] == -kInfinity ? ~0u : 0u, -kInfinity, scores[j] * scale + bias[j]);
    scores[j] = score;
    top = std::max(top, ordered(score));
  }
  return unordered(top);
}

ORTOPS_CLONES float add_nothing(float* scores, float scale, int64_t count) {
  int32_t top = ordered(-kInfinity);
  for (int64_t j = 0; j < count; ++j) {
    const float score = scores[j] * scale;
    scores[j] = score;
    top = std::max(top, ordered(score));
  }
  return unordered(top);
}

ORTOPS_CLONES void exponentials(float* scores, float top, int64_t count) {
  for (int64_t j = 0; j < count; ++j) scores[j] = exp_of_negative(scores[j] - top);
}

// In 16 sums side by side, then a tree.
float sum_of(const float* values, int64_t count) {
  using Four = float __attribute__((vector_size(16)));
  Four sums[4] = {};
  int64_t j = 0;
  for (; j + 16 <= count; j += 16) {
    for (int i = 0; i < 4; ++i) {
      Four four;
      std::memcpy(&four, values + j + 4 * i, sizeof(four));
      sums[i] += four;
    }
  }
  const Four four = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float rest = 0;
  for (; j < count; ++j) rest += values[j];
  return ((four[0] + four[1]) + (four[2] + four[3])) + rest;
}

// Turns a row of scores into weights, unnormalised; returns their sum. `bias` may be null.
float softmax(float* scores, const float* bias, float scale, int64_t count) {
  const float top = bias ? add_bias(scores, bias, scale, count) : add_nothing(scores, scale, count);
  exponentials(scores, top == -kInfinity ? 0 : top,
               count);  // no key at all: every weight becomes exp(-inf), which is 0
  return sum_of(scores, count);
}

ORTOPS_CLONES void multiply(float* values, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

// y[m, n] = x[m, k] w, or x w' with w[n, k].
void product(int64_t m, int64_t n, int64_t k, const float* x, const float* w, bool transposed, float* y,
             Context& context) {
  if (k > 0 && m * n * k > kPlainProduct) {
    context.gemm({m, n, k, x, w, transposed, nullptr, y});
    return;
  }
  for (int64_t i = 0; i < m; ++i) {
    if (transposed) {
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += x[i * k + l] * w[j * k + l];
        y[i * n + j] = sum;
      }
    } else {
      std::fill_n(y + i * n, n, 0.0f);
      for (int64_t l = 0; l < k; ++l) {
        for (int64_t j = 0; j < n; ++j) y[i * n + j] += x[i * k + l] * w[l * n + j];
      }
    }
  }
}

std::unique_ptr<float[]> buffer(bool wanted, int64_t count) {
  return wanted ? std::make_unique_for_overwrite<float[]>(count) : nullptr;
}

// What one thread works with: it goes through blocks of stacked rows, which come sorted by the key and value head they
// need.
template <class T, class M>
class Worker {
 public:
  Worker(const Problem& problem, int64_t block_rows, Context& context)
      : p(problem),
        context(context),
        block_rows(block_rows),
        rows(p.group * p.queries),
        query_in_place(in_place(p.query_steps, p.size)),
        y_in_place(in_place(p.y_steps, p.value_size)),
        key_in_place(kFloat && (p.keys == 1 || p.key_steps.position == p.size)),
        value_in_place(kFloat && (p.keys == 1 || p.value_steps.position == p.value_size)),
        scores(buffer(true, block_rows * p.keys)),
        queries(buffer(!query_in_place, block_rows * p.size)),
        results(buffer(!y_in_place, block_rows * p.value_size)),
        keys(buffer(!key_in_place, p.keys * p.size)),
        values(buffer(!value_in_place, p.keys * p.value_size)),
        bias(buffer(p.mask_kind != MaskKind::none, p.keys)) {}

  void run(int64_t kv, int64_t block) {
    const int64_t batch = kv / p.kv_heads, kv_head = kv % p.kv_heads;
    const int64_t first = block * block_rows, count = std::min(block_rows, rows - first);
    const int64_t head = kv_head * p.group;
    int64_t visible = 0;
    for (int64_t row = 0; row < count; ++row) visible = std::max(visible, visible_keys((first + row) % p.queries));

    const float* key = gather(p.key, p.key_steps, p.size, batch, kv_head, key_in_place, keys.get(), kv != last_kv);
    const float* value =
        gather(p.value, p.value_steps, p.value_size, batch, kv_head, value_in_place, values.get(), kv != last_kv);
    last_kv = kv;
    const float* query = queries.get();
    if (query_in_place) {
      query = static_cast<const float*>(p.query) + at(p.query_steps, batch, head, 0) + first * p.size;
    } else {
      for (int64_t row = 0; row < count; ++row) {
        const int64_t stacked = first + row;
        const T* from =
            static_cast<const T*>(p.query) + at(p.query_steps, batch, head + stacked / p.queries, stacked % p.queries);
        widen(from, queries.get() + row * p.size, p.size);
      }
    }
    product(count, visible, p.size, query, key, true, scores.get(), context);

    float sums[kBlockRows];
    for (int64_t row = 0; row < count; ++row) {
      const int64_t stacked = first + row;
      const int64_t position = stacked % p.queries, limit = visible_keys(position);
      float* line = scores.get() + row * visible;
      const float* bias = bias_of(batch, head + stacked / p.queries, position, limit);
      sums[row] = softmax(line, bias, p.scale, limit);
      std::fill(line + limit, line + visible, 0.0f);
    }

    float* result = results.get();
    if (y_in_place) result = static_cast<float*>(p.y) + at(p.y_steps, batch, head, 0) + first * p.value_size;
    product(count, p.value_size, visible, scores.get(), value, false, result, context);
    for (int64_t row = 0; row < count; ++row) {
      const int64_t stacked = first + row;
      T* to = static_cast<T*>(p.y) + at(p.y_steps, batch, head + stacked / p.queries, stacked % p.queries);
      float* from = result + row * p.value_size;
      multiply(from, sums[row] == 0 ? 0.0f : 1 / sums[row], p.value_size);
      if (!y_in_place) narrow(from, to, p.value_size);
    }
  }

 private:
  static constexpr bool kFloat = std::is_same_v<T, float>;

  static int64_t at(const Steps& steps, int64_t batch, int64_t head, int64_t position) {
    return batch * steps.batch + head * steps.head + position * steps.position;
  }
  int64_t visible_keys(int64_t position) const { return attention::visible_keys(position, p.diagonal, p.keys); }

  // Whether the stacked rows lie one behind the other.
  bool in_place(const Steps& steps, int64_t size) const {
    return kFloat && (p.queries == 1 || steps.position == size) && (p.group == 1 || steps.head == p.queries * size);
  }

  const float* gather(const void* tensor, const Steps& steps, int64_t size, int64_t batch, int64_t head, bool in_place,
                      float* to, bool is_new) const {
    const T* from = static_cast<const T*>(tensor) + at(steps, batch, head, 0);
    if constexpr (kFloat) {
      if (in_place) return from;
    }
    if (is_new) {
      for (int64_t row = 0; row < p.keys; ++row) widen(from + row * steps.position, to + row * size, size);
    }
    return to;
  }

  // The mask's row in float32, with 0 and -inf for a boolean one. Rows that all queries share are converted once.
  const float* bias_of(int64_t batch, int64_t head, int64_t position, int64_t limit) {
    if (p.mask_kind == MaskKind::none) return nullptr;
    const auto& steps = p.mask_steps;
    const M* row = static_cast<const M*>(p.mask) + batch * steps[0] + head * steps[1] + position * steps[2];
    if (row == last_mask_row) return bias.get();
    const int64_t count = steps[2] == 0 ? p.keys : limit;
    if constexpr (std::is_same_v<M, bool>) {
      for (int64_t j = 0; j < count; ++j) bias[j] = row[j * steps[3]] ? 0 : -kInfinity;
    } else if (steps[3] == 1) {
      widen(row, bias.get(), count);
    } else {
      std::fill_n(bias.get(), count, to_float(row[0]));
    }
    last_mask_row = steps[2] == 0 ? row : nullptr;
    return bias.get();
  }

  const Problem& p;
  Context& context;
  const int64_t block_rows, rows;
  const bool query_in_place, y_in_place, key_in_place, value_in_place;
  const std::unique_ptr<float[]> scores, queries, results, keys, values, bias;
  int64_t last_kv = -1;
  const M* last_mask_row = nullptr;
};

template <class T, class M>
void attend(const Problem& p, Context& context) {
  const int64_t rows = p.group * p.queries;
  const int64_t block_rows =
      std::min(rows, std::clamp(kBlockScores / std::max<int64_t>(p.keys, 1), kMinBlockRows, kBlockRows));
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  const int64_t count = p.batch * p.kv_heads * blocks;
  // A piece should use the keys and values that it has gathered for all blocks that need them.
  const int64_t grain = std::clamp<int64_t>(count / kLeastPieces, 1, blocks);
  context.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    Worker<T, M> worker(p, block_rows, context);
    for (int64_t i = begin; i < end; ++i) worker.run(i / blocks, i % blocks);
  });
}

}  // namespace

template <class T, class M>
void scaled_dot_product_attention_cpu(const ScaledDotProductAttentionArgs<T, M>& a, Context& context) {
  attend<T, M>(attention::problem_of(a), context);
}

template <class T, class M>
void packed_qkv_attention_cpu(const PackedQKVAttentionArgs<T, M>& a, Context& context) {
  attend<T, M>(attention::problem_of(a), context);
}

}  // namespace ortops
