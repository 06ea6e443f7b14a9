// An expression of Elementwise, parsed and typed: what it computes, as a list of values in an order in which arguments
// come first. The twin of ortops/_expressions.py.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/op.h"
#include "gen/elementwise_functions.h"

namespace ortops::elementwise {

// Of an element.
inline int bytes_of(Type type) {
  switch (type) {
    case Type::bool_:
    case Type::int8:
    case Type::uint8:
      return 1;
    case Type::int16:
    case Type::uint16:
    case Type::float16:
    case Type::bfloat16:
      return 2;
    case Type::int32:
    case Type::uint32:
    case Type::float32:
      return 4;
    default:
      return 8;
  }
}

// What a value is computed as: bool, int64_t, or a float (a double in a program that is_double).
enum class Kind : uint8_t { bool_, int_, real_ };

enum class Opcode : uint8_t {
  none,
  input,
  literal,
#define X(name, ...) name,
  ORTOPS_OPCODES(X, X, X)
#undef X
      count
};

// How many arguments it has, and the kinds of the result and of them; the name of its function in C++.
struct OpcodeInfo {
  const char* name;
  int arity;
  Kind kinds[4];
};
const OpcodeInfo& info_of(Opcode opcode);

struct Value {
  Opcode opcode = Opcode::none;
  Kind kind = Kind::real_;
  int16_t arguments[3] = {-1, -1, -1};  // of a function: places in the list
  int16_t input = -1;                   // of an input: its number
  int16_t place = 0;                    // the register it is in; no two that are needed at once have the same
  double real = 0;                      // of a literal
  int64_t integer = 0;                  // of a literal that is an integer or a boolean
};

struct Program {
  std::string text;
  std::vector<Type> inputs;
  Type type = Type::none;  // of the result
  bool is_double = false;
  bool has_ints = false;
  int registers = 0;
  std::vector<Value> values;  // the last one is the result

  // What has been compiled of it for CUDA.
  mutable std::once_flag compiled_once;
  mutable std::shared_ptr<void> compiled;

  // Throws an Error that points at the character which is wrong. A type that is not known counts as float32.
  static std::shared_ptr<const Program> parse(const std::string& text, const std::vector<Type>& inputs);
};

// The types of an expression's result and of the operator's output are the same in every model that ortops makes.
void check_type(const Program& program, Type output);

const char* name_of(Type type);
Kind kind_of(Type type);

}  // namespace ortops::elementwise
