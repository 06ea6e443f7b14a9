#include "ops/elementwise/program.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>

namespace ortops::elementwise {
namespace {

enum class Rule : uint8_t { number_, real_, compare_, logic_, where_, test_ };

struct Function {
  const char* name;
  const char* symbol;
  Rule rule;
  int arity, least;
  double value;  // of the last argument, where it may be left out
  bool called;
  Opcode opcodes[3];  // for reals, ints, booleans
};
const Function kFunctions[] = {ORTOPS_FUNCTIONS};

const OpcodeInfo kOpcodes[] = {{"", 0, {}},
                               {"", 0, {}},
                               {"", 0, {}},
#define X1(name, y, a) {#name, 1, {Kind::y, Kind::a}},
#define X2(name, y, a, b) {#name, 2, {Kind::y, Kind::a, Kind::b}},
#define X3(name, y, a, b, c) {#name, 3, {Kind::y, Kind::a, Kind::b, Kind::c}},
                               ORTOPS_OPCODES(X1, X2, X3)
#undef X1
#undef X2
#undef X3
};

constexpr std::pair<const char*, Type> kTypes[] = {
    {"bool", Type::bool_},      {"int8", Type::int8},       {"uint8", Type::uint8},       {"int16", Type::int16},
    {"uint16", Type::uint16},   {"int32", Type::int32},     {"uint32", Type::uint32},     {"int64", Type::int64},
    {"uint64", Type::uint64},   {"float16", Type::float16}, {"bfloat16", Type::bfloat16}, {"float32", Type::float32},
    {"float64", Type::float64},
};

// From those that bind the weakest. Comparisons do not chain; ** is apart.
const std::vector<std::vector<std::string>> kLevels = {
    {"<", "<=", ">", ">=", "==", "!="}, {"|"}, {"^"}, {"&"}, {"+", "-"}, {"*", "/", "//", "%"}};

int bits_of(Type type) {
  switch (type) {
    case Type::int8:
    case Type::uint8:
      return 8;
    case Type::int16:
    case Type::uint16:
      return 16;
    case Type::int32:
    case Type::uint32:
      return 32;
    default:
      return 64;
  }
}
bool is_signed(Type type) {
  return type == Type::int8 || type == Type::int16 || type == Type::int32 || type == Type::int64;
}
Type signed_of(int bits) {
  return bits == 8 ? Type::int8 : bits == 16 ? Type::int16 : bits == 32 ? Type::int32 : Type::int64;
}

// The type of two values of one kind; none is that of a literal.
Type wider(Type a, Type b) {
  if (a == Type::none || b == Type::none || a == b) return a == Type::none ? b : a;
  if (kind_of(a) == Kind::real_) return a == Type::float64 || b == Type::float64 ? Type::float64 : Type::float32;
  if (is_signed(a) == is_signed(b)) return bits_of(a) > bits_of(b) ? a : b;
  const int s = bits_of(is_signed(a) ? a : b), u = bits_of(is_signed(a) ? b : a);
  return signed_of(s > u ? s : std::min(64, 2 * u));
}

struct Token {
  enum Sort { number, name, symbol, end } sort;
  std::string text;
  size_t at;
};

// A recursive-descent parser that types as it goes.
class Parser {
 public:
  Parser(const std::string& text, const std::vector<Type>& inputs, Program& program)
      : text_(text), inputs_(inputs), program_(program) {
    for (const Type type : inputs) program.is_double = program.is_double || type == Type::float64;
    size_t at = 0;
    for (;;) {
      while (at < text.size() && std::strchr(" \t\n\r\f\v", text[at])) ++at;
      if (at == text.size()) break;
      const Token next = token(at);
      if (tokens_.size() == ORTOPS_MAX_TOKENS) {
        fail(at, "expected at most " + std::to_string(ORTOPS_MAX_TOKENS) + " names, numbers and symbols");
      }
      tokens_.push_back(next);
      at += tokens_.back().text.size();
    }
    tokens_.push_back({Token::end, "", text.size()});
    for (const Token& token : tokens_) program.is_double = program.is_double || token.text == "float64";
  }

  void run() {
    while (peek().sort == Token::name && peek(1).text == "=") {
      const Token name = take();
      if (is_taken(name.text)) fail(name.at, name.text + " has a meaning already");
      take();
      const Result value = level(0);
      names_.emplace(name.text, value);
      unused_.emplace_back(name.text, name.at);
      expect(";");
    }
    const Result root = level(0);
    if (peek().sort != Token::end) fail(peek().at, "expected an operator or the end, got " + peek().text);
    for (const auto& [name, at] : unused_) fail(at, name + " is not used");
    program_.type = stored(root);
    keep(root.value);
    if (!wrong_.empty()) throw Error(wrong_);
  }

