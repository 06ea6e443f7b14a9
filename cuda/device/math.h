// Functions of one number, in float for the CPU and for CUDA, and in double for the CPU. Those in float have no
// branches and, but for sin, cos, tan, pow and the remainders, no call of libm on the CPU, so that compilers vectorise
// them. NaN stays NaN; where a function has a limit, infinity gives it (to 1e-32).
//
// gelu and erf are written with the Gaussian's upper tail Q(u) = erfc(u / sqrt(2)) / 2:  gelu(x) = max(x, 0) - |x|
// Q(|x|).  In the usual 0.5 x (1 + erf) the sum cancels for negative x; here nothing cancels, and the relative error is
// that of Q. Mills' ratio exp(u^2/2) Q(u) is smooth in t = 1 / (1 + 0.3 u): a polynomial of degree 8 (minimax, our own
// fit) has it to 6e-8.
//
// Arguments are clamped where the function is flat, and before anything gets subnormal. The clamps are at the head of
// each function: compilers compute both sides of a choice, and a subnormal number on either costs a processor a hundred
// cycles.
#pragma once

#include <cmath>

#include "device/types.h"

namespace ortops::math {

// --- parts

// 2^x for |x| <= 126; relative error 1e-7 on the CPU, 2e-7 on CUDA.
ORTOPS_HOST_DEVICE float exp2_fast(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  const float shifted = x + 0x1.8p23f;  // the sum is rounded to an integer, which is then in its low bits
  const float f = x - (shifted - 0x1.8p23f);
  const float power = detail::bit_cast<float>((detail::bit_cast<uint32_t>(shifted) - 0x4b400000u + 127u) << 23);
  const float p = 0.0096184369f + f * (0.0013398879f + f * 0.00015353375f);
  return power * (1.0f + f * (0.69314718f + f * (0.24022648f + f * (0.055503324f + f * p))));
#endif
}

ORTOPS_HOST_DEVICE float reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

ORTOPS_HOST_DEVICE float magnitude(float x) {
#ifdef __CUDA_ARCH__
  return fabsf(x);  // free: instructions read the magnitude of a register
#else
  return detail::bit_cast<float>(detail::bit_cast<uint32_t>(x) & 0x7fffffffu);
#endif
}

ORTOPS_HOST_DEVICE float at_least(float x, float low) {
#ifdef __CUDA_ARCH__
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(low));
  return x;
#else
  return x < low ? low : x;
#endif
}

ORTOPS_HOST_DEVICE float at_most(float x, float high) {
#ifdef __CUDA_ARCH__
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(high));
  return x;
#else
  return x > high ? high : x;
#endif
}

ORTOPS_HOST_DEVICE float clamp(float x, float bound) { return at_most(at_least(x, -bound), bound); }

constexpr float kLog2e = 1.44269504f;

// Q(u) for 0 <= u <= 12.5.
ORTOPS_HOST_DEVICE float upper_tail(float u) {
  const float t = reciprocal(1.0f + 0.3f * u);
  float mills = 0.22865668f + t * (-0.16916421f + t * 0.038377844f);
  mills = 0.094684198f + t * (0.14253360f + t * (-0.076503165f + t * mills));
  mills = 7.1681638e-06f + t * (0.11948770f + t * (0.12192020f + t * mills));
  return mills * exp2_fast(-0.5f * kLog2e * u * u);
}

// For |x| <= 87.
ORTOPS_HOST_DEVICE float inner_sigmoid(float x) { return reciprocal(1.0f + exp2_fast(-kLog2e * x)); }

