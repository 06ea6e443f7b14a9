// The program runs on a chunk of elements at a time, one loop for each of its values: the chunks stay in the first
// level cache, and the loops are vectors. What lies in memory as it is computed with is read where it lies.
#include "ops/elementwise/interpreter.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "device/arrays.h"
#include "ops/elementwise/layout.h"

namespace ortops::elementwise {
namespace {

constexpr int64_t kChunk = 512;  // elements; the result of a loop is 2 KiB of floats
constexpr int64_t kBytes = kChunk * 8;
constexpr int64_t kGrain = 16 * 1024;  // elements of one value that are worth a piece of work of their own

#define FLAT __attribute__((flatten))

template <Kind kind, class T>
struct StoredAs {
  using Type = T;
};
template <class T>
struct StoredAs<Kind::int_, T> {
  using Type = int64_t;
};
template <class T>
struct StoredAs<Kind::bool_, T> {
  using Type = bool;
};

// --- the loops: of float for each generation of processors, of double for any

using Loop = void (*)(const void* a, const void* b, const void* c, void* y, int64_t count);

#define OF(kind, T) typename StoredAs<Kind::kind, T>::Type
#define ARRAY(name, kind, T) const auto* name = static_cast<const StoredAs<Kind::kind, T>::Type*>(name##_)
#define LOOP(T, name, call) \
  for (int64_t i = 0; i < count; ++i) y[i] = name<T> call

#define X1(name, ky, ka)                                                                                     \
  ORTOPS_CLONES FLAT void name##_floats(const void* a_, const void*, const void*, void* y_, int64_t count) { \
    ARRAY(a, ka, float);                                                                                     \
    auto* __restrict y = static_cast<StoredAs<Kind::ky, float>::Type*>(y_);                                  \
    LOOP(float, name, (a[i]));                                                                               \
  }
#define X2(name, ky, ka, kb)                                                                                    \
  ORTOPS_CLONES FLAT void name##_floats(const void* a_, const void* b_, const void*, void* y_, int64_t count) { \
    ARRAY(a, ka, float);                                                                                        \
    ARRAY(b, kb, float);                                                                                        \
    auto* __restrict y = static_cast<StoredAs<Kind::ky, float>::Type*>(y_);                                     \
    LOOP(float, name, (a[i], b[i]));                                                                            \
  }
#define X3(name, ky, ka, kb, kc)                                                                                   \
  ORTOPS_CLONES FLAT void name##_floats(const void* a_, const void* b_, const void* c_, void* y_, int64_t count) { \
    ARRAY(a, ka, float);                                                                                           \
    ARRAY(b, kb, float);                                                                                           \
    ARRAY(c, kc, float);                                                                                           \
    auto* __restrict y = static_cast<StoredAs<Kind::ky, float>::Type*>(y_);                                        \
    LOOP(float, name, (a[i], b[i], c[i]));                                                                         \
  }
ORTOPS_OPCODES(X1, X2, X3)
#undef X1
#undef X2
#undef X3

#define X1(name, ky, ka)                                                                   \
  void name##_doubles(const void* a_, const void*, const void*, void* y_, int64_t count) { \
    ARRAY(a, ka, double);                                                                  \
    auto* __restrict y = static_cast<StoredAs<Kind::ky, double>::Type*>(y_);               \
    LOOP(double, name, (a[i]));                                                            \
  }
#define X2(name, ky, ka, kb)                                                                  \
  void name##_doubles(const void* a_, const void* b_, const void*, void* y_, int64_t count) { \
    ARRAY(a, ka, double);                                                                     \
    ARRAY(b, kb, double);                                                                     \
    auto* __restrict y = static_cast<StoredAs<Kind::ky, double>::Type*>(y_);                  \
    LOOP(double, name, (a[i], b[i]));                                                         \
  }
#define X3(name, ky, ka, kb, kc)                                                                 \
  void name##_doubles(const void* a_, const void* b_, const void* c_, void* y_, int64_t count) { \
    ARRAY(a, ka, double);                                                                        \
    ARRAY(b, kb, double);                                                                        \
    ARRAY(c, kc, double);                                                                        \
    auto* __restrict y = static_cast<StoredAs<Kind::ky, double>::Type*>(y_);                     \
    LOOP(double, name, (a[i], b[i], c[i]));                                                      \
  }