 private:
  struct Result {
    int value;
    Type type;  // none: a literal's, any of its kind
  };

  [[noreturn]] void fail(size_t at, const std::string& what) const { throw Error(pointed(at, what)); }

  std::string pointed(size_t at, const std::string& what) const {
    const bool is_long = text_.size() > ORTOPS_SHOWN;
    const size_t begin = is_long && at > ORTOPS_SHOWN / 2 ? at - ORTOPS_SHOWN / 2 : 0;
    std::string shown = begin ? "..." : "";
    const std::string indent((at - begin) + shown.size(), ' ');
    for (const char c : text_.substr(begin, ORTOPS_SHOWN)) {
      shown += c >= ' ' && c <= '~' ? c : std::isspace(static_cast<unsigned char>(c)) ? ' ' : '?';
    }
    if (begin + ORTOPS_SHOWN < text_.size()) shown += "...";
    return "attribute expression: " + what + "\n  " + shown + "\n  " + indent + "^";
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

  Token token(size_t at) const {
    const auto c = [&](size_t i) { return i < text_.size() ? text_[i] : '\0'; };
    size_t end = at;
    if (is_digit(c(at)) || (c(at) == '.' && is_digit(c(at + 1)))) {
      while (is_digit(c(end))) ++end;
      if (c(end) == '.') ++end;
      while (is_digit(c(end))) ++end;
      size_t exponent = end;
      if (c(exponent) == 'e' || c(exponent) == 'E') {
        ++exponent;
        if (c(exponent) == '-' || c(exponent) == '+') ++exponent;
        if (is_digit(c(exponent))) {
          while (is_digit(c(exponent))) ++exponent;
          end = exponent;
        }
      }
      return {Token::number, text_.substr(at, end - at), at};
    }
    if (is_letter(c(at))) {
      while (is_letter(c(end)) || is_digit(c(end))) ++end;
      return {Token::name, text_.substr(at, end - at), at};
    }
    for (const char* two : {"**", "//", "<=", ">=", "==", "!="}) {
      if (text_.compare(at, 2, two) == 0) return {Token::symbol, two, at};
    }
    if (!std::strchr("-+*/%<>&|^!(),;=", c(at)) || !c(at)) {
      fail(at, std::string("unexpected character '") + (c(at) >= ' ' && c(at) <= '~' ? c(at) : '?') + "'");
    }
    return {Token::symbol, std::string(1, c(at)), at};
  }

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(position_ + ahead, tokens_.size() - 1)]; }
  Token take() { return tokens_[position_++]; }
  bool accept(const char* symbol) {
    if (peek().text != symbol) return false;
    ++position_;
    return true;
  }
  std::string shown() const { return peek().sort == Token::end ? "the end" : peek().text; }
  void expect(const char* symbol) {
    if (!accept(symbol)) fail(peek().at, std::string("expected ") + symbol + ", got " + shown());
  }

  static bool is_input(const std::string& name) {
    return name.size() > 1 && name[0] == 'x' && name.find_first_not_of("0123456789", 1) == std::string::npos;
  }
  static const Function* function(const std::string& name) {
    for (const Function& f : kFunctions) {
      if (f.called && name == f.name) return &f;
    }
    return nullptr;
  }
  static const Function& operator_of(const std::string& symbol, int arity) {
    for (const Function& f : kFunctions) {
      if (symbol == f.symbol && f.arity == arity) return f;
    }
    throw std::logic_error("no such operator");
  }
  static Type type_of(const std::string& name) {
    for (const auto& [spelt, type] : kTypes) {
      if (name == spelt) return type;
    }
    return Type::none;
  }
  bool is_taken(const std::string& name) const {
    return function(name) || type_of(name) != Type::none || name == "inf" || name == "nan" || name == "true" ||
           name == "false" || is_input(name) || names_.count(name);
  }

  Result level(size_t number) {
    if (number == kLevels.size()) return unary();
    Result left = level(number + 1);
    for (int count = 0;; ++count) {
      bool found = false;
      for (const std::string& symbol : kLevels[number]) found = found || peek().text == symbol;
      if (!found) return left;
      if (number == 0 && count) fail(peek().at, "comparisons do not chain: write (a < b) & (b < c)");
      const Token symbol = take();
      left = call(operator_of(symbol.text, 2), symbol.at, {left, level(number + 1)});
    }
  }

