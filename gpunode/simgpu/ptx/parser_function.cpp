// Parsing of functions: declarations, scopes, labels, instructions and their operands.
#include <algorithm>
#include <cstdlib>

#include "gpunode/simgpu/ptx/parser.h"

namespace olpager::simgpu::ptx {

void Parser::function(bool entry, bool visible, bool external) {
  AstFunction fresh;
  fresh.is_entry = entry;
  fresh.is_visible = visible;
  fresh.is_extern = external;
  fresh.line = peek().line;
  function_ = &fresh;
  param_offset_ = 0;
  scopes_.clear();
  scopes_.emplace_back();
  if (accept(".attribute")) {
    expect('(');
    while (!accept(')')) next();
  }
  if (!entry) fresh.returns = paramList(true);
  const std::string_view name = expectWord();
  fresh.name = std::string(name);
  if (entry) param_offset_ = 0;
  fresh.formals = paramList(false);
  fresh.formal_bytes = param_offset_;
  limits(fresh.info);
  fresh.info.name = fresh.name;
  for (const std::int32_t index : fresh.formals) {
    const Symbol& symbol = fresh.symbols[static_cast<std::size_t>(index)];
    fresh.info.params.push_back(ParamInfo{symbol.name, symbol.offset,
                                          static_cast<std::uint32_t>(symbol.size), symbol.align});
  }
  fresh.info.param_bytes = entry ? fresh.formal_bytes : 0;

  std::uint32_t index = static_cast<std::uint32_t>(ast_.functions.size());
  const auto known = module_symbols_.find(name);
  if (known == module_symbols_.end()) {
    Symbol symbol;
    symbol.name = fresh.name;
    symbol.is_function = true;
    symbol.is_extern = external;
    symbol.index = index;
    addModuleSymbol(std::move(symbol), name, false);
  } else {
    Symbol& symbol = ast_.symbols[static_cast<std::size_t>(known->second)];
    if (!symbol.is_function) fail("'" + fresh.name + "' is already a variable");
    index = symbol.index;
  }
  if (accept(';')) {
    if (index == ast_.functions.size()) ast_.functions.push_back(std::move(fresh));
  } else {
    if (index < ast_.functions.size() && ast_.functions[index].has_body)
      fail("'" + fresh.name + "' is defined twice");
    fresh.has_body = true;
    fresh.is_extern = false;
    expect('{');
    body();
    if (index < ast_.functions.size()) {
      fresh.is_visible |= ast_.functions[index].is_visible;
      ast_.functions[index] = std::move(fresh);
    } else {
      ast_.functions.push_back(std::move(fresh));
    }
  }
  function_ = nullptr;
  scopes_.clear();
}

void Parser::limits(KernelInfo& info) {
  const auto triple = [&](std::array<std::uint32_t, 3>& out) {
    out = {1, 1, 1};
    for (std::size_t i = 0; i < 3; ++i) {
      out[i] = static_cast<std::uint32_t>(expectInteger());
      if (!accept(',')) break;
    }
    return out[0] * out[1] * out[2];
  };
  while (peek().kind == TokenKind::kDirective) {
    if (accept(".maxntid")) {
      const std::uint32_t n = triple(info.maxntid);
      if (info.reqntid[0] == 0) info.max_threads = n;
    } else if (accept(".reqntid")) {
      info.max_threads = triple(info.reqntid);
    } else if (accept(".minnctapersm")) {
      info.minnctapersm = static_cast<std::uint32_t>(expectInteger());
    } else if (accept(".maxnctapersm") || accept(".maxclusterrank") || accept(".abi_preserve") ||
               accept(".abi_preserve_control")) {
      expectInteger();
    } else if (accept(".maxnreg")) {
      info.maxnreg = static_cast<std::uint32_t>(expectInteger());
    } else if (accept(".reqnctapercluster")) {
      triple(info.reqnctapercluster);
    } else if (accept(".noreturn")) {
      function_->no_return = true;
    } else if (accept(".explicitcluster") || accept(".blocksareclusters") || accept(".unique")) {
    } else if (accept(".pragma")) {
      skipStatement();
    } else {
      fail("directive '" + std::string(peek().text) + "' is not supported here");
    }
  }
}

void Parser::body() {
  openScope();
  while (!scopes_.empty()) {
    if (peek().kind == TokenKind::kEnd) fail("'}' missing");
    if (accept('}')) {
      closeScope();
      if (scopes_.size() == 1) break;
      continue;
    }
    statement();
  }
}

void Parser::closeScope() {
  Scope scope = std::move(scopes_.back());
  scopes_.pop_back();
  param_offset_ = scope.param_offset;
  const bool outermost = scopes_.size() == 1;
  for (const PendingLabel& use : scope.pending) {
    const auto found = scope.labels.find(use.name);
    if (found == scope.labels.end()) {
      if (outermost) throw ParseError{use.line, "unknown name '" + std::string(use.name) + "'"};
      scopes_.back().pending.push_back(use);
    } else if (use.in_list) {
      function_->target_lists[use.index][use.operand] = found->second;
    } else {
      function_->code[use.index].operands[use.operand].label = found->second;
    }
  }
}

void Parser::statement() {
  if (accept(';')) return;
  if (accept('{')) return openScope();
  const Token& token = peek();
  if (token.kind == TokenKind::kDirective) return bodyDirective();
  if (token.kind == TokenKind::kWord && peek(1).is(':')) return label();
  instruction();
}

void Parser::bodyDirective() {
  if (peek().is(".loc") || peek().is(".file")) return skipLine();
  if (accept(".pragma")) return skipStatement();
  if (accept(".section")) {
    while (!peek().is('{') && peek().kind != TokenKind::kEnd) ++pos_;
    return skipBraces();
  }
  if (accept(".reg")) return registers();
  bool external = false;
  while (peek().is(".extern") || peek().is(".visible") || peek().is(".weak"))
    external |= next().is(".extern");
  const auto space = variableSpace();
  if (!space) fail("directive '" + std::string(peek().text) + "' is not supported in a function");
  Declarator d = declaratorPrefix();
  do {
    declaratorName(d);
    if (*space == Space::kParam) {
      addParam(d, false, false);
    } else if (*space == Space::kLocal) {
      Symbol symbol;
      symbol.name = std::string(d.name);
      symbol.space = Space::kLocal;
      symbol.type = d.type;
      symbol.size = d.bytes();
      symbol.align = std::max(1U, d.alignment());
      symbol.offset = static_cast<std::uint32_t>(alignUp(function_->local_bytes, symbol.align));
      function_->local_bytes = symbol.offset + static_cast<std::uint32_t>(symbol.size);
      scopes_.back().symbols[d.name] =
          SymbolRef{false, static_cast<std::int32_t>(function_->symbols.size())};
      function_->symbols.push_back(std::move(symbol));
    } else {
      moduleVariable(*space, d, false, external, true);
    }
  } while (accept(','));
  expect(';');
}

void Parser::registers() {
  if (peek().is(".v2") || peek().is(".v4")) fail("vector registers are not supported");
  if (peek().kind != TokenKind::kDirective) fail("register type expected");
  const Type type = typeFromName(next().text.substr(1));
  if (type == Type::kNone) fail("register type not supported");
  do {
    const std::string_view name = expectWord();
    const auto first = static_cast<std::int32_t>(function_->registers.size());
    if (accept('<')) {
      const std::uint64_t count = expectInteger();
      expect('>');
      if (count > (1U << 24)) fail("too many registers");
      function_->registers.resize(function_->registers.size() + count, Register{type});
      scopes_.back().ranges[name] = RegisterRange{first, static_cast<std::int32_t>(count)};
    } else {
      function_->registers.push_back(Register{type});
      scopes_.back().registers[name] = first;
    }
  } while (accept(','));
  expect(';');
}

void Parser::label() {
  const std::string_view name = next().text;
  expect(':');
  if (accept(".branchtargets")) {
    const auto list = static_cast<std::int32_t>(function_->target_lists.size());
    function_->target_lists.emplace_back();
    scopes_.back().lists[name] = list;
    do {
      const std::uint32_t line = peek().line;
      const std::string_view target = expectWord();
      auto& targets = function_->target_lists.back();
      scopes_.back().pending.push_back(
          PendingLabel{target, line, true, static_cast<std::size_t>(list), targets.size()});
      targets.push_back(-1);
    } while (accept(','));
    expect(';');
    return;
  }
  if (peek().is(".callprototype") || peek().is(".calltargets")) {
    scopes_.back().lists[name] = -1;
    return skipStatement();
  }
  const auto id = static_cast<std::int32_t>(function_->labels.size());
  function_->labels.push_back(static_cast<std::int32_t>(function_->code.size()));
  scopes_.back().labels[name] = id;
}

SymbolRef Parser::findSymbol(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->symbols.find(name); found != scope->symbols.end())
      return found->second;
  }
  const auto found = module_symbols_.find(name);
  return found == module_symbols_.end() ? SymbolRef{} : SymbolRef{true, found->second};
}

