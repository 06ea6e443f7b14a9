// What a kernel sees of the world. No header of ONNX Runtime is included here or below.
//
// A kernel is a function `void <op>_<cpu|cuda>(const <Op>Args<T>& a, Context& context)`; the struct of its arguments is
// generated from the operator's declaration (gen/<family>.h): pointers under the names of the inputs and outputs, the
// attributes, and the sizes that the shape line names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "device/types.h"

namespace ortops {

constexpr int kMaxRank = 16;

// Element types, numbered as ONNX numbers them (TensorProto.DataType).
enum class Type : int {
  none = 0,
  float32 = 1,
  uint8 = 2,
  int8 = 3,
  uint16 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  bool_ = 9,
  float16 = 10,
  float64 = 11,
  uint32 = 12,
  uint64 = 13,
  bfloat16 = 16,
};

// The number of an element type of C++.
template <class T>
constexpr Type kTypeOf = Type::none;
template <>
inline constexpr Type kTypeOf<float> = Type::float32;
template <>
inline constexpr Type kTypeOf<double> = Type::float64;
template <>
inline constexpr Type kTypeOf<float16> = Type::float16;
template <>
inline constexpr Type kTypeOf<bfloat16> = Type::bfloat16;
template <>
inline constexpr Type kTypeOf<bool> = Type::bool_;
template <>
inline constexpr Type kTypeOf<int8_t> = Type::int8;
template <>
inline constexpr Type kTypeOf<uint8_t> = Type::uint8;
template <>
inline constexpr Type kTypeOf<int16_t> = Type::int16;
template <>
inline constexpr Type kTypeOf<uint16_t> = Type::uint16;
template <>
inline constexpr Type kTypeOf<int32_t> = Type::int32;
template <>
inline constexpr Type kTypeOf<uint32_t> = Type::uint32;
template <>
inline constexpr Type kTypeOf<int64_t> = Type::int64;
template <>
inline constexpr Type kTypeOf<uint64_t> = Type::uint64;

// A tensor's shape, or a run of axes of one. `Size` is int64_t, or in shape inference a size that may be a symbol.
template <class Size>
struct BasicShape {
  int rank = 0;
  Size dims[kMaxRank] = {};

  Size size() const {
    Size product = 1;
    for (int i = 0; i < rank; ++i) product *= dims[i];
    return product;
  }
  const Size& operator[](int axis) const { return dims[axis]; }
};
using Shape = BasicShape<int64_t>;

// The strides, in elements, at which a broadcasting input is read along the axes it broadcasts to: 0 where it has one
// element for many.
struct Strides {
  int rank = 0;
  int64_t strides[kMaxRank] = {};

  int64_t operator[](int axis) const { return strides[axis]; }
};

// An attribute that is a list of numbers.
template <class Number>
struct List {
  int size = 0;
  Number values[2 * kMaxRank] = {};

  Number operator[](int index) const { return values[index]; }
};
using IntList = List<int64_t>;
using FloatList = List<float>;

// An error in the call's inputs. The text names the argument, what was expected, what came and what to do; the name of
// the operator and of the node are put before it.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void throw_index_error(const char* input, int64_t index, int64_t size) {
  throw Error(std::string(input) + ": index " + std::to_string(index) + " is outside of the valid range [" +
              std::to_string(-size) + ", " + std::to_string(size - 1) + "]");
}

// A reference to a callable that outlives the call (what std::function_ref will be).
template <class Signature>
class FunctionRef;
template <class Result, class... Parameters>
class FunctionRef<Result(Parameters...)> {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
  FunctionRef(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, Parameters... parameters) -> Result {
          return (*static_cast<std::remove_reference_t<F>*>(object))(parameters...);
        }) {}
  Result operator()(Parameters... parameters) const { return call_(object_, parameters...); }

 private:
  void* object_;
  Result (*call_)(void*, Parameters...);
};

// y[m, n] = x[m, k] w + bias, in float32 on the CPU. All are dense and row-major.
struct Gemm {
  int64_t m, n, k;
  const float* x;
  const float* w;  // [k, n], or [n, k] where w_transposed
  bool w_transposed;
  const float* bias;  // [n], or null
  float* y;
};

// One call of one kernel.
class Context {
 public:
  // The stream to launch on (a cudaStream_t); null on the CPU.
  virtual void* stream() = 0;
  // Memory (device memory on CUDA) aligned to 256 bytes, valid until the kernel returns; on CUDA until the work that is
  // queued by then has run.
  virtual void* scratch(size_t bytes) = 0;
  // Whether the session wants out-of-range indices reported on CUDA (session option ortops.check_indices).
  virtual bool check_indices() = 0;
  // CPU: calls f(begin, end) for pieces of 0..count, some of them at once. A piece has at least `grain` items.
  // An exception that f throws is thrown again here, after all pieces have ended.
  virtual void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> f) = 0;
  // CPU: a matrix product by ONNX Runtime's own kernel. May be called inside parallel_for.
  virtual void gemm(const Gemm& gemm) = 0;

 protected:
  ~Context() = default;
};

}  // namespace ortops