  Result unary() {
    if (++depth_ > ORTOPS_MAX_DEPTH) {
      fail(peek().at, "nested more than " + std::to_string(ORTOPS_MAX_DEPTH) + " deep");
    }
    Result result;
    const std::string& text = peek().text;
    if (text == "-" || text == "!" || text == "+") {
      const Token symbol = take();
      result = unary();
      const Value& value = program_.values[result.value];
      if (symbol.text == "-" && value.opcode == Opcode::literal && value.kind != Kind::bool_) {
        result.value = literal(value.kind, -value.real, static_cast<int64_t>(0 - static_cast<uint64_t>(value.integer)));
      } else if (symbol.text != "+") {
        result = call(operator_of(symbol.text, 1), symbol.at, {result});
      }
    } else {
      result = atom();
      const size_t at = peek().at;
      if (accept("**")) result = call(*function("pow"), at, {result, unary()});
    }
    --depth_;
    return result;
  }

  Result atom() {
    if (accept("(")) {
      const Result inner = level(0);
      expect(")");
      return inner;
    }
    if (peek().sort == Token::number) return number(take());
    if (peek().sort != Token::name) fail(peek().at, "expected a value, got " + shown());
    const Token name = take();
    if (const auto found = names_.find(name.text); found != names_.end()) {
      std::erase_if(unused_, [&](const auto& entry) { return entry.first == name.text; });
      return found->second;
    }
    if (name.text == "true" || name.text == "false") {
      return {literal(Kind::bool_, 0, name.text == "true"), Type::bool_};
    }
    if (name.text == "inf") return {literal(Kind::real_, INFINITY, 0), Type::none};
    if (name.text == "nan") return {literal(Kind::real_, NAN, 0), Type::none};
    if (is_input(name.text)) return input(name);
    const Type type = type_of(name.text);
    const Function* called = function(name.text);
    if (type == Type::none && !called) {
      fail(name.at, std::string("unknown ") + (peek().text == "(" ? "function " : "name ") + name.text);
    }
    expect("(");
    std::vector<Result> arguments;
    while (peek().text != ")") {
      if (!arguments.empty() && !accept(",")) fail(peek().at, "expected , or ), got " + shown());
      arguments.push_back(level(0));
    }
    expect(")");
    const int count = static_cast<int>(arguments.size());
    if (!called) {
      if (count != 1) fail(name.at, name.text + " takes 1 argument, got " + std::to_string(count));
      return cast(arguments[0], type);
    }
    if (count < called->least || count > called->arity) {
      std::string wanted = std::to_string(called->least);
      if (called->least != called->arity) wanted += " or " + std::to_string(called->arity);
      fail(name.at, name.text + " takes " + wanted + (wanted == "1" ? " argument, got " : " arguments, got ") +
                        std::to_string(count));
    }
    if (count < called->arity) arguments.push_back({literal(Kind::real_, called->value, 0), Type::none});
    return call(*called, name.at, arguments);
  }

