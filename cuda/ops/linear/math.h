// The activations of Linear, as functors in float for the CPU and for CUDA.
#pragma once

#include "device/math.h"
#include "gen/linear.h"

namespace ortops::linear {

struct None {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return x; }
};

struct Relu {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return math::at_least(x, 0.0f); }
};

struct Gelu {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return math::gelu(x); }
};

// For results of 16 bits, in half the instructions: log2(Q(u)) is a polynomial of degree 5 (minimax, our own fit), so
// 2^x is the only slow instruction. The error is 4.5e-6 |x|; relative to the result, 1e-5 for x > 0, 7e-5 (0.07 epsilon
// of float16) for x > -3, 5e-4 for x > -4, 1e-2 for x > -5.
struct ShortGelu {
  ORTOPS_HOST_DEVICE float operator()(float x) const {
    const float u = math::at_most(math::magnitude(x), 11.5f);
    const float low = -0.46039324f + u * (-0.051183874f + u * (0.0067509871f + u * -0.00041901010f));
    return math::at_least(x, 0.0f) - u * math::exp2_fast(-1.0000133f + u * (-1.1507790f + u * low));
  }
};

struct GeluTanh {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return math::gelu_tanh(x); }
};

struct Silu {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return math::silu(x); }
};

struct Sigmoid {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return math::sigmoid(x); }
};

struct Tanh {
  ORTOPS_HOST_DEVICE float operator()(float x) const { return math::tanh(x); }
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
