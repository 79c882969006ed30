// Recursive-descent parser for PTX modules. Names are resolved while parsing; only labels may be used before they
// appear.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_map>

#include "gpunode/simgpu/ptx/ast.h"
#include "gpunode/simgpu/ptx/lexer.h"

namespace olpager::simgpu::ptx {
namespace {

std::uint64_t alignUp(std::uint64_t value, std::uint64_t align) { return (value + align - 1) / align * align; }

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
  // Where the label's id goes: operand `operand` of instruction `index`, or entry `operand` of target list `index`.
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
  const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)]; }
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
    if (!accept(c)) fail(std::string("'") + c + "' expected before '" + std::string(peek().text) + "'");
  }
  std::string_view expectWord() {
    if (peek().kind != TokenKind::kWord) fail("name expected before '" + std::string(peek().text) + "'");
    return next().text;
  }
  std::uint64_t expectInteger() {
    const bool minus = accept('-');
    if (peek().kind != TokenKind::kInteger) fail("number expected before '" + std::string(peek().text) + "'");
    const std::uint64_t value = next().value;
    return minus ? std::uint64_t{0} - value : value;
  }
  void skipLine() {
    const std::uint32_t line = peek().line;
    while (peek().kind != TokenKind::kEnd && peek().line == line) ++pos_;
  }
  void skipBraces() {
    expect('{');
    for (int depth = 1; depth > 0;) {
      if (peek().kind == TokenKind::kEnd) fail("'}' missing");
      if (peek().is('{')) ++depth;
      if (peek().is('}')) --depth;
      ++pos_;
    }
  }
  void skipStatement() {
    while (!peek().is(';')) {
      if (peek().kind == TokenKind::kEnd) fail("';' missing");
      ++pos_;
    }
    ++pos_;
  }

  // --- module scope ---
  void topLevel() {
    if (accept(';')) return;
    if (accept(".version")) {
      const std::string_view text = next().text;
      const std::size_t dot = text.find('.');
      ast_.version = std::atoi(std::string(text.substr(0, dot)).c_str()) * 10;
      if (dot != std::string_view::npos) ast_.version += std::atoi(std::string(text.substr(dot + 1)).c_str());
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
      if (found == module_symbols_.end()) fail("alias of unknown function '" + std::string(target) + "'");
      const auto declared = module_symbols_.find(alias);
      // Code parsed before this line already refers to the alias's own declaration: make that one the target too.
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

  std::optional<Space> variableSpace() {
    if (accept(".global")) return Space::kGlobal;
    if (accept(".const")) return Space::kConst;
    if (accept(".shared")) return Space::kShared;
    if (accept(".local")) return Space::kLocal;
    if (accept(".param")) return Space::kParam;
    return std::nullopt;
  }

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

  /// What stands between the space and the name: `.align 8 .attribute(.managed) .v2 .f32 .ptr .global`.
  Declarator declaratorPrefix() {
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
      if (pointer_ && (accept(".global") || accept(".const") || accept(".shared") || accept(".local"))) continue;
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

  void declaratorName(Declarator& d) {
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

  void appendValue(GlobalInfo& global, std::uint64_t value, std::uint32_t size) {
    for (std::uint32_t i = 0; i < size; ++i) {
      global.init.push_back(static_cast<std::byte>(i < 8 ? value >> (8 * i) : 0));
    }
  }

  void initializer(GlobalInfo& global, const Declarator& d, std::uint64_t row_bytes) {
    const std::uint32_t size = typeSize(d.type);
    if (accept('{')) {
      const std::size_t begin = global.init.size();
      while (!peek().is('}')) {
        initializer(global, d, 0);
        if (!accept(',')) break;
      }
      expect('}');
      // A short inner row leaves the rest of the row zero.
      if (row_bytes != 0 && global.init.size() - begin < row_bytes) global.init.resize(begin + row_bytes);
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
    if (token.kind == TokenKind::kInteger && peek(1).is('(')) {  // 0xFF00(symbol): one byte of an address
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
      if (size == 4) bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
      appendValue(global, bits, size);
    } else {
      fail("initialiser expected before '" + std::string(value.text) + "'");
    }
  }

  SymbolRef addModuleSymbol(Symbol symbol, std::string_view name, bool scoped) {
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

  void moduleVariables(Space space, bool visible, bool external) {
    if (space == Space::kLocal || space == Space::kParam) fail("variable space not allowed at module scope");
    Declarator d = declaratorPrefix();
    do {
      declaratorName(d);
      moduleVariable(space, d, visible, external, false);
    } while (accept(','));
    expect(';');
  }

  void moduleVariable(Space space, const Declarator& d, bool visible, bool external, bool scoped) {
    Symbol symbol;
    symbol.name = std::string(d.name);
    symbol.space = space;
    symbol.type = d.type;
    symbol.align = d.alignment();
    symbol.size = d.unsized ? 0 : d.bytes();
    symbol.is_extern = external;
    const auto known = module_symbols_.find(d.name);
    Symbol* old = nullptr;
    if (!scoped && known != module_symbols_.end()) old = &ast_.symbols[static_cast<std::size_t>(known->second)];
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
      if (!accept(',') && !peek().is(')')) fail("')' expected before '" + std::string(peek().text) + "'");
    }
    return list;
  }

  void function(bool entry, bool visible, bool external) {
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
      fresh.info.params.push_back(
          ParamInfo{symbol.name, symbol.offset, static_cast<std::uint32_t>(symbol.size), symbol.align});
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

  void limits(KernelInfo& info) {
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
      } else if (accept(".maxnctapersm") || accept(".maxclusterrank")) {
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
      } else if (accept(".abi_preserve") || accept(".abi_preserve_control")) {
        expectInteger();
      } else {
        fail("directive '" + std::string(peek().text) + "' is not supported here");
      }
    }
  }

  void body() {
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

  void openScope() {
    scopes_.emplace_back();
    scopes_.back().param_offset = param_offset_;
  }

  void closeScope() {
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

  void statement() {
    if (accept(';')) return;
    if (accept('{')) return openScope();
    const Token& token = peek();
    if (token.kind == TokenKind::kDirective) return bodyDirective();
    if (token.kind == TokenKind::kWord && peek(1).is(':')) return label();
    instruction();
  }

  void bodyDirective() {
    if (peek().is(".loc") || peek().is(".file")) return skipLine();
    if (accept(".pragma")) return skipStatement();
    if (accept(".section")) {
      while (!peek().is('{') && peek().kind != TokenKind::kEnd) ++pos_;
      return skipBraces();
    }
    if (accept(".reg")) return registers();
    bool external = false;
    while (peek().is(".extern") || peek().is(".visible") || peek().is(".weak")) external |= next().is(".extern");
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
        scopes_.back().symbols[d.name] = SymbolRef{false, static_cast<std::int32_t>(function_->symbols.size())};
        function_->symbols.push_back(std::move(symbol));
      } else {
        moduleVariable(*space, d, false, external, true);
      }
    } while (accept(','));
    expect(';');
  }

  void registers() {
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

  void label() {
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

  // --- instructions ---
  std::int32_t findRegister(std::string_view name) const {
    std::size_t digits = name.size();
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->registers.find(name); found != scope->registers.end()) return found->second;
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

  SymbolRef findSymbol(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->symbols.find(name); found != scope->symbols.end()) return found->second;
    }
    const auto found = module_symbols_.find(name);
    return found == module_symbols_.end() ? SymbolRef{} : SymbolRef{true, found->second};
  }

  std::int32_t expectRegister() {
    const std::string_view name = expectWord();
    const std::int32_t reg = findRegister(name);
    if (reg < 0) fail("unknown register '" + std::string(name) + "'");
    return reg;
  }

  void instruction() {
    Instruction instr;
    if (accept('@')) {
      instr.guard_negated = accept('!');
      instr.guard = expectRegister();
    }
    if (peek().kind != TokenKind::kWord) fail("instruction expected before '" + std::string(peek().text) + "'");
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
        fail("';' expected before '" + std::string(peek().text) + "' in '" + std::string(instr.opcode) + "'");
      }
    }
    function_->code.push_back(std::move(instr));
  }

  Operand operand(Instruction& instr) {
    Operand result;
    const Token& token = peek();
    if (accept('{') || accept('(')) {
      result.kind = token.is('{') ? OperandKind::kVector : OperandKind::kList;
      const char close = token.is('{') ? '}' : ')';
      while (!accept(close)) {
        result.items.push_back(operand(instr));
        if (!accept(',') && !peek().is(close)) fail(std::string("'") + close + "' expected");
      }
      return result;
    }
    if (accept('[')) return address();
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

  void nameOperand(Instruction& instr, Operand& result, const Token& name) {
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
      if (accept('+')) {
        result.value = expectInteger();
      } else if (peek().is('-')) {
        result.value = expectInteger();
      }
      return;
    }
    if (instr.parts[0] != "bra") fail("unknown name '" + std::string(name.text) + "'");
    result.kind = OperandKind::kLabel;
    scopes_.back().pending.push_back(
        PendingLabel{name.text, name.line, false, function_->code.size(), instr.operands.size()});
  }

  Operand address() {
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
      if (accept('+')) {
        result.value = expectInteger();
      } else if (peek().is('-')) {
        result.value = expectInteger();
      }
    } else {
      result.value = expectInteger();
    }
    expect(']');
    return result;
  }

  std::vector<Token> tokens_;
  std::size_t pos_ = 0;
  Ast ast_;
  std::unordered_map<std::string_view, std::int32_t> module_symbols_;
  AstFunction* function_ = nullptr;
  std::vector<Scope> scopes_;
  std::uint32_t param_offset_ = 0;
  bool pointer_ = false;
};

}  // namespace

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
