// cuDNN 9 graphs. A plan is made once per problem (0.4 to 1.1 s for the first of a kind on a machine, then 40 to 80 ms)
// and run by any number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "vendor/types.h"

namespace ortops::vendor {

// Whether cuDNN 9 can be loaded; needs no GPU. If not, `why_not` says what to install.
bool cudnn_available(std::string* why_not);

// A graph with its engine, for one device.
class Plan;

// Device memory that run() needs, in bytes.
std::size_t workspace(const Plan& plan);

enum class Causal { none, top_left, bottom_right };

// O = softmax(scale Q K' + bias, masked) V. Dimensions and strides (in elements) are in the order batch, head,
// position, channel whatever the memory order; the last stride is 1. heads is a multiple of kv_heads.
struct Attention {
  DType type = DType::float16;  // of q, k, v, o and bias; not float32 (cuDNN would use TF32)
  std::int64_t batch = 0, heads = 0, kv_heads = 0;
  std::int64_t q_len = 0, kv_len = 0;
  std::int64_t head_dim = 0, value_dim = 0;  // multiples of 8
  std::array<std::int64_t, 4> q_strides{}, k_strides{}, v_strides{}, o_strides{};
  Causal causal = Causal::none;  // bottom_right goes neither with a bias nor, without lengths, with q_len > kv_len
  float scale = 1;
  std::array<std::int64_t, 4> bias_dims{};  // each 1 or the full size; zeros: no bias
  std::array<std::int64_t, 4> bias_strides{};
  bool lengths = false;  // each batch entry has its own number of queries and keys
  bool stats = false;    // writes the logarithm of the softmax's sum
};

// All but the optional ones 16-byte aligned device memory. With lengths, rows of o past the query length become zero;
// an entry with no key at all leaves its part of o and stats unwritten. No promise is made for a row that the bias
// masks wholly.
struct AttentionPointers {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* bias = nullptr;
  const std::int32_t* q_lengths = nullptr;   // [batch]
  const std::int32_t* kv_lengths = nullptr;  // [batch]
  void* o = nullptr;
  float* stats = nullptr;  // [batch, heads, q_len]
};

// Null, with the reason, if cuDNN cannot be used or has no engine for this. Throws if the plan is new while `stream` is
// being captured.
std::shared_ptr<const Plan> attention_plan(const Attention& attention, void* stream, std::string* why_not);

// Enqueues on `stream` (a cudaStream_t). `plan` is of attention_plan().
void run(const Plan& plan, const AttentionPointers& pointers, void* workspace, void* stream);

}  // namespace ortops::vendor