void Parser::instruction() {
  Instruction instr;
  if (accept('@')) {
    instr.guard_negated = accept('!');
    instr.guard = expectRegister();
  }
  if (peek().kind != TokenKind::kWord)
    fail("instruction expected before '" + std::string(peek().text) + "'");
  const Token& opcode = next();
  instr.line = opcode.line;
  instr.opcode = opcode.text;
  for (std::size_t begin = 0; begin <= opcode.text.size();) {
    std::size_t end = opcode.text.find('.', begin);
    if (end == std::string_view::npos) end = opcode.text.size();
    instr.parts.push_back(opcode.text.substr(begin, end - begin));
    begin = end + 1;
  }
  while (peek().kind == TokenKind::kDirective) instr.parts.push_back(next().text.substr(1));
  while (!accept(';')) {
    instr.operands.push_back(operand(instr));
    if (!accept(',') && !peek().is(';')) {
      fail("';' expected before '" + std::string(peek().text) + "' in '" +
           std::string(instr.opcode) + "'");
    }
  }
  function_->code.push_back(std::move(instr));
}

Operand Parser::operand(Instruction& instr) {
  Operand result;
  const Token& token = peek();
  if (accept('{') || accept('(')) {
    result.kind = token.is('{') ? OperandKind::kVector : OperandKind::kList;
    const char close = token.is('{') ? '}' : ')';
    while (!accept(close)) {
      result.items.push_back(operand(instr));
      if (!accept(',') && !peek().is(close)) fail(std::string("'") + close + "' expected");
    }
    if (result.kind == OperandKind::kVector && accept('|')) result.items.push_back(operand(instr));
    return result;
  }
  if (accept('[')) return address(instr);
  if (accept('!')) {
    result.negated = true;
    result.kind = OperandKind::kRegister;
    result.reg = expectRegister();
    return result;
  }
  const bool minus = accept('-');
  const Token& value = next();
  result.text = value.text;
  switch (value.kind) {
    case TokenKind::kInteger:
      result.kind = OperandKind::kImmediate;
      result.value = minus ? std::uint64_t{0} - value.value : value.value;
      return result;
    case TokenKind::kFloat32:
      result.kind = OperandKind::kFloat32;
      result.value = value.value ^ (minus ? 0x80000000ULL : 0);
      return result;
    case TokenKind::kFloat64:
      result.kind = OperandKind::kFloat64;
      result.value = value.value ^ (minus ? 0x8000000000000000ULL : 0);
      return result;
    case TokenKind::kWord:
      break;
    default:
      --pos_;
      fail("operand expected before '" + std::string(value.text) + "'");
  }
  if (minus) fail("'-' before a name");
  if (value.text == "_") return result;
  if (value.text == "WARP_SZ") {
    result.kind = OperandKind::kImmediate;
    result.value = kWarpSize;
    return result;
  }
  result.reg = findRegister(value.text);
  if (result.reg >= 0) {
    result.kind = OperandKind::kRegister;
  } else if (value.text.front() == '%') {
    result.kind = OperandKind::kSpecial;
  } else {
    nameOperand(instr, result, value);
  }
  if (accept('|')) result.items.push_back(operand(instr));
  return result;
}

