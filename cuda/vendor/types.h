#pragma once

namespace ortops::vendor {

enum class DType { float32, float16, bfloat16 };

const char* dtype_name(DType type);

}  // namespace ortops::vendor
