// What the kernels of attention have in common: the checks, where things lie, and which keys a query sees.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "gen/attention.h"

namespace ortops::attention {

constexpr int64_t kMaxHeadSize = 512;

enum class MaskKind { none, boolean, additive };

// How far apart neighbours lie, in elements. The channels of a head are adjacent, in either layout.
struct Steps {
  int64_t batch, head, position;
};

// One call, without its types, so that a kernel need not be compiled for every kind of mask.
struct Problem {
  Type type;
  const void* query;
  const void* key;
  const void* value;
  const void* mask;
  void* y;
  int64_t batch, heads, kv_heads, queries, keys, size, value_size;
  int64_t group;  // heads / kv_heads: query heads that share a key and value head
  Steps query_steps, key_steps, value_steps, y_steps;
  MaskKind mask_kind;
  int64_t mask_steps[4];  // batch, head, query, key; 0 where the mask has one value for all
  int64_t diagonal;       // query i sees the keys up to i + diagonal
  float scale;
};

// How many keys the query sees before the mask: these are the first ones.
ORTOPS_HOST_DEVICE int64_t visible_keys(int64_t query, int64_t diagonal, int64_t keys) {
  const int64_t end = query + 1 + diagonal;
  return end < 0 ? 0 : end < keys ? end : keys;
}

template <class T>
constexpr Type type_of() {
  return std::is_same_v<T, float> ? Type::float32 : std::is_same_v<T, float16> ? Type::float16 : Type::bfloat16;
}

inline void check_size(const char* name, int64_t size) {
  if (size > kMaxHeadSize) {
    throw Error(std::string(name) + ": expected a head size of at most " + std::to_string(kMaxHeadSize) + ", got " +
                std::to_string(size));
  }
}

inline void check_length(const char* name, int64_t length) {
  if (length > std::numeric_limits<int>::max() / 2) {
    throw Error(std::string(name) + ": expected at most 2^30 positions, got " + std::to_string(length));
  }
}

// What either operator says in the same words; the rest is to be filled in.
template <class T, class M, class Args>
Problem common_problem(const Args& a) {
  Problem p = {};
  p.type = type_of<T>();
  p.batch = a.B;
  p.size = a.D;
  p.mask = a.mask;
  p.y = a.y;
  if (a.mask) {
    p.mask_kind = std::is_same_v<M, bool> ? MaskKind::boolean : MaskKind::additive;
    for (int axis = 0; axis < 4; ++axis) p.mask_steps[axis] = a.mask_strides[axis];
  }
  p.scale = a.scale ? *a.scale : 1 / std::sqrt(static_cast<float>(a.D > 0 ? a.D : 1));
  return p;
}

template <class T, class M>
Problem problem_of(const ScaledDotProductAttentionArgs<T, M>& a) {
  using Attributes = ScaledDotProductAttentionAttributes;
  if (a.Hkv == 0 || a.H % a.Hkv != 0) {
    throw Error("key: expected a number of heads that divides query's " + std::to_string(a.H) + ", got " +
                std::to_string(a.Hkv));
  }
  check_size("query", a.D);
  check_size("value", a.Dv);
  check_length("query", a.Sq);
  check_length("key", a.Skv);

  const auto steps = [&](int64_t heads, int64_t length, int64_t size) -> Steps {
    if (a.layout == Attributes::Layout::BHSD) return {heads * length * size, length * size, size};
    return {heads * length * size, size, heads * size};
  };
  Problem p = common_problem<T, M>(a);
  p.query = a.query;
  p.key = a.key;
  p.value = a.value;
  p.heads = a.H;
  p.kv_heads = a.Hkv;
  p.group = a.H / a.Hkv;
  p.queries = a.Sq;
  p.keys = a.Skv;
  p.value_size = a.Dv;
  p.query_steps = steps(a.H, a.Sq, a.D);
  p.key_steps = steps(a.Hkv, a.Skv, a.D);
  p.value_steps = steps(a.Hkv, a.Skv, a.Dv);
  p.y_steps = steps(a.H, a.Sq, a.Dv);
  p.diagonal = a.causal == Attributes::Causal::none       ? a.Skv
               : a.causal == Attributes::Causal::top_left ? 0
                                                          : a.Skv - a.Sq;
  return p;
}

template <class T, class M>
Problem problem_of(const PackedQKVAttentionArgs<T, M>& a) {
  if (a.heads % a.kv_heads != 0) {
    throw Error("attribute kv_heads: expected a divisor of heads = " + std::to_string(a.heads) + ", got " +
                std::to_string(a.kv_heads));
  }
  check_size("qkv", a.D);
  check_length("qkv", a.S);

  const auto steps = [&](int64_t heads) -> Steps { return {heads * a.S * a.D, a.D, heads * a.D}; };
  Problem p = common_problem<T, M>(a);
  p.query = a.qkv;
  p.key = a.qkv + a.heads * a.D;
  p.value = a.qkv + (a.heads + a.kv_heads) * a.D;
  p.heads = a.heads;
  p.kv_heads = a.kv_heads;
  p.group = a.heads / a.kv_heads;
  p.queries = p.keys = a.S;
  p.value_size = a.D;
  p.query_steps = p.key_steps = p.value_steps = steps(a.heads + 2 * a.kv_heads);
  p.y_steps = steps(a.heads);
  p.diagonal = a.causal ? 0 : a.S;
  return p;
}

}  // namespace ortops::attention
