// Parsing at module scope: directives, variables and their initialisers.
#include "gpunode/simgpu/ptx/parser.h"

#include <bit>
#include <cstdlib>

namespace olpager::simgpu::ptx {

void Parser::skipBraces() {
  expect('{');
  for (int depth = 1; depth > 0;) {
    if (peek().kind == TokenKind::kEnd) fail("'}' missing");
    if (peek().is('{')) ++depth;
    if (peek().is('}')) --depth;
    ++pos_;
  }
}

void Parser::skipStatement() {
  while (!peek().is(';')) {
    if (peek().kind == TokenKind::kEnd) fail("';' missing");
    ++pos_;
  }
  ++pos_;
}

void Parser::topLevel() {
  if (accept(';')) return;
  if (accept(".version")) {
    const std::string_view text = next().text;
    const std::size_t dot = text.find('.');
    ast_.version = std::atoi(std::string(text.substr(0, dot)).c_str()) * 10;
    if (dot != std::string_view::npos)
      ast_.version += std::atoi(std::string(text.substr(dot + 1)).c_str());
    return;
  }
  if (accept(".target")) {
    do {
      const std::string_view name = expectWord();
      if (name.substr(0, 3) == "sm_") ast_.target = std::atoi(std::string(name.substr(3)).c_str());
    } while (accept(','));
    return;
  }
  if (accept(".address_size")) {
    if (expectInteger() != 64) fail("only .address_size 64 is supported");
    return;
  }
  if (peek().is(".file") || peek().is(".loc")) return skipLine();
  if (accept(".section")) {
    while (!peek().is('{') && peek().kind != TokenKind::kEnd) ++pos_;
    return skipBraces();
  }
  if (accept(".pragma")) return skipStatement();
  if (accept(".alias")) {
    const std::string_view alias = expectWord();
    expect(',');
    const std::string_view target = expectWord();
    expect(';');
    const auto found = module_symbols_.find(target);
    if (found == module_symbols_.end())
      fail("alias of unknown function '" + std::string(target) + "'");
    const auto declared = module_symbols_.find(alias);
    // Code parsed before this line already refers to the alias's own declaration: make that one the
    // target too.
    if (declared != module_symbols_.end()) {
      ast_.symbols[static_cast<std::size_t>(declared->second)].index =
          ast_.symbols[static_cast<std::size_t>(found->second)].index;
    } else {
      module_symbols_[alias] = found->second;
    }
    return;
  }
  bool visible = false;
  bool external = false;
  while (true) {
    if (accept(".visible") || accept(".weak") || accept(".common")) {
      visible = true;
    } else if (accept(".extern")) {
      external = true;
    } else {
      break;
    }
  }
  if (accept(".entry")) return function(true, visible, external);
  if (accept(".func")) return function(false, visible, external);
  if (const auto space = variableSpace()) return moduleVariables(*space, visible, external);
  fail("'" + std::string(peek().text) + "' is not supported at module scope");
}

std::optional<Space> Parser::variableSpace() {
  if (accept(".global")) return Space::kGlobal;
  if (accept(".const")) return Space::kConst;
  if (accept(".shared")) return Space::kShared;
  if (accept(".local")) return Space::kLocal;
  if (accept(".param")) return Space::kParam;
  return std::nullopt;
}

Parser::Declarator Parser::declaratorPrefix() {
  Declarator d;
  while (peek().kind == TokenKind::kDirective) {
    if (accept(".align")) {
      const auto align = static_cast<std::uint32_t>(expectInteger());
      // The alignment after `.ptr` is that of what the pointer points to.
      if (!pointer_) d.align = align;
      if (align == 0 || (align & (align - 1)) != 0) fail("alignment is not a power of two");
      continue;
    }
    if (accept(".attribute")) {
      expect('(');
      while (!accept(')')) {
        if (peek().is(".managed")) d.managed = true;
        if (peek().kind == TokenKind::kEnd) fail("')' missing");
        ++pos_;
      }
      continue;
    }
    if (accept(".ptr")) {
      pointer_ = true;
      continue;
    }
    if (pointer_ &&
        (accept(".global") || accept(".const") || accept(".shared") || accept(".local")))
      continue;
    if (accept(".v2")) {
      d.vector = 2;
      continue;
    }
    if (accept(".v4")) {
      d.vector = 4;
      continue;
    }
    const std::string_view name = peek().text.substr(1);
    if (name == "texref" || name == "samplerref" || name == "surfref") {
      fail("'." + std::string(name) + "' (texture and surface references) is not supported");
    }
    const Type type = typeFromName(name);
    if (type == Type::kNone) fail("'." + std::string(name) + "' is not supported in a declaration");
    d.type = type;
    ++pos_;
  }
  pointer_ = false;
  if (d.type == Type::kNone) fail("type expected before '" + std::string(peek().text) + "'");
  return d;
}

void Parser::declaratorName(Declarator& d) {
  d.name = expectWord();
  d.count = 1;
  while (accept('[')) {
    d.array = true;
    if (accept(']')) {
      d.unsized = true;
      continue;
    }
    const std::uint64_t n = expectInteger();
    if (n > (std::uint64_t{1} << 40)) fail("array too large");
    d.count *= n;
    expect(']');
  }
}

void Parser::initializer(GlobalInfo& global, const Declarator& d, std::uint64_t row_bytes) {
  const std::uint32_t size = typeSize(d.type);
  if (accept('{')) {
    const std::size_t begin = global.init.size();
    while (!peek().is('}')) {
      initializer(global, d, 0);
      if (!accept(',')) break;
    }
    expect('}');
    // A short inner row leaves the rest of the row zero.
    if (row_bytes != 0 && global.init.size() - begin < row_bytes)
      global.init.resize(begin + row_bytes);
    return;
  }
  Relocation relocation;
  relocation.offset = static_cast<std::uint32_t>(global.init.size());
  relocation.size = size;
  const auto addend = [&] {
    if (accept('+')) return static_cast<std::int64_t>(expectInteger());
    if (peek().is('-')) return static_cast<std::int64_t>(expectInteger());
    return std::int64_t{0};
  };
  const auto symbolic = [&] {
    if (accept("generic")) {
      expect('(');
      relocation.symbol = std::string(expectWord());
      relocation.addend = addend();
      expect(')');
    } else {
      relocation.symbol = std::string(expectWord());
    }
    relocation.addend += addend();
  };
  const Token& token = peek();
  if (token.kind == TokenKind::kWord) {
    symbolic();
    global.relocations.push_back(relocation);
    return appendValue(global, 0, size);
  }
  if (token.kind == TokenKind::kInteger &&
      peek(1).is('(')) {  // 0xFF00(symbol): one byte of an address
    const std::uint64_t mask = next().value;
    expect('(');
    symbolic();
    expect(')');
    if (mask == 0) fail("empty address mask");
    relocation.shift = static_cast<std::uint32_t>(std::countr_zero(mask));
    global.relocations.push_back(relocation);
    return appendValue(global, 0, size);
  }
  const bool minus = accept('-');
  const Token value = next();
  if (value.kind == TokenKind::kInteger) {
    std::uint64_t bits = minus ? std::uint64_t{0} - value.value : value.value;
    if (d.type == Type::kF32)
      bits = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int64_t>(bits)));
    if (d.type == Type::kF64)
      bits = std::bit_cast<std::uint64_t>(static_cast<double>(static_cast<std::int64_t>(bits)));
    appendValue(global, bits, size);
  } else if (value.kind == TokenKind::kFloat32) {
    appendValue(global, value.value ^ (minus ? 0x80000000ULL : 0), size);
  } else if (value.kind == TokenKind::kFloat64) {
    std::uint64_t bits = value.value ^ (minus ? 0x8000000000000000ULL : 0);
    if (size == 4)
      bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
    appendValue(global, bits, size);
  } else {
    fail("initialiser expected before '" + std::string(value.text) + "'");
  }
}

