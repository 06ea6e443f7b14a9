// The interpreter: every thread walks through the program, which lies among the kernel's parameters, and does each
// operation for all of its elements, so that the decoding is shared. The last result stays in registers, where most
// operations take it from; results that are needed later wait in shared memory.
#include "ops/elementwise/geometry.h"

namespace ortops::elementwise {
namespace {

constexpr int kMaxSteps = 160;
constexpr int kMaxLiterals = 48;
constexpr int kMaxAxes = 5;
constexpr int kThreads = 128;

// An operand is the last result, one that waits, an input or a number.
enum Operand : uint16_t { kLast = 0, kWaiting = 1, kInput = 0x100, kLiteral = 0x200 };

struct Step {
  Opcode opcode;
  int8_t waits;  // where the result waits; -1: nowhere
  uint8_t arity;
  uint16_t operands[3];
};

struct Input {
  const void* data;
  Type type;
  Mode mode;
};

struct Code {
  int64_t count;
  void* y;
  Type type;
  Kind kind;
  int steps;
  int outer;  // axes but the innermost
  Divider inner;
  Divider sizes[kMaxAxes - 1];
  Input inputs[ORTOPS_MAX_INPUTS];
  int64_t strides[ORTOPS_MAX_INPUTS][kMaxAxes - 1];
  Step program[kMaxSteps];
  int64_t literals[kMaxLiterals];  // the bits of a float, an integer, or a boolean
};
static_assert(sizeof(Code) <= 4096, "the parameters of a kernel");

// A number in a register: the bits of a float, or a boolean; in a program that has integers of 64 bits.
template <class Word>
__device__ __forceinline__ float real_in(Word word) {
  return __uint_as_float(static_cast<uint32_t>(word));
}

template <class Word, Kind kind>
struct As {
  using Type = float;
  static __device__ __forceinline__ float from(Word word) { return real_in(word); }
};
template <class Word>
struct As<Word, Kind::int_> {
  using Type = int64_t;
  static __device__ __forceinline__ int64_t from(Word word) { return static_cast<int64_t>(word); }
};
template <class Word>
struct As<Word, Kind::bool_> {
  using Type = bool;
  static __device__ __forceinline__ bool from(Word word) { return word != 0; }
};
template <class Word>
__device__ __forceinline__ Word word_of(float value) {
  return __float_as_uint(value);
}
template <class Word>
__device__ __forceinline__ Word word_of(int64_t value) {
  return static_cast<Word>(value);
}
template <class Word>
__device__ __forceinline__ Word word_of(bool value) {
  return value;
}

// Called, not inlined for each of a thread's elements: functions of many instructions, and of branches.
constexpr bool is_long(Opcode opcode) {
  switch (opcode) {
    case Opcode::pow_real:
    case Opcode::pow_int:
    case Opcode::mod_real:
    case Opcode::mod_int:
    case Opcode::floordiv_real:
    case Opcode::floordiv_int:
    case Opcode::sin_real:
    case Opcode::cos_real:
    case Opcode::tan_real:
    case Opcode::log_real:
    case Opcode::log1p_real:
    case Opcode::expm1_real:
    case Opcode::elu_real:
    case Opcode::selu_real:
    case Opcode::softplus_real:
    case Opcode::mish_real:
    case Opcode::erf_real:
    case Opcode::div_real:
    case Opcode::sqrt_real:
    case Opcode::rsqrt_real:
      return true;
    default:
      return false;
  }
}
#define X(name, ...)                                                   \
  template <class... Arguments>                                        \
  __device__ __noinline__ auto name##_called(Arguments... arguments) { \
    return name<float>(arguments...);                                  \
  }
ORTOPS_OPCODES(X, X, X)
#undef X

template <class Word, int W, int U>
class Machine {
 public:
  static constexpr int kElements = W * U;