void Parser::nameOperand(Instruction& instr, Operand& result, const Token& name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->lists.find(name.text); found != scope->lists.end()) {
      instr.targets = found->second;
      result.kind = OperandKind::kLabel;
      return;
    }
  }
  result.symbol = findSymbol(name.text);
  if (result.symbol.index >= 0) {
    result.kind = OperandKind::kSymbol;
    if (accept('+') || peek().is('-')) result.value = expectInteger();
    return;
  }
  if (instr.parts[0] != "bra") fail("unknown name '" + std::string(name.text) + "'");
  result.kind = OperandKind::kLabel;
  scopes_.back().pending.push_back(
      PendingLabel{name.text, name.line, false, function_->code.size(), instr.operands.size()});
}

Operand Parser::address(Instruction& instr) {
  Operand result;
  result.kind = OperandKind::kAddress;
  if (peek().kind == TokenKind::kWord) {
    const std::string_view name = next().text;
    result.text = name;
    result.reg = findRegister(name);
    if (result.reg < 0) {
      result.symbol = findSymbol(name);
      if (result.symbol.index < 0) fail("unknown name '" + std::string(name) + "'");
    }
    if (accept('+') || peek().is('-')) result.value = expectInteger();
  } else {
    result.value = expectInteger();
  }
  // `[texture, {coordinates}]` and the like.
  while (accept(',')) result.items.push_back(operand(instr));
  expect(']');
  return result;
}

}  // namespace olpager::simgpu::ptx
