// The activations of Linear, in float, for the CPU and for CUDA. They have no branches, so that compilers vectorise
// them, and no call of libm. NaN stays NaN; where the function has a limit, infinity gives it (to 1e-32).
//
// gelu is written with the Gaussian's upper tail Q(u) = erfc(u / sqrt(2)) / 2:  gelu(x) = max(x, 0) - |x| Q(|x|).  In
// the usual 0.5 x (1 + erf) the sum cancels for negative x; here nothing cancels, and the relative error is that of Q.
// Mills' ratio exp(u^2/2) Q(u) is smooth in t = 1 / (1 + 0.3 u): a polynomial of degree 8 (minimax, our own fit) has it
// to 6e-8.
//
// Arguments are clamped where the function is flat, and before anything gets subnormal. The clamps are at the head of
// each function: compilers compute both sides of a choice, and a subnormal number on either costs a processor a hundred
// cycles.
#pragma once

#include "gen/linear.h"

namespace ortops::linear {

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

// For |x| <= 87.
ORTOPS_HOST_DEVICE float sigmoid(float x) { return reciprocal(1.0f + exp2_fast(-kLog2e * x)); }

struct None {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return x; }
};

struct Relu {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return at_least(x, 0.0f); }
};

struct Gelu {
  ORTOPS_HOST_DEVICE float operator()(float x) const {
    const float u = at_most(magnitude(x), 12.5f);  // u Q(u) is 5e-35 there
    const float t = reciprocal(1.0f + 0.3f * u);
    float mills = 0.22865668f + t * (-0.16916421f + t * 0.038377844f);
    mills = 0.094684198f + t * (0.14253360f + t * (-0.076503165f + t * mills));
    mills = 7.1681638e-06f + t * (0.11948770f + t * (0.12192020f + t * mills));
    return at_least(x, 0.0f) - u * mills * exp2_fast(-0.5f * kLog2e * u * u);
  }
};

// For results of 16 bits, in half the instructions: log2(Q(u)) is a polynomial of degree 5 (minimax, our own fit), so
// 2^x is the only slow instruction. The error is 4.5e-6 |x|; relative to the result, 1e-5 for x > 0, 7e-5 (0.07 epsilon
// of float16) for x > -3, 5e-4 for x > -4, 1e-2 for x > -5.
struct ShortGelu {
  ORTOPS_HOST_DEVICE float operator()(float x) const {
    const float u = at_most(magnitude(x), 11.5f);
    const float low = -0.46039324f + u * (-0.051183874f + u * (0.0067509871f + u * -0.00041901010f));
    return at_least(x, 0.0f) - u * exp2_fast(-1.0000133f + u * (-1.1507790f + u * low));
  }
};

// 0.5 (1 + tanh(a)) = sigmoid(2 a)
struct GeluTanh {
  ORTOPS_HOST_DEVICE float operator()(float x) const {
    const float z = clamp(x, 9.5f);
    return at_least(x, -9.5f) * sigmoid(z * (1.59576912f + 0.0713548163f * z * z));
  }
};

struct Silu {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return at_least(x, -80.0f) * sigmoid(clamp(x, 80.0f)); }
};

struct Sigmoid {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return sigmoid(clamp(x, 87.0f)); }
};

// Near 0, where 1 - 2 / (1 + exp(2x)) cancels, a polynomial of its own.
struct Tanh {
  ORTOPS_HOST_DEVICE float operator()(float x) const {
    const float u = at_most(magnitude(x), 10.0f), s = u * u;
    const float p = -0.33333281f + s * (0.13331442f + s * (-0.053739700f + s * (0.020639041f + s * -0.0057049328f)));
    const float large = 1.0f - 2.0f * reciprocal(1.0f + exp2_fast(2.0f * kLog2e * u));
    const uint32_t sign = detail::bit_cast<uint32_t>(x) & 0x80000000u;
    return detail::bit_cast<float>(detail::bit_cast<uint32_t>(u < 0.625f ? u + u * s * p : large) | sign);
  }
};

// Calls f with the functor of the activation, for results of type T.
template <class T, class F>
void with_activation(LinearAttributes::Activation activation, F&& f) {
  using Kind = LinearAttributes::Activation;
  switch (activation) {
    case Kind::none:
      return f(None());
    case Kind::relu:
      return f(Relu());
    case Kind::gelu:
      return f(std::conditional_t<sizeof(T) == 2, ShortGelu, Gelu>());
    case Kind::gelu_tanh:
      return f(GeluTanh());
    case Kind::silu:
      return f(Silu());
    case Kind::sigmoid:
      return f(Sigmoid());
    case Kind::tanh:
      return f(Tanh());
  }
}

}  // namespace ortops::linear