ORTOPS_OPCODES(X1, X2, X3)
#undef X1
#undef X2
#undef X3

#define X(name, ...) {name##_floats, name##_doubles},
const Loop kLoops[][2] = {{}, {}, {}, ORTOPS_OPCODES(X, X, X)};
#undef X

// Sines and cosines, which libm has one at a time only: of x - q pi/2, reduced in double. What is far from 0 is left to
// libm.
constexpr float kFar = 1e6f;

template <int kShift>  // 1 for the cosine, which is a quarter ahead
ORTOPS_INLINE void turn(const float* x, float* __restrict y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double shifted = x[i] * 0.63661977236758134 + 0x1.8p52;  // rounded to an integer, which is in its low bits
    const double q = shifted - 0x1.8p52;
    const float r = static_cast<float>((x[i] - q * 1.5707963109016418) - q * 1.5893254773528196e-08), s = r * r;
    const int32_t quadrant = static_cast<int32_t>(detail::bit_cast<int64_t>(shifted)) + kShift;
    const float sine = r + r * s * (-1.0f / 6 + s * (1.0f / 120 + s * (-1.0f / 5040 + s * (1.0f / 362880))));
    const float p = 1.0f / 24 + s * (-1.0f / 720 + s * (1.0f / 40320 + s * (-1.0f / 3628800)));
    const float cosine = 1.0f + s * (-0.5f + s * p);
    const uint32_t sign = static_cast<uint32_t>(quadrant & 2) << 30;
    y[i] = detail::bit_cast<float>(detail::bit_cast<uint32_t>(quadrant & 1 ? cosine : sine) ^ sign);
  }
}
ORTOPS_CLONES void turn_sines(const float* x, float* y, int64_t count) { turn<0>(x, y, count); }
ORTOPS_CLONES void turn_cosines(const float* x, float* y, int64_t count) { turn<1>(x, y, count); }

void sines(const void* a, const void*, const void*, void* y, int64_t count) {
  const auto* x = static_cast<const float*>(a);
  turn_sines(x, static_cast<float*>(y), count);
  for (int64_t i = 0; i < count; ++i) {
    if (!(math::abs(x[i]) < kFar)) static_cast<float*>(y)[i] = math::sin(x[i]);
  }
}
void cosines(const void* a, const void*, const void*, void* y, int64_t count) {
  const auto* x = static_cast<const float*>(a);
  turn_cosines(x, static_cast<float*>(y), count);
  for (int64_t i = 0; i < count; ++i) {
    if (!(math::abs(x[i]) < kFar)) static_cast<float*>(y)[i] = math::cos(x[i]);
  }
}

Loop loop_of(Opcode opcode, bool is_double) {
  if (opcode == Opcode::sin_real && !is_double) return sines;
  if (opcode == Opcode::cos_real && !is_double) return cosines;
  return kLoops[static_cast<int>(opcode)][is_double];
}

// --- from and to the types that tensors have

#define CONVERT(From, To)                                                 \
  ORTOPS_CLONES void convert(const From* from, To* to, int64_t count) {   \
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]); \
  }
#define CONVERT_INT(T) CONVERT(T, int64_t) CONVERT(int64_t, T)
CONVERT_INT(int8_t)
CONVERT_INT(uint8_t)
CONVERT_INT(int16_t)
CONVERT_INT(uint16_t)
CONVERT_INT(int32_t)
CONVERT_INT(uint32_t)
CONVERT(float, double)
CONVERT(double, float)

template <class T>
void load_as(const void* from, void* to, int64_t count) {
  convert(static_cast<const T*>(from), static_cast<int64_t*>(to), count);
}
template <class T>
void store_as(const void* from, void* to, int64_t count) {
  convert(static_cast<const int64_t*>(from), static_cast<T*>(to), count);
}