  Result number(const Token& token) {
    if (token.text.find_first_of(".eE") != std::string::npos) {
      double value = 0;  // from_chars knows no locale; what is too large for it is infinite, what is too small is 0
      const auto [_, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      if (error == std::errc::result_out_of_range) value = token.text.find("e-") != std::string::npos ? 0 : INFINITY;
      return {literal(Kind::real_, value, 0), Type::none};
    }
    int64_t value = 0;
    const auto [_, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
    if (error != std::errc()) {
      fail(token.at, "an integer of more than 63 bits; write it with a point to have a float");
    }
    return {literal(Kind::int_, 0, value), Type::none};
  }

  Result input(const Token& name) {
    int number = -1;
    std::from_chars(name.text.data() + 1, name.text.data() + name.text.size(), number);
    const int count = static_cast<int>(inputs_.size());
    if (number < 0 || number >= count || name.text != "x" + std::to_string(number)) {
      const std::string have = count == 1 ? "is x0" : "are x0 to x" + std::to_string(count - 1);
      fail(name.at, "there is no input " + name.text + "; there " + have);
    }
    Value value;
    value.opcode = Opcode::input;
    value.input = static_cast<int16_t>(number);
    const Type type = inputs_[number] == Type::none ? Type::float32 : inputs_[number];
    value.kind = kind_of(type);
    return {add(value), type};
  }

  // --- values

  int literal(Kind kind, double real, int64_t integer) {
    Value value;
    value.opcode = Opcode::literal;
    value.kind = kind;
    value.real = real;
    value.integer = integer;
    return add(value);
  }

  int apply(Opcode opcode, std::initializer_list<int> arguments) {
    Value value;
    value.opcode = opcode;
    value.kind = info_of(opcode).kinds[0];
    std::copy(arguments.begin(), arguments.end(), value.arguments);
    return add(value);
  }

  // Each value is computed once.
  int add(const Value& value) {
    uint64_t bits;
    std::memcpy(&bits, &value.real, sizeof(bits));
    const Key key{static_cast<int>(value.opcode),
                  static_cast<int>(value.kind),
                  value.arguments[0],
                  value.arguments[1],
                  value.arguments[2],
                  value.input,
                  bits,
                  value.integer};
    const auto [found, made] = known_.try_emplace(key, static_cast<int>(program_.values.size()));
    if (made) {
      program_.values.push_back(value);
    }
    return found->second;
  }

  int to_kind(int value, Kind kind) {
    const Value from = program_.values[value];
    if (from.kind == kind) return value;
    if (from.opcode == Opcode::literal) {  // a literal is of the kind that is wanted
      if (kind == Kind::real_) return literal(kind, static_cast<double>(from.integer), 0);
      if (kind == Kind::int_) return literal(kind, 0, int_of_real<double>(from.real) + from.integer);
      return literal(kind, 0, from.real != 0 || from.integer != 0);
    }
    static constexpr Opcode kConversions[3][3] = {
        {Opcode::none, Opcode::int_of_bool, Opcode::real_of_bool},
        {Opcode::bool_of_int, Opcode::none, Opcode::real_of_int},
        {Opcode::bool_of_real, Opcode::int_of_real, Opcode::none},
    };
    return apply(kConversions[static_cast<int>(from.kind)][static_cast<int>(kind)], {value});
  }

  Result cast(const Result& from, Type type) {
    const int value = to_kind(from.value, kind_of(type));
    switch (type) {
      case Type::float16:
        return {apply(Opcode::round_float16, {value}), type};
      case Type::bfloat16:
        return {apply(Opcode::round_bfloat16, {value}), type};
      case Type::float32:
        return {program_.is_double ? apply(Opcode::round_float32, {value}) : value, type};
      case Type::int8:
        return {apply(Opcode::wrap_int8, {value}), type};
      case Type::uint8:
        return {apply(Opcode::wrap_uint8, {value}), type};
      case Type::int16:
        return {apply(Opcode::wrap_int16, {value}), type};
      case Type::uint16:
        return {apply(Opcode::wrap_uint16, {value}), type};
      case Type::int32:
        return {apply(Opcode::wrap_int32, {value}), type};
      case Type::uint32:
        return {apply(Opcode::wrap_uint32, {value}), type};
      default:
        return {value, type};
    }
  }

  Result call(const Function& f, size_t at, std::vector<Result> arguments) {
    const size_t first = f.rule == Rule::where_ ? 1 : 0;
    Kind kind = Kind::bool_;
    for (size_t i = first; i < arguments.size(); ++i) kind = std::max(kind, kind_in(arguments[i]));
    Type type = Type::none;
    for (size_t i = first; i < arguments.size(); ++i) {
      if (kind_in(arguments[i]) == kind) type = wider(type, arguments[i].type);
    }
    const Kind together = kind;
    if (f.rule == Rule::logic_ && kind == Kind::real_) {
      if (wrong_.empty()) {
        wrong_ =
            pointed(at, std::string(f.symbol) + " is for booleans and integers, got " + name_of(stored(kind, type)));
      }
      kind = Kind::int_;
    }
    if ((f.rule == Rule::number_ || f.rule == Rule::compare_) && kind == Kind::bool_) kind = Kind::int_;
    if (f.rule == Rule::real_ || f.rule == Rule::test_) kind = Kind::real_;
    if (kind != together) type = Type::none;
    if (f.rule == Rule::compare_ || f.rule == Rule::test_) type = Type::bool_;
    int given[3] = {-1, -1, -1};
    for (size_t i = 0; i < arguments.size(); ++i) {
      given[i] = to_kind(arguments[i].value, i < first ? Kind::bool_ : kind);
    }
    Opcode opcode = f.opcodes[kind == Kind::real_ ? 0 : kind == Kind::int_ ? 1 : 2];
    if (opcode == Opcode::pow_real && program_.values[given[1]].opcode == Opcode::literal) {
      const double exponent = program_.values[given[1]].real;  // a product is what pow gives, rounding apart
      if (exponent == 2) return {apply(Opcode::mul_real, {given[0], given[0]}), type};
      if (exponent == 3) {
        return {apply(Opcode::mul_real, {apply(Opcode::mul_real, {given[0], given[0]}), given[0]}), type};
      }
    }
    return {apply(opcode, {given[0], given[1], given[2]}), type};
  }

  Kind kind_in(const Result& result) const { return program_.values[result.value].kind; }
  Type stored(const Result& result) const { return stored(kind_in(result), result.type); }
  static Type stored(Kind kind, Type type) {
    if (type != Type::none) return type;
    return kind == Kind::bool_ ? Type::bool_ : kind == Kind::int_ ? Type::int64 : Type::float32;
  }

  // Keeps what the result is made of; checks that every input is.
  void keep(int root) {
    std::vector<Value>& values = program_.values;
    std::vector<int> place(values.size(), -1);
    place[root] = 0;
    for (int i = root; i >= 0; --i) {  // arguments come before
      if (place[i] < 0) continue;
      for (const int16_t argument : values[i].arguments) {
        if (argument >= 0) place[argument] = 0;
      }
    }
    std::vector<Value> kept;
    std::vector<bool> used(inputs_.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (place[i] < 0) continue;
      Value value = values[i];
      for (int16_t& argument : value.arguments) {
        if (argument >= 0) argument = static_cast<int16_t>(place[argument]);
      }
      if (value.input >= 0) used[value.input] = true;
      place[i] = static_cast<int>(kept.size());
      kept.push_back(value);
      program_.has_ints = program_.has_ints || value.kind == Kind::int_;
    }
    values = std::move(kept);
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) fail(text_.size(), "input x" + std::to_string(i) + " is not used");
    }
  }