// 2^n for -126 <= n <= 127, a whole number.
ORTOPS_HOST_DEVICE float power_of_two(float n) {
  return detail::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// x = n ln(2) + the result, which is at most ln(2) / 2 in size; |x| < 1e4.
ORTOPS_HOST_DEVICE float reduced(float x, float& n) {
  const float shifted = x * kLog2e + 0x1.8p23f;
  n = shifted - 0x1.8p23f;
  return x - n * 0.693359375f + n * 2.12194440e-4f;
}

// e^f - 1 for |f| <= ln(2) / 2.
ORTOPS_HOST_DEVICE float short_expm1(float f) {
  const float p = 1.0f / 24 + f * (1.0f / 120 + f * (1.0f / 720 + f * (1.0f / 5040)));
  return f + f * f * (0.5f + f * (1.0f / 6 + f * p));
}

// --- choices, whole numbers, remainders

ORTOPS_HOST_DEVICE float abs(float x) { return magnitude(x); }
ORTOPS_HOST_DEVICE double abs(double x) { return ::fabs(x); }

// NaN if either is.
ORTOPS_HOST_DEVICE float max(float a, float b) {
#ifdef __CUDA_ARCH__
  return at_least(a, b);
#else
  return a > b || a != a ? a : b;
#endif
}
ORTOPS_HOST_DEVICE double max(double a, double b) { return a > b || a != a ? a : b; }
ORTOPS_HOST_DEVICE float min(float a, float b) {
#ifdef __CUDA_ARCH__
  return at_most(a, b);
#else
  return a < b || a != a ? a : b;
#endif
}
ORTOPS_HOST_DEVICE double min(double a, double b) { return a < b || a != a ? a : b; }

#define ORTOPS_OF_LIBM(name)                                      \
  ORTOPS_HOST_DEVICE float name(float x) { return ::name##f(x); } \
  ORTOPS_HOST_DEVICE double name(double x) { return ::name(x); }
ORTOPS_OF_LIBM(floor)
ORTOPS_OF_LIBM(ceil)
ORTOPS_OF_LIBM(rint)
ORTOPS_OF_LIBM(trunc)
#undef ORTOPS_OF_LIBM
ORTOPS_HOST_DEVICE float fmod(float a, float b) { return ::fmodf(a, b); }
ORTOPS_HOST_DEVICE double fmod(double a, double b) { return ::fmod(a, b); }

// a - b floor(a / b), and that floor. The sign is b's, as in Python. The remainder of C is exact.
template <class T>
ORTOPS_HOST_DEVICE T remainder(T a, T b) {
  const T rest = fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
template <class T>
ORTOPS_HOST_DEVICE T floor_divide(T a, T b) {
  const T rest = fmod(a, b);
  const T quotient = rint((a - rest) / b);
  return b == 0 ? a / b : rest != 0 && (rest < 0) != (b < 0) ? quotient - 1 : quotient;
}
// Of integers: 0 where b is 0, and without the one quotient that processors trap on.
ORTOPS_HOST_DEVICE int64_t remainder(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
ORTOPS_HOST_DEVICE int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<int64_t>(0 - static_cast<uint64_t>(a));
  const int64_t rest = a % b;
  return a / b - (rest != 0 && (rest < 0) != (b < 0));
}

// --- powers and their like

ORTOPS_HOST_DEVICE float exp(float x) {
#ifdef __CUDA_ARCH__
  return ::expf(x);
#else
  x = at_most(at_least(x, -104.0f), 89.0f);  // 0, infinity
  float n;
  const float f = reduced(x, n);
  const float half = n < 0 ? n + 64.0f : n - 64.0f;  // 2^n in two steps: it need not be a float by itself
  return (1.0f + short_expm1(f)) * power_of_two(half) * (n < 0 ? 0x1p-64f : 0x1p64f);
#endif
}
ORTOPS_HOST_DEVICE double exp(double x) { return ::exp(x); }

ORTOPS_HOST_DEVICE float expm1(float x) {
#ifdef __CUDA_ARCH__
  return ::expm1f(x);
#else
  x = at_most(at_least(x, -25.0f), 89.0f);
  float n;
  const float f = reduced(x, n);
  const float half = power_of_two(n - 1.0f);
  const float sum = half * short_expm1(f) + (half - 0.5f);
  return sum + sum;
#endif
}
ORTOPS_HOST_DEVICE double expm1(double x) { return ::expm1(x); }

ORTOPS_HOST_DEVICE float log(float x) {
#ifdef __CUDA_ARCH__
  return ::logf(x);
#else
  const bool small = x < 0x1p-126f;
  const uint32_t bits = detail::bit_cast<uint32_t>(small ? x * 0x1p23f : x);
  const int32_t exponent = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;  // the mantissa is in [sqrt(1/2), sqrt(2))
  const float m = detail::bit_cast<float>(bits - (static_cast<uint32_t>(exponent) << 23));
  const float e = static_cast<float>(exponent) - (small ? 23.0f : 0.0f);
  const float s = (m - 1.0f) / (m + 1.0f), s2 = s * s;  // log(m) = 2 artanh(s)
  const float p = s2 * (2.0f / 3 + s2 * (2.0f / 5 + s2 * (2.0f / 7 + s2 * (2.0f / 9))));
  const float y = e * 0.693359375f + (2.0f * s + (s * p - e * 2.12194440e-4f));
  const float outside = x == 0 ? -INFINITY : x < 0 ? NAN : x;
  return x > 0 && x < INFINITY ? y : outside;
#endif
}
ORTOPS_HOST_DEVICE double log(double x) { return ::log(x); }

ORTOPS_HOST_DEVICE float log1p(float x) {
#ifdef __CUDA_ARCH__
  return ::log1pf(x);
#else
  const float sum = 1.0f + x;
  const float lost = x - (sum - 1.0f);
  const float y = log(sum);
  return sum > 0 && sum < INFINITY ? y + lost / sum : y;
#endif
}
ORTOPS_HOST_DEVICE double log1p(double x) { return ::log1p(x); }

ORTOPS_HOST_DEVICE float sqrt(float x) { return ::sqrtf(x); }
ORTOPS_HOST_DEVICE double sqrt(double x) { return ::sqrt(x); }
ORTOPS_HOST_DEVICE float rsqrt(float x) {
#ifdef __CUDA_ARCH__
  return ::rsqrtf(x);
#else
  return 1.0f / ::sqrtf(x);
#endif
}
ORTOPS_HOST_DEVICE double rsqrt(double x) { return 1.0 / ::sqrt(x); }

ORTOPS_HOST_DEVICE float pow(float a, float b) { return ::powf(a, b); }
ORTOPS_HOST_DEVICE double pow(double a, double b) { return ::pow(a, b); }
// A negative power of anything but 1 and -1 is 0.
ORTOPS_HOST_DEVICE int64_t pow(int64_t a, int64_t b) {
  if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;
  uint64_t power = 1, factor = static_cast<uint64_t>(a);
  for (; b; b >>= 1, factor *= factor) power *= b & 1 ? factor : 1;
  return static_cast<int64_t>(power);
}

// --- circles

ORTOPS_HOST_DEVICE float sin(float x) { return ::sinf(x); }
ORTOPS_HOST_DEVICE double sin(double x) { return ::sin(x); }
ORTOPS_HOST_DEVICE float cos(float x) { return ::cosf(x); }
ORTOPS_HOST_DEVICE double cos(double x) { return ::cos(x); }
ORTOPS_HOST_DEVICE float tan(float x) { return ::tanf(x); }
ORTOPS_HOST_DEVICE double tan(double x) { return ::tan(x); }

// --- steps from one value to another

ORTOPS_HOST_DEVICE float erf(float x) {
  const float u = at_most(magnitude(x), 4.0f), s = u * u;
  const float p = -1.0f / 42 + s * (1.0f / 216 + s * (-1.0f / 1320 + s * (1.0f / 9360)));
  const float near = u * (1.12837917f + s * (1.12837917f * (-1.0f / 3 + s * (0.1f + s * p))));
  const float far = 1.0f - 2.0f * upper_tail(1.41421356f * u);
  const uint32_t sign = detail::bit_cast<uint32_t>(x) & 0x80000000u;
  return detail::bit_cast<float>(detail::bit_cast<uint32_t>(u < 0.5f ? near : far) | sign);
}
ORTOPS_HOST_DEVICE double erf(double x) { return ::erf(x); }

// Near 0, where 1 - 2 / (1 + exp(2x)) cancels, a polynomial of its own.
ORTOPS_HOST_DEVICE float tanh(float x) {
  const float u = at_most(magnitude(x), 10.0f), s = u * u;
  const float p = -0.33333281f + s * (0.13331442f + s * (-0.053739700f + s * (0.020639041f + s * -0.0057049328f)));
  const float large = 1.0f - 2.0f * reciprocal(1.0f + exp2_fast(2.0f * kLog2e * u));
  const uint32_t sign = detail::bit_cast<uint32_t>(x) & 0x80000000u;
  return detail::bit_cast<float>(detail::bit_cast<uint32_t>(u < 0.625f ? u + u * s * p : large) | sign);
}
ORTOPS_HOST_DEVICE double tanh(double x) { return ::tanh(x); }

ORTOPS_HOST_DEVICE float sigmoid(float x) { return inner_sigmoid(clamp(x, 87.0f)); }
ORTOPS_HOST_DEVICE double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

template <class T>
ORTOPS_HOST_DEVICE T hardsigmoid(T x) {
  return min(max(x * T(1.0 / 6) + T(0.5), T(0)), T(1));
}

// --- activations

ORTOPS_HOST_DEVICE float gelu(float x) {
  const float u = at_most(magnitude(x), 12.5f);  // u Q(u) is 5e-35 there
  return at_least(x, 0.0f) - u * upper_tail(u);
}
ORTOPS_HOST_DEVICE double gelu(double x) {
  return max(x, 0.0) - min(abs(x), 50.0) * 0.5 * ::erfc(abs(x) * 0.70710678118654752);
}

// 0.5 (1 + tanh(a)) = sigmoid(2 a)
ORTOPS_HOST_DEVICE float gelu_tanh(float x) {
  const float z = clamp(x, 9.5f);
  return at_least(x, -9.5f) * inner_sigmoid(z * (1.59576912f + 0.0713548163f * z * z));
}
ORTOPS_HOST_DEVICE double gelu_tanh(double x) {
  const double z = min(max(x, -50.0), 50.0);
  return max(x, -50.0) * sigmoid(z * (1.5957691216057308 + 0.07135481627260025 * z * z));
}

ORTOPS_HOST_DEVICE float silu(float x) { return at_least(x, -80.0f) * inner_sigmoid(clamp(x, 80.0f)); }
ORTOPS_HOST_DEVICE double silu(double x) { return max(x, -800.0) * sigmoid(x); }

// log(1 + e^x)
template <class T>
ORTOPS_HOST_DEVICE T softplus(T x) {
  return max(x, T(0)) + log1p(exp(-abs(x)));
}

// x tanh(softplus(x)), where the tangent is n / (n + 2) with n = e^x (e^x + 2).
ORTOPS_HOST_DEVICE float mish(float x) {
  const float e = exp(at_most(at_least(x, -80.0f), 20.0f));
  const float n = e * (e + 2.0f);
  return at_least(x, -80.0f) * (n / (n + 2.0f));
}
ORTOPS_HOST_DEVICE double mish(double x) {
  const double e = exp(min(max(x, -800.0), 40.0)), n = e * (e + 2.0);
  return max(x, -800.0) * (n / (n + 2.0));
}

}  // namespace ortops::math
