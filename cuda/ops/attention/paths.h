// The ways to run attention on CUDA. Each returns false, having done nothing, if it cannot take the call.
#pragma once

#include "core/cuda.h"
#include "ops/attention/problem.h"

namespace ortops::attention {

// By NVIDIA's cuDNN (cuda_cudnn.cu).
bool attend_cudnn(const Problem& p, Context& context);

// On tensor cores, by our own kernel (cuda_mma.cu).
bool attend_mma(const Problem& p, Context& context);

// Whether vectors of 16 bytes of 16-bit elements can be read and written everywhere, as both of them need.
inline bool is_vectorised(const Problem& p) {
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  return p.type != Type::float32 && p.keys > 0 && p.size > 0 && p.size % 8 == 0 && p.value_size % 8 == 0 &&
         aligned(p.query) && aligned(p.key) && aligned(p.value) && aligned(p.y);
}

// What the mask (never null) adds to a score, in float32; -inf where a boolean one has false.
template <class T>
__device__ __forceinline__ float mask_value(const Problem& p, int64_t offset) {
  if (p.mask_kind == MaskKind::boolean) return static_cast<const uint8_t*>(p.mask)[offset] ? 0.0f : -INFINITY;
  return to_float(static_cast<const T*>(p.mask)[offset]);
}

}  // namespace ortops::attention