// Reals; through float where they are computed as doubles.
template <class T>
void load_real(const void* from, void* to, int64_t count, bool is_double) {
  if (!is_double) return widen(static_cast<const T*>(from), static_cast<float*>(to), count);
  float wide[kChunk];
  widen(static_cast<const T*>(from), wide, count);
  convert(wide, static_cast<double*>(to), count);
}
template <class T>
void store_real(const void* from, void* to, int64_t count, bool is_double) {
  if (!is_double) return narrow(static_cast<const float*>(from), static_cast<T*>(to), count);
  float wide[kChunk];
  convert(static_cast<const double*>(from), wide, count);
  narrow(wide, static_cast<T*>(to), count);
}

void load(Type type, const void* from, void* to, int64_t count, bool is_double) {
  switch (type) {
    case Type::bool_:
      std::memcpy(to, from, count);
      break;
    case Type::int8:
      return load_as<int8_t>(from, to, count);
    case Type::uint8:
      return load_as<uint8_t>(from, to, count);
    case Type::int16:
      return load_as<int16_t>(from, to, count);
    case Type::uint16:
      return load_as<uint16_t>(from, to, count);
    case Type::int32:
      return load_as<int32_t>(from, to, count);
    case Type::uint32:
      return load_as<uint32_t>(from, to, count);
    case Type::float16:
      return load_real<float16>(from, to, count, is_double);
    case Type::bfloat16:
      return load_real<bfloat16>(from, to, count, is_double);
    case Type::float32:
      return load_real<float>(from, to, count, is_double);
    default:  // float64, int64, uint64
      std::memcpy(to, from, count * 8);
  }
}

void store(Type type, const void* from, void* to, int64_t count, bool is_double) {
  switch (type) {
    case Type::bool_:
      std::memcpy(to, from, count);
      break;
    case Type::int8:
      return store_as<int8_t>(from, to, count);
    case Type::uint8:
      return store_as<uint8_t>(from, to, count);
    case Type::int16:
      return store_as<int16_t>(from, to, count);
    case Type::uint16:
      return store_as<uint16_t>(from, to, count);
    case Type::int32:
      return store_as<int32_t>(from, to, count);
    case Type::uint32:
      return store_as<uint32_t>(from, to, count);
    case Type::float16:
      return store_real<float16>(from, to, count, is_double);
    case Type::bfloat16:
      return store_real<bfloat16>(from, to, count, is_double);
    case Type::float32:
      return store_real<float>(from, to, count, is_double);
    default:
      std::memcpy(to, from, count * 8);
  }
}

// Whether the type is stored as it is computed with.
bool is_plain(Type type, bool is_double) {
  return type == Type::bool_ || type == Type::int64 || type == Type::uint64 ||
         type == (is_double ? Type::float64 : Type::float32);
}