  __device__ __forceinline__ Machine(const Code& code, Word* waiting) : code_(code), waiting_(waiting + threadIdx.x) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int64_t vector = (static_cast<int64_t>(blockIdx.x) * U + u) * kThreads + threadIdx.x;
      at_[u] = vector * W;
    }
  }

  __device__ __forceinline__ void run() {
    for (int i = 0; i < code_.steps; ++i) {
      const Step step = code_.program[i];
      Word a[kElements] = {}, b[kElements] = {}, c[kElements] = {};
      // One place that fetches: it has the loads of every type.
#pragma unroll 1
      for (int k = step.arity - 1; k >= 0; --k) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) c[e] = b[e], b[e] = a[e];
        fetch(step.operands[k], a);
      }
      operate(step.opcode, a, b, c);
      if (step.waits >= 0) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) waiting_[(step.waits * kElements + e) * kThreads] = last_[e];
      }
    }
    put();
  }

 private:
  __device__ __forceinline__ void operate(Opcode opcode, const Word* a, const Word* b, const Word* c) {
    switch (opcode) {
#define EACH(name, ...)                                       \
  case Opcode::name: {                                        \
    _Pragma("unroll") for (int e = 0; e < kElements; ++e) {   \
      if constexpr (is_long(Opcode::name)) {                  \
        last_[e] = word_of<Word>(name##_called(__VA_ARGS__)); \
      } else {                                                \
        last_[e] = word_of<Word>(name<float>(__VA_ARGS__));   \
      }                                                       \
    }                                                         \
    break;                                                    \
  }
#define X1(name, ky, ka) EACH(name, As<Word, Kind::ka>::from(a[e]))
#define X2(name, ky, ka, kb) EACH(name, As<Word, Kind::ka>::from(a[e]), As<Word, Kind::kb>::from(b[e]))
#define X3(name, ky, ka, kb, kc) \
  EACH(name, As<Word, Kind::ka>::from(a[e]), As<Word, Kind::kb>::from(b[e]), As<Word, Kind::kc>::from(c[e]))
      ORTOPS_OPCODES(X1, X2, X3)
#undef X1
#undef X2
#undef X3
#undef EACH
      default:  // an input as it is
#pragma unroll
        for (int e = 0; e < kElements; ++e) last_[e] = a[e];
    }
  }

  __device__ __forceinline__ void fetch_input(int number, Word* to) const {
    const Input& input = code_.inputs[number];
    switch (input.type) {
      case Type::bool_:
        return gather<bool>(number, to);
      case Type::int8:
        return gather<int8_t>(number, to);
      case Type::uint8:
        return gather<uint8_t>(number, to);
      case Type::int16:
        return gather<int16_t>(number, to);
      case Type::uint16:
        return gather<uint16_t>(number, to);
      case Type::int32:
        return gather<int32_t>(number, to);
      case Type::uint32:
        return gather<uint32_t>(number, to);
      case Type::int64:
      case Type::uint64:
        return gather<int64_t>(number, to);
      case Type::float16:
        return gather<float16>(number, to);
      case Type::bfloat16:
        return gather<bfloat16>(number, to);
      default:
        return gather<float>(number, to);
    }
  }

  template <class T>
  __device__ __forceinline__ void gather(int number, Word* to) const {
    const Input& input = code_.inputs[number];
    const T* x = static_cast<const T*>(input.data);
    T elements[kElements];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int64_t left = code_.count - at_[u];
      if (left <= 0) {
#pragma unroll
        for (int w = 0; w < W; ++w) elements[u * W + w] = T();
        continue;
      }
      if (input.mode == Mode::whole) {
        read<W>(x + at_[u], left, elements + u * W);
        continue;
      }
      int64_t offset = 0;
      if (input.mode != Mode::scalar) {
        int64_t row, column;
        code_.inner.divide<false>(at_[u], row, column);
        if (input.mode == Mode::along) offset = column;
        for (int axis = code_.outer - 1; axis >= 0; --axis) {
          int64_t place;
          code_.sizes[axis].divide<false>(row, row, place);
          offset += place * code_.strides[number][axis];
        }
      }
      if (input.mode == Mode::along) {
        read<W>(x + offset, left, elements + u * W);
      } else {
        const T element = x[offset];
#pragma unroll
        for (int w = 0; w < W; ++w) elements[u * W + w] = element;
      }
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) to[e] = word_of<Word>(widened(elements[e]));
  }

  __device__ __forceinline__ void fetch(int operand, Word* to) const {
    if (operand == kLast) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) to[e] = last_[e];
    } else if (operand < kInput) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) to[e] = waiting_[((operand - kWaiting) * kElements + e) * kThreads];
    } else if (operand < kLiteral) {
      fetch_input(operand - kInput, to);
    } else {
      const Word literal = static_cast<Word>(code_.literals[operand - kLiteral]);
#pragma unroll
      for (int e = 0; e < kElements; ++e) to[e] = literal;
    }
  }

  template <class R, Kind kind>
  __device__ __forceinline__ void put_as() const {
    R elements[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) elements[e] = narrowed<R>(As<Word, kind>::from(last_[e]));
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int64_t left = code_.count - at_[u];
      if (left > 0) write<W>(static_cast<R*>(code_.y) + at_[u], left, elements + u * W);
    }
  }

  __device__ __forceinline__ void put() const {
    switch (code_.type) {
      case Type::bool_:
        return put_as<bool, Kind::bool_>();
      case Type::int8:
      case Type::uint8:
        return put_as<uint8_t, Kind::int_>();
      case Type::int16:
      case Type::uint16:
        return put_as<uint16_t, Kind::int_>();
      case Type::int32:
      case Type::uint32:
        return put_as<uint32_t, Kind::int_>();
      case Type::int64:
      case Type::uint64:
        return put_as<int64_t, Kind::int_>();
      case Type::float16:
        return put_as<float16, Kind::real_>();
      case Type::bfloat16:
        return put_as<bfloat16, Kind::real_>();
      default:
        return put_as<float, Kind::real_>();
    }
  }

  const Code& code_;
  Word* waiting_;
  int64_t at_[U];
  Word last_[kElements];
};

