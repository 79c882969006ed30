// The recursive-descent parser for PTX modules; parser.cpp has what stands at module scope,
// parser_function.cpp what stands in functions. Names are resolved while parsing; only labels may
// be used before they appear.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpunode/simgpu/ptx/ast.h"
#include "gpunode/simgpu/ptx/lexer.h"

namespace olpager::simgpu::ptx {

inline std::uint64_t alignUp(std::uint64_t value, std::uint64_t align) {
  return (value + align - 1) / align * align;
}

/// Thrown inside the parser; parse() turns it into an Error.
struct ParseError {
  std::uint32_t line;
  std::string what;
};

struct RegisterRange {
  std::int32_t first;
  std::int32_t count;
};

struct PendingLabel {
  std::string_view name;
  std::uint32_t line;
  // The place for the label's id: operand `operand` of instruction `index`, or entry `operand` of
  // target list `index`.
  bool in_list;
  std::size_t index;
  std::size_t operand;
};

/// Names of one `{ }` of a function body.
struct Scope {
  std::unordered_map<std::string_view, std::int32_t> registers;
  std::unordered_map<std::string_view, RegisterRange> ranges;  ///< by prefix: `%r<100>`
  std::unordered_map<std::string_view, SymbolRef> symbols;
  std::unordered_map<std::string_view, std::int32_t> labels;
  std::unordered_map<std::string_view, std::int32_t> lists;  ///< `.branchtargets`
  std::vector<PendingLabel> pending;
  std::uint32_t param_offset = 0;  ///< of the function's area when the scope opened
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Ast run() {
    while (peek().kind != TokenKind::kEnd) topLevel();
    return std::move(ast_);
  }

 private:
  // --- tokens ---
  const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)];
  }
  const Token& next() {
    const Token& token = peek();
    if (pos_ < tokens_.size()) ++pos_;
    return token;
  }
  bool accept(char c) {
    if (!peek().is(c)) return false;
    ++pos_;
    return true;
  }
  bool accept(std::string_view word) {
    if (!peek().is(word)) return false;
    ++pos_;
    return true;
  }
  [[noreturn]] void fail(const std::string& what) const { throw ParseError{peek().line, what}; }
  void expect(char c) {
    if (!accept(c))
      fail(std::string("'") + c + "' expected before '" + std::string(peek().text) + "'");
  }
  std::string_view expectWord() {
    if (peek().kind != TokenKind::kWord)
      fail("name expected before '" + std::string(peek().text) + "'");
    return next().text;
  }
  std::uint64_t expectInteger() {
    const bool minus = accept('-');
    if (peek().kind != TokenKind::kInteger)
      fail("number expected before '" + std::string(peek().text) + "'");
    const std::uint64_t value = next().value;
    return minus ? std::uint64_t{0} - value : value;
  }
  void skipLine() {
    const std::uint32_t line = peek().line;
    while (peek().kind != TokenKind::kEnd && peek().line == line) ++pos_;
  }
  void skipBraces();
  void skipStatement();

  // --- module scope ---
  void topLevel();

  std::optional<Space> variableSpace();

  struct Declarator {
    std::string_view name;
    Type type = Type::kNone;
    std::uint32_t align = 0;
    std::uint64_t count = 1;
    bool array = false;
    bool unsized = false;
    std::uint32_t vector = 1;
    bool managed = false;
    std::uint64_t bytes() const { return std::uint64_t{typeSize(type)} * count * vector; }
    std::uint32_t alignment() const { return align != 0 ? align : typeSize(type) * vector; }
  };

  /// Parses the words between the space and the name:
  /// `.align 8 .attribute(.managed) .v2 .f32 .ptr .global`.
  Declarator declaratorPrefix();

  void declaratorName(Declarator& d);

  void appendValue(GlobalInfo& global, std::uint64_t value, std::uint32_t size) {
    for (std::uint32_t i = 0; i < size; ++i) {
      global.init.push_back(static_cast<std::byte>(i < 8 ? value >> (8 * i) : 0));
    }
  }

  void initializer(GlobalInfo& global, const Declarator& d, std::uint64_t row_bytes);

  SymbolRef addModuleSymbol(Symbol symbol, std::string_view name, bool scoped);

  void moduleVariables(Space space, bool visible, bool external);

  void moduleVariable(Space space, const Declarator& d, bool visible, bool external, bool scoped);

  // --- functions ---
  std::int32_t addParam(const Declarator& d, bool formal, bool is_return) {
    Symbol symbol;
    symbol.name = std::string(d.name);
    symbol.space = Space::kParam;
    symbol.type = d.type;
    symbol.size = d.bytes();
    symbol.align = std::max(1U, d.alignment());
    symbol.is_formal = formal;
    symbol.is_return = is_return;
    symbol.offset = static_cast<std::uint32_t>(alignUp(param_offset_, symbol.align));
    param_offset_ = symbol.offset + static_cast<std::uint32_t>(symbol.size);
    function_->param_bytes = std::max(function_->param_bytes, param_offset_);
    const auto index = static_cast<std::int32_t>(function_->symbols.size());
    function_->symbols.push_back(std::move(symbol));
    scopes_.back().symbols[d.name] = SymbolRef{false, index};
    return index;
  }

  std::vector<std::int32_t> paramList(bool is_return) {
    std::vector<std::int32_t> list;
    if (!accept('(')) return list;
    while (!accept(')')) {
      if (accept(".reg")) fail("'.reg' parameters (no ABI) are not supported");
      if (!accept(".param")) fail("'.param' expected before '" + std::string(peek().text) + "'");
      Declarator d = declaratorPrefix();
      declaratorName(d);
      list.push_back(addParam(d, !is_return, is_return));
      if (!accept(',') && !peek().is(')'))
        fail("')' expected before '" + std::string(peek().text) + "'");
    }
    return list;
  }

  void function(bool entry, bool visible, bool external);

  void limits(KernelInfo& info);

  void body();

  void openScope() {
    scopes_.emplace_back();
    scopes_.back().param_offset = param_offset_;
  }

  void closeScope();

  void statement();

  void bodyDirective();

  void registers();

  void label();

  // --- instructions ---
  std::int32_t findRegister(std::string_view name) const {
    std::size_t digits = name.size();
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->registers.find(name); found != scope->registers.end())
        return found->second;
      if (digits < name.size() && name.size() - digits <= 9 && !scope->ranges.empty()) {
        // A prefix may itself end in digits (`%r1<4>`): try every split.
        for (std::size_t split = digits; split < name.size(); ++split) {
          const auto found = scope->ranges.find(name.substr(0, split));
          if (found == scope->ranges.end()) continue;
          const int number = std::atoi(std::string(name.substr(split)).c_str());
          if (number < found->second.count) return found->second.first + number;
        }
      }
    }
    return -1;
  }

  SymbolRef findSymbol(std::string_view name) const;

  std::int32_t expectRegister() {
    const std::string_view name = expectWord();
    const std::int32_t reg = findRegister(name);
    if (reg < 0) fail("unknown register '" + std::string(name) + "'");
    return reg;
  }

  void instruction();

  Operand operand(Instruction& instr);

  void nameOperand(Instruction& instr, Operand& result, const Token& name);

  Operand address(Instruction& instr);

  std::vector<Token> tokens_;
  std::size_t pos_ = 0;
  Ast ast_;
  std::unordered_map<std::string_view, std::int32_t> module_symbols_;
  AstFunction* function_ = nullptr;
  std::vector<Scope> scopes_;
  std::uint32_t param_offset_ = 0;
  bool pointer_ = false;
};

}  // namespace olpager::simgpu::ptx
