// What the generated code and the ONNX Runtime side share: the table of rows (operator x types x device).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/op.h"
#include "core/shapes.h"

namespace ortops {

// Gives a node's attributes to the generated `parse` functions; an absent one leaves the default in place. Errors name
// the attribute, what was expected and what came.
class AttributeReader {
 public:
  virtual bool read(const char* name, int64_t& value) = 0;
  virtual bool read(const char* name, float& value) = 0;
  virtual bool read(const char* name, std::string& value) = 0;
  virtual bool read(const char* name, IntList& value) = 0;
  virtual bool read(const char* name, FloatList& value) = 0;
  // The types of the node's inputs; none for one that is absent, or not known while shapes are inferred.
  virtual std::vector<Type> input_types() = 0;

 protected:
  ~AttributeReader() = default;
};

// One call, as the generated code sees it.
class Call : public Context, public HostInputs {
 public:
  const Type* types = nullptr;                              // of the inputs, then of the outputs (Row::types)
  std::span<const Shape* const> input_shapes;               // null where absent
  const void* input(int index) override = 0;                // null where absent
  virtual void* output(int index, const Shape& shape) = 0;  // null where the node does not name it

 protected:
  ~Call() = default;
};

struct Formal {
  const char* name;
  bool optional;
  bool variadic;
  bool host;  // read by the host: it lies in the CPU's memory on every device
};

// An operator: what all its rows have in common.
struct OpInfo {
  const char* name;
  std::span<const Formal> inputs;
  std::span<const Formal> outputs;
  void* (*parse)(AttributeReader&);  // a new attributes object
  void (*release)(void* attributes);
  void (*infer)(const void* attributes, Binder<Symbol>&);
  int variants;  // names it has: Name, Name_2, ... Name_<variants>
};

enum class Device { cpu, cuda };

struct Row {
  const OpInfo* op;
  Device device;
  const Type* types;  // of the inputs, then of the outputs; none where any will do
  void (*run)(const void* attributes, Call&);
};

// Defined in the generated table.cc.
std::span<const std::span<const Row>> table();
extern const char* const kDeclarations;  // the fingerprint of the declarations that it was generated from
extern const int kVariants;              // names that most operators have

inline void check_attribute(bool fits, const char* name, const char* expected, const std::string& got) {
  if (fits) return;
  std::string shown;  // an error's text is UTF-8, whatever the model holds, and not longer than a line
  for (size_t i = 0; i < got.size() && i < 80; ++i) shown += got[i] >= ' ' && got[i] <= '~' ? got[i] : '?';
  if (got.size() > 80) shown += "...";
  throw Error(std::string("attribute ") + name + ": expected " + expected + ", got " + shown);
}

}  // namespace ortops