  using Key = std::tuple<int, int, int, int, int, int, uint64_t, int64_t>;

  const std::string& text_;
  const std::vector<Type>& inputs_;
  Program& program_;
  std::vector<Token> tokens_;
  size_t position_ = 0;
  int depth_ = 0;
  std::map<std::string, Result> names_;
  std::vector<std::pair<std::string, size_t>> unused_;  // names that nothing has read yet
  std::string wrong_;                                   // the first error in the types, told when the text is right
  std::map<Key, int> known_;
};

// Inputs and literals keep a register of their own; a result takes one that is free, never one of its arguments'.
void assign_registers(Program& program) {
  std::vector<int> last(program.values.size(), -1);
  for (size_t i = 0; i < program.values.size(); ++i) {
    for (const int16_t argument : program.values[i].arguments) {
      if (argument >= 0) last[argument] = static_cast<int>(i);
    }
  }
  std::vector<int16_t> free;
  for (size_t i = 0; i < program.values.size(); ++i) {
    Value& value = program.values[i];
    if (free.empty() || value.opcode == Opcode::input || value.opcode == Opcode::literal) {
      value.place = static_cast<int16_t>(program.registers++);
    } else {
      value.place = free.back();
      free.pop_back();
    }
    for (const int16_t argument : value.arguments) {
      if (argument < 0 || last[argument] != static_cast<int>(i)) continue;
      last[argument] = -1;  // it may be an argument twice
      const Opcode opcode = program.values[argument].opcode;
      if (opcode != Opcode::input && opcode != Opcode::literal) free.push_back(program.values[argument].place);
    }
  }
}

}  // namespace

void check_type(const Program& program, Type output) {
  if (program.type != output) {
    throw Error(std::string("attribute expression: expected one of type ") + name_of(output) +
                ", as the operator's name says, got " + name_of(program.type) + ": " + program.text);
  }
}

const OpcodeInfo& info_of(Opcode opcode) { return kOpcodes[static_cast<int>(opcode)]; }

const char* name_of(Type type) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return name;
  }
  return "?";
}

Kind kind_of(Type type) {
  switch (type) {
    case Type::bool_:
      return Kind::bool_;
    case Type::float16:
    case Type::bfloat16:
    case Type::float32:
    case Type::float64:
      return Kind::real_;
    default:
      return Kind::int_;
  }
}

std::shared_ptr<const Program> Program::parse(const std::string& text, const std::vector<Type>& inputs) {
  auto program = std::make_shared<Program>();
  program->text = text;
  program->inputs = inputs;
  if (inputs.size() > ORTOPS_MAX_INPUTS) {
    throw Error("attribute expression: expected at most " + std::to_string(ORTOPS_MAX_INPUTS) + " inputs, got " +
                std::to_string(inputs.size()));
  }
  Parser(text, inputs, *program).run();
  assign_registers(*program);
  return program;
}

}  // namespace ortops::elementwise
