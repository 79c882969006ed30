#include "gpunode/simgpu/ptx/lexer.h"

#include <bit>
#include <charconv>
#include <cstdlib>
#include <string>

namespace olpager::simgpu::ptx {
namespace {

bool isWordStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
}
bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool isWordPart(char c) { return isWordStart(c) || isDigit(c); }
bool isHex(char c) { return isDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Result<std::vector<Token>> run() {
    tokens_.reserve(text_.size() / 4 + 16);
    while (true) {
      if (auto status = skipBlank(); !status) return status.error();
      if (pos_ >= text_.size() || text_[pos_] == '\0') break;
      const char c = text_[pos_];
      if (isWordStart(c)) {
        word(TokenKind::kWord, true);
      } else if (c == '.' && pos_ + 1 < text_.size() && isWordStart(text_[pos_ + 1])) {
        word(TokenKind::kDirective, false);
      } else if (isDigit(c)) {
        if (auto status = number(); !status) return status.error();
      } else if (c == '"') {
        if (auto status = quoted(); !status) return status.error();
      } else {
        Token token = make(TokenKind::kPunct);
        token.punct = c;
        token.text = text_.substr(pos_++, 1);
        tokens_.push_back(token);
      }
    }
    tokens_.push_back(make(TokenKind::kEnd));
    return std::move(tokens_);
  }

 private:
  Token make(TokenKind kind) const {
    Token token;
    token.kind = kind;
    token.line = line_;
    return token;
  }
  Error error(const std::string& what) const { return Error{std::to_string(line_) + ": " + what}; }

  Status skipBlank() {
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == '\n') {
        ++line_;
        ++pos_;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
        ++pos_;
      } else if (c == '/' && pos_ + 1 < text_.size() && text_[pos_ + 1] == '/') {
        while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
      } else if (c == '/' && pos_ + 1 < text_.size() && text_[pos_ + 1] == '*') {
        const std::size_t end = text_.find("*/", pos_ + 2);
        if (end == std::string_view::npos) return error("comment without end");
        for (; pos_ < end + 2; ++pos_) line_ += text_[pos_] == '\n';
      } else {
        break;
      }
    }
    return {};
  }

  void word(TokenKind kind, bool dots) {
    const std::size_t begin = pos_++;
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      const bool more = pos_ + 1 < text_.size();
      const bool dot = c == '.' && dots && more && isWordPart(text_[pos_ + 1]);
      if (isWordPart(c) || dot) {
        ++pos_;
      } else if (c == ':' && more && text_[pos_ + 1] == ':') {
        pos_ += 2;
      } else {
        break;
      }
    }
    Token token = make(kind);
    token.text = text_.substr(begin, pos_ - begin);
    tokens_.push_back(token);
  }

  Status number() {
    const std::size_t begin = pos_;
    Token token = make(TokenKind::kInteger);
    const char* const base = text_.data();
    const auto hexRun = [&](std::size_t from, std::size_t digits) {
      std::size_t n = 0;
      while (n < digits && from + n < text_.size() && isHex(text_[from + n])) ++n;
      return n == digits;
    };
    const char second = pos_ + 1 < text_.size() ? text_[pos_ + 1] : ' ';
    if (text_[pos_] == '0' && (second == 'f' || second == 'F') && hexRun(pos_ + 2, 8)) {
      token.kind = TokenKind::kFloat32;
      std::from_chars(base + pos_ + 2, base + pos_ + 10, token.value, 16);
      pos_ += 10;
    } else if (text_[pos_] == '0' && (second == 'd' || second == 'D') && hexRun(pos_ + 2, 16)) {
      token.kind = TokenKind::kFloat64;
      std::from_chars(base + pos_ + 2, base + pos_ + 18, token.value, 16);
      pos_ += 18;
    } else {
      int radix = 10;
      if (text_[pos_] == '0' && (second == 'x' || second == 'X')) {
        radix = 16;
        pos_ += 2;
      } else if (text_[pos_] == '0' && (second == 'b' || second == 'B')) {
        radix = 2;
        pos_ += 2;
      } else if (text_[pos_] == '0' && isDigit(second)) {
        radix = 8;
      }
      const auto [end, code] =
          std::from_chars(base + pos_, base + text_.size(), token.value, radix);
      if (code != std::errc()) return error("number out of range");
      pos_ = static_cast<std::size_t>(end - base);
      const bool fraction =
          radix == 10 && pos_ < text_.size() &&
          ((text_[pos_] == '.' && pos_ + 1 < text_.size() && !isWordStart(text_[pos_ + 1])) ||
           text_[pos_] == 'e' || text_[pos_] == 'E');
      if (fraction) {
        const std::string copy(text_.substr(begin, 64));
        char* stop = nullptr;
        token.kind = TokenKind::kFloat64;
        token.value = std::bit_cast<std::uint64_t>(std::strtod(copy.c_str(), &stop));
        pos_ = begin + static_cast<std::size_t>(stop - copy.c_str());
      } else if (pos_ < text_.size() && text_[pos_] == 'U') {
        ++pos_;
      }
    }
    token.text = text_.substr(begin, pos_ - begin);
    tokens_.push_back(token);
    return {};
  }

  Status quoted() {
    const std::size_t end = text_.find('"', pos_ + 1);
    if (end == std::string_view::npos) return error("string without end");
    Token token = make(TokenKind::kString);
    token.text = text_.substr(pos_ + 1, end - pos_ - 1);
    tokens_.push_back(token);
    pos_ = end + 1;
    return {};
  }

  std::string_view text_;
  std::size_t pos_ = 0;
  std::uint32_t line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view text) { return Lexer(text).run(); }

}  // namespace olpager::simgpu::ptx
