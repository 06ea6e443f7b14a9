// The 16-bit floating types and their conversions, for the host and for device code.
//
// Kernels store in T and compute in float. `to_float` and `from_float` are the only places where a value changes its
// type, so they are what loads and stores call; every rounding is to nearest, ties to even, as IEEE 754 asks.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define ORTOPS_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ORTOPS_HOST_DEVICE inline
#endif

namespace ortops {

struct float16 {
  uint16_t bits;
};

struct bfloat16 {
  uint16_t bits;
};

namespace detail {

template <class To, class From>
ORTOPS_HOST_DEVICE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// Branch-free on the common path: the exponent is moved by a multiplication, which also normalises subnormals.
inline float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16;
  const uint32_t magnitude = uint32_t(bits & 0x7fff) << 13;
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;  // infinity and NaN keep their mantissa
  const float scaled = bit_cast<float>(magnitude) * 0x1p112f;
  return bit_cast<float>(sign | special | (special ? magnitude & 0x007fffffu : bit_cast<uint32_t>(scaled)));
}

// Without branches, so that compilers make vectors of it: all three results are computed. Magnitudes are compared as
// signed integers, which SSE2 can.
inline uint16_t float_to_half(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const int32_t order = static_cast<int32_t>(magnitude);
  const uint32_t odd = (magnitude >> 13) & 1;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
  // The addition of 0.5 makes the float unit round a subnormal at the right bit.
  const uint32_t small = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t huge = order > 0x7f800000 ? 0x7e00u : 0x7c00u;  // NaN, or infinity
  const uint32_t finite = order < 0x38800000 ? small : normal;
  return uint16_t(sign | (order >= 0x477ff000 ? huge : finite));  // 65520 and above round to infinity
}

inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace detail

ORTOPS_HOST_DEVICE float to_float(float value) { return value; }
ORTOPS_HOST_DEVICE float to_float(float16 value) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value.bits));
#else
  return detail::half_to_float(value.bits);
#endif
}
ORTOPS_HOST_DEVICE float to_float(bfloat16 value) { return detail::bit_cast<float>(uint32_t(value.bits) << 16); }

// What a kernel computes in: float, and double where the tensors are (on the CPU alone).
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
ORTOPS_HOST_DEVICE T from_float(float value);
template <>
ORTOPS_HOST_DEVICE float from_float<float>(float value) {
  return value;
}
template <>
ORTOPS_HOST_DEVICE float16 from_float<float16>(float value) {
#ifdef __CUDA_ARCH__
  return {__half_as_ushort(__float2half_rn(value))};
#else
  return {detail::float_to_half(value)};
#endif
}
template <>
ORTOPS_HOST_DEVICE bfloat16 from_float<bfloat16>(float value) {
#ifdef __CUDA_ARCH__
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
  return {detail::float_to_bfloat(value)};
#endif
}

template <class T>
ORTOPS_HOST_DEVICE Compute<T> to_compute(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return to_float(value);
  }
}
template <class T>
ORTOPS_HOST_DEVICE T from_compute(Compute<T> value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return from_float<T>(value);
  }
}

}  // namespace ortops