void fill(void* to, const void* element, int64_t bytes, int64_t count) {
  auto* bytes_to = static_cast<char*>(to);
  for (int64_t i = 0; i < count; ++i) std::memcpy(bytes_to + i * bytes, element, bytes);
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// One piece of a call.
class Piece {
 public:
  Piece(const Program& program, const Layout& layout, const std::vector<const void*>& xs, char* y)
      : program_(program), layout_(layout), xs_(xs), y_(y), at_(program.values.size()) {
    memory_.reset(static_cast<char*>(std::aligned_alloc(64, std::max(1, program.registers) * kBytes)));
    if (!memory_) throw std::bad_alloc();
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      at_[i] = memory_.get() + value.place * kBytes;
      if (value.opcode == Opcode::literal) {
        const float real = static_cast<float>(value.real);
        const bool boolean = value.integer != 0;
        if (value.kind == Kind::int_) fill(at_[i], &value.integer, 8, kChunk);
        if (value.kind == Kind::bool_) fill(at_[i], &boolean, 1, kChunk);
        if (value.kind == Kind::real_ && program.is_double) fill(at_[i], &value.real, 8, kChunk);
        if (value.kind == Kind::real_ && !program.is_double) fill(at_[i], &real, 4, kChunk);
      }
      if (value.opcode == Opcode::input && layout.is_scalar(value.input)) {
        load(program.inputs[value.input], xs[value.input], at_[i], 1, program.is_double);
        const int64_t bytes = value.kind == Kind::bool_ ? 1 : value.kind == Kind::real_ && !program.is_double ? 4 : 8;
        char element[8];
        std::memcpy(element, at_[i], bytes);
        fill(at_[i], element, bytes, kChunk);
      }
    }
  }

  void run(int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kChunk) chunk(at, std::min(kChunk, end - at));
  }

 private:
  void chunk(int64_t begin, int64_t count) {
    const bool is_double = program_.is_double;
    char* result = y_ + begin * bytes_of(program_.type);
    const size_t last = program_.values.size() - 1;
    for (size_t i = 0; i <= last; ++i) {
      const Value& value = program_.values[i];
      if (value.opcode == Opcode::literal) continue;
      if (value.opcode == Opcode::input) {
        if (!layout_.is_scalar(value.input)) read(value, at_[i], begin, count);
        continue;
      }
      const void* given[3] = {};
      for (int k = 0; k < 3; ++k) given[k] = value.arguments[k] >= 0 ? at_[value.arguments[k]] : nullptr;
      void* to = at_[i];
      if (i == last && is_plain(program_.type, is_double)) to = result;
      loop_of(value.opcode, is_double)(given[0], given[1], given[2], to, count);
      if (to == result) return;
    }
    store(program_.type, at_[last], result, count, is_double);
  }

  // Has `at` point to `count` elements of an input, in the type that they are computed in.
  void read(const Value& value, char*& at, int64_t begin, int64_t count) {
    const Type type = program_.inputs[value.input];
    const int64_t bytes = bytes_of(type);
    const char* x = static_cast<const char*>(xs_[value.input]);
    char* own = memory_.get() + value.place * kBytes;
    const int inner = layout_.rank - 1;
    const auto& strides = layout_.strides[value.input];
    const int64_t size = layout_.sizes[inner];
    int64_t column = begin % size, row = begin / size;
    if (layout_.is_whole(value.input) || (column + count <= size && strides[inner] == 1)) {
      x += bytes * (layout_.is_whole(value.input) ? begin : offset(strides, row) + column);
      if (is_plain(type, program_.is_double)) {
        at = const_cast<char*>(x);  // it is only read
      } else {
        load(type, x, at = own, count, program_.is_double);
      }
      return;
    }
    // Gathered run by run in its own type, then converted.
    alignas(64) char gathered[kBytes];
    char* to = is_plain(type, program_.is_double) ? own : gathered;
    for (int64_t done = 0; done < count; column = 0, ++row) {
      const int64_t run = std::min(count - done, size - column);
      const char* from = x + bytes * (offset(strides, row) + column * strides[inner]);
      if (strides[inner]) {
        std::memcpy(to + done * bytes, from, run * bytes);
      } else {
        repeat(to + done * bytes, from, bytes, run);
      }
      done += run;
    }
    if (to != own) load(type, gathered, own, count, program_.is_double);
    at = own;
  }

  static void repeat(char* to, const char* element, int64_t bytes, int64_t count) {
    const auto each = [&](auto typed) {
      std::memcpy(&typed, element, sizeof(typed));
      for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * sizeof(typed), &typed, sizeof(typed));
    };
    if (bytes == 1) return each(uint8_t());
    if (bytes == 2) return each(uint16_t());
    if (bytes == 4) return each(uint32_t());
    each(uint64_t());
  }

  // Where a row of the innermost axis begins.
  int64_t offset(const std::array<int64_t, kMaxRank>& strides, int64_t row) const {
    int64_t result = 0;
    for (int axis = layout_.rank - 2; axis >= 0; --axis) {
      result += row % layout_.sizes[axis] * strides[axis];
      row /= layout_.sizes[axis];
    }
    return result;
  }

  const Program& program_;
  const Layout& layout_;
  const std::vector<const void*>& xs_;
  char* y_;
  std::vector<char*> at_;  // where each value is
  std::unique_ptr<char, Free> memory_;
};

}  // namespace

void run_cpu(const Program& program, const std::vector<const void*>& xs, const std::vector<Shape>& shapes, void* y,
             Context& context) {
  const Layout layout = layout_of(shapes);
  const int64_t grain = kGrain / static_cast<int64_t>(program.values.size());
  context.parallel_for(layout.count, grain, [&](int64_t begin, int64_t end) {
    Piece(program, layout, xs, static_cast<char*>(y)).run(begin, end);
  });
}

}  // namespace ortops::elementwise
