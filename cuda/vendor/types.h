#pragma once

namespace ortops::vendor {

enum class DType { float32, float16, bfloat16 };

inline const char* dtype_name(DType type) {
  constexpr const char* names[] = {"float32", "float16", "bfloat16"};
  return names[static_cast<int>(type)];
}

}  // namespace ortops::vendor