SymbolRef Parser::addModuleSymbol(Symbol symbol, std::string_view name, bool scoped) {
  const auto index = static_cast<std::int32_t>(ast_.symbols.size());
  ast_.symbols.push_back(std::move(symbol));
  const SymbolRef ref{true, index};
  if (scoped) {
    scopes_.back().symbols[name] = ref;
  } else {
    module_symbols_[name] = index;
  }
  return ref;
}

void Parser::moduleVariables(Space space, bool visible, bool external) {
  if (space == Space::kLocal || space == Space::kParam)
    fail("variable space not allowed at module scope");
  Declarator d = declaratorPrefix();
  do {
    declaratorName(d);
    moduleVariable(space, d, visible, external, false);
  } while (accept(','));
  expect(';');
}

void Parser::moduleVariable(Space space, const Declarator& d, bool visible, bool external,
                            bool scoped) {
  Symbol symbol;
  symbol.name = std::string(d.name);
  symbol.space = space;
  symbol.type = d.type;
  symbol.align = d.alignment();
  symbol.size = d.unsized ? 0 : d.bytes();
  symbol.is_extern = external;
  const auto known = module_symbols_.find(d.name);
  Symbol* old = nullptr;
  if (!scoped && known != module_symbols_.end())
    old = &ast_.symbols[static_cast<std::size_t>(known->second)];
  if (space == Space::kShared) {
    if (old == nullptr) addModuleSymbol(std::move(symbol), d.name, scoped);
    return;
  }
  GlobalInfo global;
  global.name = symbol.name;
  global.align = symbol.align;
  global.is_const = space == Space::kConst;
  global.is_extern = external;
  global.is_managed = d.managed;
  global.is_visible = visible;
  if (accept('=')) initializer(global, d, 0);
  global.size = d.unsized ? global.init.size() : d.bytes();
  if (global.init.size() > global.size) fail("initialiser is larger than '" + global.name + "'");
  if (old != nullptr && !old->is_function) {  // an .extern declaration and then the definition
    if (!external) {
      ast_.globals[old->index] = std::move(global);
      old->is_extern = false;
      old->size = ast_.globals[old->index].size;
    }
    return;
  }
  symbol.size = global.size;
  symbol.index = static_cast<std::uint32_t>(ast_.globals.size());
  ast_.globals.push_back(std::move(global));
  addModuleSymbol(std::move(symbol), d.name, scoped);
}

Result<Ast> parse(std::string_view text) {
  auto tokens = tokenize(text);
  if (!tokens) return tokens.error();
  try {
    return Parser(std::move(tokens).value()).run();
  } catch (const ParseError& error) {
    return Error{std::to_string(error.line) + ": " + error.what};
  }
}

}  // namespace olpager::simgpu::ptx