template <class Word, int W, int U>
__global__ void __launch_bounds__(kThreads) interpret_kernel(const __grid_constant__ Code code) {
  extern __shared__ __align__(16) unsigned char memory[];
  Machine<Word, W, U>(code, reinterpret_cast<Word*>(memory)).run();
}

// The program as steps; false where it is too long. `waiting` is how many results wait at a time.
bool compile(const Program& program, Code& code, int& waiting) {
  const auto is_result = [&](int i) {
    return program.values[i].opcode != Opcode::input && program.values[i].opcode != Opcode::literal;
  };
  const int count = static_cast<int>(program.values.size());
  std::vector<int> results, order(count, -1), last_use(count, -1);
  std::vector<bool> waits(count, false);
  for (int i = 0; i < count; ++i) {
    if (is_result(i)) order[i] = static_cast<int>(results.size()), results.push_back(i);
  }
  for (const int i : results) {
    for (const int16_t argument : program.values[i].arguments) {
      if (argument < 0 || !is_result(argument)) continue;
      last_use[argument] = order[i];
      waits[argument] = waits[argument] || order[i] != order[argument] + 1;
    }
  }
  if (results.size() + 1 > kMaxSteps) return false;
  int literals = 0;
  std::vector<int> place(count, -1), free;
  waiting = 0;
  const auto operand_of = [&](int value, int step) -> int {
    const Value& v = program.values[value];
    if (v.opcode == Opcode::input) return kInput + v.input;
    if (v.opcode != Opcode::literal) return order[value] == step - 1 ? int(kLast) : kWaiting + place[value];
    if (place[value] < 0) {
      if (literals == kMaxLiterals) return -1;
      const float real = static_cast<float>(v.real);
      code.literals[literals] = v.kind == Kind::real_ ? detail::bit_cast<uint32_t>(real) : v.integer;
      place[value] = literals++;
    }
    return kLiteral + place[value];
  };
  code.steps = 0;
  if (results.empty()) {
    code.program[code.steps++] = {Opcode::input, -1, 1, {static_cast<uint16_t>(operand_of(count - 1, 0)), 0, 0}};
  }
  for (const int i : results) {
    const Value& value = program.values[i];
    Step step = {value.opcode, -1, static_cast<uint8_t>(info_of(value.opcode).arity), {}};
    for (int k = 0; k < step.arity; ++k) {
      const int operand = operand_of(value.arguments[k], order[i]);
      if (operand < 0) return false;
      step.operands[k] = static_cast<uint16_t>(operand);
    }
    for (const int16_t argument : value.arguments) {
      if (argument >= 0 && is_result(argument) && waits[argument] && last_use[argument] == order[i]) {
        free.push_back(place[argument]);
        last_use[argument] = -1;
      }
    }
    if (waits[i]) {
      if (free.empty()) free.push_back(waiting++);
      place[i] = free.back();
      free.pop_back();
      if (place[i] > 100) return false;
      step.waits = static_cast<int8_t>(place[i]);
    }
    code.program[code.steps++] = step;
  }
  return true;
}

template <class Word, int W, int U>
bool launch_machine(const Code& code, int waiting, Context& context) {
  const size_t shared = size_t(waiting) * W * U * kThreads * sizeof(Word);
  if (shared > static_cast<size_t>(device_properties().shared_memory_per_block)) return false;
  const int64_t per_block = int64_t(W) * U * kThreads;
  launch(interpret_kernel<Word, W, U>, dim3(narrow((code.count + per_block - 1) / per_block)), dim3(kThreads), shared,
         context, code);
  return true;
}

}  // namespace

bool interpret(const Program& program, const Layout& layout, const std::vector<const void*>& xs, void* y,
               Context& context) {
  Code code = {};
  int waiting = 0;
  if (layout.rank > kMaxAxes || !compile(program, code, waiting)) return false;
  code.count = layout.count;
  code.y = y;
  code.type = program.type;
  code.outer = layout.rank - 1;
  code.inner = divider(layout.sizes[layout.rank - 1]);
  for (int axis = 0; axis < code.outer; ++axis) code.sizes[axis] = divider(layout.sizes[axis]);
  for (size_t i = 0; i < xs.size(); ++i) {
    code.inputs[i] = {xs[i], program.inputs[i], mode_of(layout, i)};
    for (int axis = 0; axis < code.outer; ++axis) code.strides[i][axis] = layout.strides[i][axis];
  }
  // Two kernels, one of them for what is rare: each has all functions of the language.
  if (!program.has_ints && takes_vectors(program, layout, xs, y, 8)) {
    return launch_machine<uint32_t, 8, 1>(code, waiting, context);
  }
  return launch_machine<uint64_t, 1, 4>(code, waiting, context);
}

}  // namespace ortops::elementwise
